"""What a micro-batch reads and which task reads it: limits, shares, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.log.model import Entry, Head, QueueConfig, Slice
from partq_spark.query import limits, planning
from partq_spark.query.limits import BatchLimits, Unacknowledged
from partq_spark.query.settings import Boundary

BACKLOGS = st.dictionaries(st.integers(0, 30), st.integers(0, 50) | st.integers(0, 10**12), min_size=1, max_size=12)


def head(*spans: tuple[int, int]) -> Head:
    """A queue with one partition for each (earliest, next)."""
    earliest, following = zip(*spans, strict=True)
    begun = Head.created("default", "orders", "id", len(spans), config=QueueConfig(), now_us=0)
    return replace(begun, next=following, earliest=earliest)


class Log:
    """Entries of a log: a list of publishes, each partition → (messages, bytes of each)."""

    def __init__(self, *publishes: Mapping[int, tuple[int, int]]) -> None:
        self.entries: list[Entry] = []
        self.looked_at = 0
        ends: dict[int, int] = {}
        for number, content in enumerate(publishes):
            slices = []
            for partition, (rows, row_bytes) in content.items():
                offset = ends.get(partition, 0)
                slices.append(Slice(partition, 0, 0, rows * row_bytes, offset, rows, ""))
                ends[partition] = offset + rows
            self.entries.append(
                Entry(
                    sequence=number,
                    token="",
                    writer=None,
                    batch=0,
                    time_us=number,
                    generation=0,
                    headers=False,
                    segments=("x",),
                    slices=tuple(slices),
                )
            )
        self.ends = ends

    def walk(self, spans: Mapping[int, tuple[int, int]]) -> Iterator[Entry]:
        """As the log's own walk: entries in publish order, only with slices that overlap `spans`."""
        for entry in self.entries:
            self.looked_at += 1
            kept = tuple(
                piece
                for piece in entry.slices
                if piece.partition in spans
                and piece.offset < spans[piece.partition][1]
                and piece.end > spans[piece.partition][0]
            )
            if kept:
                yield structs.replace(entry, slices=kept)

    def bytes_of(self, starts: Mapping[int, int], ends: Mapping[int, int]) -> float:
        """The stored bytes of the messages between, a slice's spread evenly over its rows."""
        return sum(
            max(0, min(piece.end, ends[piece.partition]) - max(piece.offset, starts[piece.partition]))
            * (piece.length / piece.rows)
            for entry in self.entries
            for piece in entry.slices
        )


LOGS = st.lists(
    st.dictionaries(st.integers(0, 5), st.tuples(st.integers(1, 30), st.integers(1, 5000)), min_size=1, max_size=4),
    min_size=1,
    max_size=8,
).map(lambda publishes: Log(*publishes))


# --- messages ---------------------------------------------------------------------------------------------------------


@given(BACKLOGS, st.integers(1, 100) | st.integers(1, 10**13))
def test_shares_add_up_are_in_proportion_and_starve_nobody(backlog: dict[int, int], budget: int) -> None:
    shares, total = limits.split(backlog, budget), sum(backlog.values())
    assert set(shares) == set(backlog)
    assert sum(shares.values()) == min(budget, total)
    enough = budget >= sum(size > 0 for size in backlog.values())
    for partition, size in backlog.items():
        assert 0 <= shares[partition] <= size
        assert shares[partition] >= 1 or not size or not enough
        if total > budget:  # to within a message, and the one that everybody gets
            fair = budget * size / total
            assert fair - len(backlog) - 1 - fair / 1e12 <= shares[partition] <= fair + 2 + fair / 1e12
    for one, other in itertools.permutations(backlog, 2):
        assert backlog[one] <= backlog[other] or shares[one] >= shares[other]


@pytest.mark.parametrize(
    ("backlog", "budget", "shares"),
    [
        ({0: 100, 1: 100, 2: 100}, 7, {0: 3, 1: 2, 2: 2}),
        ({0: 1, 1: 50, 2: 40, 3: 0}, 2, {0: 0, 1: 1, 2: 1, 3: 0}),  # fewer than partitions: where most waits
    ],
)
def test_shares_are_these(backlog: dict[int, int], budget: int, shares: dict[int, int]) -> None:
    assert limits.split(backlog, budget) == shares


def served(publishes: Sequence[Mapping[int, int]], budget: int, triggers: int) -> dict[int, list[int]]:
    """By partition how much each trigger read. A trigger comes after each publish, and some after the last."""
    at: dict[int, int] = dict.fromkeys((p for publish in publishes for p in publish), 0)
    reads: dict[int, list[int]] = {partition: [] for partition in at}
    log = Log(*[{p: (rows, 10) for p, rows in publish.items()} for publish in publishes])
    for trigger in range(triggers):
        ends = dict.fromkeys(at, 0)
        for entry in log.entries[: trigger + 1]:
            ends |= {piece.partition: piece.end for piece in entry.slices}
        reached = limits.batch_ends(at, ends, BatchLimits(messages=budget), log.walk)
        assert sum(reached.values()) - sum(at.values()) == min(budget, sum(ends.values()) - sum(at.values()))
        for partition, offset in at.items():
            assert offset <= reached[partition] <= ends[partition]
            reads[partition].append(reached[partition] - offset)
        at = reached
    return reads


def test_a_limit_below_the_number_of_busy_partitions_starves_none() -> None:
    """Partitions 0 to 3 always have more than 4 and 5, whose few messages once waited for ever."""
    busy = {0: 5, 1: 5, 2: 5, 3: 5}
    reads = served([{**busy, 4: 1}, busy, {**busy, 5: 1}, *[busy] * 60], budget=2, triggers=60)
    assert sum(reads[4]) == sum(reads[5]) == 1
    assert reads[4].index(1) < 11, "before it are at most the 20 other messages of its own publish"
    assert reads[5].index(1) < 31, "and the 41 of those before"


def test_partitions_of_one_publish_take_turns() -> None:
    reads = served([{0: 1000, 1: 3, 2: 3, 3: 3}], budget=1, triggers=12)
    assert [sum(reads[p]) for p in range(4)] == [3, 3, 3, 3]
    assert [p for trigger in range(4) for p in reads if reads[p][trigger]] == [0, 1, 2, 3]


@given(LOGS, st.integers(1, 3), st.data())
def test_under_the_smallest_limits_what_was_published_first_is_read_first(
    log: Log, budget: int, data: st.DataObject
) -> None:
    at = {p: data.draw(st.integers(0, end)) for p, end in log.ends.items()}
    waiting = {p for p, end in log.ends.items() if at[p] < end}
    assume(len(waiting) > budget)
    reached = limits.batch_ends(at, log.ends, BatchLimits(messages=budget), log.walk)
    assert limits.batch_ends(dict(at), log.ends, BatchLimits(messages=budget), log.walk) == reached, (
        "a restart does the same"
    )
    published = {
        p: next(e.sequence for e in log.entries for s in e.slices if s.partition == p and s.end > at[p])
        for p in waiting
    }
    chosen = {p for p in at if reached[p] > at[p]}
    assert len(chosen) == budget
    assert max(published[p] for p in chosen) <= min(published[p] for p in waiting - chosen)


# --- bytes ------------------------------------------------------------------------------------------------------------


@given(LOGS, st.integers(1, 50_000))
def test_bytes_stay_within_the_budget_but_for_the_oldest_message_which_is_always_read(log: Log, budget: int) -> None:
    starts = dict.fromkeys(log.ends, 0)
    reached = limits.limited_by_bytes(starts, log.ends, budget, log.walk({p: (0, end) for p, end in log.ends.items()}))
    assert all(0 <= reached[partition] <= end for partition, end in log.ends.items())
    first = log.entries[0].slices[0]
    assert log.bytes_of(starts, reached) <= budget + first.length / first.rows
    assert reached[first.partition] >= 1


def test_large_messages_beside_many_small_ones_get_their_turn() -> None:
    """Partition 0 has one message of a megabyte, partition 1 a million of one byte: by shares alone 0 would starve."""
    log = Log({0: (1, 1_000_000), 1: (1_000_000, 1)})
    reached = limits.limited_by_bytes({0: 0, 1: 0}, log.ends, 100_000, log.walk({0: (0, 1), 1: (0, 1_000_000)}))
    assert reached[0] == 1
    assert reached[1] >= 90_000


@given(LOGS, st.integers(1, 5000), st.integers(1, 100))
def test_batches_under_both_limits_read_everything_once_in_a_bounded_number(
    log: Log, most_bytes: int, most_messages: int
) -> None:
    at = dict.fromkeys(log.ends, 0)
    for _ in range(sum(log.ends.values())):
        if at == log.ends:
            break
        reached = limits.batch_ends(at, log.ends, BatchLimits(messages=most_messages, bytes=most_bytes), log.walk)
        assert all(at[p] <= reached[p] <= log.ends[p] for p in at)
        assert 1 <= sum(reached.values()) - sum(at.values()) <= most_messages
        at = reached
    assert at == log.ends


def test_the_log_is_looked_at_only_as_far_as_the_bytes_reach_and_not_at_all_without_limits() -> None:
    log = Log(*({0: (10, 100)} for _ in range(1000)))
    assert limits.batch_ends({0: 3}, log.ends, BatchLimits(), log.walk) == {0: 10_000}
    assert log.looked_at == 0
    limits.batch_ends({0: 0}, log.ends, BatchLimits(bytes=2500), log.walk)
    assert log.looked_at <= 4


# --- windows (HAN-12) -------------------------------------------------------------------------------------------------


@pytest.mark.conformance("HAN-12")
def test_a_blocked_partition_leaves_the_others_their_part() -> None:
    assert limits.windows(9, {0: 5, 1: 0, 2: 0}, {0: 100, 1: 100, 2: 100}) == {0: 0, 1: 3, 2: 3}
    assert limits.windows(9, {0: 5, 1: 0, 2: 0}, {1: 1, 2: 100}) == {1: 3, 2: 3}
    assert limits.windows(7, {0: 0, 1: 0}, {0: 2, 1: 4}) == {0: 3, 1: 4}
    assert limits.windows(2, {0: 0, 1: 0, 2: 0}, {0: 1, 1: 5, 2: 3}) == {0: 0, 1: 2, 2: 0}


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
    found = limits.windows(bound, hands, backlog)
    share = bound // len(hands)
    assert all(count >= max(share - hands[p], 0) for p, count in found.items())
    beyond = sum(max(hands[p] + found[p] - share, 0) for p in hands)
    assert beyond <= max(bound % len(hands), sum(max(hand - share, 0) for hand in hands.values()))


@pytest.mark.conformance("HAN-12")
@pytest.mark.parametrize("in_hand", [{}, {0: 1}], ids=["all is acknowledged", "one message never is"])
def test_a_window_with_less_than_a_message_for_each_partition_starves_none(in_hand: dict[int, int]) -> None:
    """Five partitions, a bound of two, and what is delivered is acknowledged at once: the quiet one has its turn."""
    busy = dict.fromkeys(range(4), (3, 3))
    log = Log({**busy, 4: (1, 10)}, *[busy] * 40)
    hand = Unacknowledged(bound=2, in_hand=dict.fromkeys(range(5), 0) | in_hand)
    at = dict.fromkeys(range(5), 0)
    for _ in range(14):
        reached = limits.batch_ends(
            at, limits.window_ends(at, log.ends, hand), BatchLimits(messages=hand.room), log.walk
        )
        assert sum(reached.values()) - sum(at.values()) <= hand.room
        at = reached
    assert at[4] == 1


# --- places -----------------------------------------------------------------------------------------------------------


def nothing(_time_us: int) -> tuple[int, ...]:
    raise AssertionError("the log was asked for a time")


@pytest.mark.parametrize(
    ("place", "time", "offsets"),
    [
        (Boundary(edge="earliest"), nothing, {0: 3, 1: 0}),
        (Boundary(edge="latest"), nothing, {0: 9, 1: 4}),
        (Boundary(offsets={1: 4, 0: 2}), nothing, {0: 2, 1: 4}),
        (Boundary(time_us=77), lambda at: (at, 1), {0: 77, 1: 1}),
    ],
)
def test_a_place_is_the_heads_the_users_or_the_logs(
    place: Boundary, time: Callable[[int], tuple[int, ...]], offsets: dict[int, int]
) -> None:
    assert planning.resolve(head((3, 9), (0, 4)), place, "startingOffsets", time) == offsets


@pytest.mark.parametrize(
    ("offsets", "says"),
    [
        ({0: 1}, "missing [1], unknown none"),
        ({0: 1, 1: 1, 7: 1}, "missing none, unknown [7]"),
        ({5: 1}, "missing [0, 1], unknown [5]"),
        ({0: 10, 1: 0}, "names offset 10 of partition 0, which ends at 9"),
    ],
)
def test_offsets_must_name_every_partition_and_lie_within_it(offsets: dict[int, int], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        planning.resolve(head((0, 9), (0, 4)), Boundary(offsets=offsets), "endingOffsets", nothing)
    assert says in str(caught.value)
    assert "endingOffsets" in str(caught.value)


# --- what is gone -----------------------------------------------------------------------------------------------------

SPANS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: (min(pair), max(pair)))


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=4))
def test_a_batch_keeps_exactly_what_can_still_be_read(cases: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    present = head(*(there for there, _ in cases))
    spans = dict(enumerate(wanted for _, wanted in cases))
    warnings: list[str] = []
    kept = planning.untrimmed(present, spans, fail_on_data_loss=False, warn=warnings.append)
    lost = 0
    for partition, ((earliest, end), (start, to)) in enumerate(cases):
        readable = {offset for offset in range(start, to) if earliest <= offset < end}
        assert set(range(*kept[partition])) == readable
        lost += (to - start != len(readable)) or to > end
    assert len(warnings) == lost
    if lost:
        with pytest.raises(ObjectMissing):
            planning.untrimmed(present, spans, fail_on_data_loss=True, warn=warnings.append)
    else:
        assert planning.untrimmed(present, spans, fail_on_data_loss=True, warn=warnings.append) == kept == spans


@given(st.lists(st.tuples(SPANS, st.integers(0, 20)), min_size=1, max_size=4))
def test_a_query_goes_on_where_something_can_be_read(cases: list[tuple[tuple[int, int], int]]) -> None:
    present = head(*(there for there, _ in cases))
    reached = dict(enumerate(offset for _, offset in cases))
    warnings: list[str] = []
    at = planning.continued(present, reached, fail_on_data_loss=False, warn=warnings.append)
    assert all(earliest <= at[p] <= end for p, ((earliest, end), _) in enumerate(cases))
    moved = [partition for partition, offset in reached.items() if at[partition] != offset]
    assert len(warnings) == len(moved)
    # Where it goes on, there is no further loss: it is met once.
    assert planning.continued(present, at, fail_on_data_loss=True, warn=warnings.append) == at
    if moved:
        with pytest.raises(ObjectMissing, match="failOnDataLoss=false"):
            planning.continued(present, reached, fail_on_data_loss=True, warn=warnings.append)


@pytest.mark.parametrize(
    ("spans", "reached", "says"),
    [
        ([(5, 9)], {0: 2}, "offsets 2 to 5 of partition 0 of queue 'orders' have been trimmed"),
        ([(5, 9)], {0: 12}, r"up to 12 of partition 0.*ends at 9: was the store restored"),
        ([(0, 9), (3, 8)], {0: 9}, None),  # partition 1 came later: it begins at its beginning
        ([(0, 9)], {0: 1, 4: 7}, "partition 4"),
    ],
)
def test_what_is_gone_is_named(spans: list[tuple[int, int]], reached: dict[int, int], says: str | None) -> None:
    present = head(*spans)
    if says is None:
        assert planning.continued(present, reached, fail_on_data_loss=True, warn=print) == {0: 9, 1: 3}
        return
    with pytest.raises(ObjectMissing, match=says):
        planning.continued(present, reached, fail_on_data_loss=True, warn=print)
    assert 4 not in planning.continued(present, reached, fail_on_data_loss=False, warn=lambda _: None)
    assert 4 not in planning.untrimmed(present, {4: (0, 7)}, fail_on_data_loss=False, warn=lambda _: None)
    with pytest.raises(ObjectMissing, match="partition 4"):
        planning.untrimmed(present, {4: (0, 7)}, fail_on_data_loss=True, warn=print)


# --- tasks ------------------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.integers(0, 999), st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=60))
@pytest.mark.conformance("DIS-05")
def test_each_partition_with_messages_is_read_by_exactly_one_task(spans: dict[int, tuple[int, int]]) -> None:
    tasks = planning.tasks(spans)
    assert sorted(itertools.chain(*tasks)) == sorted(p for p, (start, to) in spans.items() if start < to)
    for partitions in tasks:
        assert partitions
        rows = sum(spans[p][1] - spans[p][0] for p in partitions)
        assert len(partitions) == 1 or rows <= planning.TASK_ROWS


def test_a_thousand_quiet_partitions_are_few_tasks_and_busy_ones_many() -> None:
    assert len(planning.tasks(dict.fromkeys(range(1000), (0, 1)))) == 1000 // planning.TASK_ROWS
    assert len(planning.tasks(dict.fromkeys(range(8), (0, 5000)))) == 8
