"""Sides of a comparison that take turns: whole streaming queries, run again and again, and the lines of their table.

Every side runs once to warm up, then A B A B …, so that a machine that slows down meanwhile slows all of them. Only
what handled exactly as many rows as expected counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.spark import Run, checked
from tools.report import Goal, Measure, Series

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """One side of a comparison: a query that can be run again and again, and what partq's rate is to be of its own:
    `goal` for whole queries, `batches_goal` for their micro-batches alone.
    """

    name: str
    run: Callable[[], Run]
    goal: Goal | None = None
    batches_goal: Goal | None = None


def take_turns(sides: Sequence[Side], rounds: int, rows: int) -> list[list[Run]]:
    """Every side once to warm up (not counted), then A B A B …; each run must have handled exactly `rows` rows."""
    runs: list[list[Run]] = [[] for _ in sides]
    for number in range(rounds + 1):
        name = f"round {number} of {rounds}" if number else "warm-up"
        for side, done in zip(sides, runs, strict=True):
            run = checked(side.run(), rows, side.name)
            logger.info("%s, %s: %.2f s, micro-batches %.2f s", name, side.name, run.wall_s, run.batches_s)
            if number:
                done.append(run)
    return runs


def measures(what: str, sides: Sequence[Side], runs: Sequence[Sequence[Run]]) -> list[Measure]:
    """The first side against every other: whole queries, then micro-batches alone."""
    whole, alone = (
        [_rate(side.name, done, seconds) for side, done in zip(sides, runs, strict=True)]
        for seconds in (lambda run: run.wall_s, lambda run: run.batches_s)
    )
    return [
        *(
            Measure(what=f"{what}, whole query", subject=whole[0], reference=other, goal=side.goal)
            for side, other in zip(sides[1:], whole[1:], strict=True)
        ),
        *(
            Measure(what=f"{what}, micro-batches alone", subject=alone[0], reference=other, goal=side.batches_goal)
            for side, other in zip(sides[1:], alone[1:], strict=True)
        ),
    ]


def _rate(name: str, runs: Sequence[Run], seconds: Callable[[Run], float]) -> Series:
    return Series(name=name, unit="k rows/s", samples=tuple(run.rows / seconds(run) / 1000 for run in runs))
