"""Topics and subscriptions: what is well formed, which attract which, and what a namespace's queues attract."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Conflict, Invalid
from partq_spark.log.admin import delete_queue, subscribe
from partq_spark.log.destinations import Attraction, checked_subscription, checked_topic, matches
from partq_spark.objects.api import Document
from tests.log.queues import World, document_of, head_of

pytestmark = pytest.mark.conformance("DIS-07")

BOTH, TOPIC, SUBSCRIPTION = ("topic", "subscription"), ("topic",), ("subscription",)
CHECKS = {"topic": checked_topic, "subscription": checked_subscription}
SINGLE, LAST = "single '/'", "stands alone as the last level"


@pytest.mark.parametrize(
    ("kinds", "text", "place", "allowed"),
    [
        (BOTH, "", "it has 0 bytes", "1 to 250"),
        (BOTH, "x" * 251, "it has 251 bytes", "1 to 250"),
        (BOTH, "ä" * 126, "it has 252 bytes", "1 to 250"),
        (BOTH, "/a", "level 1 is empty", SINGLE),
        (BOTH, "a//b", "level 2 is empty", SINGLE),
        (BOTH, "a\ud800b", "character 2 is half of a surrogate pair", "valid UTF-8"),
        (TOPIC, "a*", "level 1 ('a*')", "for subscriptions"),
        (TOPIC, ">", "level 1 ('>')", "for subscriptions"),
        (SUBSCRIPTION, "a>", "level 1 ('a>')", LAST),
        (SUBSCRIPTION, ">/a", "level 1 ('>')", LAST),
        (SUBSCRIPTION, "a/>b", "level 2 ('>b')", LAST),
    ],
)
def test_what_is_malformed_is_refused_by_place(kinds: tuple[str, ...], text: str, place: str, allowed: str) -> None:
    for kind in kinds:
        with pytest.raises(Invalid) as refused:
            CHECKS[kind](text)
        for part in (f"{kind} {text!r}", place, allowed):
            assert part in str(refused.value)


# --- matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "topic", "attracted"),
    [
        # What is a topic is a subscription too, and attracts itself.
        *((text, text, True) for text in ("a", "Orders/EU", "x" * 250, "ä" * 125, "/".join("a" * 125))),
        *((text, text, True) for text in ("订单/🚚", " ", "$share/#/+")),
        ("orders/*/eu/>", "orders/new/eu/de/berlin", True),
        ("orders/*/eu/>", "orders/new/eu", False),
        ("orders", "Orders", False),
        ("a*" * 124 + "b", "a" * 250, False),  # where every way is tried this takes longer than anybody lives
        ("a*" * 124, "a" * 250, True),
    ],
)
def test_what_is_well_formed_is_taken_as_it_is_and_attracts(subscription: str, topic: str, attracted: bool) -> None:
    assert (checked_subscription(subscription), checked_topic(topic)) == (subscription, topic)
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


TOPICS = st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4).map("/".join)
SUBSCRIPTIONS = (
    st.tuples(st.lists(st.text("ab*", min_size=1, max_size=4), max_size=4), st.sampled_from([[], [">"]]))
    .map(lambda parts: "/".join(parts[0] + parts[1]))
    .filter(bool)
)


@given(st.lists(st.lists(SUBSCRIPTIONS, max_size=4), max_size=4), TOPICS)
def test_matching_is_what_trying_everything_says_for_one_and_for_many(owners: list[list[str]], topic: str) -> None:
    for each in {each for mine in owners for each in mine}:
        assert matches(checked_subscription(each), checked_topic(topic)) is brute_force(each, topic)
    wanted = [number for number, mine in enumerate(owners) if any(brute_force(each, topic) for each in mine)]
    assert list(Attraction(owners).owners(topic)) == wanted


# --- in the heads of a namespace's queues -----------------------------------------------------------------------------


def test_at_most_a_thousand(world: World) -> None:
    queue = world.create()
    subscribe(queue, *(f"t{number}" for number in range(1000)))
    with pytest.raises(Invalid, match="has 1000 subscriptions, 1 more make 1001, at most 1000"):
        subscribe(queue, "one/more")
    assert subscribe(queue, "t7") == ()
    assert len(head_of(world.store).subscriptions) == 1000


def test_a_damaged_queue_that_was_restored_meanwhile_is_not_deleted(world: World) -> None:
    queue = world.create()
    whole = document_of(world.store, queue.head_name)

    def put_head(body: bytes) -> None:
        found = world.store.load(queue.head_name)
        assert isinstance(found, Document)
        world.store.swap(queue.head_name, body, expected=found.etag)

    put_head(b"{}")
    with pytest.raises(Conflict, match="restored meanwhile"):
        delete_queue(world.meeting("after", "load", lambda: put_head(whole)))
    assert world.handle().refresh().partitions == queue.head.partitions
