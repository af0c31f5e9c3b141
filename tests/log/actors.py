"""What the processes of a simulation do, as a query, a command line or a cron job would, and what each may expect."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pyarrow as pa

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, Unavailable
from partq_spark.log import admin, housekeeping, tree
from partq_spark.log.publish import Outdated, PublishIdentity, PublishResult, stage_for
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import PLAIN
from partq_spark.log.staged import Stage, StagedSegment
from tests.log.oracle import Attempt
from tests.log.plans import BEGIN_US, GRACE_US, MOST_SKEW_US, NAMESPACE, QUEUE, SLEEPS_US
from tests.log.queues import publish_staged
from tests.log.simulation import Job, Process, Simulation
from tests.support.faulty import HOUR_US
from tests.support.judge import Violation, demand
from tests.support.scheduler import SECOND_US


def rows_of(world: Simulation, writer: str, batch: int) -> list[tuple[str | None, bytes]]:
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


def publish_once(process: Process, queue: QueueLog, writer: str, batch: int, identity: PublishIdentity | None) -> bool:
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
        done: PublishResult = publish_staged(queue, stage, segments, identity, seed=f"{writer}/{batch}")
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
        identity = PublishIdentity(writer=job.name, batch=batch, owner=f"owner of {job.name}")
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
            positions += head.earliest[len(positions) :]  # numbers that came since
            start = [max(a, b) for a, b in zip(positions, head.earliest, strict=True)]
            positions = read_all(process, queue, (start, head.next), begun_us, world.rng.random() < 0.7)


def read_all(
    process: Process, queue: QueueLog, span: tuple[Sequence[int], Sequence[int]], begun_us: int, fail: bool
) -> list[int]:
    """Read a range through a view of the handle's head, compare each message with the truth; where it came to.

    `begun_us` is before that head was read.
    """
    world, head = process.world, queue.head
    start, end = span
    past = world.oracle.history[head.queue_id]
    wanted = {p: (start[p], end[p]) for p in range(len(start)) if start[p] < end[p]}
    task = queue.another()
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
            demand(piece.times_us() == past.times_us[piece.partition][piece.offset : to], "another time at", piece)
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


def lost(world: Simulation, queue_id: str, partition: int, offset: int) -> bool:
    """Whether a message has been trimmed."""
    head = world.oracle.head
    return head is None or head.queue_id != queue_id or offset < head.earliest[partition]


def check_lost(
    world: Simulation, queue_id: str, partition: int, to: int, begun_us: int, process: Process, damaged: int
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
                    time_us = world.rng.randint(BEGIN_US - HOUR_US, head.time_us + SECOND_US)
                    queue.refresh()
                    housekeeping.trim(queue, queue.offsets_at(time_us))
                else:
                    before = [world.rng.randint(a, b) for a, b in zip(head.earliest, head.next, strict=True)]
                    if world.rng.random() < world.plan.trim_all:
                        before = list(head.next)
                    trimmed = housekeeping.trim(queue, before[: len(queue.head.next)])
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
