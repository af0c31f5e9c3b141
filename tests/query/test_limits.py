"""What a micro-batch reads and which task reads it: limits, shares, losses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec import structs

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.log import tree
from partq_spark.log.model import Entry, Head, Slice
from partq_spark.log.settings import QueueConfig
from partq_spark.log.tree import Losses
from partq_spark.query import limits, planning
from partq_spark.query.limits import BatchLimits, Unacknowledged
from partq_spark.query.settings import Boundary

T = TypeVar("T")

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


@given(LOGS, st.integers(1, 3), st.data())
def test_under_least_limits_what_was_published_first_is_read_first(log: Log, budget: int, data: st.DataObject) -> None:
    """So a cold partition beside busy ones waits for nothing that comes later. What one publish brought is taken in
    turns: the partition of which least was read is first.
    """
    at = {p: data.draw(st.integers(0, end)) for p, end in log.ends.items()}

    def turn(partition: int) -> tuple[int, int, int]:
        its = ((each.sequence, piece) for each in log.entries for piece in each.slices if piece.partition == partition)
        published, piece = next(each for each in its if each[1].end > at[partition])
        return published, at[partition] - piece.offset, partition

    order = sorted((p for p, end in log.ends.items() if at[p] < end), key=turn)
    assume(len(order) > budget)
    reached = limits.batch_ends(at, log.ends, BatchLimits(messages=budget), log.walk)
    assert reached == {p: offset + (p in order[:budget]) for p, offset in at.items()}


# --- bytes ------------------------------------------------------------------------------------------------------------


@given(LOGS, st.integers(1, 50_000))
def test_bytes_stay_within_the_budget_but_for_the_oldest_message_which_is_always_read(log: Log, budget: int) -> None:
    starts = dict.fromkeys(log.ends, 0)
    reached = limits.limited_by_bytes(starts, log.ends, budget, log.walk({p: (0, end) for p, end in log.ends.items()}))
    assert all(0 <= reached[partition] <= end for partition, end in log.ends.items())
    first = log.entries[0].slices[0]
    pieces = (piece for entry in log.entries for piece in entry.slices)
    # A slice's bytes are spread evenly over its rows.
    read = sum(max(0, min(p.end, reached[p.partition]) - p.offset) * p.length / p.rows for p in pieces)
    assert read <= budget + first.length / first.rows
    assert reached[first.partition] >= 1


@given(LOGS, st.integers(1, 5000), st.integers(1, 100))
def test_so_many_batches_under_both_limits_read_everything_once(log: Log, most_bytes: int, most_messages: int) -> None:
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
@given(
    bound=st.integers(1, 50),
    hands=st.dictionaries(st.integers(0, 5), st.integers(0, 60), min_size=1),
    backlogs=st.dictionaries(st.integers(0, 5), st.integers(0, 60)),
)
def test_windows_have_their_share_and_keep_the_bound(
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
        reached = limits.batch_ends(at, log.ends, BatchLimits(unacknowledged=hand), log.walk)
        assert sum(reached.values()) - sum(at.values()) <= hand.room
        at = reached
    assert at[4] == 1


# --- places -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (Boundary(edge="earliest"), {0: 3, 1: 0}),
        (Boundary(edge="latest"), {0: 9, 1: 4}),
        (Boundary(time_us=77), {0: 77, 1: 1}),
        (Boundary(offsets={1: 4, 0: 2}), {0: 2, 1: 4}),
        (Boundary(offsets={0: 1}), "endingOffsets.* missing [1], unknown none"),
        (Boundary(offsets={0: 1, 1: 1, 7: 1}), "missing none, unknown [7]"),
        (Boundary(offsets={0: 10, 1: 0}), "names offset 10 of partition 0, which ends at 9"),
    ],
)
def test_a_place_is_the_heads_the_logs_or_the_users_of_all(place: Boundary, found: dict[int, int] | str) -> None:
    def resolve() -> dict[int, int]:
        return planning.resolve(head((3, 9), (0, 4)), place, "endingOffsets", lambda time_us: (time_us, 1))

    if isinstance(found, dict):
        assert resolve() == found
    else:
        with pytest.raises(Invalid, match=found.replace("[", r"\[")):
            resolve()


# --- what is gone -----------------------------------------------------------------------------------------------------

SPANS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: (min(pair), max(pair)))


def either(call: Callable[[bool, Callable[[str], None]], T]) -> tuple[T, int]:
    """What is read where losses are taken, and how many were told; where they are not, the first is an error."""
    told: list[str] = []
    found = call(False, told.append)
    if told:
        with pytest.raises(ObjectMissing, match="failOnDataLoss=false"):
            call(True, told.append)
    else:
        assert call(True, told.append) == found
    return found, len(told)


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=4), SPANS, st.sets(st.integers(0, 4)))
def test_a_query_reads_exactly_what_can_still_be_read_and_goes_on_where_something_can(
    cases: list[tuple[tuple[int, int], tuple[int, int]]], beyond: tuple[int, int], later: set[int]
) -> None:
    """`beyond`: of a partition that an older copy of the queue does not have. `later`: those that the query does not
    know yet begin at their beginning.
    """
    present = head(*(there for there, _ in cases))
    spans = dict(enumerate([*(wanted for _, wanted in cases), beyond]))
    kept, told = either(lambda fails, warn: tree.untrimmed(present, spans, Losses(fails, warn)))
    assert len(kept) == len(cases)
    lost = int(beyond[1] > 0)
    for partition, ((earliest, end), (start, to)) in enumerate(cases):
        readable = {offset for offset in range(start, to) if earliest <= offset < end}
        assert set(range(*kept[partition])) == readable
        lost += (to - start != len(readable)) or to > end
    assert told == lost
    reached = {partition: to for partition, (_, to) in spans.items() if partition not in later}
    at, told = either(lambda fails, warn: planning.continued(present, reached, Losses(fails, warn)))
    assert at == {p: min(max(reached.get(p, 0), earliest), end) for p, ((earliest, end), _) in enumerate(cases)}
    assert told == sum(at.get(p, 0) != to for p, to in reached.items())


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
