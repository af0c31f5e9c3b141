"""What the page shows of queues and messages: rows of a list, one queue, messages as text. Pure.

Texts about a queue are those of `partq queue describe` (`client.words`). Whatever a message holds becomes text that
cannot steer anything, and is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from partq_spark.base.words import age, plural, readable, size, when
from partq_spark.client import DamagedQueue, GroupSummary, Message, QueueDescription, QueueSummary, words
from partq_spark.client.json_values import row_text
from partq_spark.page.history import History, rate

SHOWN_BYTES: Final = 2000
"""Of one key, value or header."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueMemory:
    """What is kept of a queue between two looks at the list: how many messages were ever published, over time; what
    the last description says of it, and when that was looked at by this process' own clock.
    """

    published: History = ()
    described: QueueDescription | None = None
    described_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLink:
    """A group of a queue, with what it has not acknowledged where that is known."""

    group: str
    behind: str


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """A queue in the list. `error`: it cannot be read."""

    queue: str
    partitions: str = ""
    messages: str = ""
    stored: str = ""
    rate: str = ""
    oldest: str = ""
    quota: str = ""
    groups: tuple[GroupLink, ...] = ()
    error: str = ""


def queue_rows(
    found: Iterable[QueueSummary | DamagedQueue], memory: Mapping[str, QueueMemory], now_s: float
) -> tuple[QueueRow, ...]:
    """The list of queues."""
    return tuple(
        QueueRow(queue=each.queue, error=each.error)
        if isinstance(each, DamagedQueue)
        else _row(each, memory.get(each.queue, QueueMemory()), now_s)
        for each in found
    )


def _row(found: QueueSummary, memory: QueueMemory, now_s: float) -> QueueRow:
    return QueueRow(
        queue=found.queue,
        partitions=f"{found.partitions:,}",
        messages=f"{found.messages:,}",
        stored=size(found.bytes),
        rate=rate_words(rate(memory.published)),
        oldest=_oldest(memory, now_s) if found.messages else "none",
        quota=words.quota(found.quota_bytes, found.quota_used),
        groups=tuple(GroupLink(group=name, behind=_behind(name, memory.described)) for name in found.groups),
    )


def _oldest(memory: QueueMemory, now_s: float) -> str:
    """As old as when it was looked at, and what has passed since."""
    described = memory.described
    if described is None or described.oldest_age_s is None:
        return "…"
    return age(described.oldest_age_s + max(now_s - memory.described_s, 0.0))


def _behind(group: str, described: QueueDescription | None) -> str:
    """Messages that a group has left; of one that writes no acknowledgement down nothing is known."""
    if described is None or described.held_back is None:
        return ""
    mine = [each for each in described.held_back if each.group == group]
    if any(each.for_ever for each in mine) or group not in [each.group for each in described.groups]:
        return ""
    return f"{plural(sum(each.messages for each in mine), 'message')} behind"


def rate_words(per_s: float | None) -> str:
    """Messages per second."""
    if per_s is None:
        return "…"
    return f"{per_s:,.0f}/s" if per_s == 0 or per_s >= 10 else f"{per_s:,.1f}/s"


# --- one queue --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionRow:
    """A partition in the table; `bar` is its share, the fullest partition being 100."""

    partition: int
    earliest: int
    next: int
    messages: int
    bar: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupRow:
    """A group of the queue."""

    group: str
    ownership: str
    unacknowledged: int
    oldest: str
    changed: str
    problems: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayoutRow:
    """A partition count of which messages are still there."""

    generation: int
    partitions: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePicture:
    """Everything that the page shows of a queue."""

    queue: str
    facts: words.Facts
    held_back: str
    rate: str
    partitions: tuple[PartitionRow, ...]
    groups: tuple[GroupRow, ...]
    layouts: tuple[LayoutRow, ...]


def queue_picture(found: QueueDescription, groups: Collection[GroupSummary], published: History) -> QueuePicture:
    """One queue. `published`: how many messages ever were, over time."""
    most = max((each.messages for each in found.partitions), default=0)
    return QueuePicture(
        queue=found.queue,
        facts=words.queue_in_words(found),
        held_back=words.held_back_in_words(found.held_back or ()),
        rate=rate_words(rate(published)),
        partitions=tuple(
            PartitionRow(
                partition=each.partition,
                earliest=each.earliest,
                next=each.next,
                messages=each.messages,
                bar=max(round(100 * each.messages / most), 1) if each.messages else 0,
            )
            for each in found.partitions
        ),
        groups=tuple(
            GroupRow(
                group=each.group,
                ownership=each.ownership or "",
                unacknowledged=each.unacknowledged,
                oldest=_time(each.oldest),
                changed="never" if each.changed_s is None else age(each.changed_s),
                problems=each.problems,
            )
            for each in groups
        ),
        layouts=tuple(LayoutRow(generation=each.generation, partitions=each.partitions) for each in found.layouts),
    )


def published(found: QueueDescription | QueueSummary) -> int:
    """How many messages ever were."""
    return found.published if isinstance(found, QueueSummary) else sum(each.next for each in found.partitions)


def _time(time: datetime | None) -> str:
    return "" if time is None else f"{when(time)} UTC"


# --- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageRow:
    """A message as text. `length` tells how long a value is that was cut; empty where it is whole."""

    partition: int
    offset: int
    published: str
    key: str
    value: str
    length: str
    headers: tuple[tuple[str, str], ...]


def message_rows(found: Sequence[Message]) -> tuple[MessageRow, ...]:
    """Messages as text: UTF-8 with what cannot be printed escaped, or hexadecimal digits; a row as JSON; cut."""
    return tuple(_message_row(each) for each in found)


def _message_row(message: Message) -> MessageRow:
    value = row_text(message.value).encode() if isinstance(message.value, Mapping) else message.value
    return MessageRow(
        partition=message.partition,
        offset=message.offset,
        published=f"{when(message.timestamp)} UTC",
        key=shown(message.key),
        value=shown(value),
        length=size(len(value)) if value and len(value) > SHOWN_BYTES else "",
        headers=tuple((shown(header.key), shown(header.value)) for header in message.headers or ()),
    )


def shown(value: bytes | str | None) -> str:
    """A key, value or header on one line."""
    if value is None:
        return "null"
    data = value.encode() if isinstance(value, str) else value
    return readable(data, SHOWN_BYTES) if data else '""'
