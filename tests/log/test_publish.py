"""The publish protocol, one scenario per edge: conflicts, lost answers, repetitions, visibility."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.log.admin import create_queue
from partq_spark.log.housekeeping import trim
from partq_spark.log.model import Head
from partq_spark.log.publish import NumberUsed, PublishIdentity, Unsettled, publish
from partq_spark.log.staged import stage_of
from partq_spark.objects.api import ObjectStore
from tests.log.queues import (
    Row,
    World,
    floor,
    head_of,
    once,
    read,
    read_flat,
    send,
    staged,
    through,
    values,
)
from tests.objects.conftest import azure_store
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Azurite
from tests.support.way import Hooked

HEAD = "_head.json"


IDENTITIES = [None, PublishIdentity(writer="query-1", batch=5)]


def unavailable() -> None:
    raise Unavailable("the answer was lost (test)")


def refusing_swaps(hooked: Hooked, times: int, error: Callable[[], object] = unavailable) -> list[int]:
    """Let that many swaps fail before they take effect; returns the tries that were made, in the end."""
    tries: list[int] = []

    def before(kind: str, name: str) -> None:
        if kind == "swap" and name.endswith(HEAD):
            tries.append(len(tries))
            if len(tries) <= times:
                error()

    hooked.before = before
    return tries


def changed(world: World, change: Callable[[Head], Head]) -> None:
    """As another process would change the head."""
    world.handle().change(change)


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_a_publish_becomes_one_entry_with_dense_offsets(world: World) -> None:
    queue = world.create(1)
    first = send(queue, values(1, 2, 3))
    second = send(queue, values(4, 5))
    head = queue.refresh()
    assert (first.sequence, second.sequence, head.sequence) == (2, 3, 3)
    assert (first.rows, first.duplicate, first.conflicts) == (3, False, 0)
    assert [(entry.sequence, entry.slices[0].offset, entry.rows) for entry in head.entries] == [(2, 0, 3), (3, 3, 2)]
    assert (head.next, head.time_us) == ((5,), second.time_us)
    assert {(entry.writer, entry.batch) for entry in head.entries} == {(None, 0)}, "without an identity"
    assert read(queue) == {0: [b"1", b"2", b"3", b"4", b"5"]}


def test_runs_of_one_partition_follow_one_another_in_the_order_of_the_segments(world: World) -> None:
    queue = world.create(1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1, 2)) + staged(queue, stage, values(3)) + staged(queue, stage, values(4, 5))
    publish(queue, stage, segments)
    assert [(each.segment, each.offset) for each in queue.head.entries[0].slices] == [(0, 0), (1, 2), (2, 3)]
    assert read_flat(queue) == [b"1", b"2", b"3", b"4", b"5"]


# --- all at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("conflicts", [1, 5])
def test_after_conflicts_the_offsets_and_times_follow_the_other_publishes(
    world: World, identity: PublishIdentity | None, conflicts: int
) -> None:
    world.create(2)
    hooked = Hooked(world.store)
    queue, other = world.handle(store=hooked), world.handle()
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(10, 11))
    refusing_swaps(hooked, conflicts, lambda: send(other, values(1, 2, 3)))
    done = publish(queue, stage, segments, identity)
    assert (done.conflicts, done.duplicate, done.rows) == (conflicts, False, 2)
    assert read_flat(queue) == [b"1", b"2", b"3"] * conflicts + [b"10", b"11"]
    times = [entry.time_us for entry in queue.head.entries]
    assert times == sorted(set(times))


# --- conflicts --------------------------------------------------------------------------------------------------------


def test_a_single_writer_publishes_with_one_request(world: World) -> None:
    world.create(2)
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    stage = stage_of(queue.refresh())
    batches = [staged(queue, stage, values(number)) for number in range(3)]
    hooked.calls.clear()
    for number, segments in enumerate(batches):
        publish(queue, stage, segments, PublishIdentity(writer="query", batch=number))
    assert [kind for kind, _ in hooked.calls] == ["swap"] * 3


# --- all at once ------------------------------------------------------------------------------------------------------


class LateSwap(Hooked):
    """The first swap is on its way until the second one is sent; then `landed` is called."""

    def __init__(self, store: ObjectStore, landed: Callable[[], object]) -> None:
        super().__init__(store)
        self._landed = landed
        self._sent: list[bytes | Mapping[str, str]] = []

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        self._sent.append(content)
        if len(self._sent) == 1:
            raise Unavailable("no answer")
        if len(self._sent) == 2:
            self.store.swap(name, self._sent[0], expected=expected)
            self._landed()
        return super().swap(name, content, expected=expected)


def test_a_swap_that_lands_late_and_is_trimmed_at_once_is_not_taken_for_lost(world: World) -> None:
    """Of several tries for one head any may land; times differ. Which one did nobody can tell from what is left."""
    queue = world.create(1)
    send(queue, values(0))

    def trim_all() -> None:
        other = world.handle()
        trim(other, other.refresh().next)

    publisher = through(LateSwap(world.store, trim_all), queue)
    stage = stage_of(publisher.refresh())
    made = staged(publisher, stage, values(1))
    with pytest.raises(Unsettled, match="cannot be told"):
        publish(publisher, stage, made)
    assert head_of(world.store).next == (2,), "it is there once"


# --- repetitions ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-09")
@pytest.mark.parametrize("same_process", [True, False])
def test_a_repetition_adds_nothing_and_says_so(world: World, same_process: bool) -> None:
    queue = world.create(2)
    identity = PublishIdentity(writer="query", batch=5)
    first = send(queue, values(1, 2), identity)
    before = head_of(world.store)
    again = send(queue if same_process else world.handle(), values(1, 2), identity)
    assert (again.duplicate, again.rows) == (True, 0)
    assert (again.sequence, again.time_us) == (first.sequence, first.time_us)
    assert head_of(world.store) == before


@pytest.mark.conformance("DIS-10")
def test_a_number_that_its_writer_has_used_is_not_taken_for_a_repetition_of_other_messages(world: World) -> None:
    """Of what a caller names by a publish id it is: that is what the id is for."""
    queue = world.create(2)
    send(queue, values(1), PublishIdentity(writer="query", batch=5))
    for batch in (5, 4, 0):
        with pytest.raises(NumberUsed, match=f"has used the number {batch} of this batch: its last one is 5"):
            send(queue, values(9), PublishIdentity(writer="query", batch=batch))
    assert not send(
        queue, values(2), PublishIdentity(writer="query", batch=9)
    ).duplicate  # batches may leave numbers out
    send(queue, [], PublishIdentity.of_publish_id("import"))
    assert send(queue, values(9), PublishIdentity.of_publish_id("import")).duplicate
    assert not send(queue, values(3), PublishIdentity(writer="another", batch=5)).duplicate
    assert sorted(read_flat(queue)) == [b"1", b"2", b"3"]


@pytest.mark.conformance("DIS-09")
def test_a_repetition_that_races_the_first_adds_nothing(world: World) -> None:
    world.create(1)
    hooked = Hooked(world.store)
    queue, twin = world.handle(store=hooked), world.handle()
    identity = PublishIdentity(writer="query", batch=1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    hooked.before = once("swap", HEAD, lambda: send(twin, values(1), identity))
    done = publish(queue, stage, segments, identity)
    assert (done.duplicate, done.rows, done.conflicts) == (True, 0, 1)
    assert read_flat(queue) == [b"1"]


@pytest.mark.conformance("DIS-09")
def test_a_repetition_of_what_is_too_old_to_publish_is_still_a_repetition(world: World) -> None:
    queue = world.create(1)
    identity = PublishIdentity(writer="query", batch=1)
    stage = stage_of(queue.refresh())
    segments = staged(queue, stage, values(1))
    publish(queue, stage, segments, identity)
    changed(world, lambda head: replace(head, floor=floor(99), sequence=head.sequence + 1))
    assert publish(queue, stage, segments, identity).duplicate


def test_a_writers_name_belongs_to_the_query_that_used_it_first(world: World) -> None:
    queue = world.create(1)
    send(queue, values(1), PublishIdentity(writer="billing", batch=3, owner="query-a"))
    with pytest.raises(Invalid, match=r"'billing' belongs to query query-a .*query-b.*choose another txnAppId"):
        send(queue, values(2), PublishIdentity(writer="billing", batch=4, owner="query-b"))
    # Also one that would be taken for a repetition: a reset checkpoint begins again with batch 0.
    with pytest.raises(Invalid, match="belongs to query query-a"):
        send(queue, values(2), PublishIdentity(writer="billing", batch=0, owner="query-b"))
    send(queue, values(3), PublishIdentity(writer="billing", batch=4, owner="query-a"))
    assert read_flat(queue) == [b"1", b"3"]


# --- all at once ------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-08")
@pytest.mark.parametrize("crash_at", [*range(1, 9), None])
def test_a_reader_sees_all_partitions_of_a_publish_or_none_between_any_two_calls(
    world: World, crash_at: int | None
) -> None:
    world.create(8)
    send(world.handle(), [(f"key {number}", b"before") for number in range(100)])
    hooked = Hooked(world.store)
    queue, reader = world.handle(store=hooked), world.handle()
    rows: list[Row] = [(f"key {number}", b"new") for number in range(100)]
    seen: list[int] = []

    def look(kind: str, name: str) -> None:
        if kind == "write":
            return  # within an object that is not there yet
        seen.append(read_flat(reader).count(b"new"))
        if len(seen) == crash_at:
            raise KeyboardInterrupt  # the process ends here

    hooked.before = hooked.after = look
    try:
        stage = stage_of(queue.refresh())
        segments = staged(queue, stage, rows[:50]) + staged(queue, stage, rows[50:])
        publish(queue, stage, segments)
    except KeyboardInterrupt:
        pass
    seen.append(read_flat(reader).count(b"new"))
    assert set(seen) <= {0, 100}
    assert seen == sorted(seen)
    if crash_at is None:
        assert set(seen) == {0, 100}
        assert len(seen) == 9  # load, two segments, swap, then the end: each was the last one once
        assert len({piece.partition for piece in queue.head.entries[-1].slices}) == 8


def test_segments_with_and_without_headers_are_not_mixed(world: World) -> None:
    queue = world.create()
    stage = stage_of(queue.refresh())
    (plain,) = staged(queue, stage, [("a", b"1")])
    with pytest.raises(Invalid, match="with headers and some without"):
        publish(queue, stage, [plain, replace(plain, headers=True)])
    assert queue.refresh().messages == 0


@pytest.mark.azurite
@pytest.mark.conformance("DIS-09")
@pytest.mark.parametrize("identity", IDENTITIES)
def test_a_swap_that_reaches_azure_twice_publishes_once(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, identity: PublishIdentity | None
) -> None:
    with Proxy(azurite.port).running() as proxy:
        store = azure_store(azurite, monkeypatch, port=proxy.port)
        queue = create_queue(store, "default", "orders", 2)
        stage = stage_of(queue.refresh())
        segments = staged(queue, stage, values(10, 11))
        proxy.lose(Fault.SEND_TWICE, method="PUT")
        done = publish(queue, stage, segments, identity)
        assert (done.conflicts, done.duplicate) == (1, False), "the service refuses its own repetition"
        assert read_flat(queue) == [b"10", b"11"]
        store.close()
