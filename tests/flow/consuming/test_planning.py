"""Where a flow is with its partitions and what a batch takes of them: the cases that are rare in practice."""

from __future__ import annotations

import pytest

from partq_spark import planning
from partq_spark.errors import ObjectMissing
from partq_spark.flow.claims import Claim, Standing, View
from partq_spark.flow_planning import Plan, begin, plan
from partq_spark.log.model import Head, Layout, QueueConfig
from partq_spark.offsets import BatchEnd, Span

HEAD = Head(
    namespace="default",
    queue="orders",
    queue_id="q",
    created_us=0,
    sequence=1,
    time_us=0,
    config=QueueConfig(),
    layouts=(Layout(generation=0, partitions=2, since_sequence=1, begin=(0, 0)),),
    next=(10, 10),
    earliest=(0, 0),
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


def end(**spans: Span) -> BatchEnd:
    return BatchEnd(queue_id="q", group="billing", flow="left", spans={int(p[1:]): span for p, span in spans.items()})


def planned(before: BatchEnd, *claims: Claim, mapping: dict[int, int] | None = None) -> Plan:
    view = View(instance="i", standing=Standing.ACTIVE, claims={each.partition: each for each in claims})
    return plan(
        HEAD,
        view,
        before,
        announced=None,
        mapping=mapping or {},
        target=None,
        keeps_offsets=True,
        limits=planning.Limits(),
        entries=lambda _: (),
        fail_on_data_loss=True,
        warn=lambda _: None,
    )


def test_a_new_partition_begins_where_its_checkpoint_says() -> None:
    assert begin(end(), None, claim()) == Span(3, 4, 4, 6)


def test_the_offset_knows_better_at_the_same_epoch_and_nothing_at_another() -> None:
    assert begin(end(p0=Span(3, 2, 5, 1)), None, claim()) == Span(3, 5, 5, 1)
    assert begin(end(p0=Span(2, 2, 5, 1)), None, claim()) == Span(3, 4, 4, 6)


def test_without_checkpoints_what_this_query_completed_is_not_read_again() -> None:
    before = end(p0=Span(2, 2, 5, 1))
    assert begin(before, None, claim(position=0), keeps_offsets=False) == Span(3, 5, 5, 6)
    assert begin(before, None, claim(position=7), keeps_offsets=False) == Span(3, 7, 7, 6)
    assert begin(before, None, claim(position=0)) == Span(3, 0, 0, 6)
    assert begin(end(), None, claim(position=0), keeps_offsets=False) == Span(3, 0, 0, 6)


def test_what_was_acknowledged_beyond_an_older_spark_checkpoint_is_marked() -> None:
    assert begin(end(p0=Span(3, 2, 5, 1)), None, claim(position=8, acknowledged=8)) == Span(3, 5, 5, 8)


def test_what_was_announced_and_never_read_is_not_marked() -> None:
    assert begin(end(), end(p0=Span(3, 2, 5, 1)), claim(position=5)) == Span(3, 2, 2, 1)
    assert begin(end(), end(p0=Span(2, 2, 5, 1)), claim(position=5)) == Span(3, 5, 5, 6)


def test_a_paused_partition_is_in_the_end_without_messages() -> None:
    found = planned(end(p0=Span(3, 2, 5, 1)), claim(0, paused=True), claim(1))
    assert found.all_spans == {0: Span(3, 5, 5, 1), 1: Span(3, 4, 10, 6)}
    assert found.filled == {1: Span(3, 4, 10, 6)}
    assert found.news == {1: 10}


def test_what_the_flow_would_get_back_stays_in_the_end() -> None:
    """Its instance has ended, and one partition is claimed by the next one before the other."""
    before = end(p0=Span(3, 2, 5, 1), p1=Span(7, 2, 5, 1))
    assert planned(before, claim(0), mapping={0: 3, 1: 7}).all_spans[1] == Span(7, 5, 5, 1)
    assert 1 not in planned(before, claim(0), mapping={0: 3}).all_spans
    assert 1 not in planned(before, claim(0), mapping={0: 3, 1: 8}).all_spans


def test_a_checkpoint_beyond_the_end_of_the_log_names_the_way_back() -> None:
    with pytest.raises(ObjectMissing, match=r"is at offset 11 of partition 0 .* `partq checkpoints rewind`"):
        planned(end(), claim(position=11))
