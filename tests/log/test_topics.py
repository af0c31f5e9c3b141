"""Topics and subscriptions: what is well formed, which attract which, and what a namespace's queues attract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.log.admin import create_queue, delete_queue
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.subscriptions import Namespace, subscribe
from partq_spark.log.topics import Attraction, checked_subscription, checked_topic, matches
from partq_spark.objects.api import Document
from tests.log.queues import World, head_of

pytestmark = pytest.mark.conformance("DIS-07")


WELL_FORMED = [
    "a",
    "orders/eu/new",
    "Orders/EU",
    "x" * 250,
    "ä" * 125,
    "/".join("a" * 125),
    "订单/🚚",
    " ",
    "a b/c.d-e_f",
    "$share/#/+",
]


MALFORMED = [
    ("", "it has 0 bytes", "1 to 250"),
    ("x" * 251, "it has 251 bytes", "1 to 250"),
    ("ä" * 126, "it has 252 bytes", "1 to 250"),
    ("/a", "level 1 is empty", "single '/'"),
    ("a/", "level 2 is empty", "single '/'"),
    ("a//b", "level 2 is empty", "single '/'"),
    ("/", "level 1 is empty", "single '/'"),
    ("a\ud800b", "character 2 is half of a surrogate pair", "valid UTF-8"),
]


# --- what is well formed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", WELL_FORMED)
def test_what_is_a_topic_is_a_subscription_too_and_attracts_itself(text: str) -> None:
    assert checked_topic(text) == text
    assert checked_subscription(text) == text
    assert matches(text, text)


@pytest.mark.parametrize(("text", "place", "allowed"), MALFORMED)
def test_what_is_neither_is_refused_with_its_place_and_what_is_allowed(text: str, place: str, allowed: str) -> None:
    for check, kind in ((checked_topic, "topic"), (checked_subscription, "subscription")):
        with pytest.raises(Invalid) as caught:
            check(text)
        assert f"{kind} {text!r}" in str(caught.value)
        assert place in str(caught.value)
        assert allowed in str(caught.value)


@pytest.mark.parametrize(
    ("topic", "place"), [("a/*", "level 2 ('*')"), ("a*", "level 1 ('a*')"), (">", "level 1 ('>')"), ("a/b>/c", "'b>'")]
)
def test_a_topic_has_no_wildcards(topic: str, place: str) -> None:
    with pytest.raises(Invalid, match="for subscriptions") as caught:
        checked_topic(topic)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("subscription", "place"),
    [("a>", "level 1 ('a>')"), (">/a", "level 1 ('>')"), ("a/>b", "level 2 ('>b')"), ("a/>>", "'>>'"), ("*>", "'*>'")],
)
def test_the_rest_is_meant_only_by_a_whole_last_level(subscription: str, place: str) -> None:
    with pytest.raises(Invalid, match="stands alone as the last level") as caught:
        checked_subscription(subscription)
    assert place in str(caught.value)


# --- matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "topic", "attracted"),
    [
        ("orders/*/eu/>", "orders/new/eu/de/berlin", True),
        ("orders/*/eu/>", "orders/new/eu", False),
        ("orders/*", "orders", False),
        ("orders", "Orders", False),
        ("ord*", "ord", True),
        ("ord*", "bord", False),
        ("a*a", "a", False),
        ("a*bc*c", "abcc", True),
        (">", "a/b/c", True),
        ("a*" * 124 + "b", "a" * 250, False),  # where every way is tried this takes longer than anybody lives
        ("a*" * 124, "a" * 250, True),
    ],
)
def test_examples(subscription: str, topic: str, attracted: bool) -> None:
    assert matches(subscription, topic) is attracted


def brute_force(subscription: str, topic: str) -> bool:
    """The rule, letter by letter: every way in which the wildcards could be filled is tried."""
    if not subscription or not topic:
        return not topic and subscription.strip("*") == ""
    if subscription == ">":
        return True  # a well-formed topic has something in each level
    first, rest = subscription[0], subscription[1:]
    if first == "*":
        return brute_force(rest, topic) or (topic[0] != "/" and brute_force(subscription, topic[1:]))
    return first == topic[0] and brute_force(rest, topic[1:])


LEVEL = st.text("ab", min_size=1, max_size=4)


TOPICS = st.lists(LEVEL, min_size=1, max_size=4).map("/".join)


SUBSCRIPTIONS = st.tuples(
    st.lists(st.text("ab*", min_size=1, max_size=4), max_size=4), st.sampled_from([[], [">"]])
).map(lambda parts: "/".join(parts[0] + parts[1]))


@given(SUBSCRIPTIONS.filter(bool), TOPICS)
def test_matching_is_what_trying_everything_says(subscription: str, topic: str) -> None:
    checked_subscription(subscription)
    checked_topic(topic)
    assert matches(subscription, topic) is brute_force(subscription, topic)


@given(st.lists(st.lists(SUBSCRIPTIONS.filter(bool), max_size=4), max_size=4), TOPICS)
def test_many_owners_are_asked_together_as_each_would_be_asked_alone(owners: list[list[str]], topic: str) -> None:
    wanted = [number for number, mine in enumerate(owners) if any(brute_force(each, topic) for each in mine)]
    assert list(Attraction(owners).owners(topic)) == wanted


# --- in the queues' heads ---------------------------------------------------------------------------------------------


def test_at_most_a_thousand(world: World) -> None:
    queue = world.create()
    subscribe(queue, *(f"t{number}" for number in range(1000)))
    with pytest.raises(Invalid, match="has 1000 subscriptions, 1 more make 1001, at most 1000"):
        subscribe(queue, "one/more")
    assert subscribe(queue, "t7") == ()
    assert len(head_of(world.store).subscriptions) == 1000


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
