"""What decides: pure functions over the values of `partq_spark.group.model`, with time as an argument.

Standard library only; no I/O, clock, randomness, logging or threads. `machine.decide` is the only way to change a
group's state; `invariants` says what is true of every state.
"""
