"""`scripts/simulate --seeds N`: whole worlds by seeds, from publishing to acknowledging.

A failure prints the one line that repeats it. `--shrink` leaves out what is not needed for it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import count, islice

from tests.world.plan import KINDS, Plan, seeds_of
from tests.world.world import World, story

CHUNK = 20
KEPT = 150  # facts that are shown of a failure


@dataclass(slots=True)
class Total:
    """What many plans came to. `failures`: plans, and how they ended."""

    seeds: int = 0
    steps: int = 0
    simulated_us: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[Plan, str]] = field(default_factory=list)

    def add(self, other: Total) -> None:
        """Take in another part."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.simulated_us += other.simulated_us
        self.counts += other.counts
        self.failures += other.failures

    def text(self) -> str:
        """For people."""
        told = ", ".join(f"{what} {number:,}" for what, number in sorted(self.counts.items()))
        hours = self.simulated_us / 3.6e9
        return (
            f"{self.seeds:,} seeds, {hours:.1f} simulated hours, {self.steps:,} steps, "
            f"{len(self.failures)} failures\n{told}"
        )


def ending(plan: Plan) -> tuple[World | None, str]:
    """How a plan ends: what came of it, or what went wrong."""
    try:
        return World(plan).play(), ""
    except Exception as error:  # noqa: BLE001 - whatever a plan ends with is what is to be told
        return None, f"{type(error).__name__}: {error}"[:1000]


def simulate(plans: Sequence[Plan], twice: bool = False) -> Total:
    """One after the other; a failure does not end them."""
    total = Total()
    for plan in plans:
        world, error = ending(plan)
        if world is not None and twice and World(plan).play().history != world.history:
            world, error = None, "the second run has another history than the first"
        if world is None:
            total.failures.append((plan, error))
        else:
            total.add(Total(0, world.scheduler.steps, world.now_us, world.counts))
        total.seeds += 1
    return total


def kind_of(error: str) -> str:
    """What kind of failure it is: its first words."""
    return " ".join(word for word in error.split()[:8] if not any(letter.isdigit() for letter in word))


def fails_as(error: str) -> Callable[[Plan], bool]:
    """Whether a plan has the same kind of failure; tells what it tries."""

    def fails(plan: Plan) -> bool:
        found = ending(plan)[1]
        is_same = bool(found) and kind_of(found) == kind_of(error)
        sys.stdout.write(f"  {len(plan.happening)} events: {'the same' if is_same else found[:100] or 'no failure'}\n")
        sys.stdout.flush()
        return is_same

    return fails


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The same plan without the events that it fails without: first those of which most can go at once."""
    size = len(plan.events)
    while size:
        kept = [number for number in range(len(plan.events)) if number not in plan.left_out]
        size = min(size, len(kept))
        for at in range(0, len(kept), max(size, 1)):
            less = plan.without(kept[at : at + size])
            if fails(less):
                plan = less
        size //= 2
    return plan


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Whole worlds, by seeds.")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds (default 100)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--kind", choices=KINDS, help="only seeds of this kind; --seeds is how many of them")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many processes (default 2)")
    parser.add_argument("--twice", action="store_true", help="run every seed twice and compare the histories")
    parser.add_argument("--without", default="", metavar="N,N", help="leave these events out")
    parser.add_argument("--shrink", action="store_true", help="leave out what failures do not need")
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    left_out = [int(each) for each in arguments.without.split(",") if each]
    fitting = seeds_of(arguments.kind, arguments.first) if arguments.kind else count(arguments.first)
    plans = [Plan.draw(seed).without(left_out) for seed in islice(fitting, arguments.seeds)]
    parts = [plans[at : at + CHUNK] for at in range(0, len(plans), CHUNK)]
    total = Total()
    if arguments.jobs == 1 or len(parts) == 1:
        total = simulate(plans, arguments.twice)
    else:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            for part in pool.map(simulate, parts, [arguments.twice] * len(parts)):
                total.add(part)
    sys.stdout.write(f"{total.text()}\n{time.monotonic() - begun_s:.1f} s in {arguments.jobs} processes\n")
    for plan, error in total.failures[:10]:
        least = shrunk(plan, fails_as(error)) if arguments.shrink else plan
        sys.stdout.write(f"seed {plan.seed} ({plan.kind}) failed: {error[:400]}\n  repeat it by: {least.line}\n")
    if len(total.failures) > 10:
        more = ", ".join(str(plan.seed) for plan, _ in total.failures[10:])
        sys.stdout.write(f"and seeds {more}\n")
    if len(plans) == 1:
        for plan, _ in total.failures:
            sys.stdout.write("".join(f"  {line}\n" for line in story(plan, KEPT)))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
