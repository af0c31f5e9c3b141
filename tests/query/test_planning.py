"""Where a flow is with its partitions and what a batch takes of them: the cases that are rare in practice; and the
offsets in the Spark checkpoint: one encoding to the byte, and what comes from elsewhere is refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing
from partq_spark.group.claims import Claim, Position, Standing, View
from partq_spark.log.model import Entry, Head, Origin, QueueConfig, Slice
from partq_spark.query import offsets
from partq_spark.query.limits import BatchLimits, Ranges, Unacknowledged, batch_ends, window_ends, windows
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.planning import BatchPlan, begin, begin_manual, left_out, planned_batch

HEAD = replace(Head.created("default", "orders", "q", 2, config=QueueConfig(), now_us=0), next=(10, 10))


ENTRY = Entry(
    sequence=0, token="", writer=None, batch=0, time_us=0, generation=0, headers=False, segments=("x",), slices=()
)


def claim(partition: int = 0, epoch: int = 3, position: int = 4, acknowledged: int = 4, paused: bool = False) -> Claim:
    return Claim(
        partition=partition,
        epoch=epoch,
        position=position,
        acknowledged=acknowledged,
        redelivered_below=6,
        paused=paused,
    )


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
        fail_on_data_loss=True,
        warn=lambda _: None,
        missed=missed,
    )


def test_a_new_partition_begins_where_its_checkpoint_says() -> None:
    assert begin(end(), claim()) == BatchSpan(3, 4, 4, 6)


def test_the_offset_knows_better_at_the_same_epoch_and_nothing_at_another() -> None:
    assert begin(end(p0=BatchSpan(3, 2, 5, 1)), claim()) == BatchSpan(3, 5, 5, 6)
    assert begin(end(p0=BatchSpan(3, 2, 6, 1)), claim()) == BatchSpan(3, 6, 6, 1), "a mark below it says nothing"
    assert begin(end(p0=BatchSpan(2, 2, 5, 1)), claim()) == BatchSpan(3, 4, 4, 6)


def test_without_checkpoints_what_this_query_completed_is_not_read_again() -> None:
    before = end(p0=BatchSpan(2, 2, 5, 1))
    assert begin(before, claim(position=0), keeps_offsets=False) == BatchSpan(3, 5, 5, 6)
    assert begin(before, claim(position=7), keeps_offsets=False) == BatchSpan(3, 7, 7, 6)
    assert begin(before, claim(position=0)) == BatchSpan(3, 0, 0, 6)
    assert begin(end(), claim(position=0), keeps_offsets=False) == BatchSpan(3, 0, 0, 6)


def test_what_was_acknowledged_beyond_an_older_spark_checkpoint_is_marked() -> None:
    assert begin(end(p0=BatchSpan(3, 2, 5, 1)), claim(position=8, acknowledged=8)) == BatchSpan(3, 5, 5, 8)


def test_what_this_process_gave_out_beyond_the_offset_is_marked() -> None:
    assert begin(end(p0=BatchSpan(3, 2, 5, 1)), claim(), reached=9) == BatchSpan(3, 5, 5, 9)
    assert begin(end(p0=BatchSpan(3, 2, 9, 1)), claim(), reached=9) == BatchSpan(3, 9, 9, 1)
    assert begin_manual(end(), None, claim(acknowledged=4, position=4), reached=9) == BatchSpan(3, 4, 4, 9)


def test_without_checkpoints_what_a_repeated_batch_left_out_comes_again_marked() -> None:
    before = end(p0=BatchSpan(2, 2, 8, 1))
    assert begin(before, claim(position=0), keeps_offsets=False, missed={0}) == BatchSpan(3, 2, 2, 8)
    assert begin(before, claim(position=4), keeps_offsets=False, missed={0}) == BatchSpan(3, 4, 4, 8)
    repeated = end(p0=BatchSpan(2, 2, 8, 11))
    assert begin(repeated, claim(position=0), keeps_offsets=False, missed={0}) == BatchSpan(3, 2, 2, 11)
    assert left_out(before, {0: claim(acknowledged=0)}, {0}) == {0: Position(3, 2)}
    assert left_out(before, {0: claim(acknowledged=0)}, ()) == {0: Position(3, 8)}
    still = planned(end(p1=BatchSpan(7, 2, 5, 1)), claim(0), mapping={1: 7}, missed={1})
    assert still.all_spans[1] == BatchSpan(7, 2, 2, 5), "not claimed yet, and not read either"


def test_what_was_announced_and_never_read_is_not_marked() -> None:
    assert begin(end(), claim(position=5), unread=BatchSpan(3, 2, 5, 1)) == BatchSpan(3, 2, 2, 1)
    assert begin(end(), claim(position=5), unread=BatchSpan(2, 2, 5, 1)) == BatchSpan(3, 5, 5, 6)
    assert begin_manual(end(), None, claim(position=9), unread=BatchSpan(3, 4, 9, 1)) == BatchSpan(3, 4, 4, 1)


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


# --- ackMode=manual ---------------------------------------------------------------------------------------------------


def test_by_hand_a_process_goes_on_after_what_it_gave_out_itself() -> None:
    given_out = BatchSpan(3, 4, 9, 6)
    assert begin_manual(end(p0=BatchSpan(3, 4, 9, 6)), given_out, claim(position=9)) == BatchSpan(3, 9, 9, 6)
    assert begin_manual(end(), given_out._replace(to=4), claim(position=9)) == BatchSpan(
        3, 4, 4, 6
    )  # it was never read


def test_by_hand_a_new_process_begins_at_the_checkpoint_and_marks_what_its_predecessor_had() -> None:
    before = end(p0=BatchSpan(3, 4, 9, 0))
    assert begin_manual(before, None, claim(acknowledged=4, position=4)) == BatchSpan(3, 4, 4, 9)
    assert begin_manual(before, None, claim(acknowledged=4, position=8)) == BatchSpan(3, 4, 4, 9)
    assert begin_manual(end(), None, claim(acknowledged=4, position=8)) == BatchSpan(3, 4, 4, 8)
    assert begin_manual(end(), None, claim(acknowledged=4, position=4)) == BatchSpan(3, 4, 4, 6)
    kept_back = end(p0=BatchSpan(3, 4, 4, 9))
    assert begin_manual(kept_back, None, claim(acknowledged=4, position=4)) == BatchSpan(3, 4, 4, 9), (
        "by its mark alone"
    )


def test_by_hand_what_was_given_out_at_another_epoch_counts_for_nothing() -> None:
    old = BatchSpan(2, 4, 9, 0)
    assert begin_manual(end(p0=old), old, claim(acknowledged=4, position=4)) == BatchSpan(3, 4, 4, 6)


# --- windows (HAN-12) -------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
def test_a_blocked_partition_leaves_the_others_their_part() -> None:
    assert windows(9, {0: 5, 1: 0, 2: 0}, {0: 100, 1: 100, 2: 100}) == {0: 0, 1: 3, 2: 3}
    assert windows(9, {0: 5, 1: 0, 2: 0}, {1: 1, 2: 100}) == {1: 3, 2: 3}
    assert windows(7, {0: 0, 1: 0}, {0: 2, 1: 4}) == {0: 3, 1: 4}
    assert windows(2, {0: 0, 1: 0, 2: 0}, {0: 1, 1: 5, 2: 3}) == {0: 0, 1: 2, 2: 0}


@pytest.mark.conformance("HAN-12")
@given(
    bound=st.integers(1, 50),
    hands=st.dictionaries(st.integers(0, 5), st.integers(0, 60), min_size=1),
    backlogs=st.dictionaries(st.integers(0, 5), st.integers(0, 60)),
)
def test_every_window_has_its_share_and_together_they_keep_the_bound(
    bound: int, hands: dict[int, int], backlogs: dict[int, int]
) -> None:
    backlog = {p: backlogs.get(p, 0) for p in hands}
    found = windows(bound, hands, backlog)
    share = bound // len(hands)
    for p, count in found.items():
        assert count >= max(share - hands[p], 0)
    beyond = sum(max(hands[p] + found[p] - share, 0) for p in hands)
    assert beyond <= max(bound % len(hands), sum(max(hand - share, 0) for hand in hands.values()))


@pytest.mark.conformance("HAN-12")
def test_a_window_with_less_than_a_message_for_each_partition_starves_none() -> None:
    """Five partitions, a bound of two, and what is delivered is acknowledged at once: the quiet one has its turn."""
    publishes = [{0: 3, 1: 3, 2: 3, 3: 3, 4: 1}, *[dict.fromkeys(range(4), 3)] * 40]
    entries, ends = [], dict.fromkeys(range(5), 0)
    for number, rows in enumerate(publishes):
        slices = tuple(Slice(p, 0, 0, 10, ends[p], count, "") for p, count in rows.items())
        ends |= {piece.partition: piece.end for piece in slices}
        entries.append(structs.replace(ENTRY, sequence=number, slices=slices))

    def walk(spans: Ranges) -> Iterator[Entry]:
        for entry in entries:
            kept = [s for s in entry.slices if s.partition in spans and s.offset < spans[s.partition][1]]
            kept = [s for s in kept if s.end > spans[s.partition][0]]
            if kept:
                yield structs.replace(entry, slices=tuple(kept))

    for in_hand in ({}, {0: 1}):  # also if one message is never acknowledged
        hand = Unacknowledged(bound=2, in_hand=dict.fromkeys(range(5), 0) | in_hand)
        at = dict.fromkeys(range(5), 0)
        for _ in range(14):
            room = BatchLimits(messages=hand.room)
            reached = batch_ends(at, window_ends(at, ends, hand), room, walk)
            assert sum(reached.values()) - sum(at.values()) <= hand.room
            at = reached
        assert at[4] == 1


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
