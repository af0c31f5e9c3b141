"""Decides which consumer has which partition: a small process beside the queues, which imports `partq_spark` and is
imported by nobody.

`core` decides, without I/O; `runtime` does what was decided for one group, `service` for all of them. Queries without a
consumer group need no coordinator.
"""
