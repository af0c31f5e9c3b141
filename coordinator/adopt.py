"""A new leader's first look: the group's state as it is, and what the checkpoints, the queue and the store's
incarnation say beyond it. Reads only; what follows is for the runtime to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from coordinator.core.actions import Action
from coordinator.core.events import Event, QueueAltered, ReportsLost
from coordinator.core.invariants import violations
from coordinator.core.machine import decide
from coordinator.core.reconcile import differences, initial_state
from coordinator.facts import GroupFacts
from coordinator.listing import Listed
from partq_spark.base.errors import Corrupt
from partq_spark.group.codec import decode_state
from partq_spark.group.model import GroupKey, GroupState, Phase
from partq_spark.group.ownership import Ownership, Pulse, StateDocument

HOLDDOWN = "holddown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timers:
    """What runs, as deadlines by this process' clock, and the state that it belongs to."""

    state_token: str = ""
    deadlines_s: Mapping[str, float] = field(default_factory=dict)

    def remaining_s(self, now_s: float) -> dict[str, float]:
        """As a lease carries them."""
        return {name: round(max(0.0, at_s - now_s), 3) for name, at_s in self.deadlines_s.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """The state that a new leader begins with, still to be written in place of the one at `token`."""

    state: GroupState
    token: str | None
    events: tuple[Event, ...]
    actions: tuple[Action, ...]
    reason: str
    level: str  # of the line that tells it


def timers_of(state: GroupState, token: str) -> Timers:
    """The timers that run in `state`."""
    deadlines_s = {
        str(number): partition.deadline_s
        for number, partition in state.partitions.items()
        if partition.phase is Phase.PAUSED and partition.deadline_s is not None
    }
    if state.holddown_until_s is not None:
        deadlines_s[HOLDDOWN] = state.holddown_until_s
    return Timers(state_token=token, deadlines_s=deadlines_s)


def with_timers(state: GroupState, timers: Timers) -> GroupState:
    """`state` with deadlines that were known more lately than its own. A name that is missing changes nothing."""
    partitions = {
        number: replace(partition, deadline_s=timers.deadlines_s.get(str(number), partition.deadline_s))
        if partition.phase is Phase.PAUSED and partition.deadline_s is not None
        else partition
        for number, partition in state.partitions.items()
    }
    until_s = state.holddown_until_s
    if until_s is not None:
        until_s = timers.deadlines_s.get(HOLDDOWN, until_s)
    return replace(state, partitions=partitions, holddown_until_s=until_s)


def altered(state: GroupState, facts: GroupFacts) -> bool:
    """Whether the queue is not what the state takes it for."""
    present = [number for number, partition in state.partitions.items() if not partition.removed]
    return state.settings != facts.settings or sorted(present) != sorted(facts.partitions)


def is_left_alone(pulse: Pulse) -> bool:
    """No flow has bound by this store, or it lost all it knew and those who live will bind again. Until one does, the
    checkpoints may be those of a query that has the group for itself (`ownership=none`), and are not touched.
    """
    return pulse.state_token is None and not pulse.beats


def is_nobodys(state: GroupState) -> bool:
    """Nobody has or gets anything: whose the checkpoints are is a matter for the first flow that binds (see
    `is_left_alone`).
    """
    return not state.flows and all(each.owner is None and each.to is None for each in state.partitions.values())


def adopt(
    store: Ownership,
    key: GroupKey,
    checkpoints: Callable[[], Listed],
    *,
    facts: GroupFacts,
    incarnation: str,
    timers: Timers,
    session_timeout_s: float,
    now_s: Callable[[], float],
) -> Adopted:
    """The group as a new leader finds it. `timers` are the ones that the lease had; `session_timeout_s` is assumed of
    flows of which nothing is known but their names in the checkpoints.

    The state is read before the checkpoints are: what a former leader still fences in between then shows as a
    difference, and makes this leader's swap fail, because that leader wrote a state first.
    """
    document = store.read_state(key)
    found = document if isinstance(document, StateDocument) else None
    state, level, reason = _read(key, found, facts, now_s())
    if state is None:
        known = [record.session_timeout_s for record in store.read_flows(key).values()]
        session_timeout_s = max([session_timeout_s, *known])
    listed = checkpoints()
    if state is None:
        state = initial_state(
            queue_id=facts.queue_id,
            incarnation=incarnation,
            settings=facts.settings,
            partitions=facts.partitions,
            checkpoints=listed.marks,
            damaged=listed.damaged,
            session_timeout_s=session_timeout_s,
            now_s=now_s(),
        )
    elif found is not None and timers.state_token == found.token:
        state = with_timers(state, timers)
    actions: list[Action] = []
    if is_nobodys(state):
        listed = Listed(marks={})
    events = tuple(_what_differs(state, facts, incarnation, listed))
    for event in events:
        state, more = decide(state, event, now_s())
        actions.extend(more)
    token = found.token if found is not None else None
    return Adopted(state=state, token=token, events=events, actions=tuple(actions), reason=reason, level=level)


def _read(
    key: GroupKey, found: StateDocument | None, facts: GroupFacts, now_s: float
) -> tuple[GroupState | None, str, str]:
    """The state if there is one of this queue that can be used; what is to be told of it, and how loudly."""
    if found is None:
        return None, "info", "there was no state: it begins with the checkpoints"
    anew = "it begins anew with the checkpoints"
    try:
        state = decode_state(found.body, now_s, f"state of group {key}")
    except Corrupt as error:
        return None, "error", f"the state could not be read, {anew}: {error}"
    if state.queue_id != facts.queue_id:
        return None, "info", f"the state was that of a former queue, {state.queue_id}: it begins anew"
    broken = violations(state)
    if broken:  # nothing may be built on it, and waiting would not mend it
        return None, "error", f"the state is against the invariants, {anew}: {'; '.join(broken[:3])}"
    return state, "info", "the lease was taken over"


def _what_differs(state: GroupState, facts: GroupFacts, incarnation: str, listed: Listed) -> Iterator[Event]:
    if state.incarnation != incarnation:
        yield ReportsLost(incarnation=incarnation)
    yield from differences(state, listed.marks, listed.damaged)
    if altered(state, facts):
        yield QueueAltered(
            settings=facts.settings,
            partitions=facts.partitions,
            epochs={number: mark.epoch for number, mark in listed.marks.items()},
        )
