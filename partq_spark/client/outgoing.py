"""Messages that were sent one by one become one publish, and each learns where it lies. No threads, no waiting: those
are in `publisher`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from operator import call
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyarrow import types as is_

from partq_spark.base.effects import new_token
from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import SEND, Span, SpanSubject, Tracing, is_trace_header, of_headers
from partq_spark.client.arguments import shown
from partq_spark.client.rows import RefusedValue, RowTaker, batch_of
from partq_spark.log import destinations, fanout
from partq_spark.log.admin import shared_namespace
from partq_spark.log.destinations import FanPlan, Outdated, StagedSegment
from partq_spark.log.fanout import MOST_CHANGES
from partq_spark.log.model import MAX_KEY_BYTES, key_too_long
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.publish import PublishResult, publish
from partq_spark.log.queue import NamespaceAddress, QueueLog
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.forms import keys_of
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment import HEADERS_NAME, segment_schema
from partq_spark.log.writers import PublishIdentity

MESSAGE_BYTES = 500  # that a message takes in memory beside its key, value and headers
OBJECT_BYTES = 64  # that each value of a row takes beside its own bytes
_NESTED: Final = (list, tuple, dict)

R = TypeVar("R")

Headers = tuple[tuple[str, "bytes | None"], ...]
GivenHeaders = Mapping[str, "bytes | None"] | Iterable[tuple[str, "bytes | None"]]


class Published(NamedTuple):
    """Where a message lies, durable. None: it had a topic, and went to the queues that attract it; or its publish id
    had been published before, and nothing was added; or it was trimmed before that could be found out.
    """

    partition: int | None
    offset: int | None


NOWHERE = Published(None, None)


class Result(Future[R]):
    """A Future that remembers whether somebody has read its failure."""

    def __init__(self) -> None:
        super().__init__()
        self.was_read = False

    def result(self, timeout: float | None = None) -> R:
        self.exception(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found = super().exception(timeout)  # who waits in vain has read nothing
        self.was_read = True
        return found


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message on its way, checked: the values of a row with these columns; of an untyped queue, key and value. `size`
    counts for the limit of a message, in bytes; `more` is what it takes in memory beside that.
    """

    values: tuple[Any, ...]
    columns: Columns | None
    size: int
    more: int = 0
    headers: Headers = ()
    topic: str | None = None
    sent_s: float = field(default_factory=time.monotonic)
    future: Result[Published] = field(default_factory=Result)

    @property
    def memory(self) -> int:
        """What it takes, in bytes."""
        return self.size + self.more + MESSAGE_BYTES

    def take_headers(self, given: GivenHeaders, limit: int) -> None:
        """Raises `Invalid` for what are none, and if the message is larger than `limit` bytes with them."""
        self.headers, size = _headers(given)
        self.size += size
        if self.size > limit:
            which = "the message" if self.columns is not None else f"the message with key {self.values[0]!r}"
            raise Invalid(
                f"{which} has {self.size} bytes, the queue takes {limit}: keep large payloads elsewhere and publish "
                "their address, or raise the limit (max_message_bytes)"
            )


def take_value(queue: QueueLog, value: object, key: object) -> Outgoing:
    """For an untyped queue. Raises `Invalid` for what is no value or no key."""
    data = value if type(value) is bytes else _data(queue, value)
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
    return Outgoing((key, data), None, key_bytes + len(data))


class TakenRows:
    """Takes rows for a typed queue, by its columns as they were when it was looked at last. A row that these do not
    take may be one for columns that were added or widened since: then the queue is looked at again.
    """

    def __init__(self, queue: QueueLog, queue_id: str, columns: Columns) -> None:
        """`queue` is a handle of its own, for any thread that sends."""
        self._queue = queue
        self._queue_id = queue_id
        self._lock = threading.RLock()  # a signal's handler may send, too
        self._load(columns)

    def _load(self, columns: Columns) -> None:
        taker = RowTaker(columns)
        nested = [at for at, field in enumerate(taker.schema) if is_.is_nested(field.type)]
        self._loaded = taker, [size_of(field.type) for field in taker.schema], nested

    def __call__(self, row: object, key: object) -> Outgoing:
        """Raises `Invalid` for what is no row of the queue's; `Unavailable` as looking does."""
        taker, sizes, nested = self._loaded
        columns = taker.columns
        if not isinstance(row, Mapping):
            raise Invalid(
                f"{self._queue} is typed, a message is a mapping of its columns ({columns.ddl[:200]}), not "
                f"{type(row).__name__}"
            )
        if key is not None:
            which = "its messages have none" if columns.key is None else f"it is the column {columns.key!r} of the row"
            raise Invalid(f"{self._queue} is typed, and a key cannot be given beside a row: {which}")
        try:
            values = taker.take(row)
        except RefusedValue:
            self._look_again()
            taker, sizes, nested = self._loaded
            try:
                values = taker.take(row)
            except RefusedValue as error:
                raise Invalid(f"{self._queue} does not take this row: {error}") from None
        size = sum(map(call, sizes, values))
        objects = len(values) + sum([_objects_of(values[at]) for at in nested])
        return Outgoing(values, taker.columns, size, OBJECT_BYTES * objects)

    def _look_again(self) -> None:
        with self._lock:
            head = self._queue.refresh()
            columns = head.columns if head.queue_id == self._queue_id else None  # made again: publishing says so
            if columns is not None and columns != self._loaded[0].columns:
                self._load(columns)


# --- how large what is sent is ----------------------------------------------------------------------------------------


def size_of(kind: pa.DataType) -> Callable[[Any], int]:
    """The bytes of a value of this type: those that `log.schema.forms` finds."""
    if is_.is_string(kind):
        return lambda value: 0 if value is None else len(value.encode())
    if is_.is_binary(kind):
        return lambda value: 0 if value is None else len(value)
    if is_.is_struct(kind):
        inner = [(field.name, size_of(field.type)) for field in kind]
        return lambda value: sum(size(None if value is None else value[name]) for name, size in inner)
    if is_.is_map(kind):
        key, item = size_of(kind.key_type), size_of(kind.item_type)
        return lambda value: sum(key(name) + item(each) for name, each in value or ())
    if is_.is_list(kind):
        element = size_of(kind.value_type)
        return lambda value: sum(map(element, value or ()))
    width = kind.bit_width // 8
    return lambda _: width


def _objects_of(value: Any) -> int:
    """How many Python objects it is, about."""
    if isinstance(value, _NESTED):
        return 1 + sum(map(_objects_of, value.values() if isinstance(value, dict) else value))
    return 1


# --- keys, values and headers -----------------------------------------------------------------------------------------


def _data(queue: QueueLog, value: object) -> bytes:
    """A value as it is published. Raises `Invalid`."""
    try:
        found = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError:
        raise Invalid(f"the value {shown(value)} is no UTF-8: encode it, for example with 'surrogateescape'") from None
    try:
        return bytes(_buffer(found))
    except (TypeError, ValueError):  # or a memoryview that was released
        if isinstance(value, Mapping):
            said = f"{queue} is untyped, a message is bytes or text: encode the mapping, for example as JSON"
            raise Invalid(said) from None
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


# --- in traces --------------------------------------------------------------------------------------------------------


def begin_span(tracing: Tracing, where: SpanSubject, message: Outgoing, limit: int) -> None:
    """A message is sent, in its sender's thread: a span until it is durable or has failed. It gets the headers that
    name its span, unless it has such headers already, whose span the new one links to; or the queue would not take it
    with them.
    """
    given = any(is_trace_header(name) for name, _ in message.headers)
    context = of_headers(message.headers) if given else None
    span = tracing.begin(SEND, where, links=() if context is None else (context,))
    if not given:
        headers = span.headers()
        size = sum(len(name) + len(value) for name, value in headers)
        if message.size + size <= limit:
            message.headers = (*message.headers, *headers)
            message.size += size
    message.future.add_done_callback(partial(_sent, span))


def _sent(span: Span, future: Future[Published]) -> None:
    if future.cancelled():
        span.end()
        return
    error = Future.exception(future)  # not the publisher's own, which would note that the sender has read it
    if error is None:
        partition, offset = Future.result(future)
        if partition is not None and offset is not None:
            span.lies(partition, offset)
    span.end(error)


# --- published together -----------------------------------------------------------------------------------------------


def publish_together(
    where: NamespaceAddress, queue: QueueLog, messages: Sequence[Outgoing], publish_id: str | None
) -> list[Published]:
    """Publish the messages in order, all at once; where each lies. Raises as `log.fanout.publish_all`, and `Invalid` if
    the queue was deleted and created again since `queue` knew it.
    """
    queue_id = queue.head.queue_id
    seed = publish_id or new_token()
    identity = None if publish_id is None else PublishIdentity.of_publish_id(publish_id)
    known = (each.columns for each in messages if each.columns is not None)
    columns = max(known, key=lambda each: each.version, default=None)
    batch = _batch(messages, columns)

    def staged(plan: FanPlan, topics: pa.Array | None = None) -> list[StagedSegment]:
        if any(each.named and each.queue_id != queue_id for each in plan.destinations):
            queue.require(queue_id)  # which refuses: they were sent to the former one (RES-05)
        given = None if columns is None else schema_of(columns)
        headers = HEADERS_NAME in batch.schema.names
        with fanout.Fan(queue.store, plan, seed=f"{seed}/0/0", headers=headers, given=given) as fan:
            fan.add(batch, topics)
            return fan.finish()[0]

    if any(each.topic is not None for each in messages):
        plan = destinations.plan_topics(shared_namespace(where).queues(), queue)
        tasks = [staged(plan, pa.array([each.topic for each in messages], pa.string()))]
        others: dict[str, QueueLog] = {queue.name: queue}
        fanout.publish_all(lambda name: others.setdefault(name, queue.another(name)), tasks, identity, seed=f"{seed}/0")
        return [NOWHERE] * len(messages)
    changes = 0
    while True:
        (segment,) = staged(destinations.plan_queue(queue))
        try:
            done = publish(queue, [segment], identity)
        except Outdated:  # the partition count has changed meanwhile: they are still in memory
            changes += 1
            if changes > MOST_CHANGES:
                raise
        else:
            stage = segment.stage
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


def _batch(messages: Sequence[Outgoing], columns: Columns | None) -> pa.RecordBatch:
    """The messages with the columns of a segment. `columns`: the newest that some of the rows have; others, sent before
    a column was added, have null there: a queue gets its new columns behind those that it has.
    """
    with_headers = any(each.headers for each in messages)
    schema = segment_schema(columns, headers=with_headers)
    width = len(schema) - with_headers
    rows = []
    for each in messages:
        headers = [{"key": name, "value": value} for name, value in each.headers] or None
        rows.append((*each.values, *(None,) * (width - len(each.values)), headers))
    return batch_of(schema, rows)
