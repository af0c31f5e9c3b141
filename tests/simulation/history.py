"""What happened in a simulated world, in true time: the values that the checker judges and the digest is made of.

Facts only, taken down where they took effect: at the stores' own side of the network, or in the consumer's hands.
Nothing here comes out of the code under test, except for what it handed to a store or to its consumer.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from partq_spark.group.model import GroupState, Owner


class StoreLost(NamedTuple):
    """The ownership store forgot: `flush` (FLUSHALL), `empty` (restarted), `rollback` (restarted from an old copy)."""

    at_us: int
    kind: str


class Bound(NamedTuple):
    """A bind took effect."""

    at_us: int
    owner: Owner
    session_timeout_s: float


class Unbound(NamedTuple):
    """An unbind took effect."""

    at_us: int
    owner: Owner


class Beaten(NamedTuple):
    """A heartbeat took effect, alone or with a report."""

    at_us: int
    owner: Owner


class Renewed(NamedTuple):
    """A flow heard that its heartbeat, sent at `sent_us`, has taken effect: its lease is long from there."""

    at_us: int
    owner: Owner
    sent_us: int


class Reported(NamedTuple):
    """A record's entry took effect. `told` False: it is stored, but nothing tells others of it yet."""

    at_us: int
    owner: Owner
    partition: int
    epoch: int
    delivered: int
    told: bool = True


class Forgotten(NamedTuple):
    """An instance's record was removed."""

    at_us: int
    owner: Owner


class LeaseTaken(NamedTuple):
    """A coordinator has become the leader."""

    at_us: int
    token: str


class StateWritten(NamedTuple):
    """A group's state took effect. `lease` is the one that its writer had when it sent the change, at `sent_us`."""

    at_us: int
    sent_us: int
    lease: str
    token: str
    state: GroupState

    def __repr__(self) -> str:
        return f"StateWritten(at_us={self.at_us}, lease={self.lease!r}, token={self.token!r}, {outline(self.state)})"


def outline(state: GroupState) -> str:
    """A state in one line: its status, who is bound (`+`) or not (`-`), and each partition with phase and owner."""
    flows = " ".join(f"{'+' if flow.bound else '-'}{flow.name}.{flow.instance[:4]}" for flow in state.flows.values())
    partitions = " ".join(
        f"{each.partition}:{each.phase.value}@{each.epoch}={_short(each.owner)}"
        + (f">{_short(each.to)}@{each.to_epoch}" if each.to or each.to_epoch else "")
        + ("?" if each.reports_lost else "")
        for each in state.partitions.values()
    )
    return f"{state.status.value}{'!' if state.trigger else ''} [{flows}] {partitions}"


def _short(owner: Owner | None) -> str:
    return "-" if owner is None else f"{owner.flow}.{owner.instance[:4]}"


class CheckpointWritten(NamedTuple):
    """A checkpoint took effect."""

    at_us: int
    partition: int
    epoch: int
    owner: Owner | None
    offset: int | None
    redelivered_below: int


class Published(NamedTuple):
    """One message for each of `keys`, into `key % partitions`."""

    at_us: int
    partitions: int
    keys: tuple[int, ...]


class Rewinding(NamedTuple):
    """Somebody takes a partition back to an earlier offset from now on, and away from its owner."""

    at_us: int
    partition: int


class Delivered(NamedTuple):
    """The consumer was handed `[start, end)`. `sent_us` is when the flow asked whether it may.

    Offsets below `redelivered_below` were marked as delivered before. `replayed`: Spark plans the same batch again
    after a restart, which is no new delivery.
    """

    at_us: int
    sent_us: int
    owner: Owner
    partition: int
    epoch: int
    start: int
    end: int
    redelivered_below: int
    replayed: bool = False


class Processed(NamedTuple):
    """The consumer is done with everything before `end`, and will say so."""

    at_us: int
    owner: Owner
    partition: int
    epoch: int
    end: int


Fact = (
    StoreLost
    | Bound
    | Unbound
    | Beaten
    | Renewed
    | Reported
    | Forgotten
    | LeaseTaken
    | StateWritten
    | CheckpointWritten
    | Published
    | Rewinding
    | Delivered
    | Processed
)


@dataclass(slots=True)
class History:
    """Passes every fact on to `judge` at once, and keeps a digest of all of them; the last ones for people."""

    judge: Callable[[Fact], None]
    keep: int = 0  # so many of the last facts, for people
    facts: deque[Fact | str] = field(default_factory=deque)
    count: int = 0
    broken: AssertionError | None = None  # the first violation, should anybody have caught it
    _digest: hashlib.blake2b = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def add(self, fact: Fact) -> None:
        """Something took effect."""
        self.count += 1
        if self.keep:
            self.remember(fact)
        self._digest.update(repr(fact).encode())
        try:
            self.judge(fact)
        except AssertionError as error:
            self.broken = self.broken or error
            raise

    def note(self, text: str) -> None:
        """Something that nobody judges but that tells one history from another: a fault, a crash, a call."""
        self.count += 1
        if self.keep:
            self.remember(text)
        self._digest.update(text.encode())

    def remember(self, fact: Fact | str) -> None:
        """For people alone."""
        self.facts.append(fact)
        if len(self.facts) > self.keep:
            self.facts.popleft()

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._digest.hexdigest()
