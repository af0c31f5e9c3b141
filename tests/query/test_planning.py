"""Where a flow is with its partitions and what a batch takes of them: the cases that are rare in practice; and the
offsets in the Spark checkpoint: one encoding to the byte, and what comes from elsewhere is refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing, PartqError
from partq_spark.group.claims import Claim, Position, Standing, View
from partq_spark.log.model import Head, Origin
from partq_spark.log.settings import QueueConfig
from partq_spark.log.tree import Losses
from partq_spark.query import offsets
from partq_spark.query.acknowledgements import GivenOut, RoundPosition
from partq_spark.query.limits import BatchLimits
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.planning import BatchPlan, begin, begin_manual, left_out, planned_batch

HEAD = replace(Head.created("default", "orders", "q", 2, config=QueueConfig(), now_us=0), next=(10, 10))


CLAIM = Claim(partition=0, epoch=3, position=4, acknowledged=4, redelivered_below=6, paused=False)


def claim(partition: int = 0, **more: Any) -> Claim:
    return replace(CLAIM, partition=partition, **more)


def end(**spans: BatchSpan) -> BatchEnd:
    return BatchEnd(queue_id="q", group="billing", flow="left", spans={int(p[1:]): span for p, span in spans.items()})


def planned(
    before: BatchEnd, *claims: Claim, mapping: dict[int, int] | None = None, missed: Collection[int] = ()
) -> BatchPlan:
    view = View(instance="i", standing=Standing.ACTIVE, claims={each.partition: each for each in claims})
    return planned_batch(
        HEAD,
        view,
        before,
        begin=lambda claim: begin(before, claim),
        mapping=mapping or {},
        target=None,
        limits=BatchLimits(),
        entries=lambda _: (),
        losses=Losses(True, print),
        missed=missed,
    )


@dataclass(frozen=True)
class Beginning:
    """Where a flow begins with partition 0, claimed at epoch 3 with a mark of 6; spans are (epoch, start, to, mark)."""

    why: str
    found: tuple[int, int, int, int]
    before: tuple[int, int, int, int] | None = None
    claim: Claim = CLAIM
    more: dict[str, Any] = field(default_factory=dict)
    given: tuple[int, int, int, int] | None = None


def at(position: int, acknowledged: int = 4) -> Claim:
    return claim(position=position, acknowledged=acknowledged)


def none(position: int) -> Claim:
    return claim(position=position, by_offset=False)


MISSED: dict[str, Any] = {"missed": {0}}

BEGINNINGS = [
    Beginning("a new partition begins where its checkpoint says", (3, 4, 4, 6)),
    Beginning("the offset knows better at the same epoch", (3, 5, 5, 6), before=(3, 2, 5, 1)),
    Beginning("a mark below it says nothing", (3, 6, 6, 1), before=(3, 2, 6, 1)),
    Beginning("the offset of another epoch knows nothing", (3, 4, 4, 6), before=(2, 2, 5, 1)),
    # Without checkpoints what this query completed is not read again.
    Beginning("none: completed", (3, 5, 5, 6), before=(2, 2, 5, 1), claim=none(0)),
    Beginning("none: the group is further", (3, 7, 7, 6), before=(2, 2, 5, 1), claim=none(7)),
    Beginning("where offsets are kept it is", (3, 0, 0, 6), before=(2, 2, 5, 1), claim=at(0)),
    Beginning("none: nothing known", (3, 0, 0, 6), claim=none(0)),
    Beginning("acknowledged beyond an older Spark checkpoint", (3, 5, 5, 8), before=(3, 2, 5, 1), claim=at(8, 8)),
    Beginning("given out by this process", (3, 5, 5, 9), before=(3, 2, 5, 1), more={"reached": 9}),
    Beginning("given out, and behind the offset", (3, 9, 9, 1), before=(3, 2, 9, 1), more={"reached": 9}),
    # What a repeated batch left out comes again, marked.
    Beginning("none: left out", (3, 2, 2, 8), before=(2, 2, 8, 1), claim=none(0), more=MISSED),
    Beginning("none: left out, the group is further", (3, 4, 4, 8), before=(2, 2, 8, 1), claim=none(4), more=MISSED),
    Beginning("none: left out, marked beyond", (3, 2, 2, 11), before=(2, 2, 8, 11), claim=none(0), more=MISSED),
    # What was announced and never read is marked by the claim alone, because others may have delivered it.
    Beginning("announced", (3, 4, 4, 6), claim=at(9), more={"unread": BatchSpan(3, 4, 9, 1)}),
    Beginning("announced at another epoch", (3, 5, 5, 6), claim=at(5), more={"unread": BatchSpan(2, 2, 5, 1)}),
]

BY_HAND = [
    Beginning("given out beyond the offset", (3, 4, 4, 9), claim=at(4), more={"reached": 9}),
    Beginning("announced", (3, 5, 5, 6), claim=at(9, 5), more={"unread": BatchSpan(3, 4, 9, 1)}),
    Beginning("it goes on after itself", (3, 9, 9, 6), before=(3, 4, 9, 6), given=(3, 4, 9, 6), claim=at(9)),
    Beginning("what it gave out was never read", (3, 4, 4, 6), given=(3, 4, 4, 6), claim=at(9)),
    Beginning("given out at another epoch", (3, 4, 4, 6), before=(2, 4, 9, 0), given=(2, 4, 9, 0)),
    # A new process begins at the checkpoint and marks what its predecessor had.
    Beginning("by the offset", (3, 4, 4, 9), before=(3, 4, 9, 0)),
    Beginning("by the offset, whatever was delivered", (3, 4, 4, 9), before=(3, 4, 9, 0), claim=at(8)),
    Beginning("by what was delivered", (3, 4, 4, 8), claim=at(8)),
    Beginning("by the checkpoint's mark", (3, 4, 4, 6)),
    Beginning("by the offset's mark alone", (3, 4, 4, 9), before=(3, 4, 4, 9)),
]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_flow_begins_where_all_that_is_known_says(by_hand: bool) -> None:
    for case in BY_HAND if by_hand else BEGINNINGS:
        before = end() if case.before is None else end(p0=BatchSpan(*case.before))
        given = None if case.given is None else BatchSpan(*case.given)
        found = (
            begin_manual(before, given, case.claim, **case.more) if by_hand else begin(before, case.claim, **case.more)
        )
        assert found == BatchSpan(*case.found), case.why


def test_what_a_repeated_batch_left_out_is_not_taken_over() -> None:
    before = end(p0=BatchSpan(2, 2, 8, 1))
    assert left_out(before, {0: claim(acknowledged=0, by_offset=False)}, {0}) == {0: Position(3, 2)}
    assert left_out(before, {0: claim(acknowledged=0, by_offset=False)}, ()) == {0: Position(3, 8)}
    still = planned(end(p1=BatchSpan(7, 2, 5, 1)), claim(0), mapping={1: 7}, missed={1})
    assert still.all_spans[1] == BatchSpan(7, 2, 2, 5), "not claimed yet, and not read either"


def test_a_paused_partition_is_in_the_end_without_messages() -> None:
    found = planned(end(p0=BatchSpan(3, 2, 5, 1)), claim(0, paused=True), claim(1))
    assert found.all_spans == {0: BatchSpan(3, 5, 5, 6), 1: BatchSpan(3, 4, 10, 6)}
    assert found.filled == {1: BatchSpan(3, 4, 10, 6)}
    assert found.news == {1: 10}


def test_what_the_flow_would_get_back_stays_in_the_end() -> None:
    """Its instance has ended, and one partition is claimed by the next one before the other."""
    before = end(p0=BatchSpan(3, 2, 5, 1), p1=BatchSpan(7, 2, 5, 1))
    assert planned(before, claim(0), mapping={0: 3, 1: 7}).all_spans[1] == BatchSpan(7, 5, 5, 1)
    assert 1 not in planned(before, claim(0), mapping={0: 3}).all_spans
    assert 1 not in planned(before, claim(0), mapping={0: 3, 1: 8}).all_spans


def test_a_checkpoint_beyond_the_end_of_the_log_names_the_way_back() -> None:
    with pytest.raises(ObjectMissing, match=r"is at offset 11 of partition 0 .* `partq checkpoints rewind`"):
        planned(end(), claim(position=11))


def test_what_is_given_back_after_the_next_batch_was_planned_is_not_left_behind_it() -> None:
    """It goes on where the former one ended: an acknowledgement of it would cover both."""
    given = GivenOut("p")
    given.planned()
    given.add({0: BatchSpan(1, 0, 4, 0), 1: BatchSpan(1, 0, 1, 0)})
    given.planned()
    given.refuse("p", {0: RoundPosition(1, 4, 0)}, ())
    assert given.as_planned({0: BatchSpan(1, 4, 8, 0), 1: BatchSpan(1, 1, 2, 0)}) == {1: BatchSpan(1, 1, 2, 0)}
    given.planned()
    assert given.as_planned({0: BatchSpan(1, 0, 8, 0)}) == {0: BatchSpan(1, 0, 8, 0)}


# --- offsets in the Spark checkpoint ----------------------------------------------------------------------------------


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
    """With a group it says since when the group is there."""
    end = BatchEnd(
        queue_id="0123456789abcdef", group=None, flow=None, spans={10: BatchSpan(0, 1, 5, 0), 2: BatchSpan(0, 7, 7, 0)}
    )
    assert text(end) == (
        '{"v": 1, "queue": "0123456789abcdef", "group": null, "flow": null, '
        '"p": {"2": [0, 7, 7, 0], "10": [0, 1, 5, 0]}}'
    )
    grouped = BatchEnd(queue_id="q", group="billing", since=7, flow="left", spans={})
    assert text(grouped) == '{"v": 1, "queue": "q", "group": "billing", "since": 7, "flow": "left", "p": {}}'


@given(ENDS, st.randoms())
def test_equal_ends_have_one_text_and_keep_it_through_sparks_log(end: BatchEnd, order: random.Random) -> None:
    shuffled = list(end.spans.items())
    order.shuffle(shuffled)
    assert text(structs.replace(end, spans=dict(shuffled))) == text(end)
    decoded = offsets.decode(json.loads(text(end)))
    assert decoded == end
    assert text(decoded) == text(end) == json.dumps(json.loads(text(end)))


def test_before_the_first_batch_there_is_nothing() -> None:
    assert offsets.decode(json.loads(json.dumps(offsets.INITIAL))) is None


FLOW = {"v": 1, "queue": "q", "group": "billing", "flow": "left", "p": {}}
ALONE = {**FLOW, "group": None, "flow": None}


ELSEWHERE = [
    *({"v": 2, "queue": "x", "p": {}}, {"v": "1"}, {}, None, [1]),
    {"orders": {"0": 12}},  # Kafka's
    12,  # the rate source's
    FLOW,  # of an earlier partq: it does not say since when its group is there
]
MALFORMED = [
    FLOW | {"since": None},
    *(ALONE | {"publish": publish} for publish in (None, [], 7, [1, 2], [1, "x", "token"], [1, 2, "token", 4])),
    *(ALONE | {"p": None}, ALONE | {"p": []}, ALONE | {"p": "x"}, ALONE | {"p": {"a": [0, 0, 0, 0]}}),
    *(ALONE | {"p": {"0": span}} for span in (None, [1, 2, 3], [1, 2, 3, 4, 5], [0, "x", 0, 0])),
]


@pytest.mark.parametrize(
    ("raw", "error", "says"),
    [
        *((raw, Invalid, "new checkpoint location") for raw in ELSEWHERE),
        *((raw, Corrupt, "malformed") for raw in MALFORMED),
        *(({k: v for k, v in ALONE.items() if k != gone}, Corrupt, gone) for gone in ("queue", "group", "flow")),
    ],
)
def test_an_offset_of_elsewhere_or_malformed_is_refused_so(raw: object, error: type[PartqError], says: str) -> None:
    with pytest.raises(error, match=says):
        offsets.decode(raw)


def test_an_offset_of_another_queue_is_refused_with_both_ids() -> None:
    end = BatchEnd(queue_id="first", group=None, flow=None, spans={})
    offsets.require_same_queue(end, "first", "queue 'orders'")
    with pytest.raises(Invalid, match=r"first.*queue 'orders'.*second.*deleted and created again"):
        offsets.require_same_queue(end, "second", "queue 'orders'")


def test_equal_offsets_have_one_digest_however_they_were_written() -> None:
    assert offsets.digest({"a": 1, "b": [2]}) == offsets.digest({"b": [2], "a": 1})
    assert offsets.digest({"a": 1}) != offsets.digest({"a": 2})
