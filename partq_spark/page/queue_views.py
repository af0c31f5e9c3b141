"""What the page shows of queues and messages: rows of a list, one queue, messages as text. Pure.

Texts about a queue are those of `partq queue describe` (`client.words`). Whatever a message holds becomes text that
cannot steer anything, and is cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from partq_spark.base.words import age, plural, size
from partq_spark.client import DamagedQueue, Message, QueueDescription, QueueSummary
from partq_spark.client.messages import row_text
from partq_spark.page.memory import History, rate

SHOWN_BYTES: Final = 2000
"""Of one key, value or header."""
FULL: Final = 0.9
"""Of its quota: a queue that is so full needs somebody."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueMemory:
    """What is kept of a queue between two looks at the list: how many messages were ever published, over time; what
    the last description says of it, what is wrong with its groups by name (`words.health`), and when that was looked
    at by this process' own clock.
    """

    published: History = ()
    described: QueueDescription | None = None
    health: Mapping[str, str] = field(default_factory=dict)
    described_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupLink:
    """A group of a queue, what it has not acknowledged and what is wrong with it where that is known."""

    group: str
    behind: str
    health: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueRow:
    """A queue in the list, `found` as the client has it. `health`: what is wrong, empty for nothing, None if it was not
    looked for yet. `lag`: messages that its groups have not acknowledged.
    """

    found: QueueSummary | DamagedQueue
    rate: str = ""
    oldest: str = ""
    groups: tuple[GroupLink, ...] = ()
    health: str | None = None
    lag: int = 0


def queue_rows(
    found: Iterable[QueueSummary | DamagedQueue], memory: Mapping[str, QueueMemory], now_s: float
) -> tuple[QueueRow, ...]:
    """The list of queues."""
    return tuple(
        QueueRow(found=each)
        if isinstance(each, DamagedQueue)
        else _row(each, memory.get(each.queue, QueueMemory()), now_s)
        for each in found
    )


def _row(found: QueueSummary, memory: QueueMemory, now_s: float) -> QueueRow:
    described = memory.described
    return QueueRow(
        found=found,
        rate=rate_words(rate(memory.published)),
        oldest=_oldest(memory, now_s) if found.messages else "none",
        groups=tuple(
            GroupLink(group=name, behind=_behind(name, described), health=memory.health.get(name))
            for name in found.groups
        ),
        health=None if described is None else _health(found, described, memory.health),
        lag=sum(each.messages for each in (described.held_back if described else None) or ()),
    )


def _health(found: QueueSummary, described: QueueDescription, groups: Mapping[str, str]) -> str:
    unwell = sum(bool(groups.get(name)) for name in found.groups)
    said = ["its log is damaged"] if described.problems else []
    said += [f"{found.quota_used:.0%} of the quota used"] if (found.quota_used or 0.0) >= FULL else []
    said += [f"{plural(unwell, 'group')} to look at"] if unwell else []
    return ", ".join(said)


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
    if any(each.for_ever for each in mine) or group not in described.groups:
        return ""
    return f"{plural(sum(each.messages for each in mine), 'message')} behind"


def rate_words(per_s: float | None) -> str:
    """Messages per second."""
    if per_s is None:
        return "…"
    return f"{per_s:,.0f}/s" if per_s == 0 or per_s >= 10 else f"{per_s:,.1f}/s"


def published(found: QueueDescription | QueueSummary) -> int:
    """How many messages ever were."""
    return found.published if isinstance(found, QueueSummary) else sum(each.next for each in found.partitions)


# --- messages ---------------------------------------------------------------------------------------------------------


def value_of(message: Message) -> bytes | None:
    """A message's value; a row as JSON."""
    found: bytes | None = message.value
    return row_text(message.value).encode() if isinstance(message.value, Mapping) else found


def length(value: bytes | None) -> str:
    """How long a value is that is cut; empty where it is whole."""
    return size(len(value)) if value and len(value) > SHOWN_BYTES else ""
