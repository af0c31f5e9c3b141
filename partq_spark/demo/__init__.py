"""The main job on real data: a year of flights, shared by queries that come and go, every aircraft in order.

`flights` prepares the data and `feed` lets it flow, `queries` is the Spark driver (a process of its own), `readers`
finds what of it can be killed, `family` starts and ends the processes (`spark_home` makes the start quick), `ledger`
understands the coordinator's log, `proof` is the outcome. The command, its story and its screen are in
`partq_spark.cli`.
"""
