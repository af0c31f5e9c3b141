"""What the page shows for what the client saw: marks, lanes, handoffs, lines, messages. No I/O."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from partq import CoordinatorView, FlowView, GroupView, HandoffView, Header, Message, PartitionStatus, PartitionView
from partq_spark.client import words
from partq_spark.page import memory
from partq_spark.page.group_views import GroupMemory, GroupPicture, memory_of, picture, timeline_note
from partq_spark.page.memory import COLOURS, MOST_MARKS, PATTERNS, SHOWN_DECISIONS, Timeline, marks
from partq_spark.page.queue_views import SHOWN_BYTES, length, value_of
from partq_spark.page.render import html
from partq_spark.page.sections import fitting
from tools.crowd import crowd

NOW = datetime(2026, 11, 20, 8, 30, tzinfo=UTC)
READY, PAUSED = PartitionStatus.READY, PartitionStatus.PAUSED


def partition(number: int, flow: str | None, **more: Any) -> PartitionView:
    status = READY if flow else PartitionStatus.UNASSIGNED
    facts: dict[str, Any] = {"acknowledged": 10, "delivered": 15, "end": 20, "lag_s": 2.5, "status": status, **more}
    return replace(crowd(1).partitions[0], partition=number, flow=flow, **facts)


def group(*partitions: PartitionView, **more: Any) -> GroupView:
    """Shared by the flows a and b."""

    def flow(name: str) -> FlowView:
        mine = tuple(each.partition for each in partitions if each.flow == name)
        return replace(crowd(1).flows[0], flow=name, partitions=mine, last_seen_s=0.25)

    facts = {"rebalance_status": READY, "flows": (flow("a"), flow("b")), **more}
    return replace(crowd(1), partitions=partitions, **facts)


def seen(view: GroupView, memory: GroupMemory | None = None) -> GroupPicture:
    return picture(view, memory or memory_of(GroupMemory(), view, 100.0), 100.0)


def test_flows_have_marks_that_differ_are_shared_evenly_and_stay() -> None:
    few = marks([f"flow-{number}" for number in range(COLOURS)], {})
    assert ({mark.pattern for mark in few.values()}, len({*few.values()})) == ({0}, COLOURS)
    many = marks([f"flow-{number}" for number in range(2 * COLOURS * PATTERNS)], {})
    assert {list(many.values()).count(mark) for mark in many.values()} == {2}
    first = marks(["a", "b", "c"], {})
    more = marks(["b", "c", "d", "e", "f", "g", "h"], marks(["b", "c"], first))
    assert marks(["a", "b", "c"], more) | first == marks(["a", "b", "c"], more), "also of one that comes back"
    known = marks([f"old-{number}" for number in range(500)], {})
    assert (len(known), len(marks(["new"], known))) == (500, MOST_MARKS), "those that are there all have one"


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


def test_what_is_waited_for_runs_out_and_is_told_once_in_the_words_of_the_status() -> None:
    def handed(left_s: float) -> GroupView:
        handoff = HandoffView(to="b", remaining_s=left_s, waiting_for=5)
        return group(partition(0, "a", status=PAUSED, reason="waits for 5", handoff=handoff), partition(1, "b"))

    def held(left_s: float) -> GroupView:
        return group(partition(0, "a"), rebalance_status="Holddown", rebalance_deadline_s=left_s)

    for view, text in ((handed, "waits for 5"), (held, dict(words.group_in_words(held(1.0)))["rebalancing"])):
        memory = memory_of(GroupMemory(), view(4.0), 100.0)
        (wait,) = picture(view(4.0), memory, 100.0).waits
        assert wait.left == 100
        later = picture(view(1.0), memory_of(memory, view(1.0), 103.0), 103.0)
        (wait,) = later.waits
        assert (wait.text, wait.left, later.reasons) == (text, 25, ())
        assert [cell.partition for cell in later.lanes[1].arriving] == ([0] if view is handed else [])
        assert memory_of(memory, group(partition(0, "b"), partition(1, "b")), 104.0).waits_s == {}


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
    moving = partition(0, "a", status=PAUSED, handoff=HandoffView(to="b", remaining_s=1, waiting_for=1))
    well = group(moving, partition(1, "b"))
    assert not any(lane.attention for lane in seen(well).lanes)
    assert words.health(well) == words.health(group(partition(0, None, epoch=0, end=10))) == "", "nothing to take yet"
    assert words.health(replace(well, coordinator=CoordinatorView(leader=None, age_s=None))) == "no coordinator"


def remembered(*values: float | None, kept: memory.History = (), every_s: float = 1.0) -> memory.History:
    for number, value in enumerate(values):
        kept = memory.remembered(kept, number * every_s, value)
    return kept


def test_a_line_is_bounded_has_a_gap_where_nobody_looked_and_keeps_its_peaks() -> None:
    kept = remembered(*map(float, range(5000)), every_s=0.5)
    assert len(kept) <= memory.MOST_POINTS
    assert kept[-1].at_s - kept[0].at_s <= memory.KEPT_S
    kept = ()
    for tenth in [*range(200), *range(500, 700)]:  # more than there are pixels
        kept = memory.remembered(kept, tenth / 10, 100.0 if tenth == 602 else 1.0)
    drawn = memory.line(kept, 70.0)
    assert len(drawn.points) == len(drawn.areas) == 2
    assert any(point.endswith(",4") for point in drawn.points[1].split()), "the peak, at the top"
    assert (drawn.highest, drawn.now, drawn.minutes) == (100.0, 1.0, 2)
    assert (memory.line((), 5.0).points, memory.line(remembered(None), 0.0).now) == ((), None)
    assert [memory.part(lag, 1000) for lag in (1000, 500, 1, 0)] == [100, 50, 1, 0], "something is never nothing"


def test_a_rate_is_that_of_the_last_seconds() -> None:
    kept = remembered(*(1000.0 + (50 * second if second > 50 else 0) for second in range(100)))
    assert memory.rate(kept) == pytest.approx(50.0)
    assert memory.rate(kept[:1]) is None
    assert memory.rate(memory.remembered(kept, 100.0, 3.0)) is None, "another queue of that name"


def test_messages_become_text_that_steers_nothing_and_is_cut() -> None:
    headers = (Header("\x1b]0;x\x07", None),)
    values = {
        b"\x1b[31mred\r\n": (r"\x1b[31mred\r\n", ""),
        b"\xff\x00": ("0xff00", ""),
        b"x" * 10_000_000: ("x" * 40, "10.0 MB"),
        b"": ('""', ""),
    }
    assert [(words.shown(value, SHOWN_BYTES)[:40], length(value)) for value in values] == list(values.values())
    assert len(words.shown(b"x" * 10_000_000, SHOWN_BYTES)) == 2001
    typed = Message(None, {"id": 7, "total": Decimal("1.50"), "name": "\x1b[31m" * 1000}, "orders", 0, 7, NOW)
    as_json = value_of(typed)
    assert words.shown(as_json, SHOWN_BYTES).startswith(r'{"id": 7, "total": "1.50", "name": "\u001b[31m\u001b[31m')
    assert (len(words.shown(as_json, SHOWN_BYTES)), length(as_json)) == (2001, "10.0 kB")
    row = Message("\u202ekey", b"<b>", "orders", 0, 7, NOW, headers=headers)
    form = dict.fromkeys(("key", "partition", "until", "limit"), "")
    beside = {"news": "", "place": None, "form": form, "start": "", "next": "", "looked_at": 2}
    page = html("messages.html", queue="orders", rows=[row, typed], **beside)
    for text in (r"\u202ekey", r"\x1b]0;x\x07=null", "&lt;b&gt;", "null", "(10.0 kB, cut)"):
        assert text in page


REDIS, REDISS = "redis://host:6379/0", "rediss://host:6379/0"


def test_a_group_is_looked_at_where_it_keeps_who_has_what() -> None:
    for kind, given, looked_at in (
        ("none", REDIS, "none"),
        ("store", REDIS, "store"),
        ("redis", REDIS, REDIS),
        ("redis", REDISS, REDISS),
        ("redis", "store", None),
        ("redis", None, None),
        (None, "store", "store"),
    ):
        assert fitting(kind, given) == looked_at


def test_decisions_of_a_group_are_shown_newest_first() -> None:
    timeline = Timeline()
    for number in range(200):
        timeline.add("pause", {"group": "default/orders/billing", "partition": number, "reason": "why", "to": None})
        timeline.add("pause", {"group": "default/orders/other", "partition": number})
        timeline.add("looked", {"problem": "none"})
    shown = timeline.of("default/orders/billing")
    assert (len(shown), timeline_note(shown, "one", "one")) == (SHOWN_DECISIONS, "")
    assert (shown[0].event, shown[0].facts, shown[0].reason) == ("pause", "partition 199", "why")
    assert shown[0].clock == f"{shown[0].time:%H:%M:%S.%f}"[:-3]
    assert "leads this group" in timeline_note((), "two", "one")
