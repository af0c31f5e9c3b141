"""What a decision changed, as values, each told once with its reason in words. Nothing of it is carried out: what has
to be done follows from the state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from coordinator.core.handoff import Cause

NOBODY: Final = "nobody"
"""In place of a flow that gets a partition. No flow is called so by accident: it is a word of the log."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """One thing that happened: `event` is its word in the log. Of a partition: `cause`, whose it was (`flow`) and whose
    it becomes (`to`), by the names of flows, and its `epoch`. Of a flow: its `instance`. `status`: of the group, or
    `active` or `inactive`, of which a flow is told (FLO-05).
    """

    event: str
    partition: int | None = None
    cause: Cause | None = None
    flow: str | None = None
    to: str | None = None
    epoch: int | None = None
    instance: str | None = None
    status: str | None = None
    reason: str

    @property
    def facts(self) -> dict[str, str | int | None]:
        """All of it but the event's word."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "event"}
