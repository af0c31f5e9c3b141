"""Rows staged and published as one of a publisher's tasks does it, without Spark around it."""

from __future__ import annotations

import pyarrow as pa

from partq_spark.log.destinations import Stage, StagedSegment, stage_of
from partq_spark.log.publish import PublishResult, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.staging import Stager
from partq_spark.log.writers import PublishIdentity


def staged(
    queue: QueueLog, stage: Stage, rows: pa.Table, *, seed: str = "bench", batch_rows: int | None = None
) -> StagedSegment:
    """All `rows` as one segment, handed over in batches of `batch_rows` (None: as they lie)."""
    with Stager(queue.store, stage, seed=seed) as stager:
        for batch in rows.to_batches(max_chunksize=batch_rows):
            stager.add(batch)
        segment = stager.finish()
    if segment is None:
        raise RuntimeError(f"no message was staged for {queue}")
    return segment


def publish_rows(
    queue: QueueLog, rows: pa.Table, *, seed: str = "bench", identity: PublishIdentity | None = None
) -> PublishResult:
    """One publish of all `rows`, with a segment of its own."""
    stage = stage_of(queue.refresh())
    return publish(queue, [staged(queue, stage, rows, seed=seed)], identity)
