"""From the bytes of a slice to a record batch of those of its columns that are wanted: what is not wanted is neither
decompressed nor copied. Nothing here knows a store or a queue, and nothing is checked but that it is Arrow at all.
"""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa


def decoded(data: memoryview, schema: pa.Schema, only: Collection[str] | None) -> pa.RecordBatch:
    """The record batch whose columns are those of `schema`; with `only`, those of them that are named there, in their
    order (perhaps none: a batch knows its number of rows all the same).

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
