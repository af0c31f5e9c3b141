"""Segments: one Arrow IPC file per task, its rows clustered by partition in publish order, one record batch per slice.
Which columns it has, how it is written, and how a slice of it is read.

A slice is the bytes of exactly one record batch message, so a reader gets it with one ranged read and needs nothing
else of the file; the whole file opens in any Arrow tool. The file format, not the stream format: a stream that is cut
at a message boundary reads as a shorter stream without an error.

An untyped queue's messages are `key` and `value`. A typed queue's are the columns of the version that they were staged
for, under their own names, so that any Arrow tool reads a segment (TYP-07). partq's own, for headers and times, begin
with `_`, which no column of a queue does. The key is not stored twice.

What typed queues alone need is imported where it is used, here, in `reading` and in `fanout`: it would cost each of
Spark's workers 6 ms for untyped ones too.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, suppress
from functools import lru_cache
from types import TracebackType
from typing import Final, Self

import pyarrow as pa
import xxhash

from partq_spark.base.errors import Conflict, Corrupt
from partq_spark.log.model import Entry, Slice
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.forms import check_batch
from partq_spark.log.schema.types import TIMESTAMP
from partq_spark.objects.api import ObjectStore, ObjectWriter

HEADERS: Final = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))

PLAIN: Final = pa.schema([pa.field("key", pa.string()), pa.field("value", pa.binary(), nullable=False)])

HEADERS_NAME: Final = "_headers"
TIMES_NAME: Final = "_timestamp"


def payload_schema(columns: Columns | None, version: int | None = None) -> pa.Schema:
    """The messages' own columns in a queue with these (None: untyped), in a version of them, by default the present
    one. Raises `Corrupt` for a version that it does not have.
    """
    if columns is None:
        return PLAIN
    from partq_spark.log.schema.versions import schema_of

    return schema_of(columns, version)


@lru_cache(maxsize=64)
def segment_schema(
    columns: Columns | None = None, version: int | None = None, *, headers: bool = False, times: bool = False
) -> pa.Schema:
    """All columns of a segment. `headers`: there is a column of headers; `times`: of times of publishing, because it
    was compacted from several publishes. Raises as `payload_schema`.
    """
    schema = payload_schema(columns, version)
    if headers:
        schema = schema.append(pa.field(HEADERS_NAME, HEADERS))
    if times:
        schema = schema.append(pa.field(TIMES_NAME, TIMESTAMP, nullable=False))
    return schema


def schema_of_entry(entry: Entry, columns: Columns | None) -> pa.Schema:
    """Of an entry's segments; `columns` are the queue's. Raises `Corrupt` if they do not belong together."""
    if (entry.schema_version is None) != (columns is None):
        kind = "a typed" if columns is None else "an untyped"
        raise Corrupt(
            f"entry {entry.sequence} of the log is of {kind} queue, the head is not: restore both from a backup"
        )
    return segment_schema(columns, entry.schema_version, headers=entry.headers, times=entry.times)


# --- writing ----------------------------------------------------------------------------------------------------------

_TOGETHER_BYTES = 64 * 1024  # of a segment, passed to the store at once; what is larger is not copied


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


def decoded(data: memoryview, schema: pa.Schema, only: Collection[str] | None) -> pa.RecordBatch:
    """The record batch whose columns are those of `schema`; with `only`, those of them that are named there, in their
    order (perhaps none: a batch knows its number of rows all the same). What is not wanted is neither decompressed nor
    copied, and nothing is checked but that it is Arrow at all.

    What is not compressed stays where it is, in `data`. Raises what Arrow raises, and `EOFError`.
    """
    if only is None:
        return pa.ipc.read_record_batch(pa.py_buffer(data), schema)
    wanted = [index for index, name in enumerate(schema.names) if name in only]
    if wanted == list(range(len(wanted))):  # the first ones: with a shorter schema Arrow looks no further
        return pa.ipc.read_record_batch(pa.py_buffer(data), pa.schema([schema.field(index) for index in wanted]))
    # Only readers of streams and files can leave columns out. This costs 0.015 ms; to join the two parts would copy.
    stream = pa.PythonFile(_Parts(memoryview(schema.serialize()), data), mode="r")
    try:
        return pa.ipc.open_stream(stream, options=pa.ipc.IpcReadOptions(included_fields=wanted)).read_next_batch()
    except StopIteration:
        raise EOFError("the end of a stream in place of a record batch") from None


class _Parts:
    """What Arrow reads a stream from: the schema's message, then that of the slice, handed over where they lie. A read
    beyond the end of a part gets less than it asks for, which Arrow refuses: no message goes beyond it.
    """

    closed = False

    def __init__(self, schema: memoryview, data: memoryview) -> None:
        self._left = [data, schema]  # the next one last

    def read(self, size: int) -> memoryview:
        part = self._left.pop()
        if size < len(part) or not self._left:
            self._left.append(part[size:])
        return part[:size]

    def close(self) -> None:
        """Arrow calls it; nothing is open."""
