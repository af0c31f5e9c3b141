"""What a person reads: one plain line per change where there is no terminal, and a live table where there is one."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from partq_spark.cli.demo_screen import Screen
from partq_spark.cli.demo_story import is_settled
from partq_spark.demo.ledger import Change, FlowGone, Joined, Ledger, Moved, MoveKind, PartitionMove
from partq_spark.group.model import PartitionStatus, RebalanceStatus
from partq_spark.group.status import CoordinatorView, FlowView, GroupView, PartitionView

FACTS = {
    "missing": 0,
    "twice": 0,
    "delivered": 336_776,
    "again": 0,
    "redelivered": 0,
    "aircraft": 4_043,
    "aircraft_out_of_order": 0,
    "offsets_out_of_order": 0,
    "handed_over": 7,
    "per_flow": {"amber": 336_000, "coral": 776},
}


def _screen(*, terminal: bool = False) -> tuple[Screen, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=100, highlight=False)
    return Screen(console, rebalance_delay_s=1.0, session_s=5), file


def _move(
    partition: int, before: str | None, after: str | None, kind: MoveKind, paused_ms: int | None = None
) -> PartitionMove:
    return PartitionMove(partition=partition, before=before, after=after, kind=kind, paused_ms=paused_ms, at_ms=10_000)


def _view(*owners: str, bound: tuple[str, ...] = ("amber", "blue")) -> GroupView:
    partitions = tuple(
        PartitionView(
            partition=number,
            status=PartitionStatus.READY,
            flow=flow,
            epoch=1,
            acknowledged=1234,
            delivered=1234,
            end=1300,
            handoff=None,
            reason="",
        )
        for number, flow in enumerate(owners)
    )
    return GroupView(
        namespace="default",
        queue="flights",
        group="board",
        rebalance_status=RebalanceStatus.READY,
        rebalance_deadline_s=None,
        scale_status="Ready",
        partitions=partitions,
        flows=tuple(FlowView(flow=flow, active=True, bound=True, partitions=(), last_seen_s=0.1) for flow in bound),
        coordinator=CoordinatorView(leader="me", age_s=0.1),
    )


def test_each_change_is_a_line_with_the_mapping() -> None:
    screen, file = _screen()
    ledger = Ledger(owners={0: "amber", 1: "blue", 2: "coral", 3: None}, bound=["amber", "coral"])
    moves = (
        _move(0, "amber", "coral", MoveKind.HANDOFF, 49),
        _move(1, "amber", "coral", MoveKind.HANDOFF, 51),
        _move(2, "coral", "amber", MoveKind.FORCED, 3012),
    )
    lost = (_move(1, "blue", "amber", MoveKind.LOST),)
    changes: list[Change] = [
        Joined(flow="coral"),
        FlowGone(flow="blue", left=False),
        Moved(moves=moves),
        Moved(moves=lost),
    ]
    screen.changed(ledger, changes, {"blue": 3_500})
    assert [line[9:] for line in file.getvalue().splitlines()] == [
        "AbC·  coral has joined; flows that come or go within 1 s are dealt with together",
        "AbC·  blue was silent for 5 s: lost; its partitions wait 1 s in case it comes back",
        "AbC·  amber → coral: 0-1, paused 49, 51 ms; coral → amber: 2, moved by force after 3012 ms",
        "AbC·  blue → amber: 1 (6.5 s after the kill, from where it had acknowledged)",
    ]


def test_the_first_flow_is_told_with_what_it_gets() -> None:
    screen, file = _screen()
    ledger = Ledger(owners={0: "amber", 1: "amber"}, bound=["amber"])
    moves = tuple(_move(number, None, "amber", MoveKind.FIRST) for number in (0, 1))
    screen.changed(ledger, [Joined(flow="amber"), Moved(moves=moves)], {})
    assert file.getvalue()[9:] == "AA  amber has joined and finds nobody: it gets 0-1 at once\n"


def test_the_table_is_for_terminals_only() -> None:
    view = _view("amber", "blue")
    for terminal in (False, True):
        screen, file = _screen(terminal=terminal)
        with screen:
            screen.show(view, 7, 8)
        assert ("1,234" in file.getvalue()) == terminal
        assert ("7 of 8 flights published" in file.getvalue()) == terminal


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "✓ none came twice, and none is marked 'redelivered'"),
        ({"redelivered": 12}, "✓ none came twice; the 12 that might have are marked 'redelivered'"),
        ({"redelivered": 9, "again": 9}, "✓ 9 came again, each of them marked 'redelivered'\n"),
        ({"redelivered": 12, "again": 9}, "✓ 9 came again, each of them marked 'redelivered', like 3 more that might"),
        ({"twice": 3}, "✗ 3 flights came twice without a mark"),
        ({"missing": 3}, "✗ 3 flights are missing"),
        (
            {},
            "✓ the flights of each of 4,043 aircraft came in order, also the 7 times that a partition went on",
        ),
        ({"aircraft_out_of_order": 3}, "✗ 3 aircraft out of order"),
    ],
)
def test_the_proof_says_what_was_counted(facts: dict[str, int], words: str) -> None:
    screen, file = _screen()
    screen.proof({**FACTS, **facts}, 336_776, [_move(0, "amber", "coral", MoveKind.HANDOFF, 49)])
    assert words in file.getvalue()
    assert file.getvalue().count("✓") + file.getvalue().count("✗") == 3


def test_a_group_is_settled_when_exactly_these_flows_share_evenly() -> None:
    both = {"amber", "blue"}
    assert is_settled(_view("amber", "blue", "amber"), both)
    assert not is_settled(_view("amber", "amber", "amber"), both)
    assert not is_settled(_view("amber", "blue", bound=("amber", "blue", "coral")), both)
    assert not is_settled(_view("amber", "coral"), both)
    even = _view("amber", "blue")
    assert not is_settled(replace(even, rebalance_status=RebalanceStatus.HOLDDOWN), both)
    paused = replace(even.partitions[0], status=PartitionStatus.PAUSED)
    assert not is_settled(replace(even, partitions=(paused, *even.partitions[1:])), both)
