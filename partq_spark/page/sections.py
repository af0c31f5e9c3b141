"""The three things that can be watched (the list of queues, one queue, one group): what is looked at, and the HTML of
their sections. Runs in the threads of `looks`; what is remembered between looks is kept here, bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from partq_spark import client
from partq_spark.base.errors import PartqError
from partq_spark.client import words
from partq_spark.page.group_views import GroupMemory, memory_of, picture, timeline_note
from partq_spark.page.looks import Sections
from partq_spark.page.memory import MOST_REMEMBERED, History, Kept, Timeline, rate, remembered
from partq_spark.page.queue_views import QueueMemory, published, queue_rows, rate_words
from partq_spark.page.render import html

LOOK_RETRY_S: Final = 2.0
"""A look that fails is tried again for so long, then it is said that it failed, and the next one begins."""

DESCRIBED_S: Final = 5.0
"""A queue of the list is described anew when its description is so old; one of them with each look."""

MOST_JUDGED: Final = 20
JUDGED_S: Final = 0.5
"""So many groups are looked at with one look at a queue or the list, and for so long: it must not take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What the page shows: a namespace of a store. `ownership` None: as the environment says. `server` is the
    coordinator that serves the page, `timeline` its decisions; without one they are empty and None.
    """

    store: str
    namespace: str
    ownership: str | None = None
    retry_timeout_s: float = 30.0
    server: str = ""
    timeline: Timeline | None = None

    def queue(self, name: str, *, retry_timeout_s: float | None = None) -> client.Queue:
        """A queue there. Raises `Invalid` for what is no name."""
        patience_s = self.retry_timeout_s if retry_timeout_s is None else retry_timeout_s
        return client.Queue(name, store=self.store, namespace=self.namespace, retry_timeout_s=patience_s)

    def ownership_of(self, queue: client.Queue, group: str) -> str | None:
        """Where a group is looked at, and changed."""
        kind = next((each.ownership for each in queue.groups(ownership="none") if each.group == group), None)
        return fitting(kind, self.ownership)


class Watched:
    """What can be watched at a place, with what is remembered of it."""

    def __init__(self, place: Place, now_s: Callable[[], float] = time.monotonic) -> None:
        self.place = place
        self._now_s = now_s
        self._groups = Kept(GroupMemory())
        self._published: Kept[History] = Kept(())
        self._health = Kept(("", -inf))  # what is wrong, and when that was looked at
        self._queues: dict[str, QueueMemory] = {}

    @contextmanager
    def queues(self) -> Iterator[Callable[[], Sections]]:
        """The list of queues."""
        yield self._look_at_queues

    @contextmanager
    def queue(self, name: str) -> Iterator[Callable[[], Sections]]:
        """One queue."""
        queue = self.place.queue(name, retry_timeout_s=LOOK_RETRY_S)

        def look() -> Sections:
            found = queue.describe()
            groups = queue.groups(ownership="none")
            self._published[name] = remembered(self._published[name], self._now_s(), published(found))
            values = {
                "queue": found,
                "groups": groups,
                "states": self._health_of(queue, groups),
                "rate": rate_words(rate(self._published[name])),
            }
            return _filled("queue", ("facts", "groups", "partitions"), values)

        yield look

    @contextmanager
    def group(self, queue: str, group: str) -> Iterator[Callable[[], Sections]]:
        """One group."""
        name, timeline = f"{queue}/{group}", self.place.timeline
        opened = self.place.queue(queue, retry_timeout_s=LOOK_RETRY_S)
        with opened.watching(group, ownership=self.place.ownership_of(opened, group)) as status:

            def look() -> Sections:
                seen, now_s = status(), self._now_s()
                memory = self._groups[name] = memory_of(self._groups[name], seen, now_s)
                decisions = timeline.of(f"{seen.namespace}/{seen.queue}/{seen.group}") if timeline is not None else None
                values = {
                    "seen": seen,
                    "view": picture(seen, memory, now_s),
                    "decisions": decisions or (),
                    "note": timeline_note(decisions, self.place.server, seen.coordinator.leader),
                }
                return _filled("group", ("facts", "picture", "reasons", "lag", "partitions", "timeline"), values)

            yield look

    def _look_at_queues(self) -> Sections:
        place = self.place
        found = client.list_queues(store=place.store, namespace=place.namespace, retry_timeout_s=LOOK_RETRY_S)
        now_s = self._now_s()
        kept = {}
        for each in found[:MOST_REMEMBERED]:
            if not isinstance(each, client.DamagedQueue):
                before = self._queues.get(each.queue, QueueMemory())
                kept[each.queue] = replace(before, published=remembered(before.published, now_s, published(each)))
        self._queues = self._described(kept)
        rows = queue_rows(found, self._queues, self._now_s())
        return _filled("queues", ("queues",), {"rows": rows, "place": place})

    def _described(self, kept: dict[str, QueueMemory]) -> dict[str, QueueMemory]:
        """With a description of that queue alone whose last one is oldest: age and what holds it back take reading."""
        now_s = self._now_s()
        stale = [
            name for name, each in kept.items() if each.described is None or each.described_s < now_s - DESCRIBED_S
        ]
        if stale:
            name = min(stale, key=lambda each: (kept[each].described is not None, kept[each].described_s))
            queue = self.place.queue(name, retry_timeout_s=LOOK_RETRY_S)
            try:
                found = queue.describe()
                health = self._health_of(queue, queue.groups(ownership="none"))
            except PartqError:
                found, health = None, {}  # the list says what is wrong with it, if it goes on
            kept[name] = replace(kept[name], described=found, health=health, described_s=now_s)
        return kept

    def _health_of(self, queue: client.Queue, groups: Sequence[client.GroupSummary]) -> dict[str, str]:
        """What is wrong with groups, by name: each is looked at anew when that is old, some of them with each look."""
        now_s = self._now_s()
        names = {each.group: f"{queue.name}/{each.group}" for each in groups}
        for each in sorted(groups, key=lambda each: self._health[names[each.group]][1])[:MOST_JUDGED]:
            late = self._now_s() > now_s + JUDGED_S
            if not late and self._health[names[each.group]][1] < now_s - DESCRIBED_S:
                self._health[names[each.group]] = (self._judged(queue, each), now_s)
        known = {group: self._health[name] for group, name in names.items()}
        return {group: said for group, (said, at_s) in known.items() if at_s > -inf}

    def _judged(self, queue: client.Queue, group: client.GroupSummary) -> str:
        try:
            seen = queue.status(group.group, ownership=fitting(group.ownership, self.place.ownership))
        except PartqError as error:
            return str(error)
        said = words.health(seen)
        had = any(each.flow for each in seen.partitions)
        if not said and not seen.flows and had and group.ownership not in (None, "none"):
            return "who has what is not known here"
        return said


def fitting(kind: str | None, given: str | None) -> str | None:
    """Where a group of this kind keeps who has what: one place of its kind is known without an address, another's
    address is of no use. None: as the environment says. Pure.
    """
    if kind in ("none", "store"):
        return kind
    return given if kind is None or (given is not None and given.startswith(kind)) else None


def _filled(page: str, names: tuple[str, ...], values: Mapping[str, object]) -> Sections:
    return {name: html(f"{page}/{name}.html", **values) for name in names}
