"""Scenarios that random worlds found, or find rarely: a process slept, and others went on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing, Unavailable
from partq_spark.log import codec, housekeeping, names, tree
from partq_spark.log.admin import create_group, create_queue, delete_queue
from partq_spark.log.publish import Outdated, PublishIdentity, Unsettled, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import Stage, stage_of
from partq_spark.objects.api import Document, ObjectStore
from tests.log.queues import (
    HOUR_US,
    World,
    everything,
    once,
    read_flat,
    send,
    staged,
    values,
)
from tests.support.way import Hook, Hooked

GRACE_S = housekeeping.GRACE_S


@pytest.fixture(autouse=True)
def small_head(world: World) -> None:
    """Chunks and pages after a few publishes."""
    world.sizes = LogSizes(inline_entries=2, fan_out=2, head_writers=2)


def days_of_collection(world: World, rounds: int = 4) -> None:
    """Another process collects, a round every day and a bit."""
    for _ in range(rounds):
        world.clock.now_us += int(GRACE_S * 1e6) + 1
        housekeeping.collect(world.handle())


def fail_after(hooked: Hooked, kind: str, name_end: str) -> None:
    """The next such call takes effect, and its answer is lost."""

    def lose() -> None:
        hooked.after = None
        raise Unavailable(f"the answer to {kind} was lost")

    hooked.after = once(kind, name_end, lose)


def fail_before(hooked: Hooked, kind: str, name_end: str) -> None:
    """The next such call takes no effect."""

    def lose() -> None:
        raise Unavailable(f"{kind} was lost")

    hooked.before = once(kind, name_end, lose)


def both(one: Hook | None, other: Hook) -> Hook:
    def hook(kind: str, name: str) -> None:
        if one is not None:
            one(kind, name)
        other(kind, name)

    return hook


# --- seeking and settling behind a trim -------------------------------------------------------------------------------


@pytest.fixture
def hollow(world: World) -> QueueLog:
    """A queue whose tree has a root that stays, over chunks that were trimmed and collected."""
    queue = world.create(partitions=1)
    for number in range(20):
        send(queue, values(number))
    housekeeping.trim(queue, [5])
    days_of_collection(world)
    ref = queue.refresh().tree[0]
    there = {item.name for item in world.store.list(queue.log_folder)}
    while queue.log_folder + ref.name in there:
        assert ref.level > 0, "nothing below the root was collected"
        ref = codec.decode_refs(queue.load_chunk(ref), ref)[0]
    return queue


def pieces_of(queue: QueueLog) -> list[Piece]:
    head = queue.refresh()
    return list(RangeReader(queue, head.queue_id, tree.view(head, everything(head))).pieces())


def test_a_seek_by_time_passes_over_what_was_collected(world: World, hollow: QueueLog) -> None:
    times_us = [piece.time_us for piece in pieces_of(hollow)]
    assert hollow.offsets_at(0) == (5,)
    assert [hollow.offsets_at(time_us)[0] for time_us in times_us] == list(range(5, 20))


def test_an_unknown_outcome_is_settled_over_what_was_collected(hollow: QueueLog) -> None:
    assert tree.find_publish(hollow.head, 2, hollow.load_chunk) is None


def test_a_lost_answer_after_a_trim_of_everything_is_unsettled_and_not_published_again(world: World) -> None:
    world.create(partitions=1)
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    fail_after(hooked, "swap", "_head.json")
    hooked.before = once("load", "_head.json", lambda: _trim_everything(world))
    with pytest.raises(Unsettled, match="cannot be told"):
        publish(queue, stage, segments)
    assert world.handle().refresh().next == (1,)


def test_a_lost_answer_after_a_trim_of_what_is_older_is_settled(world: World) -> None:
    """What was published is still in the log, or never was: the trim took other messages."""
    queue = world.create(partitions=1)
    for number in range(5):
        send(queue, values(number))
    for fails in (fail_before, fail_after):
        hooked = Hooked(world.store)
        late = world.handle(store=hooked)
        stage = stage_of(late.refresh())
        segments = staged(late, stage, values(10))
        end = queue.refresh().next[0]
        fails(hooked, "swap", "_head.json")
        trimmed = once("load", "_head.json", partial(_trim, world, end - 1))
        hooked.before = both(hooked.before, trimmed)
        assert publish(late, stage, segments).rows == 1
        assert world.handle().refresh().next == (end + 1,)
        assert world.handle().refresh().earliest == (end - 1,), "there was a trim between the two"


def test_a_lost_answer_after_a_trim_is_settled_by_the_writers_record(world: World) -> None:
    world.create(partitions=1)
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1, 2))
    fail_after(hooked, "swap", "_head.json")
    hooked.before = once("load", "_head.json", lambda: _trim_everything(world))
    done = publish(queue, stage, segments, PublishIdentity(writer="w", batch=1))
    assert (done.duplicate, done.rows) == (False, 2)
    assert world.handle().refresh().next == (2,)


def _trim_everything(world: World) -> None:
    _trim(world, world.handle().refresh().next[0])


def _everything_goes(world: World) -> None:
    _trim_everything(world)
    days_of_collection(world)


def _trim(world: World, to: int) -> None:
    """All before `to` in the only partition."""
    other = world.handle()
    other.refresh()
    housekeeping.trim(other, [to])


# --- handles that slept longer than a grace ---------------------------------------------------------------------------


def test_a_publisher_that_slept_between_head_and_writer_page_reads_the_head_again(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(8):
        send(queue, values(number), PublishIdentity(writer=f"once{number}", batch=1))
    hooked = Hooked(world.store)

    def meanwhile() -> None:
        for number in range(8, 80):
            send(queue, values(number), PublishIdentity(writer=f"once{number}", batch=1))
        days_of_collection(world)

    late = world.handle(store=hooked)
    stage = stage_of(late.refresh())
    segments = staged(late, stage, values(999))
    pages = {page.name for page in late.head.writer_pages}
    hooked.before = once("read", ".json", meanwhile)
    # Not that a page is gone: the stage has grown too old meanwhile, and that is for the caller to know.
    with pytest.raises(Outdated):
        publish(late, stage, segments, PublishIdentity(writer="new", batch=1))
    assert pages
    assert not [item.name for item in world.store.list(late.log_folder) if item.name.rpartition("/")[2] in pages]


def test_a_collector_that_slept_between_head_and_chunks_reads_the_head_again(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    days_of_collection(world, 3)  # the floor has passed the chunks
    hooked = Hooked(world.store)
    hooked.before = once("read", ".json", partial(_everything_goes, world))
    collected = housekeeping.collect(world.handle(store=hooked))
    assert collected.floor_sequence > 0


def test_a_seek_that_slept_between_head_and_chunk_reads_the_head_again(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    days_of_collection(world, 3)
    hooked = Hooked(world.store)
    hooked.before = once("read", ".json", partial(_everything_goes, world))
    assert world.handle(store=hooked).offsets_at(0) == (12,)


def test_a_chunk_that_the_present_head_names_and_that_is_gone_is_an_error(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    world.store.delete(queue.log_folder + queue.refresh().tree[0].name)
    with pytest.raises(ObjectMissing, match="is gone"):
        queue.offsets_at(0)
    with pytest.raises(ObjectMissing, match="is gone"):
        housekeeping.collect(world.handle())


def test_a_lost_chunk_is_not_looked_for_as_long_as_the_head_goes_on_changing(world: World) -> None:
    queue = world.create(partitions=1)
    for number in range(12):
        send(queue, values(number))
    world.store.delete(queue.log_folder + queue.refresh().tree[0].name)
    hooked = Hooked(world.store)

    def busy(kind: str, name: str) -> None:
        if kind == "read":
            assert len(hooked.calls) < 1000, "it is looked for without end"
            send(world.handle(), values(1))

    hooked.before = busy
    for use in (lambda queue: queue.offsets_at(0), housekeeping.collect):
        hooked.calls.clear()
        with pytest.raises(ObjectMissing, match="is gone"):
            use(world.handle(store=hooked))
        assert len([kind for kind, _ in hooked.calls if kind == "load"]) < 20


def test_a_head_older_than_the_stage_does_not_refuse_it(world: World) -> None:
    """A handle that knows an old head must not judge a stage by it: not as outdated, and not as published."""
    queue = world.create(partitions=1)
    old = world.handle()
    old.refresh()
    for number in range(6):
        send(queue, values(number))
    hooked = Hooked(world.store)
    late = world.handle(store=hooked)
    late.remember(old.head, old.etag or "")
    stage = stage_of(world.handle().refresh())
    publish(late, stage, staged(queue, stage, values(7)))
    assert [kind for kind, name in hooked.calls if name.endswith("_head.json")] == ["load", "swap"]


# --- collectors that slept --------------------------------------------------------------------------------------------


def test_a_collector_that_sleeps_before_it_reads_the_head_does_not_shorten_the_publishers_grace(world: World) -> None:
    """The floor's next sequence number counts from when it was in force, not from when the collector began."""
    world.create(partitions=1)
    late = world.handle()
    hooked = Hooked(world.store)
    stages: list[Stage] = []

    def meanwhile() -> None:
        world.clock.now_us += 22 * HOUR_US
        stages.append(stage_of(late.refresh()))
        send(world.handle(), values(1))  # the head's number grows past the stage's

    hooked.before = once("load", "_head.json", meanwhile)
    housekeeping.collect(world.handle(store=hooked))
    segments = staged(late, stages[0], values(2))
    world.clock.now_us += 3 * HOUR_US  # 25 h after the collector began, 3 h after the publisher did
    housekeeping.collect(world.handle())
    housekeeping.collect(world.handle())
    assert publish(late, stages[0], segments).rows == 1


def test_a_publisher_within_the_grace_is_never_outdated(world: World) -> None:
    world.create(partitions=1)
    for _ in range(6):
        late = world.handle()
        stage = stage_of(late.refresh())
        segments = staged(late, stage, values(1))
        for _ in range(5):
            world.clock.now_us += int(GRACE_S * 1e6) // 5 - 1
            housekeeping.collect(world.handle())
        assert publish(late, stage, segments).rows == 1


def test_a_publisher_that_slept_for_graces_is_outdated_and_nothing_is_published(world: World) -> None:
    world.create(partitions=1)
    late = world.handle()
    stage = stage_of(late.refresh())
    segments = staged(late, stage, values(1))
    send(world.handle(), values(0))
    days_of_collection(world)
    with pytest.raises(Outdated, match="publish them again"):
        publish(late, stage, segments)
    assert read_flat(world.handle()) == [b"0"]
    assert not [item.name for item in world.store.list(late.segment_folder) if item.name.endswith(segments[0].name)]


def test_a_collector_that_sleeps_before_it_reads_the_head_does_not_shorten_the_readers_grace(world: World) -> None:
    """What was unreferenced is marked with a time after the head was read that did not name it."""
    queue = world.create(partitions=1)
    for number in range(6):
        send(queue, values(number))
    days_of_collection(world, 3)
    world.clock.now_us += int(GRACE_S * 1e6) + 1  # what was marked is ripe
    reader = world.handle()
    head = reader.refresh()
    hooked = Hooked(world.store)

    def meanwhile() -> None:
        world.clock.now_us += 30 * HOUR_US
        _trim_everything(world)

    hooked.before = once("load", "_head.json", meanwhile)
    housekeeping.collect(world.handle(store=hooked))  # begins long before the trim, marks after it
    world.clock.now_us += 23 * HOUR_US
    housekeeping.collect(world.handle())
    pieces = RangeReader(reader, head.queue_id, tree.view(head, everything(head))).pieces()
    assert sum(piece.batch.num_rows for piece in pieces) == 6
    days_of_collection(world, 2)
    with pytest.raises(ObjectMissing, match="trimmed"):
        list(RangeReader(reader, head.queue_id, tree.view(head, everything(head))).pieces())


def test_damaged_marks_are_noticed(world: World) -> None:
    queue = world.create(partitions=1)
    send(queue, values(1))
    _trim_everything(world)
    days_of_collection(world, 2)  # marked, and not deleted yet
    name = names.collection_name(queue.namespace, queue.name, queue.head.queue_id)
    document = world.store.load(name)
    assert isinstance(document, Document)
    body = document.body.replace(b'"time_us":17', b'"time_us":16')
    assert body != document.body
    world.store.swap(name, body, expected=document.etag)
    with pytest.raises(Corrupt, match="delete it"):
        housekeeping.collect(world.handle())


# --- a queue that was deleted and created again (RES-05) --------------------------------------------------------------


def recreated(world: World) -> QueueLog:
    delete_queue(world.handle())
    return world.create(partitions=1)


def test_offsets_of_the_former_queue_trim_nothing_of_its_successor(world: World) -> None:
    former = world.create(partitions=1)
    send(former, values(1, 2, 3))
    successor = recreated(world)
    send(successor, values(4, 5, 6))
    with pytest.raises(Invalid, match="deleted and created again"):
        housekeeping.trim(former, [3])
    assert read_flat(successor) == [b"4", b"5", b"6"]


def test_a_group_resolved_on_the_former_queue_is_not_created_in_its_successor(world: World) -> None:
    former = world.create(partitions=1)
    send(former, values(1, 2, 3))
    successor = recreated(world)
    with pytest.raises(Invalid, match="deleted and created again"):
        create_group(former, "g", former.head.next)
    assert not successor.refresh().groups


def test_a_creation_that_lands_after_the_deletion_brings_no_id_back(world: World) -> None:
    """Create-if-absent holds again once the queue is gone, so a late one makes a queue; it must be another one."""
    late: list[Callable[[], object]] = []

    class Late(Hooked):
        def swap(self, name: str, content: object, *, expected: str | None) -> str:
            if not late:
                late.append(lambda: self.store.swap(name, content, expected=expected))  # type: ignore[arg-type]
                raise Unavailable("no answer")
            return self.store.swap(name, content, expected=expected)  # type: ignore[arg-type]

    store: ObjectStore = Late(world.store)
    queue = create_queue(store, "default", "orders", 1, effects=world.clock.effects())
    former_id = queue.head.queue_id
    publisher = world.handle()
    stage = stage_of(publisher.refresh())
    segments = staged(publisher, stage, values(1))
    delete_queue(queue)
    late[0]()
    assert world.handle().refresh().queue_id != former_id
    with pytest.raises(Invalid, match="deleted and created again"):
        publish(publisher, stage, segments)


# --- accepted losses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_lost_segment_is_skipped_only_where_a_loss_is_accepted(world: World, how: str) -> None:
    queue = world.create(partitions=1)
    for number in range(4):
        send(queue, values(number))
    head = queue.refresh()
    view = tree.view(head, everything(head))
    entry = list(tree.walk(view, queue.load_chunk))[1]
    name = queue.segment_folder + entry.segments[0]
    data = bytearray(world.store.read(name))
    world.store.delete(name)
    if how == "damaged":
        data[entry.slices[0].start + 5] ^= 1
        world.store.create(name, bytes(data))
    with pytest.raises(Corrupt):
        list(RangeReader(world.handle(), head.queue_id, view).pieces())
    pieces = list(RangeReader(world.handle(), head.queue_id, view, fail_on_data_loss=False).pieces())
    assert [(piece.offset, piece.batch.num_rows) for piece in pieces] == [(0, 1), (2, 1), (3, 1)]
