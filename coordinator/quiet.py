"""What a leader remembers of a look at which there was nothing to do. Values only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coordinator.core.draft import is_in_handoff
from coordinator.core.machine import next_deadline, pending
from coordinator.facts import GroupFacts
from coordinator.records import Records
from partq_spark.group.model import GroupState


@dataclass(frozen=True, slots=True)
class Quiet:
    """What was looked at in full and asked for nothing: as long as it is all still so, there is nothing to do but to
    watch heartbeats and the time. A sidecar has hundreds of groups, and nearly all are quiet.
    """

    state: GroupState
    records: Records
    facts: GroupFacts
    deadline_s: float
    session_timeout_s: float  # the shortest

    @classmethod
    def after(cls, state: GroupState, records: Records | None, facts: GroupFacts) -> Quiet | None:
        """After such a look; None while something is on its way."""
        if records is None or is_in_handoff(state) or pending(state):
            return None
        due_s = next_deadline(state)
        return cls(
            state,
            records,
            facts,
            deadline_s=math.inf if due_s is None else due_s,
            session_timeout_s=min((each.session_timeout_s for each in records.flows.values()), default=math.inf),
        )
