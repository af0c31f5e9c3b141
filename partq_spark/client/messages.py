"""A message as programs see it, and browsing: messages are read where they lie, and nothing is taken, marked or held
back. What Python makes of a row's values is decided in `values`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.timestamps import as_datetime
from partq_spark.client.values import rows_of
from partq_spark.log import tree
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.keys import keys_of
from partq_spark.log.segment_columns import headers_name, times_name


class Header(NamedTuple):
    """One header of a message; either may be null. Names are not unique."""

    key: str | None
    value: bytes | None


class Message(NamedTuple):
    """One message. `value` is bytes; of a typed queue a mapping of its columns, and `key` the text of its key column.

    `timestamp` is when it was published (UTC). `redelivered`: it may have been delivered before. `headers` is None
    where it was published without.
    """

    key: str | None
    value: Any
    queue: str
    partition: int
    offset: int
    timestamp: datetime
    redelivered: bool = False
    headers: tuple[Header, ...] | None = None


def browse(queue: QueueLog, partition: int | None, start: int, limit: int | None) -> Iterator[Message]:
    """At most `limit` messages from the offset `start` of the partition, or of each, in publish order; one slice of the
    log is in memory at a time.
    """
    head = queue.refresh()
    if partition is not None and not 0 <= partition < len(head.next):
        raise Invalid(f"{queue} has partitions 0 to {len(head.next) - 1}, there is no {partition}: name one of them")
    if start < 0 or (limit is not None and limit < 1):
        raise Invalid(f"start={start}, limit={limit} is not allowed: give an offset from 0, and at least 1 message")
    numbers = range(len(head.next)) if partition is None else [partition]
    wanted = {number: (max(start, head.earliest[number]), head.next[number]) for number in numbers}
    left = limit
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted)).pieces():
        part = piece if left is None else piece._replace(batch=piece.batch.slice(0, left))
        yield from messages_of(part, queue.name, head.columns, {})
        if left is not None:
            left -= part.batch.num_rows
            if left == 0:
                return


def messages_of(
    piece: Piece, queue: str, columns: Columns | None, redelivered_below: Mapping[int, int]
) -> Iterator[Message]:
    """The messages of a piece of the log. `columns` are those of a typed queue, of which the piece has some or all.
    `redelivered_below`: per partition, offsets under it are repeats.
    """
    batch = piece.batch
    headers: list[list[dict[str, Any] | None] | None] = [None] * batch.num_rows
    try:
        if piece.headers is not None:
            headers = piece.headers.to_pylist()
        keys = keys_of(batch, columns).to_pylist()
        values = batch.column("value").to_pylist() if columns is None else rows_of(batch, _payload(piece))
    except UnicodeDecodeError as error:
        offsets = f"offsets {piece.offset} to {piece.offset + batch.num_rows}"
        raise Corrupt(
            f"queue {queue!r}, partition {piece.partition}, {offsets}: a text, a key or the name of a header is not "
            f"UTF-8 ({error}), which this version never publishes: trim the queue beyond it (`partq queue trim`)"
        ) from None
    rows = zip(piece.times_us(), keys, values, headers, strict=True)
    below = redelivered_below.get(piece.partition, 0)
    for index, (time_us, key, value, row_headers) in enumerate(rows):
        offset = piece.offset + index
        yield Message(
            key,
            value,
            queue,
            piece.partition,
            offset,
            as_datetime(time_us),
            offset < below,
            None if row_headers is None else tuple(_header(each) for each in row_headers),
        )


def _payload(piece: Piece) -> list[str]:
    """The names of a typed queue's columns in a piece."""
    own = (headers_name(typed=True), times_name(typed=True))
    return [name for name in piece.batch.schema.names if name not in own]


def _header(header: Mapping[str, Any] | None) -> Header:
    return Header(None, None) if header is None else Header(header["key"], header["value"])
