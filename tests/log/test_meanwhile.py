"""Whatever is done to a log, and whatever others do to it or befalls it at any call in between: every message is there
once or it was told that it may not be, each key keeps its order, and what nobody needs is collected in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from operator import ge
from typing import Final

import pytest

from partq_spark.base.errors import Conflict, Invalid, PartqError, Unavailable
from partq_spark.log import admin, fanout, housekeeping, tree
from partq_spark.log.compaction import compact
from partq_spark.log.fanout import StagedFor
from partq_spark.log.model import Head
from partq_spark.log.partitioner import partition_of
from partq_spark.log.publish import Outdated, PublishIdentity
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import Staged, stage_of
from tests.log.queues import HOUR_US, Row, World, everything, objects, read, send, staged
from tests.support.way import Hooked

pytestmark = [pytest.mark.slow, pytest.mark.conformance("DIS-08"), pytest.mark.conformance("DIS-09")]

SIZES: Final = LogSizes(inline_entries=3, fan_out=2, head_writers=3, page_fan_out=2)
ME: Final = PublishIdentity(writer="me", batch=7)
KEYS: Final = ("a", "b", "c")
GRACE_US: Final = 25 * HOUR_US


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
    created_us: int = 0

    def __post_init__(self) -> None:
        self.world.sizes = SIZES
        self.created_us = self.world.create(2).head.created_us
        for _ in range(9):
            self.publish()

    def rows(self, number: int = 3) -> list[Row]:
        return [(KEYS[each % 3], b"%s/%d" % (KEYS[each % 3].encode(), next(self.numbers))) for each in range(number)]

    def publish(self) -> None:
        self.world.clock.now_us += 1_000_000
        rows = self.rows()
        send(self.world.handle(), rows)
        self.there += [value for _, value in rows]

    # --- what others do, or what befalls the store

    def others(self) -> None:
        for _ in range(8):
            self.publish()

    def trim(self) -> None:
        queue = self.world.handle()
        housekeeping.trim(queue, queue.refresh().next)
        self.there.clear()

    def compact(self) -> None:
        while compact(self.world.handle(), min_age_s=0.0) is not None:
            pass

    def compact_more(self) -> None:
        self.others()
        self.compact()

    def resize(self) -> None:
        admin.alter_queue(self.world.handle(), partitions=5)

    def sleep(self) -> None:
        for _ in range(4):
            housekeeping.collect(self.world.handle())
            self.world.clock.now_us += GRACE_US

    def delete(self) -> None:
        admin.delete_queue(self.world.handle())
        self.there.clear()

    def create_again(self) -> None:
        self.delete()
        self.world.create(2)
        self.publish()

    def lose(self) -> None:
        raise Unavailable("lost (test)")

    def refuse(self) -> None:
        raise Conflict("the condition is not met (test): something in between has sent a swap again that came through")

    def crash(self) -> None:
        raise KeyboardInterrupt

    # --- what must hold

    def check(self) -> None:
        queue = self.world.handle()
        if queue.look() is None:
            assert self.there == []
            return
        found = read(queue)
        flat = [value for mine in found.values() for value in mine]
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
            self.compact()
            self.sleep()
            self.sleep()
            admin.remove_remains(queue)  # of the queue that was deleted while somebody staged messages for it
            assert objects(self.world) == housekeeping.reachable(queue, queue.refresh())
            self.check()


# --- what is done meanwhile -------------------------------------------------------------------------------------------

Act = Callable[[Story, QueueLog], bool]
Event = tuple[tuple[Callable[[Story], None], ...], str, str, str, str, str]
LOST, DEAD, OLD, GONE = "Unavailable", "KeyboardInterrupt", "Outdated", "Invalid"
NOBODY_KNOWS = " Unsettled"  # whether it was among what was trimmed or compacted, without an identity

# How it ends, where it does not end well: a publish without an identity, one with, one to two queues, which is repeated
# where it was cut off, housekeeping, and a reader.
MEANWHILE: Final[dict[str, Event]] = {
    "others publish": ((Story.others,), "", "", "", "", ""),
    "all is trimmed": ((Story.trim,), "", "", "", "", ""),
    "all is compacted": ((Story.compact,), "", "", "", "", ""),
    "the count changes": ((Story.resize,), "", "", "", "", ""),
    "a long time passes": ((Story.sleep,), OLD, OLD, OLD, "", ""),
    "all is trimmed, a long time passes": ((Story.trim, Story.sleep), OLD, OLD, OLD, "", "ObjectMissing"),
    "all is compacted, a long time passes": ((Story.compact_more, Story.sleep), OLD + NOBODY_KNOWS, OLD, OLD, "", ""),
    "the queue is deleted": ((Story.delete,), GONE, GONE, GONE, GONE, GONE),
    "the queue is made again": ((Story.create_again,), GONE, GONE, GONE, GONE, GONE),
    "the process ends": ((Story.crash,), DEAD, DEAD, "", DEAD, DEAD),
    "a conflict is the answer": (
        (Story.others, Story.refuse),
        "Conflict",
        "Conflict",
        "Conflict",
        "Conflict",
        "Conflict",
    ),
    "the call is lost": ((Story.lose,), LOST, LOST, "", LOST, LOST),
    "others publish, the call is lost": ((Story.others, Story.lose), LOST, LOST, "", LOST, LOST),
    "all is trimmed, the call is lost": ((Story.trim, Story.lose), LOST + NOBODY_KNOWS, LOST, "", LOST, LOST),
    "all is compacted, the call is lost": ((Story.compact_more, Story.lose), LOST + NOBODY_KNOWS, LOST, "", LOST, LOST),
    "the count changes, the call is lost": ((Story.resize, Story.lose), LOST, LOST, "", LOST, LOST),
}


# --- what is done: each says whether it did something -----------------------------------------------------------------


@contextmanager
def publishing(story: Story, number: int) -> Iterator[list[Row]]:
    """Whoever is told that a publish did not end well knows whether its messages are there, or that nobody does."""
    rows = story.rows(number)
    mine = {value for _, value in rows}
    story.mine |= mine
    try:
        yield rows
    except (Outdated, Invalid):
        raise  # nothing was published
    except (Unavailable, KeyboardInterrupt):
        story.perhaps |= mine
        raise


def told(story: Story, rows: Sequence[Row], generation: int | None = None) -> None:
    """It was said that they are published; what was trimmed at once is gone. They lie as their layout says."""
    queue = story.world.handle()
    where = {value: partition for partition, part in read(queue).items() for value in part}
    mine = [value for _, value in rows]
    gone = {*mine} - {*where}
    assert not gone or max(queue.head.earliest) > 0 or queue.head.created_us > story.created_us
    story.there += [value for value in mine if value not in gone]
    for layout in queue.head.layouts:
        if layout.generation == generation and not gone:
            assert all(where[value] == partition_of(value[:1], layout.partitions) for value in mine)


def publish_anyhow(story: Story, queue: QueueLog, identity: PublishIdentity | None = None) -> bool:
    with publishing(story, 6) as rows:
        stage = stage_of(queue.refresh())
        tasks = [Staged(stage, each) for part in (rows[:4], rows[4:]) for each in staged(queue, stage, part)]
        done = publish_tasks(queue, tasks, identity, seed="s")
    assert (done.rows, done.duplicate) == (6, False)
    told(story, rows, done.generation)
    return True


def publish_once(story: Story, queue: QueueLog) -> bool:
    return publish_anyhow(story, queue, ME)


def publish_for_another_count(story: Story, queue: QueueLog) -> bool:
    with publishing(story, 6) as rows:
        earlier = story.world.handle()
        stage = stage_of(earlier.refresh())
        tasks = [Staged(stage, each) for each in staged(earlier, stage, rows)]
        admin.alter_queue(earlier, partitions=3)
        done = publish_tasks(queue, tasks, ME, seed="s")
    told(story, rows, done.generation)
    return True


def publish_to_two(story: Story, queue: QueueLog) -> bool:
    """And completed by a repetition where it was cut off."""
    other = story.world.handle("other")
    if other.look() is None:
        story.world.create(1, "other")
    rows = story.rows(3)
    story.mine |= {value for _, value in rows}

    def attempt() -> None:
        tasks = []
        for each in (queue.another("other"), queue.another()):
            stage = stage_of(each.refresh())
            tasks += [StagedFor(stage, segment, True) for segment in staged(each, stage, rows)]
        fanout.publish_all(queue.another, [tasks], ME, seed="s")

    cut_off = False
    try:
        attempt()
    except (Unavailable, KeyboardInterrupt):
        cut_off = True
    if cut_off:
        queue = story.world.handle()
        attempt()
    assert [value for part in read(other).values() for value in part] == [value for _, value in rows]
    told(story, rows)
    return True


def compacting(story: Story, queue: QueueLog) -> bool:
    steps = 0
    while compact(queue, min_age_s=0.0) is not None:
        steps += 1
    return steps > 0


def half_of(story: Story, head: Head) -> tuple[tuple[int, ...], set[bytes]]:
    """Offsets up to half of what is there, and the messages before them."""
    half = tuple(end // 2 for end in head.next)
    wanted = {p: (head.earliest[p], end) for p, end in enumerate(half) if head.earliest[p] < end}
    return half, {value for part in read(story.world.handle(), wanted).values() for value in part}


def trimming(story: Story, queue: QueueLog) -> bool:
    """Half of what is there before anything else happens."""
    half, gone = half_of(story, before := story.world.handle().refresh())
    queue.remember(before, queue.etag or "")
    try:
        housekeeping.trim(queue, half)
    finally:
        head = story.world.handle().look()
        trimmed = head is not None and head.queue_id == before.queue_id and all(map(ge, head.earliest, half))
        if trimmed:
            story.there = [value for value in story.there if value not in gone]
    return trimmed


def reading(story: Story, queue: QueueLog) -> bool:
    """By a plan that is as old as the reading."""
    head = story.world.handle().refresh()
    expected = [*story.there]
    queue.refresh()
    reader = RangeReader(queue, head.queue_id, tree.view(head, everything(head)))
    found = [value for piece in reader.pieces() for value in piece.batch.column("value").to_pylist()]
    assert sorted(found) == sorted(expected)
    return True


def collecting(story: Story, queue: QueueLog) -> bool:
    """Of what was trimmed and is ripe."""
    half, gone = half_of(story, story.world.handle().refresh())
    for _ in range(3):  # the floor passes what is there
        housekeeping.collect(story.world.handle())
        story.world.clock.now_us += GRACE_US
    housekeeping.trim(story.world.handle(), half)
    story.there = [value for value in story.there if value not in gone]
    housekeeping.collect(story.world.handle())
    story.world.clock.now_us += GRACE_US
    return housekeeping.collect(queue).deleted > 0


DONE: Final[dict[Act, int]] = {  # and in which column of the table it stands
    publish_anyhow: 1,
    publish_once: 2,
    publish_for_another_count: 2,
    publish_to_two: 3,
    compacting: 4,
    trimming: 4,
    collecting: 4,
    reading: 5,
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
@pytest.mark.parametrize("act", DONE)
def test_what_happens_at_any_call_costs_no_message_and_doubles_none(act: Act, what: str) -> None:
    ended: set[type[BaseException]] = set()
    for at, kind in calls_of(act):
        for after in (False, True) if kind in {"swap", "create", "delete"} else (False,):
            story = Story()
            hooked = Hooked(story.world.store)
            left = count()

            def hook(called: str, name: str, left: count[int] = left, at: int = at, story: Story = story) -> None:
                if next(left) == at:
                    for each in MEANWHILE[what][0]:
                        each(story)

            if after:
                hooked.after = hook
            else:
                hooked.before = hook
            try:
                act(story, story.world.handle(store=hooked, retry_timeout_s=1e9))
            except (PartqError, KeyboardInterrupt) as error:
                ended.add(type(error))
            story.check_in_the_end()
    assert {error.__name__ for error in ended} == {*str(MEANWHILE[what][DONE[act]]).split()}
