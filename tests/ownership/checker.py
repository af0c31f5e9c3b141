"""The judge: reads what flows and the observer wrote down, and says what must not have happened. Pure.

It knows nothing of sessions, stores or coordinators; the rules are those of `tests.support.judge`. Ownerships of a
partition have an order: by epoch, and at the same epoch (a flow that came back) by their first claim. As soon as
anything shows a later one in force, a claim, a delivery or the checkpoint itself, nothing that an earlier one begins
after that moment may succeed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tests.ownership.facts import Acknowledged, Bound, Claimed, Delivered, Fact, Failed, Paused, Seen
from tests.support.judge import (
    Delivery,
    Ownership,
    Position,
    acknowledged_beyond,
    gap,
    shared_epochs,
    skipped,
    two_owners,
    undelivered,
    unmarked,
    went_back,
)

NEVER: Final = float("inf")
MOST_TOLD: Final = 50


class Handoff(NamedTuple):
    """A partition that went from one live flow to another, and how long nothing of it was delivered meanwhile."""

    partition: int
    pause_s: float  # from the old owner's seeing the pause to the new owner's claim
    forced: bool  # the new owner marks something as redelivered


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What the evidence says. `violations` is empty if everything was as it must be."""

    violations: tuple[str, ...]
    handoffs: tuple[Handoff, ...]
    binds: int  # instances that were told of their bind, or claimed something
    claims: int
    deliveries: int
    messages: int  # distinct
    repeated: int  # deliveries of a message beyond its first
    errors: Mapping[str, int]


@dataclass(slots=True)
class _Held:
    who: Ownership
    claims: list[Claimed] = field(default_factory=list)
    deliveries: list[Delivered] = field(default_factory=list)
    acknowledged: list[Acknowledged] = field(default_factory=list)
    paused: list[Paused] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, float]:
        begun_s = [claim.sent_s for claim in self.claims] or [seen.done_s for seen in self.seen] or [NEVER]
        return self.who.epoch, min(begun_s)

    @property
    def in_force_s(self) -> float:
        """When this ownership is first known to have begun, at the latest."""
        first = [facts[0].done_s for facts in (self.claims, self.deliveries, self.seen) if facts]
        return min(first, default=NEVER)


def judge(facts: Iterable[Fact], ends: Mapping[int, int]) -> Verdict:
    """Weigh all evidence. `ends`: where each partition ends, everything before must have been delivered."""
    everything = sorted(facts, key=lambda fact: fact.sent_s if hasattr(fact, "sent_s") else fact.at_s)
    by_partition: dict[int, dict[Ownership, _Held]] = defaultdict(dict)
    for fact in everything:
        if isinstance(fact, Claimed | Delivered | Acknowledged | Paused | Seen):
            who = Ownership(fact.epoch, fact.flow, fact.instance)
            ownership = by_partition[fact.partition].setdefault(who, _Held(who))
            _add(ownership, fact)
    violations: list[str] = []
    handoffs: list[Handoff] = []
    messages = delivered = 0
    for partition in sorted({*by_partition, *ends}):
        ordered = sorted(by_partition[partition].values(), key=lambda each: each.order)
        violations += _Partition(partition, ordered, ends.get(partition, 0)).violations()
        handoffs += _handoffs(partition, ordered)
        reached = max((each.end for one in ordered for each in one.deliveries), default=0)
        messages += reached
        delivered += sum(each.end - each.start for one in ordered for each in one.deliveries)
    errors: dict[str, int] = defaultdict(int)
    for fact in everything:
        if isinstance(fact, Failed):
            errors[f"{fact.doing}: {fact.error.partition(':')[0]}"] += 1
    return Verdict(
        violations=tuple(violations),
        handoffs=tuple(handoffs),
        binds=len({(fact.flow, fact.instance) for fact in everything if isinstance(fact, Bound | Claimed)}),
        claims=sum(isinstance(fact, Claimed) for fact in everything),
        deliveries=sum(isinstance(fact, Delivered) for fact in everything),
        messages=messages,
        repeated=delivered - messages,
        errors=dict(errors),
    )


def _add(ownership: _Held, fact: Claimed | Delivered | Acknowledged | Paused | Seen) -> None:
    match fact:
        case Claimed():
            ownership.claims.append(fact)
        case Delivered():
            ownership.deliveries.append(fact)
        case Acknowledged():
            ownership.acknowledged.append(fact)
        case Paused():
            ownership.paused.append(fact)
        case Seen():
            ownership.seen.append(fact)


class _Partition:
    """One partition's ownerships, in their order."""

    def __init__(self, number: int, ordered: Sequence[_Held], end: int) -> None:
        self._number = number
        self._ordered = ordered
        self._end = end

    def violations(self) -> list[str]:
        found = [*self._epochs(), *self._two_owners(), *self._sequence(), *self._acknowledgements(), *self._seen()]
        return [f"partition {self._number}: {each}" for each in found]

    def _epochs(self) -> Iterator[str]:
        """An epoch belongs to one flow; within one process' eyes it only grows."""
        yield from shared_epochs((one.who.epoch, one.who.flow) for one in self._ordered)
        newest: dict[str, Claimed] = {}
        for claim in sorted((each for one in self._ordered for each in one.claims), key=lambda each: each.sent_s):
            before = newest.get(claim.flow)
            if before is not None and before.epoch > claim.epoch and before.done_s < claim.sent_s:
                yield f"{claim.flow} claimed epoch {claim.epoch} after {before.epoch}"
            newest[claim.flow] = claim

    def _two_owners(self) -> Iterator[str]:
        """No delivery, and no claim, was begun when a later ownership was in force already."""
        for place, one in enumerate(self._ordered):
            later = [
                each
                for each in self._ordered[place + 1 :]
                # One that was only seen has no certain place among those of its own epoch.
                if each.who.epoch > one.who.epoch or each.claims
            ]
            if not later:
                continue
            over_s, successor = min((each.in_force_s, each.who) for each in later)
            for delivery in one.deliveries:
                yield from two_owners(_delivery(delivery), successor, over_s)
            for claim in one.claims:
                if claim.sent_s > over_s and claim.epoch < successor.epoch:
                    yield f"{one.who} claimed at {claim.sent_s:.3f}, {successor} was in force at {over_s:.3f}"

    def _sequence(self) -> Iterator[str]:
        """In order, without a gap, repeated only where it is marked, all of it."""
        former: list[Delivery] = []  # one for each earlier ownership, from its first message to its last
        reached = 0
        for one in self._ordered:
            ended: int | None = None
            mine = [_delivery(each) for each in sorted(one.deliveries, key=lambda each: each.sent_s)]
            for delivery in mine:
                if not one.claims or one.claims[0].done_s > delivery.asked:
                    yield f"{delivery} without a claim"
                yield from gap(delivery, ended)
                yield from skipped(delivery, reached)
                for other in former:
                    yield from unmarked(other, delivery)
                ended = delivery.end
                reached = max(reached, delivery.end)
            if mine:
                former.append(Delivery(one.who, min(each.start for each in mine), max(each.end for each in mine), 0))
        yield from undelivered((_delivery(each) for one in self._ordered for each in one.deliveries), self._end)

    def _acknowledgements(self) -> Iterator[str]:
        """A later owner begins at or behind everything that was acknowledged before."""
        kept = 0
        holder: Ownership | None = None
        for one in self._ordered:
            for claim in one.claims[:1]:
                if claim.acknowledged < kept:
                    yield f"{one.who} claimed at offset {claim.acknowledged}, {holder} had acknowledged {kept}"
            for each in one.acknowledged:
                delivered = max((delivery.end for delivery in one.deliveries), default=0)
                yield from acknowledged_beyond(each.end, delivered, f"what {one.who} acknowledged")
                if each.end > kept:
                    kept, holder = each.end, one.who

    def _seen(self) -> Iterator[str]:
        """The checkpoint goes forward, and never beyond what was delivered."""
        looks = sorted((each for one in self._ordered for each in one.seen), key=lambda each: each.sent_s)
        yield from backward(looks)
        if looks:
            delivered = max((each.end for one in self._ordered for each in one.deliveries), default=0)
            yield from acknowledged_beyond(looks[-1].offset, delivered)
            if looks[-1].offset != self._end:
                yield f"the checkpoint ends at {looks[-1].offset} of {self._end}"


def _delivery(fact: Delivered) -> Delivery:
    by = Ownership(fact.epoch, fact.flow, fact.instance)
    return Delivery(by, fact.start, fact.end, fact.redelivered_below, fact.sent_s, fact.done_s)


def backward(looks: Iterable[Seen]) -> Iterator[str]:
    """Where the checkpoint of a partition did not go forward. `looks`: at that one, in their order."""
    for before, now in pairwise(Position(each.epoch, each.flow, each.offset, each.redelivered_below) for each in looks):
        yield from went_back(before, now)


def _handoffs(partition: int, ordered: Sequence[_Held]) -> Iterator[Handoff]:
    """Moves between two flows where both could tell: the old one saw the pause, the new one has claimed."""
    claimed = [one for one in ordered if one.claims]
    for old, new in pairwise(claimed):
        if old.paused and old.who.flow != new.who.flow and new.who.epoch == old.who.epoch + 1:
            claim = new.claims[0]
            yield Handoff(
                partition=partition,
                pause_s=claim.done_s - old.paused[-1].at_s,
                forced=claim.redelivered_below > claim.acknowledged,
            )
