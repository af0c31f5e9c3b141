"""Offsets in the Spark checkpoint: one encoding to the byte, and what comes from elsewhere is refused."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log.model import Origin
from partq_spark.query import offsets
from partq_spark.query.offsets import BatchEnd, BatchSpan

COUNTS = st.integers(0, (1 << 63) - 1)
SPANS = st.dictionaries(st.integers(0, 999), st.builds(BatchSpan, COUNTS, COUNTS, COUNTS, COUNTS), max_size=20)
NAMES = st.none() | st.text(max_size=20)
ENDS = st.builds(
    lambda queue, spans, group, since, flow, origin: BatchEnd(
        queue_id=queue, spans=spans, group=group, since=None if group is None else since, flow=flow, origin=origin
    ),
    st.text(min_size=1),
    SPANS,
    NAMES,
    COUNTS,
    NAMES,
    st.none() | st.builds(Origin, COUNTS, COUNTS, st.text()),
)


def text(end: BatchEnd) -> str:
    """What Spark writes down and compares (spark-traps.md 6)."""
    return json.dumps(offsets.encode(end))


def test_the_encoding_is_this_one() -> None:
    end = BatchEnd(queue_id="0123456789abcdef", spans={10: BatchSpan(0, 1, 5, 0), 2: BatchSpan(0, 7, 7, 0)})
    assert text(end) == (
        '{"v": 1, "queue": "0123456789abcdef", "group": null, "flow": null, '
        '"p": {"2": [0, 7, 7, 0], "10": [0, 1, 5, 0]}}'
    )


def test_with_a_group_it_says_since_when_the_group_is_there() -> None:
    end = BatchEnd(queue_id="q", group="billing", since=7, flow="left", spans={})
    assert text(end) == '{"v": 1, "queue": "q", "group": "billing", "since": 7, "flow": "left", "p": {}}'


def test_one_of_a_group_that_does_not_say_so_is_of_an_earlier_partq() -> None:
    raw = {"v": 1, "queue": "q", "group": "billing", "flow": "left", "p": {}}
    with pytest.raises(Invalid, match=r"group 'billing' that an earlier partq wrote.* a new checkpoint location"):
        offsets.decode(raw)
    with pytest.raises(Corrupt, match="malformed"):
        offsets.decode(raw | {"since": None})


@given(ENDS)
def test_what_is_encoded_is_decoded(end: BatchEnd) -> None:
    assert offsets.decode(json.loads(text(end))) == end


@given(ENDS, st.randoms())
def test_equal_ends_have_one_text_whatever_order_they_were_made_in(end: BatchEnd, order: random.Random) -> None:
    shuffled = list(end.spans.items())
    order.shuffle(shuffled)
    again = replace(end, spans=dict(shuffled))
    assert text(again) == text(end)


@given(ENDS)
def test_a_trip_through_sparks_log_changes_no_byte(end: BatchEnd) -> None:
    once = json.loads(text(end))
    decoded = offsets.decode(once)
    assert decoded is not None
    assert text(decoded) == text(end) == json.dumps(once)


def test_before_the_first_batch_there_is_nothing() -> None:
    assert offsets.decode(json.loads(json.dumps(offsets.INITIAL))) is None


@pytest.mark.parametrize(
    "raw",
    [
        {"v": 2, "queue": "x", "p": {}},
        {"v": "1"},
        {},
        {"orders": {"0": 12}},  # Kafka's
        12,  # the rate source's
        None,
        [1],
    ],
)
def test_an_offset_of_another_version_or_source_is_refused(raw: object) -> None:
    with pytest.raises(Invalid, match="new checkpoint location"):
        offsets.decode(raw)


@pytest.mark.parametrize("publish", [None, [], 7, [1, 2], [1, "x", "token"], [1, 2, "token", 4]])
def test_a_malformed_publish_is_corrupt(publish: object) -> None:
    with pytest.raises(Corrupt, match="malformed"):
        offsets.decode({"v": 1, "queue": "q", "group": None, "flow": None, "publish": publish, "p": {}})


@pytest.mark.parametrize(
    "spans",
    [None, [], "x", {"0": None}, {"0": [1, 2, 3]}, {"0": [1, 2, 3, 4, 5]}, {"a": [0, 0, 0, 0]}, {"0": [0, "x", 0, 0]}],
)
def test_a_malformed_offset_is_corrupt(spans: object) -> None:
    with pytest.raises(Corrupt, match="malformed"):
        offsets.decode({"v": 1, "queue": "q", "group": None, "flow": None, "p": spans})


@pytest.mark.parametrize("missing", ["queue", "group", "flow"])
def test_an_offset_that_lacks_something_is_corrupt(missing: str) -> None:
    raw = offsets.encode(BatchEnd(queue_id="q", spans={}))
    del raw[missing]
    with pytest.raises(Corrupt, match=missing):
        offsets.decode(raw)


def test_an_offset_of_another_queue_is_refused_with_both_ids() -> None:
    end = BatchEnd(queue_id="first", spans={})
    offsets.require_same_queue(end, "first", "queue 'orders'")
    with pytest.raises(Invalid, match=r"first.*queue 'orders'.*second.*deleted and created again"):
        offsets.require_same_queue(end, "second", "queue 'orders'")


def test_equal_offsets_have_one_digest_however_they_were_written() -> None:
    assert offsets.digest({"a": 1, "b": [2]}) == offsets.digest({"b": [2], "a": 1})
    assert offsets.digest({"a": 1}) != offsets.digest({"a": 2})
