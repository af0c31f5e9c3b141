"""Whatever others do to a log, or befalls it, at any call of a publish or a compaction: every message is there once or
it was told that it may not be, and what nobody needs is collected in the end. That keys keep their order then too is
for the simulated world to show.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import cache, partial
from itertools import count
from typing import Final, NoReturn

import pytest

from partq_spark.base.errors import Conflict, PartqError, Unavailable
from partq_spark.log import admin, housekeeping
from partq_spark.log.destinations import stage_of
from partq_spark.log.fanout import publish_tasks
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.writers import PublishIdentity
from tests.log.queues import HOUR_US, Row, World, all_steps, lost, objects, read_flat, send, staged, trim_all
from tests.support.way import Hooked

pytestmark = [pytest.mark.slow, pytest.mark.conformance("DIS-08"), pytest.mark.conformance("DIS-09")]


class Story(World):
    """A queue with a past. `there`: the messages that must be there; `perhaps`: those of a publish of which it was said
    that nobody knows.
    """

    def __init__(self, past: Story | None = None) -> None:
        super().__init__()
        self.sizes = LogSizes(inline_entries=3, fan_out=2, head_writers=3, page_fan_out=2)
        self.there: set[bytes] = set()
        self.perhaps: set[bytes] = set()
        self.numbers = count()
        if past is None:
            self.create(2)
            self.others(9)
        else:  # the same past, without living through it again
            self.clock.now_us, self.numbers, self.there = past.clock.now_us, copy(past.numbers), {*past.there}
            self.store._objects, self.store._rng = dict(past.store._objects), past.store._rng

    def rows(self) -> list[Row]:
        return [(key, b"%d" % next(self.numbers)) for key in ("a", "b", "c", "a")]

    def publish(self, queue: QueueLog, writer: str | None = None, *, anew: bool = False) -> None:
        """By two tasks. Whoever is told that it did not end well knows that nothing is there, or that nobody knows."""
        rows = self.rows()
        mine = {value for _, value in rows}
        identity = None if writer is None else PublishIdentity(writer=writer, batch=7)
        try:
            stage = stage_of(queue.refresh())
            tasks = [each for part in (rows[:2], rows[2:]) for each in staged(queue, stage, part)]
            if anew:  # they are placed anew, under the count that is there then
                self.resize()
            done = publish_tasks(queue, tasks, identity, seed="s")
        except (Unavailable, KeyboardInterrupt):
            self.perhaps |= mine
            raise
        assert (done.rows, done.duplicate) == (4, False)
        left, head = mine & {*read_flat(self.handle())}, self.handle().refresh()
        assert left == mine or max(head.earliest) > 0 or head.queue_id != stage.queue_id, "it was trimmed at once"
        assert head.queue_id == stage.queue_id or not left, "another queue of the name has got it"
        self.there |= left

    def others(self, publishes: int = 8) -> None:
        for number in range(publishes):
            self.clock.now_us += 1_000_000
            rows = self.rows()
            send(self.handle(), rows, PublishIdentity(writer=f"writer {number} of {publishes}", batch=1))
            self.there |= {value for _, value in rows}

    def trim(self) -> None:
        trim_all(self)
        self.there.clear()

    def compact(self) -> None:
        all_steps(self.handle())

    def resize(self) -> None:
        admin.alter_queue(self.handle(), partitions=self.handle().refresh().partitions + 1)

    def fill(self) -> None:
        admin.alter_queue(self.handle(), quota_bytes=1)

    def go_on(self) -> None:
        """A replacement of the publisher has published the next batch."""
        rows = self.rows()
        send(self.handle(), rows, PublishIdentity(writer="me", batch=8))
        self.there |= {value for _, value in rows}

    def sleep(self) -> None:
        for _ in range(4):
            housekeeping.collect(self.handle())
            self.clock.now_us += 25 * HOUR_US

    def delete(self) -> None:
        admin.delete_queue(self.handle())
        self.there.clear()

    def cut_off(self) -> None:
        """A deletion: what was staged is still there."""
        queue = self.handle()
        queue.refresh()
        queue.swap(None)
        self.there.clear()

    def make_again(self) -> None:
        self.create(2)
        self.resize()  # not the count that anything was staged for
        self.others(1)

    def lose(self) -> NoReturn:
        lost()

    def refuse(self) -> NoReturn:
        raise Conflict("the condition is not met (test): something in between has sent a swap again that came through")

    def crash(self) -> NoReturn:
        raise KeyboardInterrupt

    def check(self) -> None:
        queue = self.handle()
        if queue.look() is None:
            assert self.there == set()
            return
        for _ in range(2):
            found = read_flat(queue)
            assert len(found) == len({*found})
            assert {*found} - self.perhaps == self.there
            assert len(self.perhaps & {*found}) in (0, len(self.perhaps)), "a publish is visible as a whole"
            self.compact()
            self.sleep()
        admin.remove_remains(queue)  # of the queue that was deleted while somebody staged messages for it
        assert objects(self) == housekeeping.reachable(queue, queue.refresh())


PAST: Final = Story()
LOST, DEAD, OLD, GONE = "Unavailable", "KeyboardInterrupt", "Outdated", "QueueGone"
NOBODY_KNOWS = " Unsettled"  # whether it was among what was trimmed or compacted, without an identity

# What happens, and how it ends where it does not end well: a publish without an identity, one with, and a compaction.
MEANWHILE: Final[dict[str, tuple[tuple[Callable[[Story], None], ...], str, str, str]]] = {
    "others publish": ((Story.others,), "", "", ""),
    "all is trimmed": ((Story.trim,), "", "", ""),
    "all is compacted": ((Story.compact,), "", "", ""),
    "the count changes": ((Story.resize,), "", "", ""),
    "it becomes full": ((Story.fill,), "Full", "Full", ""),
    "it becomes full, the call is lost": ((Story.fill, Story.lose), LOST + " Full", LOST + " Full", LOST),
    "its writer goes on, the call is lost": ((Story.go_on, Story.lose), LOST, LOST + " BatchRefused", LOST),
    "a long time passes": ((Story.sleep,), OLD, OLD, ""),
    "all is trimmed, a long time passes": ((Story.trim, Story.sleep), OLD, OLD, ""),
    "all is compacted, a long time passes": ((Story.others, Story.compact, Story.sleep), OLD + NOBODY_KNOWS, OLD, ""),
    "the queue is deleted": ((Story.delete,), GONE, GONE, GONE),
    "the queue is made again": ((Story.cut_off, Story.make_again), GONE, GONE, GONE),
    "the process ends": ((Story.crash,), DEAD, DEAD, DEAD),
    "a conflict is the answer": ((Story.others, Story.refuse), "Conflict", "Conflict", "Conflict"),
    "the call is lost": ((Story.lose,), LOST, LOST, LOST),
    "others publish, the call is lost": ((Story.others, Story.lose), LOST, LOST, LOST),
    "all is trimmed, the call is lost": ((Story.trim, Story.lose), LOST + NOBODY_KNOWS, LOST, LOST),
    "all is compacted, the call is lost": ((Story.others, Story.compact, Story.lose), LOST + NOBODY_KNOWS, LOST, LOST),
    "the count changes, the call is lost": ((Story.resize, Story.lose), LOST, LOST, LOST),
}


Act = Callable[[Story, QueueLog], object]
DONE: Final[dict[str, tuple[Act, int]]] = {  # and in which column of the table it stands
    "publishing": (Story.publish, 1),
    "publishing what is placed anew": (partial(Story.publish, anew=True), 1),
    "publishing once": (partial(Story.publish, writer="me"), 2),
    "compacting": (lambda story, queue: all_steps(queue), 3),
    "collecting": (lambda story, queue: housekeeping.collect(queue), 3),
}


@cache
def calls_of(act: Act) -> list[tuple[int, str]]:
    """The store's calls at which something may happen, by number: of those that only read or write pieces few."""
    story = Story(PAST)
    hooked = Hooked(story.store)
    act(story, story.handle(store=hooked))
    story.check()
    kinds = [kind for kind, _ in hooked.calls]
    assert "swap" in kinds, "undisturbed it does something"
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
            story = Story(PAST)
            hooked = Hooked(story.store)
            left = count()

            def hook(called: str, name: str, left: count[int] = left, at: int = at, story: Story = story) -> None:
                if next(left) == at:
                    for each in MEANWHILE[what][0]:
                        each(story)

            setattr(hooked, when, hook)
            try:
                act(story, story.handle(store=hooked, retry_timeout_s=1e9))
            except (PartqError, KeyboardInterrupt) as error:
                ended.add(type(error).__name__)
            story.check()
    assert ended == {*str(MEANWHILE[what][column]).split()}
