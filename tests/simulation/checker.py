"""What must be true of a history, fact by fact, in true time. Raises `Violation` at the first fact that breaks it.

Knows nothing of stores, sessions or coordinators: only what they did. The rules of deliveries and checkpoints are those
of `tests.support.judge`; here is what each fact says of them, and what is true of coordinators. Its own tests feed it
bad histories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partq_spark.group.model import GroupState, Owner, Partition, Phase
from tests.simulation import history as h
from tests.support.judge import (
    MOST_RATE_DIFFERENCE,
    Delivery,
    Leases,
    Message,
    Ownership,
    Position,
    Publications,
    Violation,
    acknowledged_beyond,
    before_its_key,
    demand,
    forbid,
    gap,
    shared_epochs,
    skipped,
    two_owners,
    undelivered,
    unmarked,
    went_back,
)
from tests.support.scheduler import SECOND_US

LOSSES = ("flush", "empty", "rollback")


@dataclass(slots=True)
class _Held:
    """One ownership of a partition, from the moment the checkpoint said so."""

    by: Ownership
    order: int
    from_offset: int
    first_us: int | None = None  # when its first delivery took effect
    deliveries: list[Delivery] = field(default_factory=list)


@dataclass(slots=True)
class _Partition:
    """What the checker knows of a partition, all of it from facts."""

    epoch: int = 0
    owner: Owner | None = None
    offset: int = 0
    redelivered_below: int = 0
    ownerships: list[_Held] = field(default_factory=list)
    announced: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # most, by epoch and flow
    reported: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # last, by epoch and flow
    stored: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # the same, told or not yet
    delivered: dict[tuple[int, str], int] = field(default_factory=dict)
    processed: dict[tuple[int, str], int] = field(default_factory=dict)
    rewinding: bool = False  # it may go back once
    reached: int = 0  # delivered for the first time up to here
    acknowledged: int = 0  # ever
    paused_until_us: float = 0.0
    drained: bool = False  # since the pause was written

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.owner.flow if self.owner else "", self.offset, self.redelivered_below)


@dataclass(slots=True)
class _Life:
    """One instance's heartbeats."""

    timeout_us: int
    last_us: int
    longest_gap_us: int = 0
    unbound: bool = False
    blurred: bool = False  # the store has lost something since
    forgotten: bool = False  # its record was removed


class Checker:
    """Judges one history of a group that begins at offset 0."""

    def __init__(self) -> None:
        self.partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._lives: dict[Owner, _Life] = {}
        self._latest: dict[str, Owner] = {}
        self._lost_us = -1
        self._rewound = False
        self._leases = Leases()
        self._published = Publications()
        self._leaders: list[str] = []  # their leases, in order
        self._led = -1  # the place in `_leaders` of the one that wrote the last state
        self.state: GroupState | None = None
        self._judges: dict[type[h.Fact], Callable[[Any], None]] = {
            h.StoreLost: self._lost,
            h.Bound: self._bound,
            h.Unbound: self._unbound,
            h.Beaten: self._beaten,
            h.Renewed: self._renewed,
            h.Reported: self._reported,
            h.Forgotten: self._forgotten,
            h.LeaseTaken: self._taken,
            h.StateWritten: self._written,
            h.CheckpointWritten: self._checkpoint,
            h.Published: lambda fact: self._published.publish(fact.partitions, fact.keys),
            h.Rewinding: self._rewinding,
            h.Delivered: self._delivered,
            h.Processed: self._processed,
        }
        self.handoffs_drained = 0
        self.handoffs_forced = 0

    def judge(self, fact: h.Fact) -> None:
        """One fact more."""
        self._judges[type(fact)](fact)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _lost(self, fact: h.StoreLost) -> None:
        demand(fact.kind in LOSSES, "unknown kind of loss", fact)
        self._lost_us = fact.at_us
        self._leaders.clear()  # in the store's next life the old order means nothing
        self._led = -1
        self.state = None
        for life in self._lives.values():
            life.blurred = True

    def _taken(self, fact: h.LeaseTaken) -> None:
        if fact.token not in self._leaders:
            self._leaders.append(fact.token)

    def _written(self, fact: h.StateWritten) -> None:
        """Only the newest leader that has written may write; epochs grow; nobody who lives is taken for dead."""
        if fact.lease in self._leaders:
            place = self._leaders.index(fact.lease)
            demand(place >= self._led, "a superseded leader has written the state after the next one:", fact)
            self._led = place
        before, self.state = self.state, fact.state
        lost = [number for number, partition in fact.state.partitions.items() if partition.reports_lost]
        demand(
            not lost or self._lost_us >= 0 or self._rewound,
            "reports of",
            lost,
            "are said to be lost, and nothing was:",
            fact,
        )
        if before is None:
            return
        for number, partition in fact.state.partitions.items():
            former = before.partitions.get(number)
            if former is not None:
                demand(partition.epoch >= former.epoch, "an epoch went back:", former, fact)
                self._moved(former, partition, fact)
        for flow in before.flows.values():
            if flow.bound:
                now = fact.state.flows.get(flow.name)
                if now is None or now.instance != flow.instance or not now.bound:
                    self._given_up(Owner(flow.name, flow.instance), fact)

    def _moved(self, before: Partition, after: Partition, fact: h.StateWritten) -> None:
        """A pause ends when everything is acknowledged, when its time is over, or with one of the two flows."""
        here = self.partitions[after.partition]
        if after.phase is Phase.PAUSED:
            if before.phase is not Phase.PAUSED or (before.epoch, before.to) != (after.epoch, after.to):
                here.drained = False
                self._look_drained(here)
                here.paused_until_us = fact.sent_us + (after.deadline_s or 0.0) * SECOND_US * (1 - MOST_RATE_DIFFERENCE)
            return
        if before.phase is not Phase.PAUSED or after.phase is not Phase.FENCING or before.owner is None:
            return
        flow = fact.state.flows.get(before.owner.flow)
        if flow is None or not flow.bound or flow.instance != before.owner.instance or after.removed:
            return
        if after.reports_lost or fact.at_us >= here.paused_until_us - 1000:
            return
        demand(
            here.drained,
            f"partition {after.partition} moves before its time, although not all that is delivered is acknowledged",
            fact,
        )

    def _look_drained(self, here: _Partition) -> None:
        """Whether the record said, at this instant, that nothing is unacknowledged.

        A process that hears of a record and then reads it may find it as it was told of, or as it is stored since: an
        announcement that was taken back shows before the heartbeat tells of it.
        """
        key = here.epoch, here.owner.flow if here.owner is not None else ""
        shown = min(here.reported[key], here.stored[key])
        here.drained = here.drained or shown <= here.offset

    def _given_up(self, owner: Owner, fact: h.StateWritten) -> None:
        """A flow was bound and is not any more: it asked for it, somebody took its name, or it was silent for long."""
        life = self._lives.get(owner)
        if life is None or life.unbound or life.blurred or self._latest.get(owner.flow) != owner:
            return
        silent_us = max(life.longest_gap_us, fact.at_us - life.last_us)
        demand(
            silent_us >= life.timeout_us * (1 - MOST_RATE_DIFFERENCE),
            f"a flow that was never silent for more than {silent_us} us of {life.timeout_us} us was given up:",
            owner,
            fact,
        )

    def _bound(self, fact: h.Bound) -> None:
        timeout_us = round(fact.session_timeout_s * SECOND_US)
        self._leases.bound(fact.owner, timeout_us)
        self._lives[fact.owner] = _Life(timeout_us=timeout_us, last_us=fact.at_us)
        self._latest[fact.owner.flow] = fact.owner

    def _unbound(self, fact: h.Unbound) -> None:
        if fact.owner in self._lives:
            self._lives[fact.owner].unbound = True

    def _forgotten(self, fact: h.Forgotten) -> None:
        if fact.owner in self._lives:
            self._lives[fact.owner].forgotten = True

    def _beaten(self, fact: h.Beaten) -> None:
        life = self._lives.get(fact.owner)
        if life is not None:
            life.longest_gap_us = max(life.longest_gap_us, fact.at_us - life.last_us)
            life.last_us = fact.at_us

    def _renewed(self, fact: h.Renewed) -> None:
        self._leases.renewed(fact.owner, fact.sent_us)

    def _reported(self, fact: h.Reported) -> None:
        here = self.partitions[fact.partition]
        key = (fact.epoch, fact.owner.flow)
        here.announced[key] = max(here.announced[key], fact.delivered)
        here.stored[key] = fact.delivered
        if fact.told:
            here.reported[key] = fact.delivered
        self._look_drained(here)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _checkpoint(self, fact: h.CheckpointWritten) -> None:
        here = self.partitions[fact.partition]
        known, offset = here.offset, fact.offset or 0
        rewound = here.rewinding and fact.owner is None and fact.epoch == here.epoch + 1 and offset <= known
        flow = fact.owner.flow if fact.owner else ""
        now = Position(fact.epoch, flow, known if rewound else offset, fact.redelivered_below)
        forbid(went_back(here.position, now), fact)
        if (fact.epoch, fact.owner) != (here.epoch, here.owner):
            self._fenced(fact, here, offset, rewound)
        else:
            demand(fact.owner is not None or offset == known, "a checkpoint of nobody was moved:", fact)
            forbid(acknowledged_beyond(offset, max(known, here.processed.get((fact.epoch, flow), 0))), fact)
        here.epoch, here.owner = fact.epoch, fact.owner
        here.offset, here.redelivered_below = offset, fact.redelivered_below
        here.acknowledged = max(here.acknowledged, offset)
        here.rewinding = here.rewinding and not rewound
        self._look_drained(here)

    def _rewinding(self, fact: h.Rewinding) -> None:
        self._rewound = self.partitions[fact.partition].rewinding = True

    def _fenced(self, fact: h.CheckpointWritten, here: _Partition, offset: int, rewound: bool) -> None:
        """A new owner, or nobody: the offset stays, and only what may have been delivered is marked."""
        known, flow = here.offset, fact.owner.flow if fact.owner else ""
        demand(offset == known or not here.epoch or rewound, "a fence moved the offset:", fact, "from", known)
        forbid(shared_epochs([here.position[:2], (fact.epoch, flow)]), fact)
        former = here.ownerships[-1] if here.ownerships else None
        if former is not None and not rewound and not self._reports_lost(fact.partition, former.by):
            announced = max(here.announced[former.by[:2]], known)
            demand(
                fact.redelivered_below <= max(here.redelivered_below, announced),
                "marked, although never announced:",
                fact,
                "announced",
                announced,
            )
        if former is not None and fact.epoch > here.epoch and here.owner is not None:
            if here.delivered.get(former.by[:2], known) <= known:
                self.handoffs_drained += 1
            else:
                self.handoffs_forced += 1
        if fact.owner is not None:
            by = Ownership(fact.epoch, *fact.owner)
            here.ownerships.append(_Held(by=by, order=len(here.ownerships), from_offset=offset))

    def _reports_lost(self, partition: int, last: Ownership) -> bool:
        """Nobody can know how much the last owner delivered: it has not bound since the store forgot, or the state says
        so.
        """
        life = self._lives.get(Owner(last.flow, last.instance))
        if life is None or life.blurred or life.forgotten:
            return True
        if self._lost_us < 0 and not self._rewound:
            return False
        found = self.state.partitions.get(partition) if self.state is not None else None
        return found is None or found.reports_lost

    # --- the consumers' hands -----------------------------------------------------------------------------------------

    def _delivered(self, fact: h.Delivered) -> None:
        here, key = self.partitions[fact.partition], (fact.epoch, fact.owner.flow)
        by = Ownership(fact.epoch, *fact.owner)
        delivery = Delivery(by, fact.start, fact.end, fact.redelivered_below, fact.sent_us, fact.at_us)
        mine = next((each for each in here.ownerships if each.by == by), None)
        if mine is None:
            raise Violation(f"delivered by somebody whom the checkpoint never named: {fact}")
        for other in here.ownerships[mine.order + 1 :]:
            if other.first_us is not None:
                forbid(two_owners(delivery, other.by, other.first_us), fact)
        forbid(self._leases.over(fact.owner, fact.at_us), fact)
        if mine.deliveries and not fact.replayed:
            forbid(gap(delivery, mine.deliveries[-1].end), fact)
        begin = max(mine.from_offset, here.delivered.get(key, 0))
        if (here.epoch, here.owner) == (fact.epoch, fact.owner):
            begin = max(begin, here.offset)
        forbid(skipped(delivery, begin), fact)
        for offset in range(max(fact.start, here.reached), fact.end):
            message = Message(fact.partition, offset)
            earlier = self._published.earlier(message)
            forbid(before_its_key(message, earlier, lambda number: self.partitions[number].acknowledged), fact)
        here.reached = max(here.reached, fact.end)
        if not fact.replayed:
            self._marked(fact, delivery, here, mine)
        if mine.first_us is None:
            mine.first_us = fact.at_us
        mine.deliveries.append(delivery)
        here.delivered[key] = max(here.delivered.get(key, 0), fact.end)

    def _marked(self, fact: h.Delivered, delivery: Delivery, here: _Partition, mine: _Held) -> None:
        """What another ownership has delivered is marked, whichever of the two deliveries took effect first."""
        for other in here.ownerships:
            if other is not mine:
                for each in other.deliveries:
                    first, second = (each, delivery) if other.order < mine.order else (delivery, each)
                    forbid(unmarked(first, second), fact)

    def _processed(self, fact: h.Processed) -> None:
        here = self.partitions[fact.partition]
        key = (fact.epoch, fact.owner.flow)
        forbid(acknowledged_beyond(fact.end, here.delivered.get(key, 0), "what was processed"), fact)
        here.processed[key] = max(here.processed.get(key, 0), fact.end)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, ends: Mapping[int, int]) -> None:
        """Everything that was published has been delivered, processed and acknowledged."""
        for number, end in ends.items():
            here = self.partitions[number]
            demand(here.offset == end, f"partition {number} ends at {end}, its checkpoint at", here.offset)
            deliveries = (each for held in here.ownerships for each in held.deliveries)
            forbid(undelivered(deliveries, end), "partition", number)
