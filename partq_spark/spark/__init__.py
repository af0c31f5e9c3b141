"""The edge to Spark: options, columns, readers, writers, listener. Nothing else in partq imports pyspark.

Thin: what is delivered is decided in `query`, what is stored in `log`.
"""
