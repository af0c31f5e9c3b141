"""Segments: one Arrow IPC file per task, its rows clustered by partition in publish order, one record batch per slice.

A slice is the bytes of exactly one record batch message, so a reader gets it with one ranged read and needs nothing
else of the file; the whole file opens in any Arrow tool. The file format, not the stream format: a stream that is cut
at a message boundary reads as a shorter stream without an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from partq_spark.base.errors import BadRow, Conflict, Corrupt
from partq_spark.log import names
from partq_spark.log.model import MAX_KEY_BYTES, Slice, too_long
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.schema.forms import check_batch, first_not_utf8, keys_of, row_bytes
from partq_spark.log.segment_columns import HEADERS_NAME, decoded, segment_schema
from partq_spark.log.staged import Stage, StagedSegment
from partq_spark.objects.api import ObjectStore, ObjectWriter

RUN_BYTES = 64 * 1024 * 1024  # messages held in memory before they are clustered and written: bounds a task's memory

_TOGETHER_BYTES = 64 * 1024  # of a segment, passed to the store at once; what is larger is not copied


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


def _codec(compression: str) -> pa.Codec | None:
    """lz4 takes larger steps through what does not compress: 20 to 40 % less time, 1 to 7 % more bytes (decision
    0013).
    """
    if compression == "none":
        return None
    if compression != "lz4":
        return pa.Codec(compression)
    try:
        return pa.Codec("lz4", compression_level=-2)  # lz4's own meaning of levels below 0; any reader takes it
    except ValueError:
        return pa.Codec("lz4")  # should a later PyArrow refuse such levels


# --- staging ----------------------------------------------------------------------------------------------------------


class Stager:
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
        self._exit = ExitStack()
        self._segment: SegmentWriter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit.__exit__(kind, error, trace)

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
        self._exit.close()
        return StagedSegment(
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
            self._segment = self._exit.enter_context(
                SegmentWriter(self._store, folder + self._name, self._schema, self._compression)
            )
        for partition, rows in self._run.clustered():
            self._segment.write(partition, rows)
        self._run = _Run(self._stage.partitions)


class SegmentWriter:
    """Writes one segment object, slice by slice. Leaving it makes it durable; by an exception, leaves no object.

    `slices` are those written so far, `position` the bytes.
    """

    def __init__(self, store: ObjectStore, path: str, schema: pa.Schema, compression: str = "lz4") -> None:
        self._store = store
        self._path = path
        self._schema = schema
        # Without Arrow's threads: the other cores have tasks of their own, and small slices are written three times as
        # fast.
        self._options = pa.ipc.IpcWriteOptions(compression=_codec(compression), use_threads=False)
        self._exit = ExitStack()
        self.slices: list[Slice] = []

    def __enter__(self) -> Self:
        self._file = _HashingFile(self._exit.enter_context(self._store.writer(self._path)), self._schema)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._file, mode="w"), self._schema, options=self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._exit.callback(self._file.flush)  # before the store's writer ends
            self._exit.callback(self._writer.close)  # before that
        try:
            self._exit.__exit__(kind, error, trace)
        except Conflict:
            if not self._is_there():
                raise

    def _is_there(self) -> bool:
        """Whether what has the name was written here: a request that the network sends twice meets its own success."""
        found = (self._store.read(self._path, start=each.start, length=each.length) for each in self.slices)
        with suppress(Corrupt):  # it is another one, or gone again
            return [each.xxh3 for each in self.slices] == [*map(xxhash.xxh3_64_hexdigest, found)]
        return False

    @property
    def position(self) -> int:
        """Bytes written."""
        return self._file.position

    def write(self, partition: int, rows: pa.RecordBatch) -> Slice:
        """One slice, its messages numbered from 0. `rows` has exactly the columns of the schema."""
        start = self._file.begin_slice()
        self._writer.write_batch(rows)
        length = self._file.position - start
        piece = Slice(partition, 0, start, length, 0, rows.num_rows, self._file.slice_checksum())
        self.slices.append(piece)
        return piece


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
            yield partition, pieces[0] if len(pieces) == 1 else pa.concat_batches(pieces)

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
            batch = pc.take(batch, order, boundscheck=False)  # they lie within it
        start = 0
        for partition, end in zip(present, runs.run_ends.to_pylist(), strict=True):
            self._pieces.setdefault(partition, []).append(batch.slice(start, end - start))
            start = end
        self._block, self._rows_in_block = [], 0


class _HashingFile:
    """What Arrow writes into: passes on to the store, and knows position and checksum of the slice being written.

    Arrow writes each column's buffers one by one, of a small slice hundreds of a few bytes: they are passed on
    together. It writes the file's beginning (magic, padding to 8 bytes, schema) with the first batch; that belongs to
    no slice.
    """

    def __init__(self, target: ObjectWriter, schema: pa.Schema) -> None:
        self._target = target
        self._first_batch: int = 8 + schema.serialize().size
        self._hash = xxhash.xxh3_64()
        self._waiting: list[memoryview] = []
        self._waiting_bytes = 0
        self._passed_on = 0
        self.closed = False

    @property
    def position(self) -> int:
        return self._passed_on + self._waiting_bytes

    def write(self, data: pa.Buffer | bytes) -> int:
        view = memoryview(data).cast("B")
        if self._waiting_bytes + len(view) > _TOGETHER_BYTES:
            self.flush()
        if len(view) > _TOGETHER_BYTES:
            self._pass_on(view)
        else:
            self._waiting.append(view)
            self._waiting_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Pass on what waits; durability comes when the store's writer ends."""
        if self._waiting:
            together = memoryview(b"".join(self._waiting))
            self._waiting, self._waiting_bytes = [], 0
            self._pass_on(together)

    def begin_slice(self) -> int:
        self._hash.reset()
        return max(self.position, self._first_batch)

    def slice_checksum(self) -> str:
        self.flush()
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self.position

    def close(self) -> None:
        self.closed = True

    def _pass_on(self, view: memoryview) -> None:
        self._target.write(view)
        self._hash.update(view[max(self._first_batch - self._passed_on, 0) :])
        self._passed_on += len(view)


# --- reading ----------------------------------------------------------------------------------------------------------


def read_slice(
    store: ObjectStore,
    name: str,
    piece: Slice,
    schema: pa.Schema,
    *,
    only: Collection[str] | None = None,
    thoroughly: bool = False,
) -> pa.RecordBatch:
    """The messages of one slice of the segment object `name`, which has these columns; with `only` those of them that
    are named there, in the segment's order. Its bytes are read whole, and their checksum compared, either way.

    Raises `ObjectMissing` if the segment is gone, `Corrupt` if the bytes are not those that were published, or no Arrow
    that partq could have written; `thoroughly` as in `check_batch`.
    """
    data = store.read(name, start=piece.start, length=piece.length)
    found = xxhash.xxh3_64_hexdigest(data)
    if found != piece.xxh3:
        raise Corrupt(
            f"segment {name} is damaged in bytes {piece.start} to {piece.start + piece.length} (partition "
            f"{piece.partition}, offsets {piece.offset} to {piece.end}): checksum {found}, published with "
            f"{piece.xxh3}; restore the object from a backup"
        )
    try:
        batch = decoded(data, schema, only)
        check_batch(batch, thoroughly=thoroughly)
    except (pa.ArrowException, OSError, EOFError, MemoryError) as error:
        raise Corrupt(
            f"segment {name} has the right checksum in bytes {piece.start} to {piece.start + piece.length} (partition "
            f"{piece.partition}, offsets {piece.offset} to {piece.end}), but no Arrow that partq wrote ({error}): "
            "restore the object from a backup"
        ) from None
    if batch.num_rows != piece.rows:
        raise Corrupt(
            f"segment {name} has {batch.num_rows} messages at byte {piece.start}, the log says {piece.rows}: restore "
            "the object from a backup"
        )
    return batch


def times_us(times: pa.Array) -> list[int]:
    """A column of times of publishing as Unix time in microseconds."""
    return times.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
