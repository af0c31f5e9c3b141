"""What happens in a world, as its judge hears of it. One format for all processes, the store and what befalls them.

Times are true ones in microseconds; no process can see them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

Place = tuple[int, int]
"""Partition and offset."""

DROPPED: Final = "drop"
"""What keeps ownership has nothing of a removed group any more, or of the one that took its name meanwhile."""


class Row(NamedTuple):
    """One message as it was given."""

    partition: int
    offset: int
    key: str | None
    value: str
    marked: bool


class Lying(NamedTuple):
    """One message as it lies in a queue, and when it was published."""

    key: str | None
    value: str
    at_us: int


class Sent(NamedTuple):
    """A publisher took a message: the `number`-th of its key."""

    at_us: int
    by: str
    key: str
    number: int
    value: str


class Durable(NamedTuple):
    """Its sender was told where it lies."""

    at_us: int
    value: str
    partition: int
    offset: int


class Given(NamedTuple):
    """A process was given messages, for which it had asked at `asked_us`. Of a query: `batch`, of which a repetition
    has the same, and `after`, the batch at whose end it begins; `since_us`: from when on the messages have to be its
    flow's.
    """

    at_us: int
    asked_us: int
    group: str
    flow: str
    process: str
    rows: tuple[Row, ...]
    batch: str = ""
    after: str = ""
    since_us: int = 0


class Writing(NamedTuple):
    """A batch is about to be published in queues by its `writer`, or to be found published. `number`: of the write."""

    at_us: int
    number: int
    writer: str
    batch: int
    parts: tuple[tuple[str, tuple[str, ...]], ...]


class Wrote(NamedTuple):
    """How that ended: `accepted`, `refused` by a word that another try will not change, or `failed`. `is_healthy`:
    nothing befell the Spark checkpoint, and all tries of a batch have the same rows or fewer. `present`: what of it is
    in the queues though it was refused.
    """

    at_us: int
    number: int
    ending: str
    is_healthy: bool
    problem: str = ""
    present: frozenset[tuple[str, str]] = frozenset()


class Resolved(NamedTuple):
    """A person has said what a writer's batches are, from this number on."""

    at_us: int
    writer: str
    batch: int
    is_published: bool


class Handled(NamedTuple):
    """It is done with them, and says so from now on."""

    at_us: int
    group: str
    flow: str
    rows: tuple[Row, ...]


class Refused(NamedTuple):
    """It is told that its word counts for nothing here: these come again."""

    at_us: int
    group: str
    flow: str
    rows: tuple[Row, ...]


class Acknowledged(NamedTuple):
    """Its word counts, but for what it was told to have lost."""

    at_us: int
    group: str
    flow: str
    rows: tuple[Row, ...]
    lost: frozenset[int]


class Checkpointed(NamedTuple):
    """A checkpoint was written."""

    at_us: int
    group: str
    partition: int
    epoch: int
    flow: str
    instance: str
    offset: int
    redelivered_below: int
    may_reach: int = 0  # not known, where it is heard of later


class Beaten(NamedTuple):
    """A heartbeat took effect. `is_bound`: it does not say that the flow leaves."""

    at_us: int
    group: str
    process: str
    flow: str
    instance: str
    is_bound: bool


class Led(NamedTuple):
    """A coordinator has the lease, or still has it."""

    at_us: int
    group: str
    process: str
    token: str


class Removed(NamedTuple):
    """A group is gone from its queue, or is another one under its name from now on."""

    at_us: int
    group: str


class Part(NamedTuple):
    """What a group's state says of a partition. `owner`: flow and instance. `left_s`: until it moves anyway."""

    epoch: int
    phase: str
    owner: tuple[str, str] | None
    left_s: float
    drained: bool = False  # its owner has nothing in hand, the checkpoint says
    to_epoch: int = 0  # that of the fence which it waits for


class Decided(NamedTuple):
    """A coordinator wrote a group's state. `bound`: flows and their instances, in order of their names."""

    at_us: int
    group: str
    process: str
    bound: tuple[tuple[str, str], ...]
    parts: dict[int, Part]


class Befell(NamedTuple):
    """Something that the processes have to cope with. `is_accident`: messages may come again by it, marked."""

    at_us: int
    what: str
    whom: str
    is_accident: bool


Fact = (
    Sent
    | Durable
    | Given
    | Writing
    | Wrote
    | Resolved
    | Handled
    | Refused
    | Acknowledged
    | Checkpointed
    | Beaten
    | Led
    | Decided
    | Removed
    | Befell
)


class Told(NamedTuple):
    """A fact in a line, for people. It is made when somebody reads it: a judge names his evidence far more often."""

    fact: Fact

    def __str__(self) -> str:
        fact = self.fact
        what = [f"{name}={value}" for name, value in zip(fact._fields[1:], fact[1:], strict=True) if name != "rows"]
        rows = getattr(fact, "rows", ())
        what += [f"{row.partition}/{row.offset}{'*' if row.marked else ''}" for row in rows]
        return f"{fact.at_us / 1e6:9.3f} {type(fact).__name__} {' '.join(what)}"


told = Told


# --- judging ----------------------------------------------------------------------------------------------------------

MOST_RATE_DIFFERENCE: Final = 0.0002
"""Two clocks differ in rate by at most so much."""


class Violation(AssertionError):
    """Something happened that must never happen."""


def demand(condition: bool, *what: object) -> None:
    """Raise `Violation` with `what` unless the condition holds."""
    if not condition:
        raise Violation(" ".join(map(str, what)))
