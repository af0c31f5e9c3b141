"""The main job on real data: flights of 2013 out of New York, published and read in order per aircraft.

`flights` prepares the data, `queries` is the Spark driver (a process of its own), `check` proves the outcome; the
command that ties them together is `partq_spark.cli.demo`.
"""
