"""Publishing what was staged for a partition count that the queue no longer has, or by tasks of which some saw other
columns than the rest: the staged messages are placed again.

A key lies in another partition under another count, so a publish that meets a new layout at its swap is refused there
(`publish.Repartitioned`). Its rows are durable already; they are read back, slice by slice, and staged for the present
layout, with the present columns of a typed queue. Nothing is deleted: what is left over is for collection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partq_spark.base.errors import Invalid
from partq_spark.log.publish import NumberUsed, PublishIdentity, PublishResult, Repartitioned, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import judged, staged_batches
from partq_spark.log.staged import Stage, Staged, stage_of

MOST_CHANGES = 16  # of the partition count during one publish; a queue that changes faster than that is not in order

# No layout has this generation: what its publish says is "published before", or that the parts do not fit together.
_MIXED = -1


def publish_tasks(
    queue: QueueLog,
    staged: Sequence[Staged],
    identity: PublishIdentity | None = None,
    *,
    seed: str,
    compression: str = "lz4",
) -> PublishResult:
    """`publish.publish` for tasks that may have staged for different layouts or columns: where the partition count has
    changed since, or not all have the same columns, their messages are staged again for the present ones.

    `seed` names writer and batch: it decides, with the number of the task, where messages without a key go when they
    are placed again (DIS-03). A number that its writer has used is judged by its rows (`repetition`). Raises as
    `publish` does, `Repartitioned` only after 16 changes in a row, `Corrupt` if a
    staged segment is damaged, and `Invalid` also if the queue was deleted and created again between the tasks.
    """
    tasks = list(staged)
    queue_id = tasks[0].stage.queue_id
    if any(task.stage.queue_id != queue_id for task in tasks):
        raise Invalid(
            f"{queue} was deleted and created again while its tasks staged: nothing was published, run it again"
        )
    changes = 0
    while True:
        try:
            return publish(queue, _stage_of_all(tasks), [task.segment for task in tasks], identity)
        except NumberUsed as used:
            return judged(queue, used, tasks)
        except Repartitioned:
            changes += 1
            if changes > MOST_CHANGES:
                raise
        present = stage_of(queue.require(queue_id))
        tasks = [
            task
            if _fits(task.stage, present)
            else restaged(queue, task, present, seed=f"{seed}/{number}", compression=compression)
            for number, task in enumerate(tasks)
        ]


def restaged(queue: QueueLog, task: Staged, present: Stage, *, seed: str, compression: str) -> Staged:
    """The messages of `task` as one new segment for `present`, the order of each key kept, in memory of two runs.

    Raises `Outdated` if collection has passed the staged segment, `Corrupt` if it is damaged.
    """
    # Arrow, which a publish does not need otherwise
    from partq_spark.log.segment import Stager
    from partq_spark.log.segment_columns import segment_columns

    old, segment = task
    # What was taken once is not refused for a limit that was lowered since.
    stage = replace(present, max_message_bytes=max(present.max_message_bytes, old.max_message_bytes))
    schema = segment_columns(present.columns, headers=segment.headers).schema
    with Stager(queue.store, stage, seed=seed, headers=segment.headers, compression=compression) as stager:
        # A key lies in one partition, and its slices are in publish order: so reading them one by one keeps it.
        for batch in staged_batches(queue, task, schema):
            stager.add(batch)
        made = stager.finish()
    return Staged(stage, made if made is not None else replace(segment, slices=(), bytes=0))


def _stage_of_all(tasks: Sequence[Staged]) -> Stage:
    """What may be said of all of `tasks` at once: staged no earlier than the oldest, for their common layout and
    columns, if they have.
    """
    stages = [task.stage for task in tasks]
    oldest = min(stages, key=lambda stage: stage.sequence)
    if all(_fits(stage, oldest) for stage in stages):
        return oldest
    return replace(oldest, generation=_MIXED)


def _fits(stage: Stage, other: Stage) -> bool:
    """Whether both are of one layout and one version of the columns."""
    return stage.generation == other.generation and stage.columns == other.columns
