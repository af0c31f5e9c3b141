"""Staging: a task's messages become one segment, in bounded memory. A row that cannot be published is refused here.
And staging again what was staged for another layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import BadRow, ObjectMissing
from partq_spark.log import names
from partq_spark.log.destinations import Stage, StagedSegment, check_floor
from partq_spark.log.model import MAX_KEY_BYTES, too_long
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.forms import first_not_utf8, keys_of, row_bytes
from partq_spark.log.segment import HEADERS_NAME, SegmentWriter, read_slice, segment_schema
from partq_spark.objects.api import ObjectStore

RUN_BYTES = 64 * 1024 * 1024  # messages held in memory before they are clustered and written: bounds a task's memory
# For what a run copies. Arrow's own pool gives its memory back after each run, and the kernel clears it for the next
# one, which was half of the kernel's time in a task; the C library keeps it.
_POOL = pa.system_memory_pool()


class Stager(ExitStack[None]):
    """Takes one task's messages and stages them as one segment, in memory of about two runs however many they are.

    `seed` names writer, batch and task: it decides where messages without a key go (DIS-03). Use as a context manager;
    leaving it by an exception leaves no object.
    """

    def __init__(
        self,
        store: ObjectStore,
        stage: Stage,
        *,
        seed: str,
        headers: bool = False,
        compression: str = "lz4",
        run_bytes: int = RUN_BYTES,
    ) -> None:
        super().__init__()
        self._store = store
        self._stage = stage
        self._seed = seed
        self._headers = headers
        self._schema = segment_schema(stage.columns, headers=headers)
        self._compression = compression
        self._run_bytes = run_bytes
        self._rows = 0
        self._run = _Run(stage.partitions)
        self._name = names.new_segment(stage.sequence)
        self._segment: SegmentWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Take messages in publish order. `batch` has exactly the columns of the segment (`segment_schema`), and
        its values were looked at: that there is one (`check_values`), or in a typed queue each (`schema.conform`).

        Raises `BadRow` for a message that cannot be published.
        """
        if batch.num_rows == 0:
            return
        keys = keys_of(batch, self._stage.columns)
        check_keys(keys)
        if self._headers:
            check_headers(batch.column(HEADERS_NAME))
        size = batch.nbytes
        if size > self._stage.max_message_bytes:  # else no single message can be larger
            self._check_sizes(batch)
        placed = partitions_of(keys.cast(pa.binary()), self._stage.partitions, self._seed, self._rows)
        self._run.add(batch, placed, size)
        self._rows += batch.num_rows
        if self._run.bytes >= self._run_bytes:
            self._flush()

    def finish(self) -> StagedSegment | None:
        """Make the segment durable; None if there was no message. Raises `Unavailable` if the store does not take
        it.
        """
        self._flush()
        if self._segment is None:
            return None
        self.close()
        return StagedSegment(
            stage=self._stage,
            name=self._name,
            headers=self._headers,
            slices=tuple(self._segment.slices),
            bytes=self._segment.position,
        )

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        sizes, limit = row_bytes(batch), self._stage.max_message_bytes
        largest = pc.max(sizes).as_py()
        if largest > limit:
            what = "key, value and headers" if self._stage.columns is None else "in all its columns"
            said = (
                f" has {largest} bytes ({what}), queue {self._stage.queue!r} takes {limit}: store large payloads "
                "elsewhere and publish their address, or raise the limit with "
                f"`partq queue alter {self._stage.queue} --max-message-bytes N`"
            )
            raise BadRow.of(pc.index(sizes, largest).as_py(), said, "the message of ")

    def _flush(self) -> None:
        if not self._run.bytes:
            return
        if self._segment is None:
            folder = names.segment_folder(self._stage.namespace, self._stage.queue, self._stage.queue_id)
            self._segment = self.enter_context(
                SegmentWriter(self._store, folder + self._name, self._schema, self._compression)
            )
        for partition, rows in self._run.clustered():
            self._segment.write(partition, rows)
        self._run = _Run(self._stage.partitions)


class _Run:
    """Messages held in memory, sorted by partition a block at a time: a block fits the processor's caches, a run does
    not, and gathering scattered rows from main memory takes four times as long.
    """

    def __init__(self, partitions: int) -> None:
        # Not less than 256 rows for each partition, or the pieces become too many and too small.
        self._block_rows = max(8_192, 256 * partitions)
        self._block: list[tuple[pa.RecordBatch, pa.Array]] = []
        self._rows_in_block = 0
        self._pieces: dict[int, list[pa.RecordBatch]] = {}
        self.bytes = 0

    def add(self, batch: pa.RecordBatch, partitions: pa.Array, size: int) -> None:
        """`size`: the batch's bytes, which take a microsecond for each column to count."""
        self._block.append((batch, partitions))
        self._rows_in_block += batch.num_rows
        self.bytes += size
        if self._rows_in_block >= self._block_rows:
            self._sort_block()

    def clustered(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """One batch per partition, partitions rising, the order of rows kept within each."""
        self._sort_block()
        for partition in sorted(self._pieces):
            pieces = self._pieces.pop(partition)
            yield partition, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces, memory_pool=_POOL)

    def _sort_block(self) -> None:
        if not self._block:
            return
        batches, numbers = zip(*self._block, strict=True)
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        partitions = numbers[0] if len(numbers) == 1 else pa.concat_arrays(numbers)
        order = pc.array_sort_indices(partitions)  # stable
        runs = pc.run_end_encode(partitions.take(order))
        present = runs.values.to_pylist()
        if len(present) > 1:
            batch = pc.take(batch, order, boundscheck=False, memory_pool=_POOL)  # they lie within it
        start = 0
        for partition, end in zip(present, runs.run_ends.to_pylist(), strict=True):
            self._pieces.setdefault(partition, []).append(batch.slice(start, end - start))
            start = end
        self._block, self._rows_in_block = [], 0


# --- what is refused --------------------------------------------------------------------------------------------------


def check_values(values: pa.Array) -> None:
    """Raises `BadRow` if one of `values` is null."""
    if values.null_count:
        said = (
            " has no value: every message needs one (an empty value is allowed, null is not; CSV cannot tell them "
            "apart, use JSON lines or Parquet)"
        )
        raise BadRow.of(pc.index(pc.is_null(values), True).as_py(), said)


def check_keys(keys: pa.Array) -> None:
    """Raises `BadRow` if one of `keys` (text) is not UTF-8, or longer than 255 bytes (DIS-04)."""
    bad = first_not_utf8(keys)
    if bad is not None:
        begins = repr(keys[bad].as_buffer().to_pybytes()[:40])
        raise BadRow.of(bad, f" is not valid UTF-8 ({begins}): encode it, for example with hex()", "the key of ")
    key_bytes = pc.binary_length(keys)
    longest = pc.max(key_bytes).as_py() or 0
    if longest > MAX_KEY_BYTES:
        index = pc.index(key_bytes, longest).as_py()
        begins = f"it begins with {keys[index].as_py()[:40]!r}"
        raise BadRow.of(index, f" {too_long(longest)}; {begins}", "the key of ")


def check_headers(headers: pa.Array) -> None:
    """Raises `BadRow` if the key of a header is not UTF-8."""
    bad = first_not_utf8(headers)
    if bad is not None:
        said = (
            " has a key that is not valid UTF-8: encode it, for example with hex(), or put the bytes into the header's"
            " value"
        )
        raise BadRow.of(bad, said, "a header of ")


# --- staged again -----------------------------------------------------------------------------------------------------

# Where messages lie for a partition count that the queue no longer has, or some tasks saw other columns than the rest.
# They are durable already: they are read back, slice by slice, and staged for the present layout, with the present
# columns of a typed queue. Nothing is deleted: what is left over is for collection.


def restaged(queue: QueueLog, task: StagedSegment, present: Stage, *, seed: str, compression: str) -> StagedSegment:
    """The messages of `task` as one new segment for `present`, the order of each key kept, in memory of two runs.

    Raises `Outdated` if collection has passed the staged segment, `Corrupt` if it is damaged.
    """
    # What was taken once is not refused for a limit that was lowered since.
    stage = replace(present, max_message_bytes=max(present.max_message_bytes, task.stage.max_message_bytes))
    schema = segment_schema(present.columns, headers=task.headers)
    with Stager(queue.store, stage, seed=seed, headers=task.headers, compression=compression) as stager:
        # A key lies in one partition, and its slices are in publish order: so reading them one by one keeps it.
        for batch in staged_batches(queue, [task], schema):
            stager.add(batch)
        made = stager.finish()
    return made if made is not None else replace(task, stage=stage, slices=(), bytes=0)


def staged_batches(queue: QueueLog, tasks: Sequence[StagedSegment], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The messages of tasks as they staged them, slice by slice, with the columns of `schema`, of which none is
    narrower.

    Raises `Outdated` if collection has passed a staged segment, `Corrupt` if it is damaged.
    """
    from partq_spark.log.schema.conform import widened

    for task in tasks:
        stage = task.stage
        name = names.segment_folder(stage.namespace, stage.queue, stage.queue_id) + task.name
        own = segment_schema(stage.columns, headers=task.headers)
        for piece in task.slices:
            try:
                yield widened(read_slice(queue.store, name, piece, own, thoroughly=True), schema)
            except ObjectMissing:
                check_floor(stage, queue.require(stage.queue_id))
                raise
