"""The judge of queries is itself judged: what is allowed passes, each thing that must never happen is told by its own
words.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from partq_spark.group.model import Owner
from tests.simulation import history as h
from tests.simulation.queries.judge import Group, Identity, Judge, Planned, Row
from tests.support.judge import Message, Violation
from tests.support.scheduler import SECOND_US

GROUP = "billing"
INSTANCE = "i1"
LEASE_S = 60.0


def judge(*, messages: int = 10, keeps: bool = True, partitions: int = 1) -> Judge:
    made = Judge()
    made.groups[GROUP] = Group(GROUP, keeps)
    made.queue.publish(partitions, [partition for partition in range(partitions) for _ in range(messages)])
    made.made(GROUP, [0] * partitions)
    made.checkpoint(1, GROUP, 0, 1, "a", 0 if keeps else None)
    leased(made)
    return made


def leased(judge: Judge) -> None:
    """The flows of all plans have heard of a heartbeat."""
    for flow in ("a", "b"):
        judge.lease(h.Bound(1, Owner(flow, INSTANCE), LEASE_S))
        judge.lease(h.Renewed(3, Owner(flow, INSTANCE), 2))


def plan(
    start: int,
    end: int,
    *,
    at_us: int = 10,
    batch: int = 1,
    below: int = 0,
    query: str = "q",
    flow: str = "a",
    epoch: int = 1,
    partition: int = 0,
    text: str | None = None,
    alone: bool = False,
    made_us: int | None = None,
    repeated: bool = False,
) -> Planned:
    rows = tuple(Row(partition, offset, offset < below, epoch) for offset in range(start, end))
    return Planned(
        identity=Identity(query, 0, text if text is not None else f"{start}-{end}", batch),
        group=GROUP,
        flow=flow,
        made_us=at_us - 2 if made_us is None else made_us,
        asked_us=at_us,
        planned_us=at_us + 1,
        rows=rows,
        instance=INSTANCE,
        alone=alone,
        repeated=repeated,
    )


def delivered(judge: Judge, planned: Planned) -> None:
    judge.planned(planned)
    judge.read(planned)
    judge.handled(planned, planned.rows)


def completed(judge: Judge, planned: Planned) -> None:
    delivered(judge, planned)
    judge.completed(planned)


def test_batches_one_after_the_other_are_all_right() -> None:
    it = judge()
    completed(it, plan(0, 4))
    it.checkpoint(20, GROUP, 0, 1, "a", 4)
    completed(it, plan(4, 10, at_us=30, batch=2))
    assert "checkpoint" in it.backlog()
    it.checkpoint(40, GROUP, 0, 1, "a", 10)
    assert not it.backlog()
    assert it.amount() == 0


def test_nothing_is_delivered_after_the_lease_has_ended() -> None:
    it, late_us = judge(), round((LEASE_S + 0.1) * SECOND_US)
    completed(it, plan(0, 4, at_us=late_us - round(0.2 * SECOND_US)))
    completed(it, plan(4, 4, at_us=late_us, batch=2))  # nothing
    with pytest.raises(Violation, match="after the lease has ended"):
        it.planned(plan(4, 5, at_us=late_us, batch=3))
    with pytest.raises(Violation, match="after the lease has ended"):
        it.planned(replace(plan(4, 5, batch=3), instance="i2"))
    it.lease(h.Renewed(late_us, Owner("a", INSTANCE), late_us - 1))
    completed(it, plan(4, 5, at_us=late_us, batch=3))


def test_a_message_that_nobody_completed_is_left() -> None:
    it = judge()
    completed(it, plan(0, 4))
    delivered(it, plan(4, 10, at_us=30, batch=2))
    assert "nobody is done with [4" in it.backlog()


def test_the_same_batch_may_come_again_as_it_was() -> None:
    it = judge()
    delivered(it, plan(0, 4))
    completed(it, plan(0, 4, at_us=50))


def test_what_has_moved_on_may_be_left_out_of_a_batch_that_comes_again() -> None:
    it = judge()
    delivered(it, plan(0, 4, text="same"))
    completed(it, plan(0, 0, at_us=50, text="same"))
    assert "nobody is done with [0" in it.backlog()


@pytest.mark.parametrize(
    ("again", "words"),
    [
        (plan(0, 5, at_us=50, text="same", repeated=True), "did not have at first"),
        (plan(0, 5, at_us=50, text="same", made_us=8), "did not have at first"),
        (plan(0, 4, at_us=50, text="same", repeated=True, below=2), "with another mark than at first"),
        (plan(0, 4, at_us=50, text="same", below=2), "with another mark than at first"),
    ],
)
def test_a_batch_that_comes_again_with_other_rows_or_marks(again: Planned, words: str) -> None:
    it = judge()
    delivered(it, plan(0, 4, text="same"))
    with pytest.raises(Violation, match=words):
        it.planned(again)


def test_a_batch_whose_end_is_asked_for_anew_is_another_one_of_the_same_text() -> None:
    it = judge()
    delivered(it, plan(0, 4, text="before"))
    it.planned(plan(0, 0, at_us=30, batch=2, text="same"))
    delivered(it, plan(2, 6, at_us=50, batch=2, text="same", below=4))
    it.planned(plan(2, 4, at_us=70, batch=2, text="same", below=4))
    with pytest.raises(Violation, match="did not have at first"):  # of the second that was made, which had less
        it.planned(plan(2, 6, at_us=90, batch=2, text="same", below=4, repeated=True))


def test_a_batch_whose_end_is_asked_for_anew_marks_what_another_had() -> None:
    it = judge()
    delivered(it, plan(0, 4, text="before"))
    it.planned(plan(0, 0, at_us=30, batch=2, text="same"))
    with pytest.raises(Violation, match="not marked: 2"):
        delivered(it, plan(2, 6, at_us=50, batch=2, text="same"))


@pytest.mark.parametrize(("alone", "stood_still_us"), [(True, 4_000_000), (True, 6_000_000), (False, 4_000_000)])
def test_a_run_alone_that_stands_still_reads_what_another_run_found_empty_meanwhile(
    alone: bool, stood_still_us: int
) -> None:
    """For as long as its look at the group is good, and that once."""
    it = judge()
    late = replace(plan(0, 4, text="same", alone=alone, made_us=8), planned_us=10 + stood_still_us)
    it.planned(plan(0, 0, at_us=50, text="same", alone=alone, repeated=True))
    if not alone or stood_still_us > 5_000_000:
        with pytest.raises(Violation, match="did not have at first"):
            it.planned(late)
        return
    it.planned(replace(late, rows=late.rows[:2]))
    with pytest.raises(Violation, match="did not have at first"):
        it.planned(late)


def test_what_comes_in_another_batch_is_marked() -> None:
    it = judge()
    delivered(it, plan(0, 4))
    delivered(it, plan(2, 6, at_us=50, batch=2, below=4))
    with pytest.raises(Violation, match="not marked: 5"):
        delivered(it, plan(5, 8, at_us=80, batch=3))


def _written_late(*, made_us: int, repeated: bool = True, below: int = 6) -> tuple[Judge, Planned]:
    """A run stood still with an end, another one delivered the same messages, and that end is in Spark's log now."""
    it, late = judge(), plan(3, 4, at_us=50, made_us=49, text="late", repeated=repeated)
    completed(it, plan(0, 3, at_us=5))
    it.given(GROUP, late.identity, made_us)
    completed(it, plan(3, 6, at_us=30, below=below))
    return it, late


def test_a_batch_that_was_written_late_comes_with_the_marks_of_its_end() -> None:
    it, late = _written_late(made_us=10)
    completed(it, late)
    completed(it, replace(late, asked_us=70, planned_us=71))


@pytest.mark.parametrize(
    ("made_us", "repeated", "below"),
    [
        pytest.param(10, True, 3, id="and nobody marks"),
        pytest.param(40, True, 6, id="and was made later than the other"),
        pytest.param(10, False, 6, id="and is read by the run that made it"),
    ],
)
def test_a_batch_that_was_written_late_and_has_to_be_marked(made_us: int, repeated: bool, below: int) -> None:
    it, late = _written_late(made_us=made_us, repeated=repeated, below=below)
    with pytest.raises(Violation, match="not marked: 3"):
        completed(it, late)


def test_of_two_owners_the_one_that_planned_later_marks() -> None:
    it = judge()
    stale = plan(0, 4)
    it.planned(stale)
    it.checkpoint(20, GROUP, 0, 2, "b", 0)
    delivered(it, plan(0, 4, at_us=50, query="r", flow="b", epoch=2, below=4))
    it.read(stale)  # its tasks were slow: it was planned before the move


def test_two_owners_that_do_not_mark() -> None:
    it = judge()
    stale = plan(0, 4)
    it.planned(stale)
    it.checkpoint(20, GROUP, 0, 2, "b", 0)
    delivered(it, plan(0, 4, at_us=50, query="r", flow="b", epoch=2))
    with pytest.raises(Violation, match=r"not marked: 0, by .* at epoch 1; then batch 1 of r/0 at epoch 2"):
        it.read(stale)


def test_what_was_planned_and_never_read_was_not_delivered() -> None:
    it = judge()
    it.planned(plan(0, 4))
    delivered(it, plan(0, 6, at_us=50, batch=2))


def test_a_partition_that_has_moved_on_is_planned() -> None:
    it = judge()
    it.checkpoint(20, GROUP, 0, 2, "b", 0)
    with pytest.raises(Violation, match="had it not"):
        it.planned(plan(0, 4, at_us=50))
    it.planned(plan(0, 4, at_us=20))  # while Spark was asking


def test_who_has_a_group_alone_looks_when_the_batch_is_made() -> None:
    it = judge()
    it.checkpoint(49, GROUP, 0, 2, "b", 0)
    it.planned(plan(0, 4, at_us=50, alone=True))
    with pytest.raises(Violation, match="had it not"):
        it.planned(plan(0, 4, at_us=60, batch=2, alone=True))


def test_a_message_twice_in_one_plan_and_one_that_is_not_there() -> None:
    it = judge()
    once = plan(0, 2)
    with pytest.raises(Violation, match="has a message twice"):
        it.planned(replace(once, rows=(*once.rows, once.rows[0])))
    with pytest.raises(Violation, match="what is not there"):
        it.planned(plan(8, 11))


def test_a_batch_skips() -> None:
    it = judge()
    completed(it, plan(0, 4))
    with pytest.raises(Violation, match="nobody has handled 4"):
        delivered(it, plan(5, 8, at_us=50, batch=2))


def test_a_checkpoint_passes_what_nobody_is_done_with() -> None:
    it = judge()
    delivered(it, plan(0, 4))
    with pytest.raises(Violation, match=r"nobody is done with \[0, 1, 2, 3\]"):
        it.checkpoint(20, GROUP, 0, 1, "a", 4)


def test_a_checkpoint_goes_back() -> None:
    it = judge()
    completed(it, plan(0, 4))
    it.checkpoint(20, GROUP, 0, 1, "a", 4)
    with pytest.raises(Violation, match="went back from 4 to 2"):
        it.checkpoint(30, GROUP, 0, 1, "a", 2)


def test_after_a_rewind_everything_comes_again_and_counts_only_then() -> None:
    it = judge(messages=4)
    late = plan(0, 4)
    completed(it, late)
    it.checkpoint(20, GROUP, 0, 1, "a", 4)
    it.rewinding(30, GROUP, 0, 1)
    it.checkpoint(30, GROUP, 0, 2, None, 1)
    it.completed(late)
    assert "nobody is done with [1, 2, 3]" in it.backlog()
    it.checkpoint(40, GROUP, 0, 3, "a", 1)
    completed(it, plan(1, 4, at_us=50, batch=2, epoch=3, below=4))
    it.checkpoint(60, GROUP, 0, 3, "a", 4)
    assert not it.backlog()


def test_by_hand_only_the_application_s_word_counts_unless_it_was_refused() -> None:
    it = judge(messages=4)
    delivered(it, plan(0, 4))
    said = {Message(0, offset): 10 for offset in range(4)}
    it.refused(GROUP, it.acknowledging(GROUP, said))
    with pytest.raises(Violation, match="passes"):
        it.checkpoint(20, GROUP, 0, 1, "a", 4)
    assert it.acknowledging(GROUP, said) == said.keys()
    it.checkpoint(30, GROUP, 0, 1, "a", 4)
    assert not it.backlog()


def test_the_order_of_keys_across_a_change_of_the_partition_count() -> None:
    it = Judge()
    leased(it)
    it.groups[GROUP] = Group(GROUP, keeps=True)
    it.queue.publish(1, [1])  # key 1 in partition 0
    it.made(GROUP, [0])
    it.queue.publish(2, [1])  # and now in partition 1
    it.checkpoint(1, GROUP, 0, 1, "a", 0)
    it.checkpoint(1, GROUP, 1, 1, "a", 0)
    later = plan(0, 1, partition=1)
    it.planned(later)
    it.read(later)
    with pytest.raises(Violation, match="of its key"):
        it.handled(later, later.rows)


def test_a_group_that_was_removed_is_not_skipped_in_silence() -> None:
    it = judge(messages=4)
    completed(it, plan(0, 2))
    it.removed(GROUP)
    it.made(GROUP, [4])  # `latest`
    assert "nobody is done with [2, 3]" in it.backlog()
    it.begun_anew(GROUP)
    assert not it.backlog()
