"""Processes that look after a queue or its groups in a simulation: they resize, compact, acknowledge, rewind, remove
and make groups, and trim by checkpoints. Each goes on when somebody else was quicker.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from partq_spark.base.errors import Fenced, Invalid
from partq_spark.group import lifecycle, retention, rewinding
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey, Owner
from partq_spark.group.rewinding import Goal
from partq_spark.log import admin, compaction
from partq_spark.log.model import Head, group_start
from partq_spark.log.queue import QueueLog
from tests.log import payloads
from tests.log.plans import GROUP, NAMESPACE, QUEUE
from tests.log.simulation import Job, Process
from tests.support.judge import demand


@contextmanager
def untimely(process: Process) -> Iterator[None]:
    """What may be refused because others changed the queue since it was looked at."""
    try:
        yield
    except (Invalid, Fenced):
        process.world.count("came too late")


def each_round(process: Process, job: Job, pause: float = 1.0) -> Iterator[tuple[QueueLog, Head]]:
    """The handle and what it sees, as long as there are rounds. Errors are the caller's to expect."""
    queue = process.queue()
    while process.in_charge() and job.batch <= job.last:
        job.batch += 1
        process.world.pause(pause)
        head = None
        with process.tolerating():
            head = queue.refresh()
        if head is not None:
            yield queue, head


def checkpoints(process: Process, head: Head) -> CheckpointStore:
    """The group's checkpoints, by the process's own store and clock."""
    key = GroupKey(NAMESPACE, QUEUE, GROUP)
    since = head.groups[GROUP].since_sequence if GROUP in head.groups else 0
    return CheckpointStore(process.store, key, head.queue_id, since=since, effects=process.effects)


def resizer(process: Process, job: Job) -> None:
    """Another partition count now and then."""
    for queue, head in each_round(process, job, 3.0):
        with process.tolerating(head.queue_id):
            admin.alter_queue(queue, partitions=process.world.rng.randint(1, 4))
            process.world.count("resized")


def alterer(process: Process, job: Job) -> None:
    """Another column, each under a name of its own, or a wider one: what was not made is made by none, and what was
    made once is not refused.
    """
    rng = process.world.rng
    for queue, head in each_round(process, job, 1.5):
        process.world.count("tried to alter")
        with process.tolerating(head.queue_id):
            if rng.random() < 0.5:
                name = f"c{process.world.outcome.counts['tried to alter']}"
                admin.alter_queue(queue, add_columns=f"{name} {rng.choice(payloads.ADDED)}")
            else:
                with untimely(process):  # another one may have made it as wide
                    admin.alter_queue(queue, widen=f"n {rng.choice(payloads.WIDTHS)}")
            process.world.count("altered")


def compactor(process: Process, job: Job) -> None:
    """One step of compaction, of what is young too: a publish whose outcome is unknown then is told so."""
    rng = process.world.rng
    for queue, head in each_round(process, job):
        with process.tolerating(head.queue_id):
            done = compaction.compact(
                queue, min_age_s=rng.choice((0.0, 60.0, 3600.0)), most_slices=rng.choice((6, 12, 65_536))
            )
            if done is not None:
                process.world.count("compacted")


def acknowledger(process: Process, job: Job) -> None:
    """A flow that takes a partition and acknowledges some of it."""
    rng = process.world.rng
    for _, head in each_round(process, job, 0.5):
        group = head.groups.get(GROUP)
        if group is None:
            continue
        with process.tolerating(head.queue_id), untimely(process):
            store, partition = checkpoints(process, head), rng.randrange(len(head.next))
            held = store.read(partition)
            if held is None or held.owner is None or held.owner.flow != job.name or held.offset is None:
                epoch = 1 if held is None else held.epoch + 1
                start = group_start(group, partition)
                held = store.fence(partition, to=Owner(job.name, "1"), epoch=epoch, start=start, delivered=None)
            store.update_checkpoint(held, rng.randint(0, head.next[partition]))
            process.world.count("acknowledged")


def rewinder(process: Process, job: Job) -> None:
    """Takes the group back, and is told what a trim took meanwhile."""
    rng = process.world.rng
    for queue, head in each_round(process, job, 2.0):
        if GROUP not in head.groups:
            continue
        with process.tolerating(head.queue_id), untimely(process):
            store = checkpoints(process, head)
            goal = Goal(earliest=True) if rng.random() < 0.5 else Goal(by=rng.randint(0, 3))
            steps = rewinding.planned_rewind(QUEUE, head, store.list_readable(), (), goal, queue.offsets_at)
            process.world.pause(0.2)
            outcome = rewinding.carry_out(queue, store, GROUP, steps)
            if outcome.error is None:
                check_told(steps, outcome, queue.head)
                process.world.count("rewound")
            elif not isinstance(outcome.error, (Invalid, Fenced)):
                raise outcome.error


def check_told(steps: tuple[rewinding.RewindStep, ...], outcome: rewinding.RewindOutcome, head: Head) -> None:
    """The person who took the group back was told what does not come again."""
    told = {each.partition: each.end for each in outcome.gone}
    for step in steps:
        earliest = head.earliest[step.partition]
        demand(step.to >= earliest or told.get(step.partition) == earliest, "not told what is gone:", step, earliest)


def regrouper(process: Process, job: Job) -> None:
    """Removes the group, or makes it."""
    rng = process.world.rng
    for queue, head in each_round(process, job, 2.0):
        with process.tolerating(head.queue_id), untimely(process):
            if GROUP in head.groups:
                lifecycle.remove(queue, lifecycle.remains(queue, GROUP, None), None)
                process.world.count("group removed")
            else:
                start = [rng.randint(a, b) for a, b in zip(head.earliest, head.next, strict=True)]
                admin.create_group(queue, GROUP, start)
                process.world.count("group made")


def retainer(process: Process, job: Job) -> None:
    """Trims what the group has acknowledged, all or some of it."""
    rng = process.world.rng
    for queue, head in each_round(process, job):
        with process.tolerating(head.queue_id):
            before = [rng.randint(a, b) for a, b in zip(head.earliest, head.next, strict=True)]
            done = retention.trim(queue, head.next if rng.random() < 0.6 else before)
            process.world.outcome.counts["trimmed by checkpoints"] += done.trimmed
