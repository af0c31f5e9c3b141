"""Topics and subscriptions: what is well formed, and which topic matches which subscription (DIS-07). Strings only.

A topic is 1 to 250 UTF-8 bytes in levels separated by `/`, none of them empty (so there are at most 125, within the 128
that brokers allow), without `*` and `>`. In a subscription `*` stands for zero or more characters of its level (alone:
for exactly one whole level), and `>`, only as the last level, for one or more further levels. Matching is
case-sensitive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from partq_spark.base.errors import Invalid

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
    return compiled(subscription).matches(topic.split("/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Pattern:
    """A subscription taken apart: per level its pieces between the `*`, a single one for a level without."""

    levels: tuple[tuple[str, ...], ...]  # without a final `>`
    open_end: bool  # it ended with `>`

    def matches(self, topic: Sequence[str]) -> bool:
        """Whether it attracts the topic with these levels."""
        if len(topic) <= len(self.levels) if self.open_end else len(topic) != len(self.levels):
            return False
        return all(_fits(pieces, level) for pieces, level in zip(self.levels, topic, strict=False))


def compiled(subscription: str) -> Pattern:
    """A well-formed subscription as a pattern."""
    levels = subscription.split("/")
    open_end = levels[-1] == ">"
    return Pattern(
        levels=tuple(tuple(level.split("*")) for level in (levels[:-1] if open_end else levels)), open_end=open_end
    )


def _fits(pieces: tuple[str, ...], level: str) -> bool:
    """Whether the pieces are in the level in this order, the first at its beginning and the last at its end.

    Taking the leftmost place for each leaves most room for the next, so nothing is ever tried twice: a regular
    expression would go back and forth for hours over a few dozen `*`.
    """
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return level == first
    if len(level) < len(first) + len(last) or not level.startswith(first) or not level.endswith(last):
        return False
    at, end = len(first), len(level) - len(last)
    for piece in pieces[1:-1]:
        found = level.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


class Attraction:
    """Which of several owners, numbered from 0, attract a topic. Made once for many topics.

    Subscriptions without wildcards are looked up; the others are tried one by one, those first that begin as the topic
    does.
    """

    def __init__(self, subscriptions: Iterable[Iterable[str]]) -> None:
        """One collection of well-formed subscriptions for each owner."""
        self._exact: dict[str, list[int]] = {}
        self._by_first: dict[str, list[tuple[Pattern, int]]] = {}
        self._others: list[tuple[Pattern, int]] = []
        for owner, each in enumerate(subscriptions):
            for subscription in each:
                self._add(subscription, owner)

    def _add(self, subscription: str, owner: int) -> None:
        if "*" not in subscription and ">" not in subscription:
            self._exact.setdefault(subscription, []).append(owner)
            return
        pattern = compiled(subscription)
        if pattern.levels and len(pattern.levels[0]) == 1:
            self._by_first.setdefault(pattern.levels[0][0], []).append((pattern, owner))
        else:
            self._others.append((pattern, owner))

    def owners(self, topic: str) -> tuple[int, ...]:
        """Their numbers, rising, each once; none if nobody attracts it."""
        found = set(self._exact.get(topic, ()))
        levels = topic.split("/")
        for group in (self._by_first.get(levels[0], ()), self._others):
            for pattern, owner in group:
                if owner not in found and pattern.matches(levels):
                    found.add(owner)
        return tuple(sorted(found))
