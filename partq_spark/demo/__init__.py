"""The main job on real data: a year of flights, shared by queries that come and go, every aircraft in order.

`flights` prepares the data, feeds it to a stream and proves what became of it, `queries` is Spark with its queries,
`processes` starts and ends what is a process of its own, and understands the coordinator's log. The command, its story
and its screen are in `partq_spark.cli`.
"""
