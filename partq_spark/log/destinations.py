"""Topics and subscriptions, and which queues get the messages of one batch (DIS-07). No pyspark, no Arrow.

A topic is 1 to 250 UTF-8 bytes in levels separated by `/`, none of them empty (so there are at most 125, within the 128
that brokers allow), without `*` and `>`. In a subscription `*` stands for zero or more characters of its level (alone:
for exactly one whole level), and `>`, only as the last level, for one or more further levels. Matching is
case-sensitive.

Where a batch goes, and whether it can, is decided once, on the driver. What is decided travels to the batch's tasks as
a `FanPlan`, so that all of them agree; `fanout` acts on it, and for each queue `staging` makes of a `Stage` a
`StagedSegment`. Messages that are rows go to typed queues alone, keys and values to untyped ones, and all of a batch to
queues with the same columns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.log.model import Head, Slice
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import Columns, same_columns, shown_names

if TYPE_CHECKING:
    import pyarrow as pa

    from partq_spark.log.schema.conform import Conversion

SHOWN_DDL = 200  # characters
MAX_TOPIC_BYTES = 250

_SHOWN = 300  # characters of what is refused, in a message: more than can be right


def checked_topic(topic: str) -> str:
    """`topic` itself. Raises `Invalid` naming the place and what is allowed."""
    for number, level in enumerate(_levels("topic", topic), start=1):
        for wildcard in "*>":
            if wildcard in level:
                raise _refused(
                    "topic",
                    topic,
                    f"level {number} ({level!r}) holds {wildcard!r}",
                    "a message's topic has no wildcards ('*' and '>'), those are for subscriptions",
                )
    return topic


def checked_subscription(subscription: str) -> str:
    """`subscription` itself. Raises `Invalid` naming the place and what is allowed."""
    levels = _levels("subscription", subscription)
    for number, level in enumerate(levels, start=1):
        if ">" in level and (level != ">" or number < len(levels)):
            raise _refused(
                "subscription",
                subscription,
                f"level {number} ({level!r}) holds '>'",
                "'>' stands alone as the last level, such as orders/>",
            )
    return subscription


def _levels(kind: str, text: str) -> list[str]:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise _refused(
            kind, text, f"character {error.start + 1} is half of a surrogate pair", "give valid UTF-8"
        ) from None
    if not 1 <= size <= MAX_TOPIC_BYTES:
        raise _refused(kind, text, f"it has {size} bytes in UTF-8", f"give 1 to {MAX_TOPIC_BYTES}")
    levels = text.split("/")
    if "" in levels:
        raise _refused(
            kind,
            text,
            f"level {levels.index('') + 1} is empty",
            "levels are separated by single '/', none at the beginning or end, such as orders/eu/new",
        )
    return levels


def _refused(kind: str, text: str, place: str, allowed: str) -> Invalid:
    shown = repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}…"
    return Invalid(f"{kind} {shown} is not allowed: {place}; {allowed}")


def matches(subscription: str, topic: str) -> bool:
    """Whether the subscription attracts the topic; both must be well formed."""
    return _pattern(subscription).fullmatch(topic) is not None


def _pattern(subscription: str) -> re.Pattern[str]:
    """A well-formed subscription as a regular expression.

    Each piece between two `*` has the leftmost place, which leaves most room for the next, and keeps it (`(?>…)`): a
    plain expression would go back and forth for hours over a few dozen `*`.
    """
    levels = []
    for level in subscription.split("/"):
        first, *others = map(re.escape, level.split("*"))
        between = "".join(f"(?>[^/]*?{piece})" for piece in others[:-1])
        levels.append(first + between + "".join(f"[^/]*{last}" for last in others[-1:]))
    if levels[-1] == ">":
        levels[-1] = ".+"
    return re.compile("/".join(levels), re.DOTALL)


class Attraction:
    """Which of several owners, numbered from 0, attract a topic. Made once for many topics.

    Subscriptions without wildcards are looked up; the others are tried one by one, those first that begin as the topic
    does.
    """

    def __init__(self, subscriptions: Iterable[Iterable[str]]) -> None:
        """One collection of well-formed subscriptions for each owner."""
        self._exact: dict[str, list[int]] = {}
        self._by_first: dict[str, list[tuple[re.Pattern[str], int]]] = {}
        self._others: list[tuple[re.Pattern[str], int]] = []
        for owner, each in enumerate(subscriptions):
            for subscription in each:
                self._add(subscription, owner)

    def _add(self, subscription: str, owner: int) -> None:
        if "*" not in subscription and ">" not in subscription:
            self._exact.setdefault(subscription, []).append(owner)
            return
        first = subscription.partition("/")[0]
        is_plain = "*" not in first and first != ">"
        same = self._by_first.setdefault(first, []) if is_plain else self._others
        same.append((_pattern(subscription), owner))

    def owners(self, topic: str) -> tuple[int, ...]:
        """Their numbers, rising, each once; none if nobody attracts it."""
        found = set(self._exact.get(topic, ()))
        for group in (self._by_first.get(topic.partition("/")[0], ()), self._others):
            for pattern, owner in group:
                if owner not in found and pattern.fullmatch(topic):
                    found.add(owner)
        return tuple(sorted(found))


# --- where a batch goes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """What a task must know to stage messages for a queue: taken from the head once, on the driver. `named`: by the
    user, and not only by what the queue attracts.
    """

    namespace: str
    queue: str
    queue_id: str
    sequence: int
    generation: int
    partitions: int
    max_message_bytes: int
    columns: Columns | None = None  # of a typed queue
    named: bool = True

    def fits(self, other: Stage) -> bool:
        """Whether both are of one layout and one version of the columns."""
        return self.generation == other.generation and self.columns == other.columns


def stage_of(head: Head, *, named: bool = True) -> Stage:
    """What tasks need to stage for a queue with this head."""
    return Stage(
        namespace=head.namespace,
        queue=head.queue,
        queue_id=head.queue_id,
        sequence=head.sequence,
        generation=head.layout.generation,
        partitions=head.partitions,
        max_message_bytes=head.config.max_message_bytes,
        columns=head.columns,
        named=named,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedSegment:
    """One task's messages, durable but not yet published, and what they were staged for."""

    stage: Stage
    name: str
    headers: bool
    slices: tuple[Slice, ...]  # each partition's messages are numbered from 0: their offsets come with the publish
    bytes: int

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.slices)


class Outdated(Conflict):
    """What was staged can no longer be published: stage it again from the messages. Nothing of it was published."""


def check_floor(stage: Stage, head: Head) -> None:
    """Guard: blobs staged below the floor may be gone already."""
    if stage.sequence < head.floor.sequence:
        raise Outdated(
            f"messages for queue {head.queue!r} were staged at sequence {stage.sequence}, collection has passed "
            f"{head.floor.sequence}: publish them again"
        )


def check_version(stage: Stage, head: Head) -> None:
    """Guard: what was staged for a version of the columns that the head does not have could not be read. An earlier
    version than the present one is welcome (TYP-05).
    """
    if stage.columns is not None and (head.columns is None or head.columns.version < stage.columns.version):
        known = head.columns.version if head.columns is not None else 0
        raise Outdated(
            f"messages for queue {head.queue!r} were staged for version {stage.columns.version} of its columns, its "
            f"head knows {known} (was the store restored from an older copy?): publish them again"
        )


def have_same_columns(segments: Sequence[StagedSegment]) -> bool:
    """Whether all were staged for one version of the columns."""
    return all(segment.stage.columns == segments[0].stage.columns for segment in segments)


@dataclass(frozen=True, kw_only=True, slots=True)
class FanPlan:
    """Where the messages of one batch go; free of secrets, the same for all of its tasks.

    With `subscriptions`, those of each destination, each message goes by its own topic, one without a topic to the
    named destination. Without (None) all messages go to all destinations, which are those that attract `topic` if there
    is one.
    """

    destinations: tuple[Stage, ...]  # in order of their names
    subscriptions: tuple[tuple[str, ...], ...] | None = None
    topic: str | None = None

    @property
    def by_topic(self) -> bool:
        """Whether each message goes by its own topic."""
        return self.subscriptions is not None

    def check(self, given: pa.Schema | None) -> None:
        """Raises `Invalid` if it can be seen before anything is staged that the messages cannot be published: where all
        go to the same queues, one of these does not take them; else none does. `given`: the columns of messages that
        are rows; None: they are keys and values.
        """
        problems: list[Invalid] = []
        for destination in self.destinations:
            try:
                if not self.by_topic:
                    check_alike(self.destinations[0], destination)
                taking(destination, given)
            except Invalid as problem:
                problems.append(problem)
        if problems and (not self.by_topic or len(problems) == len(self.destinations)):
            raise problems[0]


def plan_queue(queue: QueueLog) -> FanPlan:
    """All messages go to one queue; reads its head. Raises `Invalid` if there is no such queue."""
    return FanPlan(destinations=(stage_of(queue.refresh()),))


def plan_topic(queues: Iterable[QueueLog], topic: str, named: QueueLog | None = None) -> FanPlan:
    """All messages have one topic. `queues` are those of the namespace, their heads read.

    Raises `Invalid` if the named queue does not exist; it gets the messages only if it attracts them too.
    """
    every, subscriptions = _destinations(queues, named)
    attracted = tuple(every[owner] for owner in Attraction(subscriptions).owners(topic))
    return FanPlan(destinations=attracted, topic=topic)


def plan_topics(queues: Iterable[QueueLog], named: QueueLog | None = None) -> FanPlan:
    """Each message has its own topic, or none: those go to the named queue. Raises `Invalid` if that does not exist."""
    every, subscriptions = _destinations(queues, named)
    return FanPlan(destinations=every, subscriptions=subscriptions)


def _destinations(
    queues: Iterable[QueueLog], named: QueueLog | None
) -> tuple[tuple[Stage, ...], tuple[tuple[str, ...], ...]]:
    """In order of their names, and what each attracts."""
    heads = {queue.name: queue.head for queue in queues if queue.head.subscriptions}
    if named is not None and named.name not in heads:
        heads[named.name] = named.refresh()
    every = [heads[name] for name in sorted(heads)]
    stages = (stage_of(head, named=named is not None and head.queue == named.name) for head in every)
    return tuple(stages), tuple(head.subscriptions for head in every)


def check_alike(stage: Stage, other: Stage) -> None:
    """Raises `Invalid` unless both queues have the same columns: a batch goes to such alone."""
    one, two = stage.columns, other.columns
    if (one is None) == (two is None) and (one is None or two is None or same_columns(one, two)):
        return
    raise Invalid(
        f"one batch would go to queue {stage.queue!r} ({_of(stage)}) and to queue {other.queue!r} ({_of(other)}), "
        "which do not have the same columns: let their subscriptions differ, or publish to each by its name"
    )


def _of(stage: Stage) -> str:
    if stage.columns is None:
        return "untyped: key and value"
    ddl = stage.columns.ddl
    return ddl if len(ddl) <= SHOWN_DDL else f"{ddl[:SHOWN_DDL]}…"


def taking(stage: Stage, given: pa.Schema | None) -> Conversion | None:
    """How a queue takes rows with columns `given`; None: an untyped one, which takes keys and values. Raises
    `Invalid`.
    """
    if stage.columns is None and given is None:
        return None
    if stage.columns is None or given is None:
        what = "keys and values" if given is None else f"rows ({shown_names(given.names)})"
        raise Invalid(
            f"queue {stage.queue!r} ({_of(stage)}) cannot take messages that are {what}: publish what it has columns "
            "for"
        )
    from partq_spark.log.schema.conform import Conversion
    from partq_spark.log.schema.versions import schema_of

    try:
        return Conversion.to_queue(given, schema_of(stage.columns))
    except Invalid as error:
        raise Invalid(f"queue {stage.queue!r} cannot take these rows: {error}") from None
