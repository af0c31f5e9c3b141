"""The guarantees, each once: what must be true of messages that were delivered, and of checkpoints that were written.

Simulations, storms and chaos translate their evidence into the records here and ask the rules. A rule is pure, knows
nothing of stores, sessions or Spark, and yields one sentence for each time that it is broken: a simulation raises the
first one (`forbid`), a judge of files collects them. How evidence is found, and which order of ownerships it shows, is
theirs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, Self

MOST_RATE_DIFFERENCE = 0.0002  # two clocks differ in rate by at most so much


class Violation(AssertionError):
    """Something happened that must never happen."""


def demand(condition: bool, *what: object) -> None:
    """Raise `Violation` with `what` unless the condition holds."""
    if not condition:
        raise Violation(" ".join(map(str, what)))


def forbid(broken: Iterable[str], *evidence: object) -> None:
    """Raise `Violation` with the first sentence of a rule, if there is one, and with the evidence."""
    for told in broken:
        demand(False, f"{told}:", *evidence)


# --- what was handled -------------------------------------------------------------------------------------------------


class Message(NamedTuple):
    """One message of a queue."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"message {self.offset} of partition {self.partition}"


class Ownership(NamedTuple):
    """One instance of a flow with one partition at one epoch; flow and instance are empty where nobody has it."""

    epoch: int
    flow: str
    instance: str

    def __str__(self) -> str:
        instance = f"/{self.instance[:6]}" if self.instance else ""
        return f"{self.flow or 'nobody'}{instance} at epoch {self.epoch}"


class Delivery(NamedTuple):
    """Messages `[start, end)` of a partition, marked below `redelivered_below`. `asked` is when their owner asked
    whether it may, `done` when that took effect; both in the same unit, or 0 where time says nothing.
    """

    by: Ownership
    start: int
    end: int
    redelivered_below: int
    asked: float = 0.0
    done: float = 0.0

    @classmethod
    def of_one(cls, by: Ownership, offset: int, redelivered: bool, asked: float = 0.0, done: float = 0.0) -> Self:
        """A single message."""
        return cls(by, offset, offset + 1, offset + 1 if redelivered else 0, asked, done)

    def __str__(self) -> str:
        return f"{self.by} delivered {self.start} to {self.end}"


class Position(NamedTuple):
    """What a checkpoint says of its partition; `flow` is empty where it names nobody."""

    epoch: int
    flow: str
    offset: int
    redelivered_below: int


# --- checkpoints and owners -------------------------------------------------------------------------------------------


def went_back(before: Position, now: Position) -> Iterator[str]:
    """A checkpoint only goes forward (CHK-04)."""
    for name in ("epoch", "offset", "redelivered_below"):
        was, value = getattr(before, name), getattr(now, name)
        if value < was:
            yield f"the checkpoint's {name} went from {was} back to {value}"


def shared_epochs(owners: Iterable[tuple[int, str]]) -> Iterator[str]:
    """An epoch of a partition belongs to one flow. `owners`: epochs and flows, as often as they were seen."""
    flows: dict[int, str] = {}
    for epoch, flow in owners:
        first = flows.setdefault(epoch, flow)
        if first != flow:
            yield f"epoch {epoch} belongs to {first or 'nobody'} and to {flow or 'nobody'}"


def two_owners(delivery: Delivery, later: Ownership, in_force: float) -> Iterator[str]:
    """No delivery is begun once a later ownership is known to be in force."""
    if delivery.asked > in_force:
        yield f"two owners: {delivery}, begun at {delivery.asked:.3f}; {later} was in force at {in_force:.3f}"


def acknowledged_beyond(offset: int, reached: int, what: object = "the checkpoint") -> Iterator[str]:
    """Nobody acknowledges what was not delivered, and no checkpoint passes what nobody is done with."""
    if offset > reached:
        yield f"{what} is at {offset}, beyond what was dealt with, which ends at {reached}"


class Leases:
    """Until when each flow may deliver, by what it heard of its own heartbeats."""

    def __init__(self) -> None:
        self._timeouts_us: dict[Hashable, int] = {}
        self._until_us: dict[Hashable, float] = {}

    def bound(self, owner: Hashable, session_timeout_us: int) -> None:
        """A bind took effect: the lease begins with the next heartbeat that is heard of."""
        self._timeouts_us[owner] = session_timeout_us
        self._until_us[owner] = 0.0

    def renewed(self, owner: Hashable, sent_us: int) -> None:
        """It heard that its heartbeat, sent then, has taken effect."""
        if owner in self._timeouts_us:
            until_us = sent_us + self._timeouts_us[owner] * (1 + MOST_RATE_DIFFERENCE)
            self._until_us[owner] = max(until_us, self._until_us[owner])

    def over(self, owner: Hashable, at_us: int) -> Iterator[str]:
        """A flow that was silent for a session timeout may have been given up, and delivers nothing more."""
        until_us = self._until_us.get(owner, 0.0)
        if at_us > until_us:
            yield f"delivered after the lease has ended: {owner} at {at_us}, until {until_us:.0f}"


# --- none is lost, none comes twice without a mark --------------------------------------------------------------------


def gap(delivery: Delivery, ended: int | None) -> Iterator[str]:
    """Within one ownership each delivery begins where the one before ended; None: there was none."""
    if ended is not None and delivery.start != ended:
        yield f"{delivery} after {ended}"


def skipped(delivery: Delivery, reached: int) -> Iterator[str]:
    """Something is delivered, and nothing is left out before it. `reached`: what was delivered or acknowledged."""
    if delivery.start >= delivery.end:
        yield f"{delivery}: that is nothing"
    if delivery.start > reached:
        yield f"{delivery}, nobody has delivered {reached} to {delivery.start}"


def unmarked(first: Delivery, second: Delivery) -> Iterator[str]:
    """What comes again from another ownership, or in another batch, is marked. `first`: of the earlier one."""
    offset = max(first.start, second.start, second.redelivered_below)
    if offset < min(first.end, second.end):
        below = second.redelivered_below
        yield f"delivered twice and not marked: {offset}, by {first.by}; then {second}, marked below {below}"


def unmarked_in_time(one: Delivery, other: Delivery) -> Iterator[str]:
    """The same where only time says which is the second: the one that was asked for when the first was there already.
    Of two that were asked for side by side either may be marked.
    """
    if one.done < other.asked:
        yield from unmarked(one, other)
    elif other.done < one.asked or any(unmarked(one, other)):
        yield from unmarked(other, one)


def undelivered(deliveries: Iterable[Delivery], end: int) -> Iterator[str]:
    """Every message of a partition that ends there was delivered."""
    reached = 0
    for start, stop in sorted((each.start, each.end) for each in deliveries):
        if start > reached:
            yield f"nobody has delivered {reached} to {start}"
        reached = max(reached, stop)
    if reached != end:
        yield f"delivered up to {reached} of {end}"


# --- the order of a key -----------------------------------------------------------------------------------------------


class Publications:
    """What was published, in its order. A key changes its partition when the partition count changes."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self._last: dict[Hashable, dict[int, Message]] = defaultdict(dict)
        self._earlier: dict[Message, tuple[Message, ...]] = {}

    def publish(self, partitions: int, keys: Iterable[int]) -> None:
        """One message for each key, into `key % partitions`."""
        for key in keys:
            partition = key % partitions
            self.ends += [0] * (partition + 1 - len(self.ends))
            self.add(key, Message(partition, self.ends[partition]))
            self.ends[partition] += 1

    def add(self, key: Hashable, message: Message) -> None:
        """The next message of a key."""
        last = self._last[key]
        others = tuple(each for each in last.values() if each.partition != message.partition)
        if others:
            self._earlier[message] = others
        last[message.partition] = message

    def earlier(self, message: Message) -> tuple[Message, ...]:
        """Of its key, the last message before it in each other partition."""
        return self._earlier.get(message, ())


def before_its_key(message: Message, earlier: Iterable[Message], reached: Callable[[int], int]) -> Iterator[str]:
    """A message comes first when the older ones of its key in other partitions are dealt with (RES-03). `reached`: up
    to where a partition is.
    """
    for other in earlier:
        if other.offset >= reached(other.partition):
            yield f"{message} came before {other}, which is of its key and older, was dealt with"
