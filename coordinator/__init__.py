"""Decides which consumer has which partition: a small process beside the queues, which imports `partq_spark` and is
imported by nobody.

It is empty until ownership is built. Queries without a consumer group need no coordinator.
"""
