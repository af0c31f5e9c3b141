"""What the page shows for what the client saw: marks, lanes, handoffs, lines, messages. No I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from partq import (
    CoordinatorView,
    DamagedQueue,
    FlowView,
    GroupView,
    HandoffView,
    Header,
    Message,
    PartitionStatus,
    PartitionView,
    QueueSummary,
    RebalanceStatus,
)
from partq_spark.client import words
from partq_spark.page import history
from partq_spark.page.group_views import GroupMemory, GroupPicture, memory_of, picture, timeline_view
from partq_spark.page.history import line, rate, remembered
from partq_spark.page.marks import COLOURS, MOST_KEPT, PATTERNS, marks
from partq_spark.page.queue_views import QueueMemory, message_rows, queue_rows, rate_words
from partq_spark.page.sections import fitting
from partq_spark.page.timeline import MOST_SHOWN, Timeline

NOW = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)


def partition(number: int, flow: str | None, **more: object) -> PartitionView:
    facts = {
        "status": PartitionStatus.READY if flow else PartitionStatus.UNASSIGNED,
        "epoch": 1,
        "acknowledged": 10,
        "delivered": 15,
        "end": 20,
        "handoff": None,
        "reason": "",
        "lag_s": 2.5,
    }
    return PartitionView(partition=number, flow=flow, **{**facts, **more})  # type: ignore[arg-type]


def group(*partitions: PartitionView, flows: tuple[str, ...] = ("a", "b"), **more: object) -> GroupView:
    facts: dict[str, object] = {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "rebalance_status": RebalanceStatus.READY,
        "rebalance_deadline_s": None,
        "scale_status": "Ready",
        "partitions": partitions,
        "flows": tuple(
            FlowView(
                flow=name,
                active=True,
                bound=True,
                partitions=tuple(each.partition for each in partitions if each.flow == name),
                last_seen_s=0.25,
            )
            for name in flows
        ),
        "coordinator": CoordinatorView(leader="one", age_s=0.5),
    }
    return GroupView(**{**facts, **more})  # type: ignore[arg-type]


def seen(view: GroupView, memory: GroupMemory | None = None) -> GroupPicture:
    return picture(view, memory_of(memory or GroupMemory(), view, 100.0), 100.0)


# --- marks ------------------------------------------------------------------------------------------------------------


def test_flows_have_marks_that_differ_are_shared_evenly_and_stay() -> None:
    few = marks([f"flow-{number}" for number in range(COLOURS)], {})
    assert len({mark.colour for mark in few.values()}) == COLOURS
    assert {mark.pattern for mark in few.values()} == {0}
    many = marks([f"flow-{number}" for number in range(2 * COLOURS * PATTERNS)], {})
    assert {list(many.values()).count(mark) for mark in many.values()} == {2}
    first = marks(["a", "b", "c"], {})
    more = marks(["b", "c", "d", "e", "f", "g", "h"], marks(["b", "c"], first))
    assert marks(["a", "b", "c"], more)["a"] == first["a"], "also when it comes back"
    assert more["b"] == first["b"]
    known = marks([f"old-{number}" for number in range(500)], {})
    assert len(known) == 500  # those that are there all have one
    assert len(marks(["new"], known)) == MOST_KEPT


# --- the live picture -------------------------------------------------------------------------------------------------


def test_each_partition_is_a_cell_in_the_lane_of_its_flow_also_of_one_that_left_and_of_nobody() -> None:
    gone = partition(3, "gone", status=PartitionStatus.UNBOUND)
    shown = seen(group(partition(0, "a"), partition(1, "b"), partition(2, "a"), gone, partition(4, None)))
    assert [(lane.flow, lane.state, [cell.partition for cell in lane.cells]) for lane in shown.lanes] == [
        ("a", "active", [0, 2]),
        ("b", "active", [1]),
        ("gone", "not bound", [3]),
        ("no flow", "", [4]),
    ]
    assert shown.lanes[0].cells[0].css.split()[0:2] == shown.lanes[0].css.split()[0:2]
    assert (shown.lanes[0].lag, shown.lanes[0].last_seen) == (20, "0.2 s ago")
    assert shown.lanes[2].cells[0].glyph == "!"
    assert "nobody" in shown.lanes[3].cells[0].css


def test_a_handoff_runs_out_between_two_flows_in_the_words_of_the_status() -> None:
    words_of_status = "paused: waits for 5 messages of flow a, 3.0 s left, then goes to b"
    view = group(
        partition(
            0,
            "a",
            status=PartitionStatus.PAUSED,
            reason=words_of_status,
            handoff=HandoffView(to="b", remaining_s=3.0, waiting_for=5),
        ),
        partition(1, "b"),
    )
    memory = memory_of(GroupMemory(), view, 100.0)
    (wait,) = picture(view, memory, 100.0).waits
    assert (wait.from_, wait.to, wait.text, wait.left) == ("a", "b", words_of_status, 100)
    later = replace(
        view,
        partitions=(
            replace(view.partitions[0], handoff=HandoffView(to="b", remaining_s=0.75, waiting_for=5)),
            view.partitions[1],
        ),
    )
    (wait,) = picture(later, memory_of(memory, later, 101.0), 101.0).waits
    assert wait.left == 25
    assert [cell.partition for cell in picture(later, memory, 101.0).lanes[1].arriving] == [0]
    assert picture(later, memory, 101.0).reasons == ()  # told once
    over = group(partition(0, "b"), partition(1, "b"))
    assert memory_of(memory, over, 102.0).waits_s == {}


def test_the_holddown_runs_out() -> None:
    view = group(partition(0, "a"), rebalance_status=RebalanceStatus.HOLDDOWN, rebalance_deadline_s=4.0)
    memory = memory_of(GroupMemory(), view, 100.0)
    later = replace(view, rebalance_deadline_s=1.0)
    (wait,) = picture(later, memory_of(memory, later, 103.0), 103.0).waits
    assert (wait.cell, wait.left) == (None, 25)
    assert wait.text == dict(words.group_in_words(later))["rebalancing"]


def test_lag_is_a_bar_for_each_partition_and_something_is_never_shown_as_nothing() -> None:
    ends = (1010, 510, 11, 10)
    shown = seen(group(*(partition(number, "a", end=end) for number, end in enumerate(ends))))
    assert [history.part(row.seen.lag, shown.most_lag) for row in shown.rows] == [100, 50, 1, 0]
    assert [words.lag_s(row.seen) for row in shown.rows] == ["2.5"] * 4


def test_a_flow_that_is_silent_is_not_active_and_it_and_what_does_not_flow_need_attention() -> None:
    partitions = (partition(0, "a"), partition(1, "b", reason="stuck"), partition(2, None), partition(3, "b"))
    view = group(*partitions, damaged=(1,))
    silent = replace(view, flows=(replace(view.flows[0], silent=True), view.flows[1]))
    assert [(lane.flow, lane.state, lane.attention) for lane in seen(silent).lanes] == [
        ("a", "silent", True),
        ("b", "active", True),
        ("no flow", "", True),
    ]
    assert words.health(silent) == "1 partition damaged, 1 partition not flowing, 1 flow silent"
    moving = partition(0, "a", status=PartitionStatus.PAUSED, handoff=HandoffView(to="b", remaining_s=1, waiting_for=1))
    well = group(moving, partition(1, "b"))
    assert not any(lane.attention for lane in seen(well).lanes)
    assert words.health(well) == ""
    led_by_nobody = replace(well, coordinator=CoordinatorView(leader=None, age_s=None))
    assert words.health(led_by_nobody) == "no coordinator"


# --- lines and rates --------------------------------------------------------------------------------------------------


def test_a_line_is_bounded_has_a_gap_where_nobody_looked_and_keeps_its_peaks() -> None:
    kept: history.History = ()
    for second in range(5000):
        kept = remembered(kept, second / 2, float(second))
    assert len(kept) <= history.MOST_POINTS
    assert kept[-1].at_s - kept[0].at_s <= history.KEPT_S
    kept = ()
    for second in [*range(20), *range(50, 70)]:
        kept = remembered(kept, float(second), 100.0 if second == 60 else 1.0)
    drawn = line(kept, 70.0)
    assert len(drawn.points) == len(drawn.areas) == 2
    assert drawn.highest == 100.0
    assert any(point.endswith(",4") for point in drawn.points[1].split())  # the peak, at the top
    assert (drawn.now, drawn.minutes) == (1.0, 2)
    assert line((), 5.0).points == ()
    assert line(remembered((), 5.0, None), 5.0).now is None
    assert line(remembered((), 5.0, 0.0), 5.0).points == ("600,80",)


def test_a_rate_is_that_of_the_last_seconds() -> None:
    kept: history.History = ()
    for second in range(100):
        kept = remembered(kept, float(second), 1000.0 + (50 * second if second > 50 else 0))
    assert rate(kept) == pytest.approx(50.0)
    assert rate(kept[:1]) is None
    assert rate(remembered(kept, 100.0, 3.0)) is None  # another queue of that name
    assert [rate_words(each) for each in (None, 0.0, 1.25, 1234.0)] == ["…", "0/s", "1.2/s", "1,234/s"]


# --- queues and messages ----------------------------------------------------------------------------------------------


def test_a_damaged_queue_is_listed_with_what_is_wrong() -> None:
    damaged = DamagedQueue(namespace="default", queue="<script>", error="its head is not JSON")
    summary = QueueSummary(
        namespace="default",
        queue="orders",
        partitions=8,
        messages=0,
        published=1000,
        bytes=0,
        quota_bytes=1_000_000,
        quota_used=0.0,
        access_type="non-exclusive",
        created=NOW,
        last_published=None,
        groups=("billing",),
    )
    first, second = queue_rows([damaged, summary], {"orders": QueueMemory()}, 5.0)
    assert (first.queue, first.error) == ("<script>", "its head is not JSON")
    assert (second.oldest, second.quota, second.rate) == ("none", "1.0 MB, 0% used", "…")
    assert [(each.group, each.behind) for each in second.groups] == [("billing", "")]


def test_messages_become_text_that_steers_nothing_and_is_cut() -> None:
    def message(value: bytes, key: str | None = None) -> Message:
        return Message(key, value, "orders", 0, 7, NOW, headers=(Header("\x1b]0;x\x07", None),))

    rows = message_rows(
        [message(b"\x1b[31mred\r\n"), message(b"\xff\x00"), message(b"x" * 10_000_000), message(b"", "\u202ekey")]
    )
    assert [row.value[:40] for row in rows] == [r"\x1b[31mred\r\n", "0xff00", "x" * 40, '""']
    assert len(rows[2].value) == 2001
    assert [row.length for row in rows] == ["", "", "10.0 MB", ""]
    assert [row.key for row in rows] == ["null", "null", "null", r"\u202ekey"]
    assert rows[0].headers == ((r"\x1b]0;x\x07", "null"),)
    typed = Message("7", {"id": 7, "total": Decimal("1.50"), "name": "\x1b[31m" * 1000}, "orders", 0, 7, NOW)
    (row,) = message_rows([typed])
    assert row.value.startswith(r'{"id": 7, "total": "1.50", "name": "\u001b[31m\u001b[31m')
    assert (len(row.value), row.length) == (2001, "10.0 kB")


@pytest.mark.parametrize(
    ("kind", "given", "looked_at"),
    [
        ("none", "redis://host:6379/0", "none"),
        ("store", "redis://host:6379/0", "store"),
        ("redis", "redis://host:6379/0", "redis://host:6379/0"),
        ("redis", "rediss://host:6379/0", "rediss://host:6379/0"),
        ("redis", "store", None),
        ("redis", None, None),
        (None, "store", "store"),
    ],
)
def test_a_group_is_looked_at_where_it_keeps_who_has_what(
    kind: str | None, given: str | None, looked_at: str | None
) -> None:
    assert fitting(kind, given) == looked_at


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_decisions_of_a_group_are_shown_newest_first_and_where_there_are_none_it_says_so() -> None:
    timeline = Timeline()
    for number in range(200):
        timeline.add("pause", {"group": "default/orders/billing", "partition": number, "reason": "why", "to": None})
        timeline.add("pause", {"group": "default/orders/other", "partition": number})
        timeline.add("looked", {"problem": "none"})
    view = group(partition(0, "a"))
    shown = timeline_view(timeline, "one", view)
    assert len(shown.rows) == MOST_SHOWN
    assert (shown.rows[0].event, shown.rows[0].facts, shown.rows[0].reason) == ("pause", "partition 199", "why")
    assert shown.note == ""
    assert timeline_view(None, "", view).note.startswith("No coordinator serves this page")
    assert timeline_view(Timeline(), "two", view).note == (
        "The coordinator one leads this group: what it decides is on its own page, not here (two)."
    )
    assert "has decided nothing" in timeline_view(Timeline(), "one", view).note
