"""Consumers of a queue: the values of a group, who owns which partition and how far it is acknowledged, and the session
that makes any Python process a flow.

Nothing here imports pyspark; `stores` is the only package that talks to Redis.
"""
