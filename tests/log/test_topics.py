"""Topics and subscriptions: what is well formed, and which attract which."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log.topics import Attraction, checked_subscription, checked_topic, matches

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
    "subscription", ["*", "a/*", "*/a", "ord*", "*eu", "a*b/c", "a**b", "*a*b*", ">", "a/>", "*/>"]
)
def test_wildcards_of_subscriptions(subscription: str) -> None:
    assert checked_subscription(subscription) == subscription


@pytest.mark.parametrize(
    ("subscription", "place"),
    [("a>", "level 1 ('a>')"), (">/a", "level 1 ('>')"), ("a/>b", "level 2 ('>b')"), ("a/>>", "'>>'"), ("*>", "'*>'")],
)
def test_the_rest_is_meant_only_by_a_whole_last_level(subscription: str, place: str) -> None:
    with pytest.raises(Invalid, match="stands alone as the last level") as caught:
        checked_subscription(subscription)
    assert place in str(caught.value)


def test_a_refusal_shows_no_more_than_a_line_can_hold() -> None:
    with pytest.raises(Invalid) as caught:
        checked_topic("x" * 100_000)
    assert len(str(caught.value)) < 500


# --- matching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("subscription", "topic", "attracted"),
    [
        ("orders/*/eu/>", "orders/new/eu/de", True),
        ("orders/*/eu/>", "orders/new/eu/de/berlin", True),
        ("orders/*/eu/>", "orders/new/eu", False),
        ("orders/*/eu/>", "orders/new/us/de", False),
        ("orders/*", "orders", False),
        ("orders/*", "orders/new", True),
        ("orders/*", "orders/new/eu", False),
        ("orders", "Orders", False),
        ("ord*", "ord", True),
        ("ord*", "orders", True),
        ("ord*", "bord", False),
        ("*eu", "eu", True),
        ("*eu", "a.eu", True),
        ("a*b", "ab", True),
        ("a*b", "a", False),
        ("a*a", "a", False),
        ("a*bc*c", "abcc", True),
        ("a*bc*c", "abc", False),
        ("*ab*", "aab", True),
        (">", "a", True),
        (">", "a/b/c", True),
        ("a/>", "a", False),
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


def test_many_wildcards_in_a_level_take_no_time() -> None:
    """Where every way is tried this takes longer than anybody lives."""
    begun_s = time.process_time()
    assert not matches("a*" * 124 + "b", "a" * 250)
    assert matches("a*" * 124, "a" * 250)
    assert time.process_time() - begun_s < 1
