"""The judge: reads what flows and the observer wrote down, and says what must not have happened. Pure.

It knows nothing of sessions, stores or coordinators. An *ownership* is one instance of a flow with one partition at one
epoch. Ownerships of a partition have an order: by epoch, and at the same epoch (a flow that came back) by their first
claim. As soon as anything shows a later one in force, a claim, a delivery or the checkpoint itself, nothing that an
earlier one begins after that moment may succeed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

from tests.ownership.facts import Acknowledged, Bound, Claimed, Delivered, Fact, Failed, Paused, Seen

NEVER: Final = float("inf")
MOST_TOLD: Final = 50


class Who(NamedTuple):
    """One ownership of a partition; flow and instance are empty where the checkpoint names nobody."""

    epoch: int
    flow: str
    instance: str

    def __str__(self) -> str:
        return f"{self.flow or 'nobody'}/{self.instance[:6]} at epoch {self.epoch}"


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
class _Ownership:
    who: Who
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
    by_partition: dict[int, dict[Who, _Ownership]] = defaultdict(dict)
    for fact in everything:
        if isinstance(fact, Claimed | Delivered | Acknowledged | Paused | Seen):
            who = Who(fact.epoch, fact.flow, fact.instance)
            ownership = by_partition[fact.partition].setdefault(who, _Ownership(who))
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


def _add(ownership: _Ownership, fact: Claimed | Delivered | Acknowledged | Paused | Seen) -> None:
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

    def __init__(self, number: int, ordered: Sequence[_Ownership], end: int) -> None:
        self._number = number
        self._ordered = ordered
        self._end = end

    def violations(self) -> list[str]:
        found = [*self._epochs(), *self._two_owners(), *self._sequence(), *self._acknowledgements(), *self._seen()]
        return [f"partition {self._number}: {each}" for each in found]

    def _epochs(self) -> Iterator[str]:
        """An epoch belongs to one flow; within one process' eyes it only grows."""
        flows: dict[int, str] = {}
        for one in self._ordered:
            first = flows.setdefault(one.who.epoch, one.who.flow)
            if first != one.who.flow:
                yield f"epoch {one.who.epoch} belongs to {first or 'nobody'} and to {one.who.flow or 'nobody'}"
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
            over_s, successor = min(((each.in_force_s, each.who) for each in later), default=(NEVER, None))
            for delivery in one.deliveries:
                if delivery.sent_s > over_s:
                    yield (
                        f"two owners: {one.who} began to deliver {delivery.start} to {delivery.end} at "
                        f"{delivery.sent_s:.3f}, {successor} was in force at {over_s:.3f}"
                    )
            for claim in one.claims:
                if claim.sent_s > over_s and claim.epoch < (successor.epoch if successor else 0):
                    yield f"{one.who} claimed at {claim.sent_s:.3f}, {successor} was in force at {over_s:.3f}"

    def _sequence(self) -> Iterator[str]:
        """In order, without a gap, repeated only where it is marked, all of it."""
        reached = 0
        for one in self._ordered:
            before = reached
            position: int | None = None
            for delivery in sorted(one.deliveries, key=lambda each: each.sent_s):
                what = f"{one.who} delivered {delivery.start} to {delivery.end}"
                if delivery.start >= delivery.end:
                    yield f"{what}: that is nothing"
                if not one.claims or one.claims[0].done_s > delivery.sent_s:
                    yield f"{what} without a claim"
                if position is not None and delivery.start != position:
                    yield f"{what} after {position}"
                if delivery.start > max(reached, before):
                    yield f"{what}, nobody has delivered {reached} to {delivery.start}"
                again_to = min(delivery.end, before)
                if delivery.start < again_to and delivery.redelivered_below < again_to:
                    yield f"{what}, up to {before} again, and marked only what is below {delivery.redelivered_below}"
                position = delivery.end
                reached = max(reached, delivery.end)
        if reached != self._end:
            yield f"delivered up to {reached} of {self._end}"

    def _acknowledgements(self) -> Iterator[str]:
        """Who comes later begins at or behind everything that was acknowledged before."""
        kept = 0
        holder: Who | None = None
        for one in self._ordered:
            for claim in one.claims[:1]:
                if claim.acknowledged < kept:
                    yield f"{one.who} claimed at offset {claim.acknowledged}, {holder} had acknowledged {kept}"
            for each in one.acknowledged:
                if each.end > max((delivery.end for delivery in one.deliveries), default=0):
                    yield f"{one.who} acknowledged {each.end}, which it had not delivered"
                if each.end > kept:
                    kept, holder = each.end, one.who

    def _seen(self) -> Iterator[str]:
        """The checkpoint goes forward, and never beyond what was delivered."""
        deliveries = [each for one in self._ordered for each in one.deliveries]
        looks = sorted((each for one in self._ordered for each in one.seen), key=lambda each: each.sent_s)
        yield from went_back(looks)
        if looks:
            before = looks[-1]
            if before.offset > max((each.end for each in deliveries), default=0):
                yield f"the checkpoint is at {before.offset}, which nobody has delivered"
            if before.offset != self._end:
                yield f"the checkpoint ends at {before.offset} of {self._end}"


def went_back(looks: Sequence[Seen]) -> Iterator[str]:
    """Where the checkpoint of a partition did not go forward. `looks`: at that one, in their order."""
    for before, seen in pairwise(looks):
        for name in ("epoch", "offset", "redelivered_below"):
            was, now = getattr(before, name), getattr(seen, name)
            if now < was:
                yield f"the checkpoint's {name} went from {was} back to {now} at {seen.done_s:.3f}"


def _handoffs(partition: int, ordered: Sequence[_Ownership]) -> Iterator[Handoff]:
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
