"""Messages that were sent one by one become one publish, and each learns where it lies. No threads, no waiting: those
are in `publisher`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.client.arguments import shown
from partq_spark.client.rows import RefusedValue, RowTaker
from partq_spark.log import destinations, fanout
from partq_spark.log.connect import NamespaceAddress, shared_namespace
from partq_spark.log.destinations import FanPlan
from partq_spark.log.model import MAX_KEY_BYTES, key_too_long
from partq_spark.log.names import new_id
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.publish import Outdated, PublishIdentity, PublishResult, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.repetition import MOST_CHANGES
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.forms import keys_of
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment_columns import HEADERS, HEADERS_NAME, segment_schema
from partq_spark.log.staged import Staged

MESSAGE_BYTES = 500  # that a message takes in memory beside its key, value and headers
OBJECT_BYTES = 64  # that each value of a row takes beside its own bytes

Headers = tuple[tuple[str, "bytes | None"], ...]
GivenHeaders = Mapping[str, "bytes | None"] | Iterable[tuple[str, "bytes | None"]]


class Published(NamedTuple):
    """Where a message lies, durable. None: it had a topic, and went to the queues that attract it; or its publish id
    had been published before, and nothing was added; or it was trimmed before that could be found out.
    """

    partition: int | None
    offset: int | None


NOWHERE = Published(None, None)


@dataclass(kw_only=True, slots=True, eq=False)
class Outgoing:
    """A message on its way: key and value, or a row with these columns. `size` is what it takes in memory, in bytes;
    `room`: so many more bytes the queue would take.
    """

    values: tuple[Any, ...]
    columns: Columns | None = None
    headers: Headers
    topic: str | None
    size: int
    room: int
    sent_s: float = field(default_factory=time.monotonic)
    future: Future[Published]

    @classmethod
    def of_value(
        cls,
        future: Future[Published],
        value: bytes | str,
        *,
        key: str | None,
        headers: GivenHeaders,
        topic: str | None,
        limit: int,
    ) -> Self:
        """A key and a value. Raises `Invalid` for what is no message, or larger than `limit` bytes."""
        data = _data(value)
        if key is not None and not isinstance(key, str):
            raise Invalid(f"a key is text or None, not {type(key).__name__}: turn it into text")
        key_bytes = 0
        if key is not None:
            try:
                key_bytes = len(key.encode())
            except UnicodeEncodeError:
                raise Invalid(f"the key {key[:40]!a} is no UTF-8: encode it, for example with hex()") from None
        if key_bytes > MAX_KEY_BYTES:
            raise Invalid(key_too_long(f"{key!r:.42}…", key_bytes))
        pairs, header_bytes = _headers(headers)
        size = key_bytes + len(data) + header_bytes
        room = _room(f"the message with key {key!r}", size, limit)
        size += MESSAGE_BYTES
        return cls(values=(key, data), headers=pairs, topic=topic, size=size, room=room, future=future)

    @classmethod
    def of_row(
        cls,
        future: Future[Published],
        row: Mapping[str, Any],
        *,
        taker: RowTaker,
        headers: GivenHeaders,
        topic: str | None,
        limit: int,
    ) -> Self:
        """A row. Raises `rows.RefusedValue` for a value that its column does not take, `Invalid` for a row that is
        larger than `limit` bytes.
        """
        values = taker.take(row)
        pairs, header_bytes = _headers(headers)
        size = taker.size(values) + header_bytes
        room = _room("the message", size, limit)
        size += MESSAGE_BYTES + OBJECT_BYTES * taker.objects(values)
        columns = taker.columns
        return cls(values=values, columns=columns, headers=pairs, topic=topic, size=size, room=room, future=future)


class TakenRows:
    """Makes messages of the rows for a typed queue, by its columns as they were when it was looked at last. A row that
    these do not take may be one for columns that were added or widened since: then the queue is looked at again.
    """

    def __init__(self, queue: QueueLog, queue_id: str, columns: Columns) -> None:
        """`queue` is a handle of its own, for any thread that sends."""
        self._queue = queue
        self._queue_id = queue_id
        self._lock = threading.Lock()
        self._taker = RowTaker(columns)

    def message(
        self,
        future: Future[Published],
        row: object,
        *,
        key: str | None,
        headers: GivenHeaders,
        topic: str | None,
        limit: int,
    ) -> Outgoing:
        """Raises `Invalid` for what is no row of the queue's, or too large; `Unavailable` as looking does."""
        columns = self._taker.columns
        if not isinstance(row, Mapping):
            raise Invalid(
                f"{self._queue} is typed, a message is a mapping of its columns ({columns.ddl[:200]}), not "
                f"{type(row).__name__}"
            )
        if key is not None:
            which = "its messages have none" if columns.key is None else f"it is the column {columns.key!r} of the row"
            raise Invalid(f"{self._queue} is typed, and a key cannot be given beside a row: {which}")
        try:
            return Outgoing.of_row(future, row, taker=self._taker, headers=headers, topic=topic, limit=limit)
        except RefusedValue:
            taker = self._newer()
        try:
            return Outgoing.of_row(future, row, taker=taker, headers=headers, topic=topic, limit=limit)
        except RefusedValue as error:
            raise Invalid(f"{self._queue} does not take this row: {error}") from None

    def _newer(self) -> RowTaker:
        with self._lock:
            head = self._queue.refresh()
            columns = head.columns if head.queue_id == self._queue_id else None  # made again: publishing says so
            if columns is not None and columns != self._taker.columns:
                self._taker = RowTaker(columns)
            return self._taker


def _data(value: object) -> bytes:
    """A value as it is published. Raises `Invalid`."""
    try:
        found = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise Invalid(f"the value {shown(value)} is no UTF-8: encode it, for example with 'surrogateescape'") from None
    try:
        return bytes(_buffer(found))
    except (TypeError, ValueError):  # or a memoryview that was released
        raise Invalid(f"a value is bytes or text, not {type(value).__name__}: encode it") from None


def _headers(given: GivenHeaders) -> tuple[Headers, int]:
    """Headers, and how many bytes they have. Raises `Invalid` for what is none."""
    if isinstance(given, tuple) and not given:
        return (), 0
    pairs: list[tuple[str, bytes | None]] = []
    size = 0
    try:
        for name, value in given.items() if isinstance(given, Mapping) else _pairs(given):
            data = value if value is None or type(value) is bytes else bytes(_buffer(value))
            pairs.append((str.__str__(name), data))
            size += len(name.encode()) + len(data or b"")
    except (TypeError, ValueError):  # no pairs, no text and bytes, or no UTF-8
        raise Invalid(
            f"headers={shown(given)} is not allowed: give a mapping, or pairs, of names (text) and values (bytes or "
            "None)"
        ) from None
    return tuple(pairs), size


def _pairs(given: Iterable[Any]) -> Iterable[Any]:
    if isinstance(given, str | bytes | bytearray | memoryview):  # of which each part is one, too
        raise TypeError
    return given


def _buffer(value: object) -> bytes | bytearray | memoryview:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return value


def _room(what: str, size: int, limit: int) -> int:
    """How many bytes more there could be. Raises `Invalid` for too many."""
    if size > limit:
        raise Invalid(
            f"{what} has {size} bytes, the queue takes {limit}: keep large payloads elsewhere and publish their "
            "address, or raise the limit (max_message_bytes)"
        )
    return limit - size


def publish_together(
    where: NamespaceAddress, queue: QueueLog, messages: Sequence[Outgoing], publish_id: str | None
) -> list[Published]:
    """Publish the messages in order, all at once; where each lies. Raises as `log.fanout.publish_all`."""
    seed = publish_id or new_id()
    identity = None if publish_id is None else PublishIdentity.of_publish_id(publish_id)
    columns = max((each.columns for each in messages if each.columns is not None), key=_version, default=None)
    batch = _batch(messages, columns)

    def staged(plan: FanPlan, topics: pa.Array | None = None) -> list[Staged]:
        given = None if columns is None else schema_of(columns)
        headers = HEADERS_NAME in batch.schema.names
        with fanout.Fan(queue.store, plan, seed=f"{seed}/0/0", headers=headers, given=given) as fan:
            fan.add(batch, topics)
            return fan.finish()[0]

    if any(each.topic is not None for each in messages):
        plan = destinations.plan_topics(where.namespace, shared_namespace(where).queues(), queue)
        tasks = [staged(plan, pa.array([each.topic for each in messages], pa.string()))]
        others: dict[str, QueueLog] = {queue.name: queue}
        fanout.publish_all(lambda name: others.setdefault(name, queue.another(name)), tasks, identity, seed=f"{seed}/0")
        return [NOWHERE] * len(messages)
    changes = 0
    while True:
        ((stage, segment, _),) = staged(destinations.plan_queue(queue))
        try:
            done = publish(queue, stage, [segment], identity)
        except Outdated:  # the partition count has changed meanwhile: they are still in memory
            changes += 1
            if changes > MOST_CHANGES:
                raise
        else:
            return _places(done, keys_of(batch, stage.columns), stage.partitions, f"{seed}/0/0")


def _places(done: PublishResult, keys: pa.Array, partitions: int, seed: str) -> list[Published]:
    if done.duplicate or not done.begin:
        return [NOWHERE] * len(keys)
    following = dict(done.begin)
    places = []
    for partition in partitions_of(keys.cast(pa.binary()), partitions, seed, 0).to_pylist():
        places.append(Published(partition, following[partition]))
        following[partition] += 1
    return places


def _version(columns: Columns) -> int:
    return columns.version


def _batch(messages: Sequence[Outgoing], columns: Columns | None) -> pa.RecordBatch:
    """The messages with the columns of a segment. `columns`: the newest that some of the rows have; others, sent before
    a column was added, have null there: a queue gets its new columns behind those that it has.
    """
    with_headers = any(each.headers for each in messages)
    schema = segment_schema(columns, headers=with_headers)
    width = len(schema) - with_headers
    rows = [(*each.values, *(None,) * (width - len(each.values))) for each in messages]
    found = [pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), schema, strict=False)]
    if with_headers:
        headers = [[{"key": name, "value": value} for name, value in each.headers] or None for each in messages]
        found.append(pa.array(headers, HEADERS))
    return pa.RecordBatch.from_arrays(found, schema=schema)
