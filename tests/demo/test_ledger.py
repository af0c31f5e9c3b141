"""What the demo makes of the coordinator's log: who has what, what moved, and how long it was paused."""

from __future__ import annotations

from typing import Any

from partq_spark.demo.ledger import Change, FlowGone, Joined, Ledger, Moved, MoveKind, PartitionMove


def _line(at_ms: int, event: str, **facts: object) -> dict[str, Any]:
    return {"time": f"2026-11-21T10:00:{at_ms // 1000:02}.{at_ms % 1000:03}Z", "event": event, "reason": "", **facts}


def _moves(change: Change) -> list[tuple[int, str | None, str | None, MoveKind, int | None]]:
    assert isinstance(change, Moved)
    return [(each.partition, each.before, each.after, each.kind, each.paused_ms) for each in change.moves]


def _heed(ledger: Ledger, *lines: dict[str, Any]) -> list[Change]:
    return [change for line in lines for change in ledger.heed(line)]


def _given(*owners: str) -> Ledger:
    """Every flow is bound and has its partitions."""
    ledger = Ledger()
    for flow in dict.fromkeys(owners):
        ledger.heed(_line(0, "flow_bound", flow=flow))
    for partition, flow in enumerate(owners):
        ledger.heed(_line(0, "assign", partition=partition, flow=flow))
    ledger.moves.clear()
    return ledger


def test_the_first_flow_gets_everything_in_one_change() -> None:
    ledger = Ledger()
    fences = [_line(5, "fence", partition=p, to="a") for p in (0, 1)]
    assigns = [_line(30, "assign", partition=p, flow="a") for p in (0, 1)]
    joined, moved = _heed(ledger, _line(0, "flow_bound", flow="a"), *fences, *assigns)
    assert joined == Joined(flow="a")
    assert _moves(moved) == [(0, None, "a", MoveKind.FIRST, None), (1, None, "a", MoveKind.FIRST, None)]
    assert (ledger.owners, ledger.held) == ({0: "a", 1: "a"}, set())


def test_a_handoff_was_paused_from_the_pause_to_the_new_owner() -> None:
    ledger = _given("a", "a", "b")
    assert _heed(ledger, _line(1000, "pause", partition=1, flow="a", to="b")) == []
    assert ledger.held == {1}
    lines = [_line(1100, "partition_drained", partition=1), _line(1100, "fence", partition=1, flow="a", to="b")]
    (moved,) = _heed(ledger, *lines, _line(1149, "assign", partition=1, flow="b"))
    assert _moves(moved) == [(1, "a", "b", MoveKind.HANDOFF, 149)]
    assert (ledger.owners[1], ledger.held) == ("b", set())


def test_handoffs_side_by_side_are_told_together() -> None:
    ledger = _given("a", "a", "b")
    _heed(ledger, *(_line(1000, "pause", partition=p, flow="a", to="b") for p in (0, 1)))
    assert _heed(ledger, _line(1200, "assign", partition=1, flow="b")) == []
    (moved,) = _heed(ledger, _line(1300, "assign", partition=0, flow="b"))
    assert [(move[0], move[4]) for move in _moves(moved)] == [(0, 300), (1, 200)]
    assert [move.partition for move in ledger.moves] == [1, 0]


def test_a_handoff_past_its_time_was_forced() -> None:
    ledger = _given("a", "b")
    _heed(ledger, _line(0, "pause", partition=0, flow="a", to="b"))
    _heed(ledger, {**_line(3000, "fence", partition=0, flow="a", to="b"), "reason": "max-handoff-time is over"})
    (moved,) = _heed(ledger, _line(3050, "assign", partition=0, flow="b"))
    assert _moves(moved) == [(0, "a", "b", MoveKind.FORCED, 3050)]


def test_what_a_lost_flow_had_rests_until_others_have_it() -> None:
    ledger = _given("a", "b")
    assert _heed(ledger, _line(1000, "flow_expired", flow="b")) == [FlowGone(flow="b", left=False)]
    assert ledger.held == {1}
    _heed(ledger, _line(2000, "fence", partition=1, flow="b", to="a"))
    (moved,) = _heed(ledger, _line(2050, "assign", partition=1, flow="a"))
    assert _moves(moved) == [(1, "b", "a", MoveKind.LOST, None)]
    assert ledger.moves == [
        PartitionMove(partition=1, before="b", after="a", kind=MoveKind.LOST, paused_ms=None, at_ms=1795255202050)
    ]


def test_a_flow_that_comes_back_to_its_own_has_moved_nothing() -> None:
    ledger = _given("a", "b")
    assert _heed(ledger, _line(0, "flow_unbound", flow="b")) == [FlowGone(flow="b", left=True)]
    assert _heed(ledger, _line(100, "flow_bound", flow="b")) == [Joined(flow="b")]
    assert _heed(ledger, _line(110, "fence", partition=1, to="b"), _line(150, "assign", partition=1, flow="b")) == []


def test_a_pause_that_is_taken_back_moves_nothing() -> None:
    ledger = _given("a", "b")
    _heed(ledger, _line(0, "pause", partition=0, flow="a", to="b"))
    assert _heed(ledger, _line(90, "resume", partition=0, flow="a")) == []
    assert (ledger.owners[0], ledger.held) == ("a", set())


def test_a_partition_that_goes_to_nobody_has_no_owner() -> None:
    ledger = _given("a")
    _heed(ledger, _line(0, "flow_expired", flow="a"))
    (moved,) = _heed(ledger, _line(50, "assign", partition=0, flow="nobody"))
    assert _moves(moved) == [(0, "a", None, MoveKind.LOST, None)]
    assert ledger.owners == {0: None}


def test_other_lines_change_nothing() -> None:
    ledger = _given("a")
    assert _heed(ledger, _line(0, "lease_taken", leader="me"), _line(0, "status", status="Ready")) == []
