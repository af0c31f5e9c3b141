"""Whatever others do to a log, or befalls it, at any call of a publish or a compaction: every message is there once or
it was told that it may not be, each key keeps its order, and what nobody needs is collected in the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from typing import Final, NoReturn

import pytest

from partq_spark.base.errors import Conflict, PartqError, Unavailable
from partq_spark.log import admin, housekeeping
from partq_spark.log.compaction import compact
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import Staged, stage_of
from tests.log.queues import HOUR_US, Row, World, lost, objects, read, send, staged, trim_all
from tests.support.way import Hooked

pytestmark = [pytest.mark.slow, pytest.mark.conformance("DIS-08"), pytest.mark.conformance("DIS-09")]

SIZES: Final = LogSizes(inline_entries=3, fan_out=2, head_writers=3, page_fan_out=2)
KEYS: Final = ("a", "b", "c")


@dataclass(kw_only=True)
class Story:
    """A queue with a past. `there`: the messages that must be there; `perhaps`: those of a publish of which it was said
    that nobody knows; `mine`: those that are published by what is tried.
    """

    world: World = field(default_factory=World)
    there: list[bytes] = field(default_factory=list)
    perhaps: set[bytes] = field(default_factory=set)
    mine: set[bytes] = field(default_factory=set)
    numbers: count[int] = field(default_factory=count)

    def __post_init__(self) -> None:
        self.world.sizes = SIZES
        self.world.create(2)
        others(self, 9)

    def rows(self, number: int) -> list[Row]:
        return [(KEYS[each % 3], b"%s/%d" % (KEYS[each % 3].encode(), next(self.numbers))) for each in range(number)]

    def check(self) -> None:
        queue = self.world.handle()
        if queue.look() is None:
            assert self.there == []
            return
        found = read(queue)
        flat = [value for part in found.values() for value in part]
        assert len(flat) == len(set(flat))
        assert set(flat) - self.perhaps == set(self.there)
        assert len(self.perhaps & set(flat)) in (0, len(self.perhaps)), "a publish is visible as a whole"
        for part in found.values():
            for key in KEYS:
                numbers = [(value in self.mine, int(value[2:])) for value in part if value[:1] == key.encode()]
                for whose in (False, True):
                    theirs = [number for mine, number in numbers if mine is whose]
                    assert theirs == sorted(theirs), "each key keeps its order"

    def check_in_the_end(self) -> None:
        self.check()
        queue = self.world.handle()
        if queue.look() is not None:
            compacted(self)
            for _ in range(2):
                time_passes(self)
            admin.remove_remains(queue)  # of the queue that was deleted while somebody staged messages for it
            assert objects(self.world) == housekeeping.reachable(queue, queue.refresh())
            self.check()


# --- what happens meanwhile -------------------------------------------------------------------------------------------


def others(story: Story, publishes: int = 8) -> None:
    for _ in range(publishes):
        story.world.clock.now_us += 1_000_000
        rows = story.rows(3)
        send(story.world.handle(), rows, PublishIdentity(writer=f"writer {rows[0][1].decode()}", batch=1))
        story.there += [value for _, value in rows]


def trimmed(story: Story) -> None:
    trim_all(story.world)
    story.there.clear()


def compacted(story: Story) -> None:
    while compact(story.world.handle(), min_age_s=0.0) is not None:
        pass


def resized(story: Story) -> None:
    admin.alter_queue(story.world.handle(), partitions=5)


def time_passes(story: Story) -> None:
    for _ in range(4):
        housekeeping.collect(story.world.handle())
        story.world.clock.now_us += 25 * HOUR_US


def deleted(story: Story) -> None:
    admin.delete_queue(story.world.handle())
    story.there.clear()


def made_again(story: Story) -> None:
    story.world.create(2)
    others(story, 1)


def away(story: Story) -> NoReturn:
    lost()


def refused(story: Story) -> NoReturn:
    raise Conflict("the condition is not met (test): something in between has sent a swap again that came through")


def crash(story: Story) -> NoReturn:
    raise KeyboardInterrupt


Event = tuple[tuple[Callable[[Story], None], ...], str, str, str]
LOST, DEAD, OLD, GONE = "Unavailable", "KeyboardInterrupt", "Outdated", "Invalid"
NOBODY_KNOWS = " Unsettled"  # whether it was among what was trimmed or compacted, without an identity

# How it ends, where it does not end well: a publish without an identity, one with, and a compaction.
MEANWHILE: Final[dict[str, Event]] = {
    "others publish": ((others,), "", "", ""),
    "all is trimmed": ((trimmed,), "", "", ""),
    "all is compacted": ((compacted,), "", "", ""),
    "the count changes": ((resized,), "", "", ""),
    "a long time passes": ((time_passes,), OLD, OLD, ""),
    "all is trimmed, a long time passes": ((trimmed, time_passes), OLD, OLD, ""),
    "all is compacted, a long time passes": ((others, compacted, time_passes), OLD + NOBODY_KNOWS, OLD, ""),
    "the queue is deleted": ((deleted,), GONE, GONE, GONE),
    "the queue is made again": ((deleted, made_again), GONE, GONE, GONE),
    "the process ends": ((crash,), DEAD, DEAD, DEAD),
    "a conflict is the answer": ((others, refused), "Conflict", "Conflict", "Conflict"),
    "the call is lost": ((away,), LOST, LOST, LOST),
    "others publish, the call is lost": ((others, away), LOST, LOST, LOST),
    "all is trimmed, the call is lost": ((trimmed, away), LOST + NOBODY_KNOWS, LOST, LOST),
    "all is compacted, the call is lost": ((others, compacted, away), LOST + NOBODY_KNOWS, LOST, LOST),
    "the count changes, the call is lost": ((resized, away), LOST, LOST, LOST),
}


# --- what is done: each says whether it did something -----------------------------------------------------------------

Act = Callable[[Story, QueueLog], bool]


def publishing(story: Story, queue: QueueLog, *, identity: bool = False, for_another_count: bool = False) -> bool:
    """By two tasks. Whoever is told that it did not end well knows that nothing is there, or that nobody knows."""
    rows = story.rows(6)
    mine = [value for _, value in rows]
    story.mine |= {*mine}
    created_us = story.world.handle().refresh().created_us
    try:
        by = story.world.handle() if for_another_count else queue
        stage = stage_of(by.refresh())
        tasks = [Staged(stage, each) for part in (rows[:4], rows[4:]) for each in staged(by, stage, part)]
        if for_another_count:
            admin.alter_queue(by, partitions=3)
        done = publish_tasks(queue, tasks, PublishIdentity(writer="me", batch=7) if identity else None, seed="s")
    except (Unavailable, KeyboardInterrupt):
        story.perhaps |= {*mine}
        raise
    assert (done.rows, done.duplicate) == (6, False)
    queue = story.world.handle()
    where = {value: partition for partition, part in read(queue).items() for value in part}
    gone = {*mine} - {*where}
    assert not gone or max(queue.head.earliest) > 0 or queue.head.created_us > created_us, "it was trimmed at once"
    story.there += [value for value in mine if value not in gone]
    for layout in queue.head.layouts:
        if layout.generation == done.generation and not gone:
            assert all(where[value] == partition_of(value[:1], layout.partitions) for value in mine)
    return True


def compacting(story: Story, queue: QueueLog) -> bool:
    steps = 0
    while compact(queue, min_age_s=0.0) is not None:
        steps += 1
    return steps > 0


DONE: Final[dict[str, tuple[Act, int]]] = {  # and in which column of the table it stands
    "publishing": (publishing, 1),
    "publishing once": (partial(publishing, identity=True), 2),
    "publishing for another count": (partial(publishing, identity=True, for_another_count=True), 2),
    "compacting": (compacting, 3),
}


@cache
def calls_of(act: Act) -> list[tuple[int, str]]:
    """The store's calls at which something may happen, by number: of those that only read or write pieces few."""
    story = Story()
    hooked = Hooked(story.world.store)
    assert act(story, story.world.handle(store=hooked)), "undisturbed it does something"
    story.check_in_the_end()
    kinds = [kind for kind, _ in hooked.calls]
    chosen = {at for at, kind in enumerate(kinds) if kind in {"swap", "create", "delete", "remove"}}
    for kind in {*kinds}:
        places = [at for at, each in enumerate(kinds) if each == kind]
        chosen |= {*places[:2], places[-1]}
    return [(at, kinds[at]) for at in sorted(chosen)]


@pytest.mark.parametrize("what", MEANWHILE)
@pytest.mark.parametrize(("act", "column"), DONE.values(), ids=DONE)
def test_what_happens_at_any_call_costs_no_message_and_doubles_none(act: Act, column: int, what: str) -> None:
    ended: set[str] = set()
    for at, kind in calls_of(act):
        for when in ("before", "after") if kind in {"swap", "create", "delete"} else ("before",):
            story = Story()
            hooked = Hooked(story.world.store)
            left = count()

            def hook(called: str, name: str, left: count[int] = left, at: int = at, story: Story = story) -> None:
                if next(left) == at:
                    for each in MEANWHILE[what][0]:
                        each(story)

            setattr(hooked, when, hook)
            try:
                act(story, story.world.handle(store=hooked, retry_timeout_s=1e9))
            except (PartqError, KeyboardInterrupt) as error:
                ended.add(type(error).__name__)
            story.check_in_the_end()
    assert ended == {*str(MEANWHILE[what][column]).split()}
