"""What must be true of a history, fact by fact, in true time. Raises `Violation` at the first fact that breaks it.

Knows nothing of stores, sessions or coordinators: only what they did. Its own tests feed it bad histories.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from partq_spark.group.model import GroupState, Owner, Partition, Phase
from tests.simulation import history as h
from tests.support.scheduler import SECOND_US

MOST_DRIFT = 0.0002  # two clocks differ in rate by at most so much
LOSSES = ("flush", "empty", "rollback")


class Violation(AssertionError):
    """Something happened that must never happen."""


def demand(condition: bool, *what: object) -> None:
    """Raise `Violation` with `what` unless the condition holds."""
    if not condition:
        raise Violation(" ".join(map(str, what)))


@dataclass(slots=True)
class _Ownership:
    """One owner (flow and instance) of a partition at one epoch, from the moment the checkpoint said so."""

    epoch: int
    owner: Owner
    order: int
    from_offset: int
    marked_below: int
    written_us: int
    first_us: int | None = None  # when its first delivery took effect
    spans: list[tuple[int, int, int]] = field(default_factory=list)  # delivered: start, end, marked below
    end: int | None = None


@dataclass(slots=True)
class _Partition:
    """What the checker knows of a partition, all of it from facts."""

    epoch: int = 0
    owner: Owner | None = None
    offset: int | None = None
    marked_below: int = 0
    ownerships: list[_Ownership] = field(default_factory=list)
    announced: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # most, by epoch and flow
    reported: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # last, by epoch and flow
    stored: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))  # the same, told or not yet
    delivered: dict[tuple[int, str], int] = field(default_factory=dict)
    processed: dict[tuple[int, str], int] = field(default_factory=dict)
    rewinding: bool = False  # it may go back once
    published: list[tuple[tuple[int, int], ...]] = field(default_factory=list)  # what each message waits for
    reached: int = 0  # delivered for the first time up to here
    acknowledged: int = 0  # ever
    paused_until_us: float = 0.0
    drained: bool = False  # since the pause was written


@dataclass(slots=True)
class _Life:
    """One instance's heartbeats."""

    timeout_us: int
    last_us: int
    longest_gap_us: int = 0
    unbound: bool = False
    lease_until_us: float = 0.0
    blurred: bool = False  # the store has lost something since
    forgotten: bool = False  # its record was removed


class Checker:
    """Judges one history. `start` is the offset of every partition at which the group begins."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self.partitions: dict[int, _Partition] = defaultdict(_Partition)
        self._lives: dict[Owner, _Life] = {}
        self._latest: dict[str, Owner] = {}
        self._lost_us = -1
        self._rewound = False
        self._leases: list[str] = []
        self._led = -1  # the place in `_leases` of whoever wrote the last state
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
            h.Published: self._published,
            h.Rewinding: self._rewinding,
            h.Delivered: self._delivered,
            h.Processed: self._processed,
        }
        self._last: dict[int, dict[int, int]] = defaultdict(dict)  # by key and partition, the end of its last message
        self.handoffs_drained = 0
        self.handoffs_forced = 0

    def judge(self, fact: h.Fact) -> None:
        """One fact more."""
        self._judges[type(fact)](fact)

    # --- the store ----------------------------------------------------------------------------------------------------

    def _lost(self, fact: h.StoreLost) -> None:
        demand(fact.kind in LOSSES, "unknown kind of loss", fact)
        self._lost_us = fact.at_us
        self._leases.clear()  # in the store's next life the old order means nothing
        self._led = -1
        self.state = None
        for life in self._lives.values():
            life.blurred = True

    def _taken(self, fact: h.LeaseTaken) -> None:
        if fact.token not in self._leases:
            self._leases.append(fact.token)

    def _written(self, fact: h.StateWritten) -> None:
        """Only the newest leader that has written may write; epochs grow; nobody who lives is taken for dead."""
        if fact.lease in self._leases:
            place = self._leases.index(fact.lease)
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
                here.paused_until_us = fact.sent_us + (after.deadline_s or 0.0) * SECOND_US * (1 - MOST_DRIFT)
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

        Who hears of a record and then reads it may find it as it was told of, or as it is stored since: an announcement
        that was taken back shows before the heartbeat tells of it.
        """
        key = here.epoch, here.owner.flow if here.owner is not None else ""
        shown = min(here.reported[key], here.stored[key])
        here.drained = here.drained or shown <= (here.offset or self._start)

    def _given_up(self, owner: Owner, fact: h.StateWritten) -> None:
        """A flow was bound and is not any more: it asked for it, somebody took its name, or it was silent for long."""
        life = self._lives.get(owner)
        if life is None or life.unbound or life.blurred or self._latest.get(owner.flow) != owner:
            return
        silent_us = max(life.longest_gap_us, fact.at_us - life.last_us)
        demand(
            silent_us >= life.timeout_us * (1 - MOST_DRIFT),
            f"a flow that was never silent for more than {silent_us} us of {life.timeout_us} us was given up:",
            owner,
            fact,
        )

    def _bound(self, fact: h.Bound) -> None:
        timeout_us = round(fact.session_timeout_s * SECOND_US)
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
        life = self._lives.get(fact.owner)
        if life is not None:
            until_us = fact.sent_us + life.timeout_us * (1 + MOST_DRIFT)
            life.lease_until_us = max(life.lease_until_us, until_us)

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
        offset = fact.offset if fact.offset is not None else self._start
        known = here.offset if here.offset is not None else self._start
        demand(fact.epoch >= here.epoch, "a checkpoint's epoch went back:", fact, "after", here.epoch)
        rewound = here.rewinding and fact.owner is None and fact.epoch == here.epoch + 1 and offset <= known
        demand(offset >= known or rewound, "a checkpoint's offset went back:", fact, "after", known)
        demand(fact.redelivered_below >= here.marked_below, "a mark went back:", fact, "after", here.marked_below)
        if (fact.epoch, fact.owner) != (here.epoch, here.owner):
            self._fenced(fact, here, offset, rewound)
        else:
            demand(fact.owner is not None or offset == known, "a checkpoint of nobody was moved:", fact)
            done = here.processed.get((fact.epoch, fact.owner.flow if fact.owner else ""), self._start)
            demand(offset <= max(known, done), "a checkpoint passes what its owner has processed:", fact, "done", done)
        here.epoch, here.owner, here.offset, here.marked_below = fact.epoch, fact.owner, offset, fact.redelivered_below
        here.acknowledged = max(here.acknowledged, offset)
        here.rewinding = here.rewinding and not rewound
        self._look_drained(here)

    def _published(self, fact: h.Published) -> None:
        for key in fact.keys:
            partition = key % fact.partitions
            here, last = self.partitions[partition], self._last[key]
            here.published.append(tuple((q, end) for q, end in last.items() if q != partition))
            last[partition] = self._start + len(here.published)

    def _rewinding(self, fact: h.Rewinding) -> None:
        self._rewound = self.partitions[fact.partition].rewinding = True

    def _fenced(self, fact: h.CheckpointWritten, here: _Partition, offset: int, rewound: bool) -> None:
        """A new owner, or nobody: the offset stays, and only what may have been delivered is marked."""
        known = here.offset if here.offset is not None else self._start
        demand(offset == known or not here.epoch or rewound, "a fence moved the offset:", fact, "from", known)
        if fact.epoch == here.epoch:
            same = here.owner is not None and fact.owner is not None and here.owner.flow == fact.owner.flow
            demand(same, "another flow at the same epoch:", fact, "after", here.owner)
        former = here.ownerships[-1] if here.ownerships else None
        if former is not None and not rewound and not self._reports_lost(fact.partition, former.owner):
            announced = max(here.announced[former.epoch, former.owner.flow], known)
            demand(
                fact.redelivered_below <= max(here.marked_below, announced),
                "marked, although never announced:",
                fact,
                "announced",
                announced,
            )
        if former is not None and fact.epoch > here.epoch and here.owner is not None:
            if here.delivered.get((former.epoch, former.owner.flow), known) <= known:
                self.handoffs_drained += 1
            else:
                self.handoffs_forced += 1
        if fact.owner is not None:
            here.ownerships.append(
                _Ownership(
                    epoch=fact.epoch,
                    owner=fact.owner,
                    order=len(here.ownerships),
                    from_offset=offset,
                    marked_below=fact.redelivered_below,
                    written_us=fact.at_us,
                )
            )

    def _reports_lost(self, partition: int, owner: Owner) -> bool:
        """Nobody can know how much the last owner delivered: it has not bound since the store forgot, or the state says
        so.
        """
        life = self._lives.get(owner)
        if life is None or life.blurred or life.forgotten:
            return True
        if self._lost_us < 0 and not self._rewound:
            return False
        found = self.state.partitions.get(partition) if self.state is not None else None
        return found is None or found.reports_lost

    # --- the consumers' hands -----------------------------------------------------------------------------------------

    def _delivered(self, fact: h.Delivered) -> None:
        here = self.partitions[fact.partition]
        mine = next(
            (each for each in here.ownerships if (each.epoch, each.owner) == (fact.epoch, fact.owner)),
            None,
        )
        if mine is None:
            raise Violation(f"delivered by somebody whom the checkpoint never named: {fact}")
        for other in here.ownerships[mine.order + 1 :]:
            demand(
                other.first_us is None or fact.sent_us <= other.first_us,
                f"two owners: {other.epoch} {other.owner} has delivered at {other.first_us}, and then",
                fact,
            )
        life = self._lives.get(fact.owner)
        demand(
            life is not None and fact.at_us <= life.lease_until_us, "delivered after the lease has ended:", fact, life
        )
        self._contiguous(fact, here, mine)
        self._in_order(fact, here)
        if not fact.replayed:
            self._marked(fact, here, mine)
        if mine.first_us is None:
            mine.first_us = fact.at_us
        mine.spans.append((fact.start, fact.end, fact.redelivered_below))
        mine.end = fact.end
        key = (fact.epoch, fact.owner.flow)
        here.delivered[key] = max(here.delivered.get(key, 0), fact.end)

    def _contiguous(self, fact: h.Delivered, here: _Partition, mine: _Ownership) -> None:
        demand(fact.start < fact.end, "nothing was delivered:", fact)
        if mine.end is not None and not fact.replayed:
            demand(fact.start == mine.end, "not contiguous, the last one ended at", mine.end, fact)
        begin = max(mine.from_offset, here.delivered.get((fact.epoch, fact.owner.flow), 0))
        if (here.epoch, here.owner) == (fact.epoch, fact.owner):
            begin = max(begin, here.offset or self._start)
        demand(fact.start <= begin, "skipped: there is nothing delivered or acknowledged from", begin, fact)

    def _in_order(self, fact: h.Delivered, here: _Partition) -> None:
        """RES-03: a message comes first when the older ones of its key in other partitions have been acknowledged."""
        for offset in range(max(fact.start, here.reached), fact.end):
            for q, end in here.published[offset - self._start] if here.published else ():
                what = f"message {offset} of partition {fact.partition} came before its key's in partition {q} were"
                demand(self.partitions[q].acknowledged >= end, what, f"acknowledged up to {end}:", fact)
        here.reached = max(here.reached, fact.end)

    def _marked(self, fact: h.Delivered, here: _Partition, mine: _Ownership) -> None:
        """What another ownership has delivered is marked, whichever of the two deliveries took effect first."""
        for other in here.ownerships:
            if other is mine:
                continue
            for start, end, below in other.spans:
                first = max(start, fact.start, fact.redelivered_below if other.order < mine.order else below)
                demand(
                    first >= min(end, fact.end),
                    f"delivered twice and not marked: {first} of {fact.partition}, by {other.epoch} {other.owner} too,",
                    fact,
                )

    def _processed(self, fact: h.Processed) -> None:
        here = self.partitions[fact.partition]
        key = (fact.epoch, fact.owner.flow)
        demand(fact.end <= here.delivered.get(key, 0), "processed what was never delivered:", fact)
        here.processed[key] = max(here.processed.get(key, 0), fact.end)

    # --- the end ------------------------------------------------------------------------------------------------------

    def finish(self, ends: Mapping[int, int]) -> None:
        """Everything that was published has been delivered, processed and acknowledged."""
        for number, end in ends.items():
            here = self.partitions[number]
            demand(
                (here.offset or self._start) == end, f"partition {number} ends at {end}, its checkpoint at", here.offset
            )
            spans = sorted((a, b) for each in here.ownerships for a, b, _ in each.spans)
            reached = self._start
            for a, b in spans:
                demand(a <= reached, f"messages {reached} to {a} of partition {number} were never delivered")
                reached = max(reached, b)
            demand(reached == end, f"partition {number} was delivered up to {reached} of {end}")
