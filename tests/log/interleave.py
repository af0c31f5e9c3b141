"""Seeded random interleavings of the real log code over a store that fails: `python -m tests.log.interleave --seeds N`.

One seed is one world: its processes, their faults, naps and clocks, the limits of the log, all drawn from it. Processes
call the log as Spark's driver, a command line or a cron job would, are killed and started again, and are judged by what
a caller may expect; `oracle` judges every change of the store. A failure prints the line that repeats it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import Counter
from contextlib import ExitStack
from unittest.mock import patch

from partq_spark.log import admin, housekeeping, names, restaging
from tests.log.actors import collector, command, query, read_all, reader, recreator, trimmer
from tests.log.keepers import acknowledger, alterer, compactor, regrouper, resizer, retainer, rewinder
from tests.log.plans import BEGIN_US, GRACE_US, GROUP, MOST_STEPS, NAMESPACE, QUEUE, Outcome, Plan
from tests.log.simulation import Job, Process, Simulation
from tests.support.judge import demand


def play(world: Simulation) -> Outcome:
    """Start all processes of the plan, let them run to their ends, and look at what they left."""
    plan = world.plan
    admin.create_queue(
        world.truth, NAMESPACE, QUEUE, plan.partitions, effects=world.quiet().effects, columns=world.first_columns()
    )
    if plan.group:
        admin.create_group(world.quiet(), GROUP, (1,) * plan.partitions)
    for count, body, name, rounds in (
        (plan.publishers, query, "query", plan.batches),
        (plan.anonymous, command, "command", plan.batches),
        (plan.passers, query, "passer", 1),
        (plan.readers, reader, "reader", plan.batches),
        (plan.trimmers, trimmer, "trimmer", 6),
        (plan.collectors, collector, "collector", 10),
        (int(plan.recreate), recreator, "recreator", 1),
        (plan.compactors, compactor, "compactor", 8),
        (plan.resizers, resizer, "resizer", 4),
        (plan.alterers, alterer, "alterer", 10),
    ):
        for number in range(count):
            world.start(body, Job(f"{name}{number}", last=rounds))
    for number in range(plan.keepers):
        world.start(acknowledger, Job(f"acknowledger{number}", last=24))
        world.start(rewinder, Job(f"rewinder{number}", last=12))
        world.start(regrouper, Job(f"regrouper{number}", last=6))
        world.start(retainer, Job(f"retainer{number}", last=24))
    with patch.object(restaging, "restaged", world.oracle.noting(restaging.restaged)):
        world.scheduler.run(None, MOST_STEPS)
    check_end(world)
    world.outcome.steps = world.scheduler.steps
    world.outcome.changes = world.oracle.changes
    world.outcome.history = world.scheduler.history
    return world.outcome


def check_end(world: Simulation) -> None:
    """Nobody is left: everything can be read, seeking finds its place, and collection leaves what is needed."""
    queue = world.quiet()
    if queue.look() is None:
        return
    head = queue.refresh()
    past = world.oracle.history[head.queue_id]
    for _ in range(3):
        time_us = world.rng.choice([0, BEGIN_US, *(entry.time_us for entry in past.entries)]) + world.rng.choice((0, 1))
        expected = list(head.next)
        for entry in reversed(past.entries):
            for piece in reversed(entry.slices):
                if entry.time_us >= time_us:
                    expected[piece.partition] = piece.offset
        expected = [max(a, b) for a, b in zip(expected, head.earliest, strict=True)]
        demand(queue.offsets_at(time_us) == tuple(expected), "seek by time", time_us, expected)
    read_all(
        Process(world, Job("end"), reader), queue, (head.earliest, head.next), world.scheduler.now_us, True, newest=True
    )
    for _ in range(4):
        world.scheduler.sleep_us(GRACE_US + 1)
        housekeeping.collect(queue, grace_s=GRACE_US / 1e6)
    left = {item.name for folder in (queue.segment_folder, queue.log_folder) for item in world.truth.list(folder)}
    left -= {names.collection_name(NAMESPACE, QUEUE, head.queue_id)}
    if not world.plan.recreate:
        young = {name for name in left if not housekeeping.below_floor(name, queue.refresh())}
        demand(left - young == past.needed - young, "never collected:", sorted(left - young - past.needed)[:3])
    read_all(
        Process(world, Job("end"), reader), queue, (head.earliest, head.next), world.scheduler.now_us, True, newest=True
    )


def run_seed(seed: int, *, conditional: bool = True) -> Outcome:
    """One world from beginning to end. Raises `Violation`, or whatever the code under test should not have raised."""
    plan = Plan.draw(seed)
    identities = random.Random(f"identities {seed}")
    with ExitStack() as quiet:
        quiet.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # every injected fault would be reported
        quiet.enter_context(patch.object(names, "new_id", lambda: f"{identities.getrandbits(64):016x}"))
        return play(Simulation(plan, conditional))


def repeat_line(seed: int) -> str:
    """The command that repeats one seed."""
    return f"python -m tests.log.interleave --first {seed} --seeds 1"


def main() -> int:
    parser = argparse.ArgumentParser(description="Interleave the message log's real code over a faulty store.")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    arguments = parser.parse_args()
    begun_s = time.monotonic()
    total: Counter[str] = Counter()
    steps = changes = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            outcome = run_seed(seed)
        except BaseException:
            sys.stderr.write(f"seed {seed} failed; repeat it by: {repeat_line(seed)}\n")
            raise
        total += outcome.counts
        steps += outcome.steps
        changes += outcome.changes
    counts = ", ".join(f"{what} {count}" for what, count in sorted(total.items()))
    sys.stdout.write(
        f"seeds {arguments.first} to {arguments.first + arguments.seeds - 1}: no violation; {steps} steps, {changes} "
        f"changes of a head in {time.monotonic() - begun_s:.1f} s\n{counts}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
