"""The message log: what a queue contains, as one head document and immutable blobs (docs/log-format.md).

A queue is changed only by a compare-and-swap of its head. Nothing here knows of Spark, Redis, consumers or ownership.
"""
