"""What ownership refuses: conditions that did not hold, and what cannot be stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from partq_spark.base.errors import Conflict, Fenced, Invalid, Unavailable
from partq_spark.group.model import GroupKey, OwnershipRecord


def state_changed(key: GroupKey, expected: str | None) -> Conflict:
    """`swap_state` found another token."""
    was = "no state" if expected is None else f"token {expected}"
    return Conflict(f"state of group {key} is not at {was} any more: read it again, and the lease, before changing it")


def name_taken(key: GroupKey, flow: str) -> Conflict:
    """`bind` found another instance, whose heartbeat has moved since it was read."""
    return Conflict(
        f"flow {flow!r} of group {key} is or was bound by another process: watch its heartbeat before taking over"
    )


def not_bound(key: GroupKey, flow: str, instance: str) -> Fenced:
    """The flow is not bound to this instance, or was forgotten."""
    return Fenced(
        f"flow {flow!r} of group {key} is not bound to instance {instance} any more: bind again as a new instance"
    )


def restless(key: GroupKey, flow: str) -> Unavailable:
    """The heartbeat was another one at each try."""
    return Unavailable(f"heartbeat of flow {flow!r} of group {key} changed whenever it was read: try again")


def lease_changed(key: GroupKey, doing: str) -> Conflict:
    """The lease is not where the caller expected it."""
    return Conflict(f"lease of group {key} is not where it was expected when {doing} it: read it before leading")


_FLOW: Final = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9._=-]{0,127}", re.ASCII)


def checked_flow(name: str) -> str:
    """The name of a flow or an instance itself, if it can be stored; raises `Invalid` otherwise."""
    if _FLOW.fullmatch(name) is None:
        raise Invalid(
            f"flow name {name[:80]!r} is not allowed: use 1 to 128 of A-Z, a-z, 0-9, '.', '_', '=', '-', not beginning"
            " with a dot"
        )
    return name


def only_group(records: Iterable[OwnershipRecord]) -> GroupKey:
    """The group of all these records; raises `Invalid` if there are several, because answers are by partition."""
    keys = sorted({record.key for record in records})
    if len(keys) != 1:
        named = ", ".join(map(str, keys)) or "none"
        raise Invalid(f"ownership of several groups cannot be claimed in one call ({named}): make one call for each")
    return keys[0]
