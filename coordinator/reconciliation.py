"""A group's state against its queue's head and its checkpoints: in full when a leader adopts the group, and again when
the head has something new. Reads only; what follows is for the runtime to write.

A damaged checkpoint says nothing: the others count all the same, and it is looked for again until it can be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from coordinator.core.events import (
    CheckpointMark,
    Event,
    FlowBound,
    FlowExpired,
    FlowUnbound,
    QueueAltered,
    Told,
    differences,
    initial_state,
)
from coordinator.core.invariants import violations
from coordinator.core.machine import decide
from coordinator.heads import GroupFacts
from coordinator.leadership import FailureDetector, Timers, with_timers
from coordinator.logs import Log
from partq_spark.base.errors import Corrupt
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.model import FlowRecord, GroupKey, GroupState, Owner, done_to
from partq_spark.group.ownership import Ownership, Pulse, Seen, StateDocument

LOOK_S: Final = 5.0  # between two listings while a checkpoint is damaged


@dataclass(frozen=True, kw_only=True, slots=True)
class Adopted:
    """The state that a new leader begins with, still to be written in place of the one at `token`."""

    state: GroupState
    token: str | None
    told: tuple[Told, ...]
    reason: str
    level: str  # of the line that tells it


class Reconciliation:
    """Of one group, in one process: what is remembered is which rewinds were counted before the checkpoints were last
    listed, and which of them were damaged.
    """

    def __init__(
        self, key: GroupKey, checkpoints: Callable[[GroupFacts], CheckpointStore], now_s: Callable[[], float], log: Log
    ) -> None:
        self._key = key
        self._make_checkpoints = checkpoints
        self._now_s = now_s
        self._log = log
        self._rewinds = 0
        self._damaged: frozenset[int] = frozenset()
        self._listed_s = 0.0

    def _list(self, facts: GroupFacts) -> Mapping[int, CheckpointMark]:
        """What the checkpoints of a group with these facts, which were read before, say of ownership; those that are
        damaged are remembered. Raises `Unavailable`.
        """
        self._rewinds = facts.rewinds
        found, damaged = self._make_checkpoints(facts).list_readable()
        self._listed_s = self._now_s()
        for number in sorted(damaged.keys() - self._damaged):
            self._log("error", "checkpoint_damaged", partition=number, reason=str(damaged[number]))
        for number in sorted(self._damaged - damaged.keys()):
            self._log("info", "checkpoint_repaired", partition=number, reason="it can be read")
        self._damaged = frozenset(damaged)
        return {number: CheckpointMark(epoch=each.epoch, owner=each.owner) for number, each in found.items()}

    def adopt(
        self,
        store: Ownership,
        facts: GroupFacts,
        *,
        timers: Timers,
        session_timeout_s: float,
    ) -> Adopted:
        """The group as a new leader finds it. `timers` are the ones that the lease had; `session_timeout_s` is assumed
        of flows of which nothing is known but their names in the checkpoints.

        The state is read before the checkpoints are: what a former leader still fences in between then shows as a
        difference, and makes this leader's swap fail, because that leader wrote a state first.
        """
        document = store.read_state(self._key)
        found = document if isinstance(document, StateDocument) else None
        state, level, reason = _read(self._key, found, facts, self._now_s())
        marks = self._list(facts)
        if state is None:
            state = initial_state(
                queue_id=facts.queue_id,
                settings=facts.settings,
                partitions=facts.partitions,
                checkpoints=marks,
                session_timeout_s=session_timeout_s,
                now_s=self._now_s(),
            )
        elif found is not None and timers.state_token == found.token:
            state = with_timers(state, timers)
        told: list[Told] = []
        if is_unclaimed(state):
            marks = {}
        for event in (*differences(state, marks, self._damaged), *_altered(state, facts, marks)):
            state, more = decide(state, event, self._now_s())
            told.extend(more)
        token = found.token if found is not None else None
        return Adopted(state=state, token=token, told=tuple(told), reason=reason, level=level)

    def look(self, state: GroupState, facts: GroupFacts, confirmed: Callable[[], GroupFacts]) -> Iterator[Event]:
        """What the head has that the state does not know of: other settings, other partitions, rewinds. Only then, and
        when a group is adopted, are its checkpoints listed (CHK-03), and while one of them is damaged.

        `confirmed` gives the facts as they are now. If the leader cannot act on what is told here, it adopts the
        group anew, which lists the checkpoints again.
        """

        def is_news(seen: GroupFacts) -> bool:
            return altered(state, seen) or seen.rewinds != self._rewinds

        news = is_news(facts) and is_news(facts := confirmed())
        may_be_repaired = self._damaged and self._now_s() - self._listed_s >= LOOK_S
        if not news and not may_be_repaired:
            return
        rewound, damaged = facts.rewinds != self._rewinds, self._damaged
        marks = self._list(facts)
        if (rewound or damaged - self._damaged) and not is_unclaimed(state):
            yield from differences(state, marks, self._damaged)
        yield from _altered(state, facts, marks)


def altered(state: GroupState, facts: GroupFacts) -> bool:
    """Whether the queue is not what the state takes it for."""
    present = [number for number, partition in state.partitions.items() if not partition.removed]
    return state.settings != facts.settings or sorted(present) != sorted(facts.partitions)


def is_without_flows(pulse: Pulse) -> bool:
    """No flow has bound by this store, or it lost all it knew and those who live will bind again. Until one does, the
    checkpoints may be those of a query that has the group for itself (`ownership=none`), and are not touched.
    """
    return pulse.state_token is None and not pulse.flows


def is_unclaimed(state: GroupState) -> bool:
    """Nobody has or gets anything: whose the checkpoints are is a matter for the first flow that binds (see
    `is_without_flows`).
    """
    return not state.flows and all(each.owner is None and each.to is None for each in state.partitions.values())


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


def _altered(state: GroupState, facts: GroupFacts, marks: Mapping[int, CheckpointMark]) -> Iterator[Event]:
    if altered(state, facts):
        epochs = {number: mark.epoch for number, mark in marks.items()}
        yield QueueAltered(settings=facts.settings, partitions=facts.partitions, epochs=epochs)


# --- what flows say, as events ----------------------------------------------------------------------------------------

# What has happened to a group, as what flows say and its state say side by side: facts as events. Pure, and without
# policy.


def flow_events(
    state: GroupState, flows: Mapping[str, Seen[FlowRecord]], *, gone: Collection[Owner], heartbeats: FailureDetector
) -> Iterator[Event]:
    """Flows that left, or whose heartbeat was seen to stand still for their session timeout by this process' clock,
    then flows that came, each by name. `gone`: instances that the group has let go already, whose heartbeats are still
    to be removed.
    """
    for name, flow in sorted(state.flows.items()):
        if not flow.bound:
            continue
        if name not in flows:
            yield FlowExpired(flow=name, instance=flow.instance)  # the store lost it: it binds anew if it lives
        elif not (record := flows[name].value).bound:
            # Also where it was bound anew and left again meanwhile: then this instance is gone all the more.
            yield FlowUnbound(flow=name, instance=flow.instance)
        elif record.instance == flow.instance and heartbeats.still_s(name) >= record.session_timeout_s:
            yield FlowExpired(flow=name, instance=flow.instance)
    for name in sorted(flows):
        known, record = state.flows.get(name), flows[name].value
        is_new = known is None or known.instance != record.instance
        if is_new and _is_here(state, record) and record.owner not in gone:
            yield FlowBound(flow=name, instance=record.instance, mapping=record.mapping)


def leftovers(state: GroupState, flows: Mapping[str, Seen[FlowRecord]]) -> Iterator[Owner]:
    """Heartbeats that mean nothing any more: of flows that left and own nothing, and of instances of a former queue."""
    for name in sorted(flows.keys() - state.flows.keys()):
        if not _is_here(state, flows[name].value):
            yield flows[name].value.owner


def _is_here(state: GroupState, record: FlowRecord) -> bool:
    return record.bound and record.queue_id == state.queue_id


# --- partitions that the queue has lost -------------------------------------------------------------------------------

# Partitions that a queue has lost by an alteration, and that a group has to deliver to their end first (RES-02).
#
# What the group has to deliver are the present partitions and these, as long as they are not finished. Their
# checkpoints say so, for every leader to find anew, so that nothing has to be remembered; it is, in memory, so that
# they are listed only while something is about to go.


LISTING_S: Final = 1.0  # between two listings


class RemovedPartitions:
    """Of one group, in one process."""

    def __init__(self, checkpoints: Callable[[GroupFacts], CheckpointStore], now_s: Callable[[], float]) -> None:
        self._make_checkpoints = checkpoints
        self._now_s = now_s
        self._finished: dict[int, int] = {}  # partition → where it ends
        self._for: tuple[str, int] | None = None  # queue, and rewinds that were counted
        self._looked_s = -math.inf

    def forget(self) -> None:
        """Nothing is known any more."""
        self._for = None

    def with_unfinished(self, facts: GroupFacts) -> GroupFacts:
        """The facts, with everything in `partitions` that the group has to deliver. Raises as a listing does.

        All that are found finished at one look go together: one rebalance. A rewind makes all be looked at again.
        """
        if not facts.leaving:
            return facts
        known_for = (facts.queue_id, facts.rewinds)
        if known_for != self._for:
            self._for, self._looked_s = known_for, -math.inf
            self._finished.clear()
        if (left := self._unfinished(facts)) and self._now_s() - self._looked_s >= LISTING_S:
            self._looked_s = self._now_s()
            found, damaged = self._make_checkpoints(facts).list_readable()
            for number in left.keys() - damaged.keys():
                if done_to(found.get(number), facts.starts[number]) >= left[number]:
                    self._finished[number] = left[number]
        present = (number for number in facts.partitions if number not in facts.leaving)
        return replace(facts, partitions=(*present, *sorted(self._unfinished(facts))))

    def finished(self, facts: GroupFacts) -> Mapping[int, int]:
        """Removed partitions that are known to be finished, and where they end; none if they were rewound since these
        facts. The fence that lets them go writes that into the checkpoint, so that it can be found anew.
        """
        if (facts.queue_id, facts.rewinds) != self._for:
            return {}
        return dict(facts.leaving.items() & self._finished.items())

    def _unfinished(self, facts: GroupFacts) -> Mapping[int, int]:
        return dict(facts.leaving.items() - self._finished.items())
