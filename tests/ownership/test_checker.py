"""The judge itself: a good log passes, and every kind of bad one is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.ownership.checker import Verdict, judge
from tests.ownership.facts import (
    Acknowledged,
    Bound,
    Claimed,
    Delivered,
    Ended,
    Fact,
    Failed,
    Journal,
    Lost,
    Paused,
    Seen,
    read_facts,
)

A, B = ("a", "a1"), ("b", "b1")
Who = tuple[str, str]


def claimed(at_s: float, who: Who, epoch: int, position: int, below: int = 0) -> Claimed:
    return Claimed(
        sent_s=at_s,
        done_s=at_s + 0.1,
        flow=who[0],
        instance=who[1],
        partition=0,
        epoch=epoch,
        position=position,
        acknowledged=position,
        redelivered_below=below,
    )


def delivered(at_s: float, who: Who, epoch: int, start: int, end: int, below: int = 0) -> Delivered:
    return Delivered(
        sent_s=at_s,
        done_s=at_s + 0.1,
        flow=who[0],
        instance=who[1],
        partition=0,
        epoch=epoch,
        start=start,
        end=end,
        redelivered_below=below,
    )


def acknowledged(at_s: float, who: Who, epoch: int, end: int) -> Acknowledged:
    return Acknowledged(sent_s=at_s, done_s=at_s + 0.1, flow=who[0], instance=who[1], partition=0, epoch=epoch, end=end)


def seen(at_s: float, who: Who, epoch: int, offset: int, below: int = 0) -> Seen:
    return Seen(
        sent_s=at_s,
        done_s=at_s + 0.1,
        flow=who[0],
        instance=who[1],
        partition=0,
        epoch=epoch,
        offset=offset,
        redelivered_below=below,
    )


def paused(at_s: float, who: Who, epoch: int) -> Paused:
    return Paused(at_s=at_s, flow=who[0], instance=who[1], partition=0, epoch=epoch)


GOOD: tuple[Fact, ...] = (
    claimed(1, A, 1, 0),
    seen(1.5, A, 1, 0),
    delivered(2, A, 1, 0, 5),
    acknowledged(2.5, A, 1, 5),
    seen(2.7, A, 1, 5),
    delivered(3, A, 1, 5, 10),
    paused(3.5, A, 1),
    claimed(5, B, 2, 5, below=10),  # forced
    seen(5.5, B, 2, 5, below=10),
    delivered(6, B, 2, 5, 12, below=10),
    acknowledged(7, B, 2, 12),
    seen(8, B, 2, 12, below=10),
)
END = {0: 12}


def without(*dropped: Fact) -> list[Fact]:
    return [fact for fact in GOOD if fact not in dropped]


def test_a_good_log_passes() -> None:
    verdict = judge(GOOD, END)
    assert verdict.violations == ()
    assert (verdict.claims, verdict.deliveries, verdict.messages, verdict.repeated) == (2, 3, 12, 5)
    (handoff,) = verdict.handoffs
    assert handoff.forced
    assert handoff.pause_s == pytest.approx(1.6)


def test_a_drained_handoff_is_told_from_a_forced_one() -> None:
    facts: list[Fact] = [
        claimed(1, A, 1, 0),
        delivered(2, A, 1, 0, 5),
        acknowledged(3, A, 1, 5),
        paused(3.5, A, 1),
        claimed(4, B, 2, 5),
    ]
    verdict = judge(facts, {0: 5})
    assert verdict.violations == ()
    assert [handoff.forced for handoff in verdict.handoffs] == [False]


def test_a_flow_that_came_back_goes_on_at_its_epoch() -> None:
    again = ("a", "a2")
    facts: list[Fact] = [
        claimed(1, A, 1, 0),
        delivered(2, A, 1, 0, 5),
        claimed(9, again, 1, 0, below=5),
        delivered(10, again, 1, 0, 5, below=5),
        # The former instance was frozen in its claiming look, and tells of it only now.
        replace(claimed(1.1, A, 1, 0), done_s=11),
        acknowledged(12, again, 1, 5),
    ]
    assert judge(facts, {0: 5}).violations == ()


def judged(*facts: Fact, ends: dict[int, int] | None = None) -> Verdict:
    return judge(facts, END if ends is None else ends)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        # Begun after the next owner had delivered, had claimed, or was in the checkpoint.
        ((*GOOD, delivered(6.5, A, 1, 10, 12)), "two owners: a/a1 at epoch 1 delivered"),
        ((*GOOD, delivered(5.3, A, 1, 10, 11)), "two owners: a/a1 at epoch 1 delivered"),
        (([*without(GOOD[7]), delivered(5.7, A, 1, 10, 11)]), "two owners: a/a1 at epoch 1 delivered"),
        # A second instance at the same epoch, side by side with the first.
        (
            (*GOOD, claimed(9, ("b", "b2"), 2, 12), delivered(9.5, B, 2, 12, 13)),
            "two owners: b/b1 at epoch 2",
        ),
        ((*GOOD, claimed(5.8, A, 1, 10)), "a/a1 at epoch 1 claimed at 5.8"),
        # A checkpoint that belongs to nobody any more.
        (([seen(3.3, ("", ""), 2, 5), *GOOD[:6], delivered(3.6, A, 1, 10, 12)]), "two owners: a/a1"),
        # Epochs.
        ((*GOOD, claimed(9, A, 2, 12)), "epoch 2 belongs to b and to a"),
        ((*GOOD, seen(9, A, 1, 12, below=10)), "the checkpoint's epoch went from 2 back to 1"),
        ((claimed(1, A, 2, 0), claimed(2, A, 1, 0)), "a claimed epoch 1 after 2"),
        # Order, gaps, loss.
        ((*GOOD, delivered(9, B, 2, 14, 15)), "delivered 14 to 15 after 12"),
        ((*GOOD, claimed(9, A, 3, 13), delivered(9.5, A, 3, 13, 14)), "nobody has delivered 12 to 13"),
        ((*GOOD, delivered(9, B, 2, 12, 12)), "that is nothing"),
        ((*GOOD, claimed(9, A, 3, 12), delivered(8.5, A, 3, 12, 13)), "without a claim"),
        ((*GOOD, delivered(9, A, 3, 12, 13)), "without a claim"),
        (without(GOOD[9], GOOD[10]), "delivered up to 10 of 12"),
        # Repeated without a mark: across owners, and within one.
        (
            [*without(GOOD[9]), delivered(6, B, 2, 5, 12, below=9)],
            "not marked: 9, by a/a1 at epoch 1; then b/b1",
        ),
        ((*GOOD, delivered(9, B, 2, 5, 12, below=10)), "delivered 5 to 12 after 12"),
        # Acknowledgements and the checkpoint.
        ([*without(GOOD[7]), replace(claimed(5, B, 2, 3, below=10))], "claimed at offset 3, a/a1 at epoch 1 had"),
        ((*GOOD, acknowledged(9, B, 2, 20)), "what b/b1 at epoch 2 acknowledged is at 20, beyond"),
        ((*GOOD, seen(9, B, 2, 11, below=10)), "the checkpoint's offset went from 12 back to 11"),
        ((*GOOD, seen(9, B, 2, 12, below=5)), "the checkpoint's redelivered_below went from 10 back to 5"),
        ((*GOOD, seen(9, B, 2, 13, below=10)), "the checkpoint is at 13, beyond"),
        (without(GOOD[-1]), "the checkpoint ends at 5 of 12"),
    ],
)
def test_a_bad_log_is_named(facts: tuple[Fact, ...], told: str) -> None:
    assert any(told in each for each in judge(facts, END).violations), judge(facts, END).violations


def test_a_partition_that_nobody_delivered_is_lost() -> None:
    assert judged(*GOOD, ends={0: 12, 1: 3}).violations == ("partition 1: delivered up to 0 of 3",)


def test_facts_survive_the_file_and_a_torn_last_line(tmp_path: Path) -> None:
    facts: list[Fact] = [
        *GOOD,
        Bound(sent_s=1, done_s=2, flow="a", instance="a1", partitions=(0, 1), mapping=False, standing="active"),
        Lost(at_s=1, flow="a", instance="a1", partition=0, epoch=1),
        Failed(at_s=1, flow="a", instance="", doing="deliver", error="Unavailable: x"),
        Ended(at_s=2, flow="a", instance="a1"),
    ]
    path = tmp_path / "a.jsonl"
    Journal(path).write(*facts)
    with path.open("a", encoding="utf-8") as file:
        file.write('{"what": "Lost", "at_s"')
    assert list(read_facts(path)) == facts
    assert judge(facts, END).errors == {"deliver: Unavailable": 1}
