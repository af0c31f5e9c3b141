"""What the demo's claims rest on: the proof finds what is wrong and says so, what moved is read from the coordinator's
log as it was, and nobody else can lead its folder elsewhere. That all of it comes together is in `test_demo`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import partq
from partq_spark.cli.demo_screen import Screen
from partq_spark.cli.demo_story import is_settled
from partq_spark.demo import processes
from partq_spark.demo.flights import HELD_BACK, PACE_S, SLOW_PACE_S, Feed, ddl
from partq_spark.demo.ledger import FlowGone, Joined, Ledger, Moved, MoveKind
from partq_spark.demo.processes import alone
from partq_spark.demo.proof import COLUMNS, DELIVERED, prove
from partq_spark.group.model import PartitionStatus, RebalanceStatus
from partq_spark.group.status import CoordinatorView, FlowView, GroupView, PartitionView
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- the coordinator's log --------------------------------------------------------------------------------------------


def line(at_ms: int, event: str, partition: int | None = None, **facts: object) -> dict[str, Any]:
    where = {} if partition is None else {"partition": partition}
    time = f"2026-11-21T10:00:{at_ms // 1000:02}.{at_ms % 1000:03}Z"
    return {"time": time, "event": event, "reason": "", **where, **facts}


FORCED = {"reason": "max-handoff-time is over"}
A_TO_B = {"flow": "a", "to": "b"}
LINES: list[tuple[str, str, list[dict[str, Any]], list[Any], str]] = [
    (
        "a handoff, paused from the pause to the new owner",
        "aab",
        [
            line(1000, "pause", 1, **A_TO_B),
            line(1100, "partition_drained", 1),
            line(1100, "fence", 1, **A_TO_B),
            line(1149, "assign", 1, flow="b"),
        ],
        [[(1, "a", "b", MoveKind.HANDOFF, 149)]],
        "abb",
    ),
    (
        "handoffs side by side are told together",
        "aab",
        [
            *(line(1000, "pause", p, **A_TO_B) for p in (0, 1)),
            line(1200, "assign", 1, flow="b"),
            line(1300, "assign", 0, flow="b"),
        ],
        [[(0, "a", "b", MoveKind.HANDOFF, 300), (1, "a", "b", MoveKind.HANDOFF, 200)]],
        "bbb",
    ),
    (
        "past its time it was forced",
        "ab",
        [line(0, "pause", 0, **A_TO_B), line(3000, "fence", 0, **A_TO_B, **FORCED), line(3050, "assign", 0, flow="b")],
        [[(0, "a", "b", MoveKind.FORCED, 3050)]],
        "bb",
    ),
    (
        "what a lost flow had",
        "ab",
        [
            line(1000, "flow_expired", flow="b"),
            line(2000, "fence", 1, flow="b", to="a"),
            line(2050, "assign", 1, flow="a"),
        ],
        [FlowGone(flow="b", left=False), [(1, "b", "a", MoveKind.LOST, None)]],
        "aa",
    ),
    (
        "back to its own, nothing has moved",
        "ab",
        [line(0, "flow_unbound", flow="b"), line(9, "flow_bound", flow="b"), line(11, "assign", 1, flow="b")],
        [FlowGone(flow="b", left=True), Joined(flow="b")],
        "ab",
    ),
    ("taken back", "ab", [line(0, "pause", 0, **A_TO_B), line(90, "resume", 0, flow="a")], [], "ab"),
    (
        "to nobody",
        "a",
        [line(0, "flow_expired", flow="a"), line(50, "assign", 0, flow="nobody")],
        [FlowGone(flow="a", left=False), [(0, "a", None, MoveKind.LOST, None)]],
        "-",
    ),
    ("other lines", "a", [line(0, "lease_taken", leader="me"), line(0, "status", status="Ready")], [], "a"),
]


@pytest.mark.parametrize(("owners", "lines", "told", "then"), [case[1:] for case in LINES], ids=[c[0] for c in LINES])
def test_the_coordinators_log_tells_who_has_what_and_what_moved(
    owners: str, lines: list[dict[str, Any]], told: list[Any], then: str
) -> None:
    ledger = Ledger()
    begun = [line(0, "flow_bound", flow=flow) for flow in dict.fromkeys(owners)]
    begun += [line(0, "assign", partition, flow=flow) for partition, flow in enumerate(owners)]
    first = [change for each in begun for change in ledger.heed(each)]
    assert sum(isinstance(change, Joined) for change in first) == len(set(owners))
    found: list[Any] = []
    for change in (change for each in lines for change in ledger.heed(each)):
        if isinstance(change, Moved):
            found.append([(m.partition, m.before, m.after, m.kind, m.paused_ms) for m in change.moves])
        else:
            found.append(change)
    assert found == told
    assert ledger.owners == {p: None if flow == "-" else flow for p, flow in enumerate(then)}
    assert ledger.held == {p for p, flow in enumerate(then) if flow == "-"}


# --- the proof --------------------------------------------------------------------------------------------------------

Flight = tuple[str | None, int, int, int]  # aircraft, partition, offset, which: a later one is at a later minute
GOOD: list[Flight] = [("a", 0, 0, 0), ("b", 1, 0, 1), ("a", 0, 1, 2), (None, 0, 2, 3), ("b", 1, 1, 4)]
HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
TABLE = (
    f"{ddl(*COLUMNS)}, partition INT, offset BIGINT, redelivered BOOLEAN, flow STRING, delivered_us BIGINT, row BIGINT"
)


def swapped(first: int, second: int) -> list[Flight]:
    """Two flights of one aircraft in each other's place."""
    rows = list(GOOD)
    rows[first], rows[second] = (*rows[first][:3], GOOD[second][3]), (*rows[second][:3], GOOD[first][3])
    return rows


OUTCOMES: list[tuple[Sequence[tuple[str, Sequence[Flight], bool]], dict[str, object]]] = [
    (
        [("x", GOOD[:3], False), ("x", GOOD[3:], False)],
        {"handed_over": 0, "delivered": 5, "aircraft": 2, "rows": 5, "again": 0, "redelivered": 0},
    ),
    ([("x", GOOD[:-1], False)], {"ok": False, "missing": 1, "twice": 0}),
    ([("x", GOOD, False), ("y", GOOD[:1], False)], {"ok": False, "missing": 0, "twice": 1}),
    # What came again is all right if it says so; what might have come before and did not, too.
    (
        [("x", GOOD[:3], False), ("y", [GOOD[0], GOOD[2]], True), ("y", GOOD[3:], False)],
        {"rows": 7, "delivered": 5, "again": 2, "redelivered": 2, "per_flow": {"x": 3, "y": 4}},
    ),
    ([("x", GOOD[:3], False), ("y", GOOD[3:], True)], {"again": 0, "redelivered": 2}),
    # A mark on the first of two deliveries does not excuse the second.
    ([("x", GOOD, True), ("y", GOOD[3:4], False)], {"ok": False, "twice": 1}),
    ([("x", swapped(0, 2), False)], {"ok": False, "missing": 0, "aircraft_out_of_order": 1}),
    ([("x", swapped(1, 4), False)], {"ok": False, "missing": 0, "aircraft_out_of_order": 1}),
    (
        [("x", [GOOD[2]], False), ("y", [GOOD[0], GOOD[1], GOOD[3], GOOD[4]], False)],
        {"ok": False, "aircraft_out_of_order": 1, "offsets_out_of_order": 0},
    ),
    # The flight without an aircraft has nothing else that could be out of order.
    (
        [("x", [GOOD[0], GOOD[3], GOOD[2], GOOD[1], GOOD[4]], False)],
        {"ok": False, "aircraft_out_of_order": 0, "offsets_out_of_order": 1},
    ),
    # Partition 0 goes there and back, partition 1 there.
    ([("x", GOOD[:2], False), ("y", [GOOD[2], GOOD[4]], False), ("x", GOOD[3:4], False)], {"handed_over": 3}),
    ([("x", [row for row in GOOD if row[1] == 1], False)], {"ok": False, "per_partition": [0, 2]}),
]


@pytest.mark.spark
def test_the_proof_finds_what_is_missing_twice_or_out_of_order_and_nothing_else(spark: SparkSession) -> None:
    """Micro-batches in the order in which they were written: each a flow, its rows, whether they are marked."""
    session = spark.newSession()
    for batches, wanted in OUTCOMES:
        rows = [
            (aircraft, HOUR, flight, "UA", flight, partition, offset, marked, flow, 1000 + number, place)
            for number, (flow, given, marked) in enumerate(batches)
            for place, (aircraft, partition, offset, flight) in enumerate(given)
        ]
        session.createDataFrame(rows, TABLE).createOrReplaceTempView(DELIVERED)
        outcome = prove(lambda text: [row.asDict() for row in session.sql(text).collect()], 5, 2)
        found = {name: getattr(outcome, name) for name in {"ok": True, **wanted}}
        found |= {"per_partition": list(outcome.per_partition)} if "per_partition" in wanted else {}
        assert found == {"ok": True, **wanted}, batches


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "✓ none came twice, and none is marked 'redelivered'"),
        ({"redelivered": 12}, "✓ none came twice; the 12 that might have are marked 'redelivered'"),
        ({"redelivered": 12, "again": 9}, "✓ 9 came again, each of them marked 'redelivered', like 3 more that might"),
        ({"twice": 3}, "✗ 3 flights came twice without a mark"),
        ({"missing": 3}, "✗ 3 flights are missing"),
        ({}, "✓ the flights of each of 4,043 aircraft came in order, also the 7 times that a partition went on"),
        ({"aircraft_out_of_order": 3}, "✗ 3 aircraft out of order"),
    ],
)
def test_the_proof_says_what_was_counted(facts: dict[str, int], words: str) -> None:
    none = ("missing", "twice", "again", "redelivered", "aircraft_out_of_order", "offsets_out_of_order")
    known = {
        **dict.fromkeys(none, 0),
        "delivered": 336_776,
        "aircraft": 4_043,
        "handed_over": 7,
        "per_flow": {"blue": 1},
    }
    file = io.StringIO()
    made = Screen(Console(file=file, width=100, highlight=False), rebalance_delay_s=1.0, session_s=5)
    made.proof({**known, **facts}, 336_776, [])
    assert words in file.getvalue()
    assert file.getvalue().count("✓") + file.getvalue().count("✗") == 3


# --- its folder -----------------------------------------------------------------------------------------


def test_a_demo_finds_its_folder_empty_and_alone_and_leaves_what_it_made(tmp_path: Path) -> None:
    folder, precious = tmp_path / "john.doe", tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("kept")
    with alone(folder):
        (folder / "store").mkdir()
        (folder / "store/x").write_text("x")
        (folder / "link").symlink_to(precious)
        with pytest.raises(partq.Invalid, match="another demo of yours"), alone(folder):
            pass
        with alone(tmp_path / "john.smith"):  # another user's is no hindrance
            pass
    assert {each.name for each in folder.iterdir()} >= {"store", "link"}
    with alone(folder):
        assert not {each.name for each in folder.iterdir()} & {"store", "link"}
    assert (precious / "file").read_text() == "kept"
    assert folder.stat().st_mode & 0o077 == 0


def test_a_folder_that_others_may_have_prepared_is_refused(tmp_path: Path) -> None:
    open_to_all, target, planted = (tmp_path / name for name in ("open", "target", "planted"))
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    target.mkdir(mode=0o700)
    (target / "precious").write_text("kept")
    planted.symlink_to(target)
    for path in (open_to_all, planted):
        with pytest.raises(partq.Invalid, match="only this user may enter"), alone(path):
            pass
    assert (target / "precious").read_text() == "kept"


# --- its flights, its flows and its processes -------------------------------------------------------------------------


def test_files_come_at_a_pace_that_slows_down_and_the_last_when_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    for number in range(9):
        pq.write_table(pa.table({"id": [0] * 10}), tmp_path / "from" / f"part-{number}.parquet")
    now_s = [100.0]
    feed = Feed(tmp_path / "from", tmp_path / "to", lambda: now_s[0])

    def come_after(seconds: float) -> int:
        now_s[0] += seconds
        feed.give()
        return len(list((tmp_path / "to").glob("*.parquet")))

    assert feed.flights == 90
    assert [come_after(0), come_after(PACE_S - 0.01), come_after(0.01)] == [1, 1, 2]
    assert [come_after(PACE_S) for _ in range(5)] == [3, 4, 5, 6, 6]
    assert come_after(SLOW_PACE_S - PACE_S) == 7
    assert [come_after(SLOW_PACE_S) for _ in range(100)][-1] == 9 - HELD_BACK
    feed.hurry()
    assert come_after(0) == 9


@pytest.mark.parametrize(
    ("owners", "bound", "differs", "settled"),
    [
        (["amber", "blue", "amber"], ["amber", "blue"], {}, True),
        (["amber", "amber", "amber"], ["amber", "blue"], {}, False),
        (["amber", "blue"], ["amber", "blue", "coral"], {}, False),
        (["amber", "coral"], ["amber", "blue"], {}, False),
        (["amber", "blue"], ["amber", "blue"], {"rebalance_status": RebalanceStatus.HOLDDOWN}, False),
        (["amber", "blue"], ["amber", "blue"], {"status": PartitionStatus.PAUSED}, False),
    ],
)
def test_a_group_is_settled_when_exactly_these_flows_share_evenly(
    owners: list[str], bound: list[str], differs: dict[str, Any], settled: bool
) -> None:
    status = differs.get("status", PartitionStatus.READY)
    facts = {"epoch": 1, "acknowledged": 0, "delivered": 0, "end": 0, "handoff": None, "reason": ""}
    view = GroupView(
        namespace="default",
        queue="flights",
        group="board",
        rebalance_status=differs.get("rebalance_status", RebalanceStatus.READY),
        rebalance_deadline_s=None,
        scale_status="Ready",
        partitions=tuple(
            PartitionView(partition=number, status=status, flow=flow, **facts)  # type: ignore[arg-type]
            for number, flow in enumerate(owners)
        ),
        flows=tuple(FlowView(flow=flow, active=True, bound=True, partitions=(), last_seen_s=0.1) for flow in bound),
        coordinator=CoordinatorView(leader="me", age_s=0.1),
    )
    assert is_settled(view, {"amber", "blue"}) == settled


def test_who_does_not_listen_is_killed_with_all_that_he_started(tmp_path: Path) -> None:
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('up', flush=True); "
    process = processes._start([sys.executable, "-c", deaf + "time.sleep(60)"], tmp_path / "log", {}, talks=True)
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == "up\n"
        (child,) = psutil.Process(process.pid).children()
        processes._end(process, wait_s=0.3)
    assert process.returncode == -9
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "end of the child")
