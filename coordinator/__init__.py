"""Decides which consumer has which partition: a small process beside the queues, which imports `partq_spark` and is
imported by nobody. Queries without a consumer group need no coordinator.

`core` decides, without I/O. `runtime` takes one group's steps: it leads (`leadership`), observes
(`reconciliation`), has `core` decide, writes the state, and acts on it (`acting`). The order *state before
effect* is its rule. `housekeeper` looks after the storage of a namespace. `service` has a job for
each group, for the queues' heads and for housekeeping; `schedule` gives each its turn. What a group cannot do at the
moment stops no other group.
"""
