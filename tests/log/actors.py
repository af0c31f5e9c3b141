"""What the processes of a simulation do, as a query, a command line or a cron job would, and what each may expect."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing, Unavailable
from partq_spark.log import admin, housekeeping, tree
from partq_spark.log.model import Head
from partq_spark.log.publish import Outdated, PublishIdentity, PublishResult
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.repetition import BatchRefused
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import PLAIN
from partq_spark.log.staged import Stage, Staged, stage_of
from tests.log import payloads
from tests.log.oracle import Attempt
from tests.log.plans import BEGIN_US, GRACE_US, MOST_SKEW_US, NAMESPACE, QUEUE, SLEEPS_US
from tests.log.simulation import Job, Process, Simulation
from tests.support.faulty import HOUR_US
from tests.support.judge import Violation, demand
from tests.support.scheduler import SECOND_US

MOST_REFUSED = 200
"""Then a query gives up: the process that creates the queue anew may have slept, deleted the new one and died."""


def rows_of(world: Simulation, writer: str, batch: int) -> list[tuple[str | None, bytes]]:
    """The messages of a writer's batch: the same whenever it is staged, as Spark replays a batch."""
    rng = random.Random(f"rows {world.plan.seed} {writer} {batch}")
    return [
        (rng.choice((None, "", "a", "b", "键")), f"{writer}:{batch}:{row}:{rng.random():.3f}".encode())
        for row in range(rng.randint(1, 6))
    ]


def staged(process: Process, queue: QueueLog, stage: Stage, writer: str, batch: int) -> list[Staged]:
    """Stage a batch as one or two tasks would; those of a typed queue may have seen other heads."""
    rng = process.world.rng
    rows = rows_of(process.world, writer, batch)
    cut = rng.randint(0, len(rows))
    tasks: list[Staged] = []
    for task, part in enumerate((rows[:cut], rows[cut:])):
        if tasks and stage.columns is not None and rng.random() < 0.3:
            stage = stage_of(queue.refresh())
        with Stager(process.store, stage, seed=f"{writer}/{batch}/{task}", compression="none") as stager:
            if part:
                stager.add(_batch(part, stage))
            segment = stager.finish()
        if segment is not None:
            tasks.append(Staged(stage, segment))
    return tasks


def _batch(rows: Sequence[tuple[str | None, bytes]], stage: Stage) -> pa.RecordBatch:
    if stage.columns is not None:
        return payloads.batch_of(rows, stage)
    keys, values = zip(*rows, strict=True)
    return pa.record_batch([pa.array(keys, pa.string()), pa.array(values, pa.binary())], schema=PLAIN)


def publish_once(process: Process, queue: QueueLog, writer: str, batch: int, identity: PublishIdentity | None) -> bool:
    """Stage and publish one batch, again when it is outdated; whether it is known to be in the log."""
    world = process.world
    damaged = process.faulty.damaged
    begun_us = world.scheduler.now_us
    stage: Stage | None = None
    try:
        stage = stage_of(queue.refresh())
        tasks = staged(process, queue, stage, writer, batch)
        attempt = Attempt(
            queue_id=stage.queue_id,
            writer=identity.writer if identity else None,
            batch=identity.batch if identity else 0,
            segments=tuple(segment.name for _, segment in tasks),
            rows=sum(segment.rows for _, segment in tasks),
            versions=tuple(task.stage.columns.version for task in tasks if task.stage.columns is not None),
        )
        for _, segment in tasks:
            world.oracle.attempts[segment.name] = attempt
        if world.rng.random() < world.plan.sleepy:
            world.scheduler.sleep_us(int(world.rng.choice(SLEEPS_US) * world.rng.uniform(0.8, 1.2)))
        try:
            done: PublishResult = publish_tasks(queue, tasks, identity, seed=f"{writer}/{batch}")
        except BatchRefused as error:
            world.oracle.refused(attempt, error)
            world.count("batch refused")
            return True
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
    while process.in_charge() and job.batch <= job.last and job.refused < MOST_REFUSED:
        world.pause()
        if world.rng.random() < 0.2:
            queue = process.queue()  # a restart in good order: nothing is remembered
        batch = job.batch
        identity = PublishIdentity(writer=job.name, batch=batch, owner=f"owner of {job.name}")
        known = publish_once(process, queue, job.name, batch, identity)
        job.refused = job.refused + 1 if world.oracle.head is None else 0
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
    process: Process,
    queue: QueueLog,
    span: tuple[Sequence[int], Sequence[int]],
    begun_us: int,
    fail: bool,
    *,
    newest: bool = False,
) -> list[int]:
    """Read a range through a view of the handle's head, compare each message with the truth; where it came to.

    `begun_us` is before that head was read. `newest`: with the columns of today.
    """
    world, head = process.world, queue.head
    start, end = span
    past = world.oracle.history[head.queue_id]
    wanted = {p: (start[p], end[p]) for p in range(len(start)) if start[p] < end[p]}
    task = queue.another()
    loaded = schema_of(head.columns) if newest and head.columns is not None else loaded_by(world, head)
    source = RangeReader(task, head.queue_id, tree.view(head, wanted), fail_on_data_loss=fail, payload=loaded)
    positions = list(start)
    damaged = process.faulty.damaged
    try:
        for piece in source.pieces():
            found = rows_in(piece)
            skipped = piece.offset - positions[piece.partition]
            demand(skipped == 0 or (not fail and skipped > 0), "read", piece.offset, "after", positions)
            if skipped:
                check_lost(world, head.queue_id, piece.partition, piece.offset, begun_us, process, damaged)
            to = piece.offset + len(found)
            expected = past.messages[piece.partition][piece.offset : to]
            demand(found == payloads.all_seen_by(expected, loaded), "another message at", piece.offset)
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
    except Invalid as error:
        if not world.oracle.still(head.queue_id):
            return positions
        check_refused(past.messages, loaded, str(error))
        world.count("a value did not fit")
        return list(end)  # loads again, and goes on with what comes then
    for partition, (_, to) in wanted.items():
        if positions[partition] < to:
            demand(not fail, "a reader ended before its end")
            check_lost(world, head.queue_id, partition, to, begun_us, process, damaged)
    world.count("read")
    return [max(a, b) for a, b in zip(positions, end, strict=True)]


def loaded_by(world: Simulation, head: Head) -> pa.Schema | None:
    """The columns that a query has loaded, now or when the queue had fewer; some of them, if it names them."""
    if head.columns is None:
        return None
    schema = schema_of(head.columns, world.rng.randint(1, head.columns.version))
    if world.rng.random() < 0.3:
        schema = pa.schema(world.rng.sample(list(schema), world.rng.randint(1, len(schema))))
    return schema


def rows_in(piece: Piece) -> list[Any]:
    """Each row without partq's own columns; of an untyped queue its value."""
    if not piece.typed:
        return list(piece.batch.column("value").to_pylist())
    own = [name for name in piece.batch.schema.names if not name.startswith("_")]
    return list(piece.batch.select(own).to_pylist())


def check_refused(messages: Sequence[Sequence[Any]], loaded: pa.Schema | None, error: str) -> None:
    """A query may be refused only for a value that does not fit what it has loaded, which the error names."""
    place = re.search(r"partition (\d+), offset (\d+), column 'n': (\S+) does not fit .* load again", error)
    if loaded is None or place is None:
        raise Violation(f"a reader was refused: {error}")
    row = messages[int(place[1])][int(place[2])]
    demand(str(row["n"]) == place[3] and not payloads.fits(row, loaded), "refused for a value that fits:", error)


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
            admin.create_queue(
                process.store,
                NAMESPACE,
                QUEUE,
                world.plan.partitions,
                effects=process.effects,
                columns=world.first_columns(),
            )
            job.batch += 1
            world.count("recreated")
