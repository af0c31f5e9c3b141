"""`scripts/simulate --queries --seeds N`: seeded simulations of the loop behind streaming queries; with `--sink` of
queries and jobs that write into queues.

Prints what was simulated and which faults struck; a failure prints the one line that repeats it, and what led to it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from tests.simulation.queries import plan as query_plan
from tests.simulation.queries import world as query_world
from tests.simulation.sink import plan as sink_plan
from tests.simulation.sink import world as sink_world
from tests.support.scheduler import SECOND_US
from tests.world.outcome import Outcome, quiet

FAULTS = (
    "request lost",
    "answer lost",
    "effect late",
    "landed late",
    "slow",
    "outage",
    "crash before",
    "crash after",
    "freeze before",
    "freeze after",
    "flush",
    "empty",
    "rollback",
)
CHUNK = 50
KEPT = 40  # facts that are shown of a failure
QUERIES_KEPT = 400
UNTOLD = ("Beaten", "Renewed", "Reported")  # too many to show where queries fail


@dataclass(slots=True)
class Total:
    """What many seeds came to."""

    seeds: int = 0
    steps: int = 0
    simulated_us: int = 0
    facts: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Total) -> None:
        """Take in another part of the seeds."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.simulated_us += other.simulated_us
        self.facts += other.facts
        self.counts += other.counts
        self.failures += other.failures

    def text(self) -> str:
        """For people: seeds, simulated hours, faults by kind, and what happened to ownership."""
        counts = self.counts
        faults = ", ".join(f"{fault} {counts[fault]:,}" for fault in FAULTS)
        injected = sum(counts[fault] for fault in FAULTS if fault != "landed late")
        done = (
            f"{self.seeds:,} seeds, {self.simulated_us / SECOND_US / 3600:.1f} simulated hours, {self.steps:,} steps, "
            f"{self.facts:,} facts, {len(self.failures)} failures\n"
            f"faults injected {injected:,}: {faults}\n"
        )
        others = sorted(counts.keys() - set(FAULTS))
        return done + ", ".join(f"{what} {counts[what]:,}" for what in others)


@dataclass(frozen=True, kw_only=True, slots=True)
class Suite:
    """What is simulated. `option` chooses it on the command line; `play` runs a seed and keeps the last facts."""

    option: str
    kind_of: Callable[[int], str]
    run_seed: Callable[[int], Outcome]
    play: Callable[[int], Iterator[str]]

    def repeat_line(self, seed: int) -> str:
        """The command that repeats one seed."""
        return f"scripts/simulate {self.option}--first {seed} --seeds 1"


def _queries_story(seed: int) -> Iterator[str]:
    world = query_world.World(query_plan.Plan.draw(seed), keep=QUERIES_KEPT)
    yield f"{world.plan}"
    with quiet():
        try:
            world.play()
        except Exception:  # noqa: BLE001 - it was told already
            yield from (text for text in map(str, world.history.facts) if not text.startswith(UNTOLD))


def _sink_story(seed: int) -> Iterator[str]:
    world = sink_world.World(sink_plan.Plan.draw(seed), keep=KEPT)
    yield f"{world.plan}"
    try:
        world.play()
    except Exception:  # noqa: BLE001 - it was told already
        yield from world.facts


QUERIES = Suite(option="--queries ", kind_of=query_plan.kind_of, run_seed=query_world.run_seed, play=_queries_story)
SINK = Suite(option="--sink ", kind_of=sink_plan.kind_of, run_seed=sink_world.run_seed, play=_sink_story)


def simulate(first: int, seeds: int, twice: bool = False, *, suite: Suite) -> Total:
    """Run seeds one after the other; a failure does not end them."""
    total = Total()
    for seed in range(first, first + seeds):
        try:
            outcome = suite.run_seed(seed)
            if twice and suite.run_seed(seed).history != outcome.history:
                raise AssertionError("the second run has another history than the first")
        except Exception as error:  # noqa: BLE001 - whatever a seed ends with is what is to be told
            total.failures.append((seed, f"{type(error).__name__}: {error}"[:1000]))
        else:
            total.steps += outcome.steps
            total.simulated_us += outcome.simulated_us
            total.facts += outcome.facts
            total.counts += outcome.counts
        total.seeds += 1
    return total


def simulate_side_by_side(first: int, seeds: int, jobs: int, twice: bool = False, *, suite: Suite) -> Total:
    """The same, in `jobs` processes."""
    total = Total()
    if jobs == 1 or seeds <= CHUNK:
        return simulate(first, seeds, twice, suite=suite)
    with ProcessPoolExecutor(jobs) as pool:
        parts = [
            pool.submit(simulate, at, min(CHUNK, first + seeds - at), twice, suite=suite)
            for at in range(first, first + seeds, CHUNK)
        ]
        for part in parts:
            total.add(part.result())
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/simulate", description="Queries and sinks, by seeds.")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds (default 200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="how many processes (default 2)")
    parser.add_argument("--twice", action="store_true", help="run every seed twice and compare the histories")
    parser.add_argument("--queries", action="store_true", help="the loop behind streaming queries (default)")
    parser.add_argument("--sink", action="store_true", help="queries and jobs that write into queues")
    arguments = parser.parse_args()
    if arguments.seeds < 1 or arguments.first < 0 or arguments.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1, --first at least 0")
    begun_s = time.monotonic()
    suite = SINK if arguments.sink else QUERIES
    total = simulate_side_by_side(arguments.first, arguments.seeds, arguments.jobs, arguments.twice, suite=suite)
    again = ", each twice with the same history" if arguments.twice and not total.failures else ""
    sys.stdout.write(f"{total.text()}\n{time.monotonic() - begun_s:.1f} s in {arguments.jobs} processes{again}\n")
    for seed, error in total.failures[:10]:
        kind = suite.kind_of(seed)
        sys.stdout.write(f"seed {seed} ({kind}) failed: {error[:300]}\n  repeat it by: {suite.repeat_line(seed)}\n")
    if arguments.seeds == 1:
        for seed, _ in total.failures:
            sys.stdout.write("".join(f"  {line}\n" for line in suite.play(seed)))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
