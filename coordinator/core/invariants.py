"""What is true of every state, as named predicates: checked before every write and after every test."""

from __future__ import annotations

from partq_spark.flow.model import GroupState


def violations(state: GroupState) -> tuple[str, ...]:
    """The sentences that are not true of `state`, each with the partition or flow that breaks it; () if all is well."""
    raise NotImplementedError
