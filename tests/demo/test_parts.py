"""What the demo's claims rest on: the proof finds what is wrong and says so, what moved is read from the coordinator's
log as it was, and nobody else can lead its folder elsewhere. That all of it comes together is in `test_demo`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import partq
from partq_spark.demo.flights import DELIVERED, PROOF_COLUMNS, ddl, prove
from partq_spark.demo.processes import FlowGone, Joined, Ledger, Moved, MoveKind, alone, end
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- the coordinator's log --------------------------------------------------------------------------------------------


def lines(text: str) -> list[dict[str, Any]]:
    """Each says when, what, of which partition (or -), of which flow, to which, and why."""
    found = []
    for each in text.split(" | "):
        at_ms, event, partition, flow, to, why = [*each.split(), *["-"] * 4][:6]
        facts: dict[str, Any] = {name: flow for name, flow in (("flow", flow), ("to", to)) if flow != "-"}
        facts |= {"partition": int(partition)} if partition != "-" else {}
        reason = "max-handoff-time is over" if why == "forced" else ""
        time = f"2026-11-21T10:00:0{int(at_ms) / 1000:.3f}Z"
        found.append({"time": time, "event": event, "reason": reason, **facts})
    return found


HANDOFF, FORCED, LOST = MoveKind.HANDOFF, MoveKind.FORCED, MoveKind.LOST
STORIES: dict[str, tuple[str, str, list[Any], str]] = {
    "a handoff, paused from the pause to the new owner": (
        "aab",
        "1000 pause 1 a b | 1100 partition_drained 1 | 1100 fence 1 a b | 1149 assign 1 b",
        [[(1, "a", "b", HANDOFF, 149)]],
        "abb",
    ),
    "handoffs side by side are told together": (
        "aab",
        "1000 pause 0 a b | 1000 pause 1 a b | 1200 assign 1 b | 1300 assign 0 b",
        [[(0, "a", "b", HANDOFF, 300), (1, "a", "b", HANDOFF, 200)]],
        "bbb",
    ),
    "past its time it was forced": (
        "ab",
        "0 pause 0 a b | 3000 fence 0 a b forced | 3050 assign 0 b",
        [[(0, "a", "b", FORCED, 3050)]],
        "bb",
    ),
    "what a lost flow had": (
        "ab",
        "1000 flow_expired - b | 2000 fence 1 b a | 2050 assign 1 a",
        [FlowGone(flow="b", left=False), [(1, "b", "a", LOST, None)]],
        "aa",
    ),
    "back to its own, nothing has moved": (
        "ab",
        "0 flow_unbound - b | 9 flow_bound - b | 11 assign 1 b",
        [FlowGone(flow="b", left=True), Joined(flow="b")],
        "ab",
    ),
    "taken back": ("ab", "0 pause 0 a b | 90 resume 0 a", [], "ab"),
    "to nobody": (
        "a",
        "0 flow_expired - a | 50 assign 0 nobody",
        [FlowGone(flow="a", left=False), [(0, "a", None, LOST, None)]],
        "-",
    ),
    "other lines": ("a", "0 lease_taken | 0 status 0", [], "a"),
}


@pytest.mark.parametrize("story", STORIES)
def test_the_coordinators_log_tells_who_has_what_and_what_moved(story: str) -> None:
    owners, text, told, then = STORIES[story]
    ledger = Ledger()
    for flow in dict.fromkeys(owners):
        assert [*ledger.heed(*lines(f"0 flow_bound - {flow}"))] == [Joined(flow=flow)]
    for partition, flow in enumerate(owners):
        ledger.heed(*lines(f"0 assign {partition} {flow}"))
    found: list[Any] = []
    for change in (change for each in lines(text) for change in ledger.heed(each)):
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
PLACES = "partition INT, offset BIGINT, redelivered BOOLEAN, flow STRING, delivered_us BIGINT, row BIGINT"
TABLE = f"{ddl(*PROOF_COLUMNS)}, {PLACES}"


def rows_of(batch: str) -> Iterator[tuple[str, bool, Flight]]:
    """A flow, flights by their numbers in `GOOD` (0<2: flight 2 in the place of flight 0), perhaps a mark."""
    flow, numbers, *marked = batch.split()
    for number in numbers.split(","):
        place, _, flight = number.partition("<")
        yield flow, bool(marked), (*GOOD[int(place)][:3], int(flight or place))


OUTCOMES: list[tuple[list[str], dict[str, object]]] = [
    (["x 0,1,2", "x 3,4"], {"handed_over": 0, "delivered": 5, "aircraft": 2, "rows": 5, "again": 0, "redelivered": 0}),
    (["x 0,1,2,3"], {"ok": False, "missing": 1, "twice": 0}),
    (["x 0,1,2,3,4", "y 0"], {"ok": False, "missing": 0, "twice": 1}),
    # What came again is all right if it says so; what might have come before and did not, too.
    (
        ["x 0,1,2", "y 0,2 marked", "y 3,4"],
        {"rows": 7, "delivered": 5, "again": 2, "redelivered": 2, "per_flow": {"x": 3, "y": 4}},
    ),
    (["x 0,1,2", "y 3,4 marked"], {"again": 0, "redelivered": 2}),
    # A mark on the first of two deliveries does not excuse the second.
    (["x 0,1,2,3,4 marked", "y 3"], {"ok": False, "twice": 1}),
    (["x 0<2,1,2<0,3,4"], {"ok": False, "missing": 0, "aircraft_out_of_order": 1}),
    (["x 0,1<4,2,3,4<1"], {"ok": False, "missing": 0, "aircraft_out_of_order": 1}),
    (["x 2", "y 0,1,3,4"], {"ok": False, "aircraft_out_of_order": 1, "offsets_out_of_order": 0}),
    # The flight without an aircraft has nothing else that could be out of order.
    (["x 0,3,2,1,4"], {"ok": False, "aircraft_out_of_order": 0, "offsets_out_of_order": 1}),
    # Partition 0 goes there and back, partition 1 there.
    (["x 0,1", "y 2,4", "x 3"], {"handed_over": 3}),
    (["x 1,4"], {"ok": False, "per_partition": [0, 2]}),
]


@pytest.mark.spark
def test_the_proof_finds_what_is_missing_twice_or_out_of_order_and_nothing_else(spark: SparkSession) -> None:
    """Micro-batches in the order in which they were written: each a flow, its rows, whether they are marked."""
    session = spark.newSession()
    # For a few rows, to compile, to plan anew and to divide the work takes longer than the work.
    for option in ("codegen.wholeStage", "adaptive.enabled"):
        session.conf.set(f"spark.sql.{option}", "false")
    session.conf.set("spark.sql.shuffle.partitions", "1")
    for batches, wanted in OUTCOMES:
        rows = [
            (aircraft, HOUR, flight, "UA", flight, partition, offset, marked, flow, 1000 + number, place)
            for number, batch in enumerate(batches)
            for place, (flow, marked, (aircraft, partition, offset, flight)) in enumerate(rows_of(batch))
        ]
        session.createDataFrame(rows, TABLE).createOrReplaceTempView(DELIVERED)
        outcome = prove(lambda text: [row.asDict() for row in session.sql(text).collect()], 5, 2)
        found = {name: getattr(outcome, name) for name in {"ok": True, **wanted}}
        found |= {"per_partition": list(outcome.per_partition)} if "per_partition" in wanted else {}
        assert found == {"ok": True, **wanted}, batches


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


# --- its processes -------------------------------------------------------------------------


def test_who_does_not_listen_is_killed_with_all_that_he_started() -> None:
    deaf = "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    deaf += "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']); print('up', flush=True); "
    command = [sys.executable, "-c", deaf + "time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "up\n"
        (child,) = psutil.Process(process.pid).children()
        end(process, wait_s=0.3)
    assert process.returncode == -9
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "end of the child")
