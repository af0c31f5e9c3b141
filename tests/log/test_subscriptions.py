"""Subscriptions in the queues' heads: each one swap, whatever is lost and others do; and the heads of a
namespace, read again when they have changed.
"""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Conflict, Invalid, Unavailable
from partq_spark.log.admin import create_queue, delete_queue
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.subscriptions import Namespace, subscribe, unsubscribe
from partq_spark.objects.api import Document
from tests.log.queues import World, head_of, once, send, values
from tests.support.way import Hooked

pytestmark = pytest.mark.conformance("DIS-07")

HEAD = "_head.json"


def unavailable() -> None:
    raise Unavailable("the answer was lost (test)")


def test_subscriptions_are_sorted_each_once_and_repeating_is_harmless(world: World) -> None:
    queue = world.create()
    assert subscribe(queue, "b/>", "a/*", "b/>") == ("a/*", "b/>")
    assert head_of(world.store).subscriptions == ("a/*", "b/>")
    before = head_of(world.store)
    assert subscribe(queue, "a/*") == ()
    assert head_of(world.store) == before
    assert subscribe(queue, "a/*", "a") == ("a",)
    assert head_of(world.store).subscriptions == ("a", "a/*", "b/>")


def test_unsubscribing_takes_back_what_is_there(world: World) -> None:
    queue = world.create()
    subscribe(queue, "a", "b")
    assert unsubscribe(queue, "b", "c") == ("b",)
    assert unsubscribe(queue, "b") == ()
    assert head_of(world.store).subscriptions == ("a",)


def test_a_malformed_one_is_refused_and_nothing_is_changed(world: World) -> None:
    queue = world.create()
    before = head_of(world.store)
    for change in (subscribe, unsubscribe):
        with pytest.raises(Invalid, match="subscription 'a//b' is not allowed: level 2 is empty"):
            change(queue, "fine", "a//b")
    assert head_of(world.store) == before


def test_at_most_a_thousand(world: World) -> None:
    queue = world.create()
    subscribe(queue, *(f"t{number}" for number in range(1000)))
    with pytest.raises(Invalid, match="has 1000 subscriptions, 1 more make 1001, at most 1000"):
        subscribe(queue, "one/more")
    assert subscribe(queue, "t7") == ()
    assert len(head_of(world.store).subscriptions) == 1000


def test_there_is_no_queue(world: World) -> None:
    with pytest.raises(Invalid, match="does not exist"):
        subscribe(world.handle(), "a")


def test_of_two_at_a_time_both_succeed(world: World) -> None:
    world.create()
    hooked = Hooked(world.store)
    hooked.before = once("swap", HEAD, lambda: subscribe(world.handle(), "theirs"))
    assert subscribe(world.handle(store=hooked), "mine") == ("mine",)
    assert head_of(world.store).subscriptions == ("mine", "theirs")


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_answer_changes_neither_what_is_done_nor_what_is_said(world: World, landed: bool) -> None:
    world.create()
    for change, there in ((subscribe, ("mine",)), (unsubscribe, ())):
        hooked = Hooked(world.store)
        if landed:
            hooked.after = once("swap", HEAD, unavailable)
        else:
            hooked.before = once("swap", HEAD, unavailable)
        assert change(world.handle(store=hooked), "mine") == ("mine",)
        assert head_of(world.store).subscriptions == there


def test_publishing_keeps_them_and_deleting_the_queue_deletes_them(world: World) -> None:
    queue = world.create()
    subscribe(queue, "a")
    send(queue, values(1))
    assert head_of(world.store).subscriptions == ("a",)
    delete_queue(queue)
    assert world.create().refresh().subscriptions == ()


# --- a namespace ------------------------------------------------------------------------------------------------------


def test_a_namespace_has_the_queues_that_there_are_now(world: World) -> None:
    namespace = Namespace(world.store, "default")
    assert list(namespace.queues()) == []
    create_queue(world.store, "other", "elsewhere", 1)
    for name in ("b", "a"):
        world.create(1, name)
    assert [queue.name for queue in namespace.queues()] == ["a", "b"]
    subscribe(world.handle("a"), "x")
    delete_queue(world.handle("b"))
    world.create(2, "c")
    assert [(queue.name, queue.head.subscriptions) for queue in namespace.queues()] == [("a", ("x",)), ("c", ())]


def test_a_folder_that_no_queue_could_have_is_nobodys(world: World) -> None:
    world.create()
    world.store.create("default/_notes/x", b"x")
    assert [queue.name for queue in Namespace(world.store, "default").queues()] == ["orders"]


@pytest.mark.conformance("OBS-06")
def test_a_damaged_queue_stops_no_other_and_is_told_of_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("broken", "fine"):
        world.create(1, name)
    head = world.store.load("default/broken/_head.json")
    assert isinstance(head, Document)
    world.store.swap("default/broken/_head.json", b"{}", expected=head.etag)
    namespace = Namespace(world.store, "default")
    for _ in range(2):
        assert [queue.name for queue in namespace.queues()] == ["fine"]
        assert [*namespace.damaged] == ["broken"]
    (warning,) = caplog.messages
    assert "queue 'broken'" in warning
    assert "default/broken/_head.json" in warning
    assert delete_queue(world.handle("broken")) == 1
    assert [queue.name for queue in namespace.queues()] == ["fine"]
    assert namespace.damaged == {}


def test_a_damaged_queue_that_was_restored_meanwhile_is_not_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = world.create()
    name = queue.head_name
    whole = world.store.load(name)
    assert isinstance(whole, Document)
    world.store.swap(name, b"{}", expected=whole.etag)
    refresh = QueueLog.refresh

    def restored(handle: QueueLog) -> Head:
        try:
            return refresh(handle)
        finally:
            found = world.store.load(name)
            assert isinstance(found, Document)
            world.store.swap(name, whole.body, expected=found.etag)

    monkeypatch.setattr(QueueLog, "refresh", restored)
    with pytest.raises(Conflict, match="restored meanwhile"):
        delete_queue(world.handle())
    monkeypatch.undo()
    assert world.handle().refresh().partitions == queue.head.partitions
