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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import pyarrow as pa

from partq_spark.errors import Conflict, Corrupt, Invalid, ObjectMissing, Unavailable
from partq_spark.log import admin, housekeeping, names, tree, writers
from partq_spark.log.publish import Identity, Outdated, Published, Stage, StagedSegment, publish, stage_for
from partq_spark.log.queue import Effects, Queue
from partq_spark.log.reading import RangeReader
from partq_spark.log.segment import PLAIN, Stager
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.retry import Retrying
from tests.log.oracle import Attempt, Oracle, Violation, WatchedStore, demand
from tests.support.faulty import HOUR_US, SECOND_US, Crash, FaultRates, FaultyStore, Scheduler

GRACE_US = 24 * HOUR_US
MOST_SKEW_US = HOUR_US // 6
BEGIN_US = 1_790_000_000 * SECOND_US
SLEEPS_US = (SECOND_US, 12 * HOUR_US, 23 * HOUR_US, 50 * HOUR_US, 80 * HOUR_US)
MOST_STEPS = 20_000
NAMESPACE, QUEUE = "sim", "orders"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a seed draws before anything runs."""

    seed: int
    partitions: int
    publishers: int
    anonymous: int
    passers: int  # writers that publish once under a name of their own
    readers: int
    trimmers: int
    collectors: int
    recreate: bool
    group: bool
    batches: int
    rates: FaultRates
    brisk: float  # probability that a process never sleeps
    retrying: bool  # through the store's own retries, as in production
    inline_entries: int
    fan_out: int
    head_writers: int
    pause_us: int  # about so long between two actions of a process
    sleepy: float  # probability that a publisher sleeps between staging and publishing
    trim_all: float  # probability that a trim takes everything

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Most of everything at random; two of four seeds lean towards what is rare by chance."""
        rng = random.Random(f"plan {seed}")
        level = rng.choice((0.0, 0.01, 0.04))
        plan = cls(
            seed=seed,
            partitions=rng.randint(1, 3),
            publishers=rng.randint(1, 3),
            anonymous=rng.randint(0, 2),
            passers=rng.choice((0, 0, 3, 8)),
            readers=rng.randint(0, 2),
            trimmers=rng.randint(0, 2),
            collectors=rng.randint(0, 2),
            recreate=rng.random() < 0.25,
            group=rng.random() < 0.25,
            batches=rng.randint(2, 7),
            rates=FaultRates(
                crash=rng.choice((0.0, 0.01, 0.03)),
                request_lost=level * rng.random(),
                answer_lost=level * rng.random() * 2,
                late=level * rng.random() * 2,
                damage=rng.choice((0.0, 0.0, 0.01)),
                nap=rng.choice((0.0, 0.01, 0.05, 0.15)),
            ),
            brisk=0.0,
            retrying=rng.random() < 0.3,
            inline_entries=rng.choice((2, 4, 6)),
            fan_out=rng.randint(2, 3),
            head_writers=rng.choice((2, 4)),
            pause_us=rng.choice((SECOND_US // 10, 60 * SECOND_US, 3 * HOUR_US, 20 * HOUR_US)),
            sleepy=rng.choice((0.05, 0.3)),
            trim_all=rng.choice((0.1, 0.7)),
        )
        if seed % 4 == 2:
            return plan._with_lost_outcomes()
        if seed % 4 == 3:
            return plan._with_sleepers()
        return plan

    def _with_lost_outcomes(self) -> Plan:
        """Swaps whose answers are lost, then silence, while others trim all there is."""
        rates = replace(self.rates, request_lost=0.01, answer_lost=0.05, late=0.05, outage=0.4, swap_factor=5.0)
        return replace(
            self, rates=replace(rates, crash=0.0), anonymous=2, trimmers=2, trim_all=0.8, readers=0, recreate=False
        )

    def _with_sleepers(self) -> Plan:
        """Some processes that sleep for days while others publish, trim and collect without a pause."""
        naps_us = (26 * HOUR_US, 100 * HOUR_US)
        rates = replace(self.rates, crash=0.0, damage=0.0, request_lost=0.0, nap=0.2, naps_us=naps_us)
        return replace(
            self,
            rates=rates,
            brisk=0.6,
            partitions=1,
            publishers=2,
            anonymous=1,
            passers=0,
            trimmers=2,
            collectors=1 + self.seed // 4 % 4,
            readers=2,
            recreate=False,
            batches=12,
            inline_entries=2,
            pause_us=12 * HOUR_US,
            sleepy=0.7,
            trim_all=0.1,
        )


@dataclass(slots=True)
class Outcome:
    """What a run was."""

    seed: int
    steps: int = 0
    changes: int = 0
    history: str = ""
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Job:
    """What survives a process: a query's Spark checkpoint, or the work list of whoever starts command lines."""

    name: str
    batch: int = 1
    last: int = 0
    process: int = 0  # the one that is in charge; an older one that wakes up ends after what it is doing


class World:
    """One run: a scheduler, a store, an oracle and the processes of a plan."""

    def __init__(self, plan: Plan, conditional: bool = True) -> None:
        self.plan = plan
        self.rng = random.Random(f"run {plan.seed}")
        self.scheduler = Scheduler(self.rng, BEGIN_US)
        self.outcome = Outcome(seed=plan.seed)
        self.truth = WatchedStore(clock=lambda: self.scheduler.now_us / 1e6, rng=self.rng, conditional=conditional)
        self.oracle = Oracle(
            names.queue_folder(NAMESPACE, QUEUE),
            names.head_name(NAMESPACE, QUEUE),
            lambda: self.scheduler.now_us,
            GRACE_US,
            2 * MOST_SKEW_US + 1,
        )
        self.truth.oracle = self.oracle

    # --- the world around the processes -------------------------------------------------------------------------------

    def effects(self) -> Effects:
        skew_us = self.rng.randint(-MOST_SKEW_US, MOST_SKEW_US)
        return Effects(
            time_us=lambda: self.scheduler.now_us + skew_us,
            monotonic_s=lambda: self.scheduler.now_us / 1e6,
            sleep=lambda seconds: self.scheduler.sleep_us(int(seconds * 1e6)),
            uniform=self.rng.uniform,
        )

    def quiet(self) -> Queue:
        """A handle without faults, for setting up and for looking afterwards."""
        effects = replace(self.effects(), time_us=lambda: self.scheduler.now_us)
        return Queue(self.truth, NAMESPACE, QUEUE, effects)

    def pause(self, times: float = 1.0) -> None:
        self.scheduler.sleep_us(int(self.plan.pause_us * times * self.rng.uniform(0.1, 2.0)))

    def count(self, what: str) -> None:
        self.outcome.counts[what] += 1

    def start(self, body: Callable[[Process, Job], None], job: Job) -> None:
        """Run `body` as a process; killed, it is started again with what is left of `job`."""
        job.process += 1
        process = Process(self, job, body)
        self.scheduler.spawn(f"{job.name}/{job.process}", process.run, self.rng.randrange(SECOND_US))

    # --- one run ------------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        plan = self.plan
        admin.create_queue(self.truth, NAMESPACE, QUEUE, plan.partitions, effects=self.quiet().effects)
        if plan.group:
            admin.create_group(self.quiet(), "g", (1,) * plan.partitions)
        for number in range(plan.publishers):
            self.start(query, Job(f"query{number}", last=plan.batches))
        for number in range(plan.anonymous):
            self.start(command, Job(f"command{number}", last=plan.batches))
        for number in range(plan.passers):
            self.start(query, Job(f"passer{number}", last=1))
        for number in range(plan.readers):
            self.start(reader, Job(f"reader{number}", last=plan.batches))
        for number in range(plan.trimmers):
            self.start(trimmer, Job(f"trimmer{number}", last=6))
        for number in range(plan.collectors):
            self.start(collector, Job(f"collector{number}", last=10))
        if plan.recreate:
            self.start(recreator, Job("recreator", last=1))
        self.scheduler.run(MOST_STEPS)
        self._check_end()
        self.outcome.steps = self.scheduler.steps
        self.outcome.changes = self.oracle.changes
        self.outcome.history = self.scheduler.history
        return self.outcome

    def _check_end(self) -> None:
        """Nobody is left: everything can be read, seeking finds its place, and collection leaves what is needed."""
        queue = self.quiet()
        if queue.look() is None:
            return
        head = queue.refresh()
        past = self.oracle.history[head.queue_id]
        for _ in range(3):
            time_us = self.rng.choice([0, BEGIN_US, *(entry.time_us for entry in past.entries)]) + self.rng.choice(
                (0, 1)
            )
            expected = list(head.next)
            for entry in reversed(past.entries):
                for piece in reversed(entry.slices):
                    if entry.time_us >= time_us:
                        expected[piece.partition] = piece.offset
            expected = [max(a, b) for a, b in zip(expected, head.earliest, strict=True)]
            demand(queue.offsets_at(time_us) == tuple(expected), "seek by time", time_us, expected)
        read_all(Process(self, Job("end"), reader), queue, (head.earliest, head.next), self.scheduler.now_us, True)
        for _ in range(4):
            self.scheduler.sleep_us(GRACE_US + 1)
            housekeeping.collect(queue, grace_s=GRACE_US / 1e6)
        left = {item.name for folder in (queue.segment_folder, queue.log_folder) for item in self.truth.list(folder)}
        left -= {names.collection_name(NAMESPACE, QUEUE, head.queue_id)}
        if not self.plan.recreate:
            young = {name for name in left if not housekeeping.below_floor(name, queue.refresh())}
            demand(left - young == past.needed - young, "never collected:", sorted(left - young - past.needed)[:3])
        read_all(Process(self, Job("end"), reader), queue, (head.earliest, head.next), self.scheduler.now_us, True)


class Process:
    """One simulated process: its own store, clock and handles. What it knows dies with it."""

    def __init__(self, world: World, job: Job, body: Callable[[Process, Job], None]) -> None:
        self.world = world
        self.job = job
        self.number = job.process
        self._body = body
        self.effects = world.effects()
        rates = world.plan.rates
        if world.rng.random() < world.plan.brisk:
            rates = replace(rates, nap=0.0)
        self.faulty = FaultyStore(world.truth, world.scheduler, rates, world.outcome.counts, self._taken_for_dead)
        self.store: ObjectStore = self.faulty
        if world.plan.retrying:
            self.store = Retrying(
                self.faulty,
                30.0,
                sleep=self.effects.sleep,
                clock=self.effects.monotonic_s,
                rng=world.rng,
            )

    def in_charge(self) -> bool:
        return self.number == self.job.process

    def queue(self) -> Queue:
        return Queue(self.store, NAMESPACE, QUEUE, self.effects)

    def run(self) -> None:
        try:
            self._body(self, self.job)
        except Crash:
            if self.in_charge():
                self.world.start(self._body, self.job)

    def _taken_for_dead(self, nap_us: int) -> None:
        if self.in_charge() and nap_us > 600 * SECOND_US and self.world.rng.random() < 0.3:
            self.world.count("replaced while asleep")
            self.world.start(self._body, self.job)

    @contextmanager
    def tolerating(self, queue_id: str | None = None) -> Iterator[None]:
        """Errors that a caller must expect here; anything else is a violation.

        Damage that was injected may show as `Corrupt`; a queue that is gone may be said to be.
        """
        damaged = self.faulty.damaged
        try:
            yield
        except Unavailable:
            self.world.count("gave up")
        except Outdated:
            raise
        except Conflict:
            self.world.count("gave up")
        except ObjectMissing as error:
            raise Violation(f"{self.job.name}: {error}") from error
        except Corrupt as error:
            if damaged == self.faulty.damaged:
                raise Violation(f"{self.job.name}: {error}") from error
            self.world.count("damage noticed")
        except Invalid as error:
            demand(queue_id is None or not self.world.oracle.still(queue_id), self.job.name, error)
            self.world.count("queue gone")


# --- the processes ----------------------------------------------------------------------------------------------------


def rows_of(world: World, writer: str, batch: int) -> list[tuple[str | None, bytes]]:
    """The messages of a writer's batch: the same whenever it is staged, as Spark replays a batch."""
    rng = random.Random(f"rows {world.plan.seed} {writer} {batch}")
    return [
        (rng.choice((None, "", "a", "b", "键")), f"{writer}:{batch}:{row}:{rng.random():.3f}".encode())
        for row in range(rng.randint(1, 6))
    ]


def staged(process: Process, stage: Stage, writer: str, batch: int) -> list[StagedSegment]:
    """Stage a batch as one or two tasks would."""
    rows = rows_of(process.world, writer, batch)
    cut = process.world.rng.randint(0, len(rows))
    segments: list[StagedSegment] = []
    for task, part in enumerate((rows[:cut], rows[cut:])):
        with Stager(process.store, stage, seed=f"{writer}/{batch}/{task}", compression="none") as stager:
            if part:
                keys, values = zip(*part, strict=True)
                stager.add(pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.binary())], schema=PLAIN))
            segment = stager.finish()
        if segment is not None:
            segments.append(segment)
    return segments


def publish_once(process: Process, queue: Queue, writer: str, batch: int, identity: Identity | None) -> bool:
    """Stage and publish one batch, again when it is outdated; whether it is known to be in the log."""
    world = process.world
    damaged = process.faulty.damaged
    begun_us = world.scheduler.now_us
    stage: Stage | None = None
    try:
        stage = stage_for(queue)
        segments = staged(process, stage, writer, batch)
        attempt = Attempt(
            queue_id=stage.queue_id,
            writer=identity.writer if identity else None,
            batch=identity.batch if identity else 0,
            segments=tuple(segment.name for segment in segments),
            rows=sum(segment.rows for segment in segments),
        )
        for segment in segments:
            world.oracle.attempts[segment.name] = attempt
        if world.rng.random() < world.plan.sleepy:
            world.scheduler.sleep_us(int(world.rng.choice(SLEEPS_US) * world.rng.uniform(0.8, 1.2)))
        done: Published = publish(queue, stage, segments, identity)
    except Outdated as error:
        age_us = world.scheduler.now_us - begun_us
        demand(age_us >= GRACE_US - 2 * MOST_SKEW_US, "refused within grace:", error)
        world.count("outdated")
        return False
    except (Unavailable, Conflict):
        world.count("gave up")
        return False
    except ObjectMissing as error:
        raise Violation(f"{process.job.name}: {error}") from error
    except Corrupt as error:
        demand(damaged != process.faulty.damaged, process.job.name, error)
        world.count("damage noticed")
        return False
    except Invalid as error:
        demand(stage is None or not world.oracle.still(stage.queue_id), process.job.name, error)
        demand(stage is not None or world.plan.recreate, process.job.name, error)
        world.count("late publisher refused")
        return False
    demand(identity is not None or not done.duplicate, "a repetition without an identity")
    world.count("repetition" if done.duplicate else "published")
    world.oracle.acknowledged(attempt, done.rows, done.sequence, done.duplicate)
    return True


def query(process: Process, job: Job) -> None:
    """A streaming query: its batches in order, each until it is published; now and then the last one again."""
    world = process.world
    queue = process.queue()
    while process.in_charge() and job.batch <= job.last:
        world.pause()
        if world.rng.random() < 0.2:
            queue = process.queue()  # a restart in good order: nothing is remembered
        batch = job.batch
        identity = Identity(writer=job.name, batch=batch, owner=f"owner of {job.name}")
        known = publish_once(process, queue, job.name, batch, identity)
        # Without the step forward the batch is repeated, as after losing the newest file of Spark's commit log.
        if known and process.in_charge() and job.batch == batch and world.rng.random() > 0.15:
            job.batch += 1


def command(process: Process, job: Job) -> None:
    """Publishes without an identity: each once, whatever becomes of it."""
    queue = process.queue()
    while process.in_charge() and job.batch <= job.last:
        process.world.pause()
        batch, job.batch = job.batch, job.batch + 1
        publish_once(process, queue, job.name, batch, None)


def reader(process: Process, job: Job) -> None:
    """Reads what is new, again and again, with its own kept positions; some views are used late."""
    world = process.world
    queue = process.queue()
    queue_id, positions = "", [0] * world.plan.partitions
    while process.in_charge() and job.batch <= job.last:
        job.batch += 1
        world.pause()
        with process.tolerating():
            begun_us = world.scheduler.now_us
            head = queue.refresh()
            if head.queue_id != queue_id:
                queue_id, positions = head.queue_id, list(head.earliest)
            start = [max(a, b) for a, b in zip(positions, head.earliest, strict=True)]
            positions = read_all(process, queue, (start, head.next), begun_us, world.rng.random() < 0.7)


def read_all(
    process: Process, queue: Queue, span: tuple[Sequence[int], Sequence[int]], begun_us: int, fail: bool
) -> list[int]:
    """Read a range through a view of the handle's head, compare each message with the truth; where it came to.

    `begun_us` is before that head was read.
    """
    world, head = process.world, queue.head
    start, end = span
    past = world.oracle.history[head.queue_id]
    wanted = {p: (start[p], end[p]) for p in range(len(start)) if start[p] < end[p]}
    task = Queue(queue.store, NAMESPACE, QUEUE, queue.effects)
    source = RangeReader(task, head.queue_id, tree.view(head, wanted), fail_on_data_loss=fail)
    positions = list(start)
    damaged = process.faulty.damaged
    try:
        for piece in source.pieces():
            values = piece.batch.column("value").to_pylist()
            skipped = piece.offset - positions[piece.partition]
            demand(skipped == 0 or (not fail and skipped > 0), "read", piece.offset, "after", positions)
            if skipped:
                check_lost(world, head.queue_id, piece.partition, piece.offset, begun_us, process, damaged)
            to = piece.offset + len(values)
            demand(values == past.messages[piece.partition][piece.offset : to], "another message at", piece.offset)
            positions[piece.partition] = to
            if world.rng.random() < 0.1:
                world.pause()
    except ObjectMissing:
        demand(fail or not world.oracle.still(head.queue_id), "a loss was to be skipped and was raised")
        if world.oracle.still(head.queue_id):
            for partition, position in enumerate(positions):
                if position < end[partition] and lost(world, head.queue_id, partition, position):
                    check_lost(world, head.queue_id, partition, position + 1, begun_us, process, damaged)
                    world.count("read too late")
                    return positions
            raise
        return positions
    except Invalid:
        demand(not world.oracle.still(head.queue_id), "a reader was refused")
        return positions
    for partition, (_, to) in wanted.items():
        if positions[partition] < to:
            demand(not fail, "a reader ended before its end")
            check_lost(world, head.queue_id, partition, to, begun_us, process, damaged)
    world.count("read")
    return [max(a, b) for a, b in zip(positions, end, strict=True)]


def lost(world: World, queue_id: str, partition: int, offset: int) -> bool:
    """Whether a message has been trimmed."""
    head = world.oracle.head
    return head is None or head.queue_id != queue_id or offset < head.earliest[partition]


def check_lost(
    world: World, queue_id: str, partition: int, to: int, begun_us: int, process: Process, damaged: int
) -> None:
    """Messages may be missing from a reader only if they were trimmed, and its view is older than the grace."""
    if process.faulty.damaged != damaged:
        return
    demand(lost(world, queue_id, partition, to - 1), "skipped what is there:", partition, to)
    age_us = world.scheduler.now_us - begun_us
    demand(age_us >= GRACE_US - 2 * MOST_SKEW_US, "a view could not be read within grace")


def trimmer(process: Process, job: Job) -> None:
    """Trims to a random place or time."""
    world = process.world
    queue = process.queue()
    while process.in_charge() and job.batch <= job.last:
        job.batch += 1
        world.pause(2.0)
        with process.tolerating():
            head = queue.refresh()
            with process.tolerating(head.queue_id):
                if world.rng.random() < 0.3:
                    housekeeping.trim_to_time(queue, world.rng.randint(BEGIN_US - HOUR_US, head.time_us + SECOND_US))
                else:
                    before = [world.rng.randint(a, b) for a, b in zip(head.earliest, head.next, strict=True)]
                    if world.rng.random() < world.plan.trim_all:
                        before = list(head.next)
                    trimmed = housekeeping.trim(queue, before)
                    demand(trimmed.queue_id == head.queue_id, "trimmed a queue by the offsets of another")


def collector(process: Process, job: Job) -> None:
    """A round of collection about every grace."""
    world = process.world
    queue = process.queue()
    while process.in_charge() and job.batch <= job.last:
        job.batch += 1
        world.scheduler.sleep_us(int(GRACE_US * world.rng.uniform(0.2, 1.6)))
        with process.tolerating():
            done = housekeeping.collect(queue, grace_s=GRACE_US / 1e6)
            world.outcome.counts["collected"] += done.deleted


def recreator(process: Process, job: Job) -> None:
    """Deletes the queue and creates another under its name."""
    world = process.world
    while process.in_charge() and job.batch <= job.last:
        world.pause(4.0)
        with process.tolerating():
            if process.queue().look() is not None:
                admin.delete_queue(process.queue())
            world.pause(0.5)
            admin.create_queue(process.store, NAMESPACE, QUEUE, world.plan.partitions, effects=process.effects)
            job.batch += 1
            world.count("recreated")


# --- runs -------------------------------------------------------------------------------------------------------------


def run_seed(seed: int, *, conditional: bool = True) -> Outcome:
    """One world from beginning to end. Raises `Violation`, or whatever the code under test should not have raised."""
    plan = Plan.draw(seed)
    identities = random.Random(f"identities {seed}")
    with ExitStack() as limits:
        limits.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.WARNING)  # every injected fault would be reported
        limits.enter_context(patch.object(tree, "INLINE_ENTRIES", plan.inline_entries))
        limits.enter_context(patch.object(tree, "FAN_OUT", plan.fan_out))
        limits.enter_context(patch.object(writers, "HEAD_WRITERS", plan.head_writers))
        limits.enter_context(patch.object(writers, "PAGE_FAN_OUT", 2))
        limits.enter_context(patch.object(names, "new_id", lambda: f"{identities.getrandbits(64):016x}"))
        return World(plan, conditional).run()


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
