"""The main job on real data: a year of flights, shared by queries that come and go, every aircraft in order.

`flights` prepares the data and feeds it to a stream, `queries` is Spark with its queries, `processes` starts and ends
what is a process of its own, `ledger` understands the coordinator's log, `proof` counts the outcome. The command, its
story and its screen are in `partq_spark.cli`.
"""
