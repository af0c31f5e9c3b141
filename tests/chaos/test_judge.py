"""The judges see what must not be: each check is shown evidence in which just that is wrong, and some that is well."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cast.looks import Seen
from tests.chaos.by_hand import Acknowledged, Fact, Given, judge_by_hand
from tests.chaos.checker import MOST_TOLD, judge, judge_unkept
from tests.chaos.evidence import Planned, Row, Times, read_consumed
from tests.chaos.faults import FREEZING, Kind, plan
from tests.chaos.handoffs import Ending, handoffs
from tests.chaos.layouts import Count, changes

# --- queries that share a group ---------------------------------------------------------------------------------------


def key_of(number: int) -> str:
    return "ab"[number % 2]


@dataclass
class Story:
    """Partition 0 with the messages 0 to 8. Driver one has it at epoch 1 and reads 0 to 6 in two batches, the second of
    which it never acknowledged; driver two takes it over at offset 3, and reads 3 to 9 at epoch 2.
    """

    rows: list[Row] = field(default_factory=list)
    planned: list[Planned] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    published: dict[int, str] = field(default_factory=lambda: {number: key_of(number) for number in range(9)})

    def __post_init__(self) -> None:
        self.deliver("one", 1, 1, 0, 3)
        self.deliver("one", 2, 1, 3, 6)
        self.deliver("two", 1, 2, 3, 7, below=6)
        self.deliver("two", 2, 2, 7, 9)
        for at_s, epoch, offset in ((1.0, 1, 0), (2.0, 1, 3), (3.0, 2, 3), (4.0, 2, 9)):
            flow = f"flow of {'one' if epoch == 1 else 'two'}"
            self.seen.append(Seen(at_s, at_s, 0, epoch, flow, offset, 6 if epoch > 1 else 0))

    def deliver(self, driver: str, batch: int, epoch: int, start: int, to: int, below: int = 0) -> None:
        self.planned.append(Planned(driver, batch, 0, epoch, start, to, below, flow=f"flow of {driver}"))
        self.rows += [
            Row(driver, batch, offset - start, 0, offset, key_of(offset), offset, offset < below)
            for offset in range(start, to)
        ]

    def change(self, number: int, driver: str, **to: Any) -> None:
        """Change one row."""
        place = next(n for n, row in enumerate(self.rows) if (row.number, row.driver) == (number, driver))
        self.rows[place] = self.rows[place]._replace(**to)

    def replan(self, which: int, **to: Any) -> None:
        self.planned[which] = self.planned[which]._replace(**to)

    def without(self, driver: str, batch: int) -> None:
        self.rows = [row for row in self.rows if (row.driver, row.batch) != (driver, batch)]


def swapped(story: Story, driver: str, first: int, second: int) -> None:
    """Two rows of one batch."""
    story.change(first, driver, place=2)
    story.change(second, driver, place=0)


def taken_out_of_turn(story: Story) -> None:
    """The second owner delivers 7 and 8 first and the third 3 to 6, without marks: each for itself is in order."""
    story.rows, story.planned, story.seen = [], [], []
    story.deliver("one", 1, 1, 0, 3)
    story.deliver("two", 1, 2, 7, 9)
    story.deliver("one", 2, 3, 3, 7)


def marked_by_the_former(story: Story) -> None:
    """Which of two sinks had it first says nothing: the batch of the former owner may have been late."""
    story.replan(2, redelivered_below=0)
    story.replan(1, redelivered_below=6)
    for number in (3, 4, 5):
        story.change(number, "two", redelivered=False)
        story.change(number, "one", redelivered=True)


SPOILT: Final[list[tuple[Callable[[Story], object], set[str]]]] = [
    (lambda s: None, set()),
    (lambda s: s.without("one", 2), set()),  # of a stale owner, late or never
    (lambda s: s.without("two", 2), {"missing"}),
    (lambda s: s.published.pop(8), {"not what was published"}),
    (lambda s: s.change(8, "two", key="b"), {"not what was published"}),
    (lambda s: s.change(4, "two", offset=5), {"not what was published", "torn"}),
    (lambda s: s.replan(3, partition=1), {"not as planned"}),
    (lambda s: s.change(8, "two", redelivered=True), {"not as planned"}),
    (lambda s: s.rows.remove(next(r for r in s.rows if (r.number, r.driver) == (4, "one"))), {"torn"}),
    (lambda s: s.replan(3, start=8), {"plans with gaps", "not as planned", "torn"}),
    (lambda s: s.seen.__setitem__(2, s.seen[2]._replace(epoch=1)), {"two owners"}),
    (lambda s: s.replan(2, flow="flow of one"), {"two owners"}),
    (marked_by_the_former, {"repeated without a mark"}),
    (lambda s: swapped(s, "one", 0, 2), {"out of order within an owner", "out of order across owners"}),
    (lambda s: swapped(s, "two", 3, 5), {"out of order within an owner"}),  # none the better for a mark
    (taken_out_of_turn, {"out of order across owners"}),
    (lambda s: s.seen.append(s.seen[-1]._replace(sent_s=5.0, epoch=1)), {"checkpoints that went back", "two owners"}),
    (lambda s: s.seen.append(s.seen[-1]._replace(sent_s=5.0, offset=8)), {"checkpoints that went back"}),
    (lambda s: s.seen.append(s.seen[-1]._replace(sent_s=5.0, redelivered_below=5)), {"checkpoints that went back"}),
]


@pytest.mark.parametrize(("spoil", "kinds"), SPOILT, ids=range(len(SPOILT)))
def test_what_must_not_be_of_queries_that_share_a_group(spoil: Callable[[Story], object], kinds: set[str]) -> None:
    story = Story()
    spoil(story)
    found = judge(story.rows, story.planned, story.seen, story.published)
    assert {each.partition(":")[0] for each in found.violations} >= kinds
    assert bool(found.violations) == bool(kinds)


def test_of_many_violations_some_are_told_and_all_are_counted() -> None:
    story = Story()
    found = judge(story.rows, story.planned, story.seen, {number: key_of(number) for number in range(109)})
    assert len(found.violations) == MOST_TOLD + 1
    assert found.violations[-1] == f"missing: ... and {100 - MOST_TOLD} more"
    assert (found.messages, found.rows, found.marked, found.repeated) == (109, 12, 3, 3)
    assert (found.batches, found.left_out, found.ownerships) == (4, 0, 2)


# --- a changed partition count ----------------------------------------------------------------------------------------

COUNTS = (
    Count(at_s=0.0, partitions=2, begin=(0, 0)),
    Count(at_s=100.0, partitions=4, begin=(2, 0, 0, 0)),
    Count(at_s=200.0, partitions=1, begin=(3,)),
)
# Key a: messages 0 and 1 in partition 0 of 2, message 2 in partition 2 of 4, message 3 in partition 0 of 1.
ROWS = [
    Row(driver, batch, 0, partition, offset, "a", number, False)
    for number, (driver, batch, partition, offset) in enumerate(
        [("one", 1, 0, 0), ("one", 1, 0, 1), ("two", 1, 2, 0), ("one", 2, 0, 3)]
    )
]
PLANNED = [
    Planned("one", 1, 0, 1, 0, 2, 0, "f1"),
    Planned("two", 1, 2, 1, 0, 1, 0, "f2"),
    Planned("one", 2, 0, 1, 2, 4, 0, "f1"),
]
TIMES = {("one", 1): Times(99.0, 101.0), ("two", 1): Times(101.5, 150.0), ("one", 2): Times(201.0, 202.0)}


@pytest.mark.parametrize(
    ("times", "is_early"),
    [
        ({}, False),
        ({("two", 1): Times(100.5, 150.0)}, True),  # planned before the first batch was complete
        ({("one", 2): Times(140.0, 202.0)}, True),
        ({("one", 1): Times(99.0, math.inf)}, True),  # which never was
    ],
)
def test_what_was_published_after_a_change_waits_for_what_its_key_has_from_before(
    times: dict[tuple[str, int], Times], is_early: bool
) -> None:
    found = judge(ROWS, PLANNED, [], dict.fromkeys(range(4), "a"), COUNTS, {**TIMES, **times})
    kinds = {each.partition(":")[0] for each in found.violations}
    assert ("before an earlier partition count was finished" in kinds) == is_early
    first, second = changes(PLANNED, COUNTS, TIMES)
    assert first.pauses_s == {0: 101.0, 2: 1.5}  # message 2 of partition 0 is of the second count
    assert second.pauses_s == {0: 1.0}


# --- the other modes --------------------------------------------------------------------------------------------------

PUBLISHED = dict.fromkeys(range(6), "k")
BEYOND = "a checkpoint beyond what was acknowledged"


def given(at_s: float, first: int, to: int, *, run: str = "a", epoch: int | None = 1, marked: bool = False) -> Given:
    """Messages of partition 0, whose number is their offset."""
    rows = [Row("driver-manual", 0, place, 0, n, "k", n, marked) for place, n in enumerate(range(first, to))]
    return Given(at_s=at_s, run=run, process=run, epochs={} if epoch is None else {0: epoch}, rows=rows)


def done(at_s: float, end: int, *, counted: bool | None = True, run: str = "a") -> Acknowledged:
    answer = None if counted is None else frozenset([0] if counted else [])
    return Acknowledged(at_s=at_s, run=run, ends={0: end}, counted=answer)


def seen(at_s: float, offset: int, epoch: int = 1) -> Seen:
    return Seen(at_s, at_s, 0, epoch, "by-hand", offset, 0)


@pytest.mark.parametrize(
    ("facts", "looks", "kinds"),
    [
        ([given(1, 0, 3), given(2, 3, 6), done(3, 6)], [seen(2.5, 0), seen(4, 6)], []),
        # What comes again marked, after a restart, or after a refusal.
        ([given(1, 0, 3), done(1.5, 1, counted=None), given(3, 1, 6, run="b", epoch=2, marked=True)], [seen(2, 1)], []),
        ([given(1, 0, 3), done(2, 3, counted=False), given(3, 0, 3, marked=True), given(4, 3, 6)], [], []),
        ([given(1, 0, 3)], [], ["missing"] * 3),
        ([given(1, 0, 2), given(2, 3, 6)], [], ["missing", "passed over"]),
        # A restart goes on behind what was given and not acknowledged: it comes neither again nor marked.
        ([given(1, 0, 3), given(2, 3, 6, run="b")], [], ["passed over"]),
        ([given(1, 0, 3), given(2, 3, 6, epoch=2)], [], ["passed over"]),
        ([given(1, 0, 3, epoch=None), given(2, 3, 6)], [], ["passed over"]),
        ([given(1, 0, 3), done(2, 3, counted=False), given(3, 3, 6)], [], ["passed over"]),
        ([given(1, 0, 6), done(2, 3), given(3, 2, 4, run="b")], [], ["repeated without a mark"] * 2),
        ([given(1, 0, 6)], [seen(2, 1)], [BEYOND]),
        ([given(1, 0, 6), done(3, 6)], [seen(2, 6)], [BEYOND]),
        ([given(1, 0, 6), done(2, 6, counted=False)], [seen(3, 6)], [BEYOND]),
        ([given(1, 0, 6), done(1.5, 6)], [seen(2, 6), seen(3, 2)], ["checkpoints that went back"]),
        (
            [given(1, 0, 2), done(1.5, 4), given(2, 4, 6)],
            [],
            ["missing", "missing", "acknowledged without having been given"],
        ),
    ],
)
def test_what_must_not_be_where_an_application_acknowledges_by_hand(
    facts: list[Fact], looks: list[Seen], kinds: list[str]
) -> None:
    found = judge_by_hand(facts, looks, PUBLISHED).violations
    assert [each.partition(":")[0] for each in found] == [f"by hand, {kind}" for kind in kinds]


def test_without_checkpoints_what_is_lost_is_seen_and_what_comes_again_is_not_promised_to_be_marked() -> None:
    rows = [Row("driver-unkept", 0, n, 0, n, "k", n, False) for n in range(6)]
    again = [Planned("driver-unkept", batch, 0, batch + 1, 0, 6, 0, "f") for batch in (0, 1)]
    assert judge_unkept([*rows, *(row._replace(batch=1) for row in rows)], again, PUBLISHED) == ()
    left_out = [Planned("driver-unkept", 0, 0, 1, 0, 3, 0, "f"), Planned("driver-unkept", 1, 0, 2, 3, 6, 0, "f")]
    lost = judge_unkept([row._replace(batch=1) for row in rows[3:]], left_out, PUBLISHED)
    assert [each.split(":")[0] for each in lost] == ["unkept, missing"] * 3


def taken(batch: int, first: int, to: int, *, epoch: int = 1, below: int = 0) -> dict[str, Any]:
    """What a consumer in plain Python writes of a batch."""
    rows = [[0, offset, "k", offset, offset < below] for offset in range(first, to)]
    return {"what": "given", "at_s": batch, "batch": batch, "ends": {"0": [epoch, to, below]}, "rows": rows}


ACROSS = "out of order across owners"


@pytest.mark.parametrize(
    ("batches", "handled", "kinds"),
    [
        ([taken(1, 0, 3), taken(2, 3, 6)], [1, 2], []),
        ([taken(1, 0, 1), taken(2, 1, 6), taken(3, 1, 4, below=6), taken(4, 4, 6, below=6)], [1, 3, 4], []),
        ([taken(1, 0, 3), taken(2, 3, 6)], [2], ["missing"] * 3),  # the batch that failed does not come again
        ([taken(1, 0, 2), taken(2, 3, 6)], [1, 2], ["missing", "plans with gaps"]),
        ([taken(1, 0, 6), taken(2, 0, 6)], [2], ["repeated without a mark"] * 6 + [ACROSS]),
        ([taken(1, 0, 6), taken(2, 0, 6, epoch=2, below=3)], [2], ["repeated without a mark"] * 3 + [ACROSS]),
    ],
)
def test_what_must_not_be_of_consumers_in_plain_python(
    tmp_path: Path, batches: list[dict[str, Any]], handled: list[int], kinds: list[str]
) -> None:
    lines = []
    for each in batches:
        lines.append(each)
        if each["batch"] in handled:
            lines.append({"what": "handled", "at_s": each["batch"] + 0.5, "batch": each["batch"]})
    journal = tmp_path / "consumed.jsonl"
    journal.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"what": "handled", "ba')
    found = read_consumed("python-next", journal)
    verdict = judge(found.rows, found.planned, (), PUBLISHED, unfinished=found.unfinished)
    assert [each.partition(":")[0] for each in verdict.violations] == kinds


# --- handoffs, and faults ---------------------------------------------------------------------------------------------


def line(at_s: float, event: str, **facts: str) -> dict[str, Any]:
    return {"time": datetime.fromtimestamp(at_s, UTC).isoformat(), "event": event, "partition": 0, **facts}


PAUSE = line(1.0, "pause", to="two")
DRAINED = (line(1.4, "partition_drained"), line(1.4, "fence"))


@pytest.mark.parametrize(
    ("lines", "endings"),
    [
        ([PAUSE, *DRAINED, line(1.5, "assign")], [(Ending.DRAINED, 0.5)]),
        ([PAUSE, line(4.0, "fence", reason="max-handoff-time is over"), line(4.25, "assign")], [(Ending.FORCED, 3.25)]),
        ([PAUSE, line(3.0, "resume")], [(Ending.KEPT, 2.0)]),
        ([PAUSE, line(2.0, "fence", reason="its owner is lost"), line(2.5, "assign")], [(Ending.CUT_SHORT, 1.5)]),
        # A leader that died before it told of the end.
        ([PAUSE, line(9.0, "pause"), line(9.5, "resume")], [(Ending.CUT_SHORT, 8.0), (Ending.KEPT, 0.5)]),
        ([line(1.0, "assign"), {"event": "stopped"}], []),
        ([PAUSE, *DRAINED], None),
    ],
)
def test_a_handoff_ends(lines: list[dict[str, Any]], endings: list[tuple[Ending, float]] | None) -> None:
    for ordered in (lines, lines[::-1]):  # logs of several coordinators come in any order
        found = handoffs(ordered)
        assert [(each.ending, round(each.pause_s, 3)) for each in found.ended] == (endings or [])
        assert found.unended == (() if endings is not None else ("partition 0, paused for two",))


@pytest.mark.parametrize("seed", range(10))
def test_every_kind_of_fault_comes_and_nobody_is_struck_while_he_is_down(seed: int) -> None:
    found = plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, slow_store=True)
    assert found == plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, slow_store=True)
    assert {fault.kind for fault in found} == set(Kind)
    assert all(fault.at_s <= after.at_s for fault, after in pairwise(found))
    assert all(fault.for_s > 5.0 for fault in found if fault.kind in FREEZING)
    for driver in range(3):
        for fault, after in pairwise(fault for fault in found if fault.driver == driver):
            assert after.at_s >= fault.at_s + fault.for_s
