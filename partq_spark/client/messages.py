"""A message as programs see it, and browsing: messages are read where they lie, and nothing is taken, marked or held
back. What Python makes of the values of a typed queue's rows stands at the end, and their JSON, in the forms that
`partq publish` reads (`parsing`); both are pure.
"""

from __future__ import annotations

import base64
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as is_

from partq_spark.base.effects import as_datetime, format_rfc3339, unix_us
from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.client import arguments
from partq_spark.log import tree
from partq_spark.log.model import Head
from partq_spark.log.partitioner import partition_of
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.forms import keys_of
from partq_spark.log.segment import HEADERS_NAME, TIMES_NAME

MOST_SEARCHED: Final = 20_000
"""Messages in which one search looks for a key: the next one goes on from there."""
_AT_ONCE: Final = 1000
_NO_NUMBERS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

_Conversion = Callable[[Any], Any]


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


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a search found, newest first. `before`: below these offsets, by partition, nothing was looked at yet: give
    them to the next search. None: that was all. `looked_at`: how many messages were.
    """

    messages: tuple[Message, ...]
    before: Mapping[int, int] | None
    looked_at: int


def browse(queue: QueueLog, partition: int | None, start: int, limit: int | None) -> Iterator[Message]:
    """At most `limit` messages from the offset `start` of the partition, or of each, in publish order; one slice of the
    log is in memory at a time.
    """
    head = queue.refresh()
    if start < 0 or (limit is not None and limit < 1):
        raise Invalid(f"start={start}, limit={limit} is not allowed: give an offset from 0, and at least 1 message")
    numbers = _numbers(queue, head, partition)
    wanted = {number: (max(start, head.earliest[number]), head.next[number]) for number in numbers}
    left = limit
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted)).pieces():
        part = piece if left is None else piece._replace(batch=piece.batch.slice(0, left))
        yield from messages_of(part, queue.name, head.columns, {})
        if left is not None:
            left -= part.batch.num_rows
            if left == 0:
                return


def _numbers(queue: QueueLog, head: Head, partition: int | None) -> Sequence[int]:
    if partition is not None and not 0 <= partition < len(head.next):
        raise Invalid(f"{queue} has partitions 0 to {len(head.next) - 1}, there is no {partition}: name one of them")
    return range(len(head.next)) if partition is None else [partition]


def search(
    queue: QueueLog,
    key: str | None,
    partition: int | None,
    before: datetime | str | Mapping[int, int] | None,
    limit: int,
) -> Found:
    """At most `limit` messages, newest first, of all or of a key, which are looked for in the partitions that it had;
    one slice of the log and what was found is in memory at a time.
    """
    head = queue.refresh()
    if limit < 1:
        raise Invalid(f"limit={limit} is not allowed: give at least 1 message")
    try:
        in_utf8 = None if key is None else key.encode()
    except UnicodeEncodeError:
        raise Invalid(f"the key {str(key)[:40]!a} is no UTF-8, so no message has it: give another one") from None
    numbers = _numbers(queue, head, partition)
    if in_utf8 is not None and partition is None:  # the present one first: what lies there is newer
        numbers = [partition_of(in_utf8, each.partitions) for each in reversed(head.layouts)]
    places = dict(before) if isinstance(before, Mapping) else {}
    if before is not None and not isinstance(before, Mapping):
        places = dict(enumerate(queue.offsets_at(arguments.time_us(before))))
    ends = {number: min(places.get(number, head.next[number]), head.next[number]) for number in numbers}
    found: list[Message] = []
    looked_at = 0
    while len(found) < limit and looked_at < MOST_SEARCHED:
        spans = _last(queue, ends, limit) if key is None else _last_of_one(head, ends)
        if not spans:
            break
        matches, kept = 0, deque[Message](maxlen=limit - len(found))
        for piece in RangeReader(queue, head.queue_id, tree.view(head, spans)).pieces():
            for match in _matches(piece, key, head):
                matches += match.batch.num_rows
                kept.extend(messages_of(match, queue.name, head.columns, {}))
        found += reversed(kept)
        looked_at += sum(end - start for start, end in spans.values())
        ends |= {number: start for number, (start, _) in spans.items()}
        if matches > len(kept):  # only of a key, so of one partition
            ends[kept[0].partition] = kept[0].offset
    left = any(end > head.earliest[number] for number, end in ends.items())
    return Found(messages=tuple(found), before=ends if left else None, looked_at=looked_at)


def _last(queue: QueueLog, ends: Mapping[int, int], limit: int) -> dict[int, tuple[int, int]]:
    """Where the last `limit` messages below `ends` lie, by partition, as the log says; nothing of them is read."""

    def look(head: Head) -> dict[int, tuple[int, int]]:
        wanted = {number: (max(head.earliest[number], end - limit), end) for number, end in ends.items()}
        spans: dict[int, tuple[int, int]] = {}
        left = limit
        for entry in reversed(list(tree.walk(tree.view(head, wanted), queue.load_chunk))):
            for piece in reversed(entry.slices):
                first, last = wanted[piece.partition]
                start, end = max(piece.offset, first), min(piece.end, last)
                if (rows := min(end - start, left)) > 0:
                    spans[piece.partition] = (end - rows, spans.get(piece.partition, (0, end))[1])
                    left -= rows
        return spans

    return queue.settled(look)


def _last_of_one(head: Head, ends: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The last messages below `ends` of the first partition that has any."""
    for number, end in ends.items():
        if end > head.earliest[number]:
            return {number: (max(head.earliest[number], end - _AT_ONCE), end)}
    return {}


def _matches(piece: Piece, key: str | None, head: Head) -> Iterator[Piece]:
    """The piece, or its messages of a key, each alone."""
    if key is None:
        yield piece
        return
    keys = keys_of(piece.batch, head.columns)
    for row in pc.indices_nonzero(pc.equal(keys, pa.scalar(key, keys.type))).to_pylist():
        times = piece.times_us()
        yield piece._replace(offset=piece.offset + row, time_us=times[row], batch=piece.batch.slice(row, 1))


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
        values = batch.column("value").to_pylist() if columns is None else _mappings(batch, _payload(piece))
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
    return [name for name in piece.batch.schema.names if name not in (HEADERS_NAME, TIMES_NAME)]


def _header(header: Mapping[str, Any] | None) -> Header:
    return Header(None, None) if header is None else Header(header["key"], header["value"])


# --- the values of rows -----------------------------------------------------------------------------------------------


def _mappings(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """A mapping of these columns for each row: what Arrow makes of the values, but for a MAP, which is a dict.

    A MAP whose keys a dict cannot hold, or could take for one another (FLOAT, DOUBLE, and what is nested), is a list of
    pairs.
    """
    if not names:
        return ({} for _ in range(batch.num_rows))
    columns = [_values(batch.column(name)) for name in names]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _values(column: pa.Array) -> list[Any]:
    change = _change(column.type)
    values: list[Any] = column.to_pylist()
    return values if change is None else [None if value is None else change(value) for value in values]


def _change(kind: pa.DataType) -> _Conversion | None:
    """What has to be done with Arrow's values of a type; None: nothing."""
    if is_.is_map(kind):
        return _map(kind)
    if is_.is_struct(kind):
        inner = [(field.name, change) for field in kind if (change := _change(field.type)) is not None]
        return (
            (lambda value: value | {name: _changed(change, value[name]) for name, change in inner}) if inner else None
        )
    if is_.is_list(kind):
        element = _change(kind.value_type)
        return None if element is None else lambda value: [_changed(element, each) for each in value]
    return None


def _map(kind: pa.MapType) -> _Conversion:
    key, item = _change(kind.key_type), _change(kind.item_type)
    made: Callable[[Any], Any] = list if is_.is_nested(kind.key_type) or is_.is_floating(kind.key_type) else dict
    return lambda value: made((_changed(key, name), _changed(item, each)) for name, each in value)


def _changed(change: _Conversion | None, value: Any) -> Any:
    return value if change is None or value is None else change(value)


# --- the same as JSON -------------------------------------------------------------------------------------------------


def row_text(row: Mapping[str, Any]) -> str:
    """A row as one line of JSON."""
    return json.dumps(json_of(row), ensure_ascii=False)


def json_of(value: Any) -> Any:
    """A value as JSON says it, so that `partq publish` reads it as what it is: NaN and infinity as strings, DECIMAL in
    all its digits as a string, BINARY in base64, DATE and times in ISO 8601 (a TIMESTAMP in UTC), a MAP as an object
    whose names are the keys, or as a list of pairs where Python has one.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {_name(name): json_of(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_of(each) for each in value]
    return _scalar(value)


def _scalar(value: Any) -> float | str:
    """What JSON has no form for, but for finite numbers."""
    match value:
        case float():
            return value if math.isfinite(value) else _NO_NUMBERS[str(value)]
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case datetime() if value.tzinfo is not None:
            return format_rfc3339(unix_us(value))
        case datetime():
            return value.isoformat(timespec="microseconds")
        case _:
            return str(value.isoformat())  # a date


def _name(key: Any) -> str:
    """A key of a MAP as the name of a member."""
    found = json_of(key)
    return found if isinstance(found, str) else json.dumps(found)
