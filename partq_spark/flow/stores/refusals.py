"""What every ownership store says when a condition did not hold, in the same words. Messages only."""

from __future__ import annotations

from partq_spark.errors import Conflict, Fenced
from partq_spark.flow.model import GroupKey
from partq_spark.flow.stores.api import Reincarnated


def state_changed(key: GroupKey, expected: str | None) -> Conflict:
    """`swap_state` found another token."""
    was = "no state" if expected is None else f"token {expected}"
    return Conflict(f"state of group {key} is not at {was} any more: read it again, and the lease, before changing it")


def name_taken(key: GroupKey, flow: str) -> Conflict:
    """`bind` found a record of another instance that is bound and was not the one that was watched."""
    return Conflict(f"flow {flow!r} of group {key} is bound by another process: watch its heartbeat before taking over")


def not_bound(key: GroupKey, flow: str, instance: str) -> Fenced:
    """The record is not bound to this instance, or gone."""
    return Fenced(
        f"flow {flow!r} of group {key} is not bound to instance {instance} any more: bind again as a new instance"
    )


def lease_changed(key: GroupKey, doing: str) -> Conflict:
    """The lease is not where the caller expected it."""
    return Conflict(f"lease of group {key} is not where it was expected when {doing} it: read it before leading")


def reincarnated(url: str, was: str, found: str) -> Reincarnated:
    """The store lives anew."""
    return Reincarnated(
        f"ownership {url} was restarted or replaced (incarnation {was}, now {found}): ask for its incarnation, then"
        " bind or lead anew"
    )
