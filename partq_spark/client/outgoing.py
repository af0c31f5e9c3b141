"""Messages that were sent one by one become one publish, and each learns where it lies. No threads, no waiting: those
are in `publisher`.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pyarrow as pa

from partq_spark.base.errors import Invalid, PartqError
from partq_spark.log import destinations, fanout, tree
from partq_spark.log.connect import NamespaceAddress, shared_namespace
from partq_spark.log.model import MAX_KEY_BYTES
from partq_spark.log.names import new_id
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.publish import PublishIdentity, PublishResult
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.segment_columns import HEADERS, segment_schema

MESSAGE_BYTES = 500  # that a message takes in memory beside its key, value and headers

Headers = tuple[tuple[str, "bytes | None"], ...]


class Published(NamedTuple):
    """Where a message lies, durable. None: it had a topic, and went to the queues that attract it; or its publish id
    had been published before, and nothing was added; or it was trimmed before that could be found out.
    """

    partition: int | None
    offset: int | None


NOWHERE = Published(None, None)


@dataclass(kw_only=True, slots=True, eq=False)
class Outgoing:
    """A message on its way. `size` is what it takes in memory, in bytes."""

    key: str | None
    value: bytes
    headers: Headers
    topic: str | None
    size: int
    sent_s: float = field(default_factory=time.monotonic)
    future: Future[Published]

    @classmethod
    def checked(
        cls,
        future: Future[Published],
        value: bytes | str,
        *,
        key: str | None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]],
        topic: str | None,
        limit: int,
    ) -> Self:
        """Raises `Invalid` for what is no message, or larger than `limit` bytes."""
        data = value.encode() if isinstance(value, str) else value
        if not isinstance(data, bytes | bytearray | memoryview):
            raise Invalid(f"a value is bytes or text, not {type(value).__name__}: encode it")
        if key is not None and not isinstance(key, str):
            raise Invalid(f"a key is text or None, not {type(key).__name__}: turn it into text")
        key_bytes = 0
        if key is not None:
            try:
                key_bytes = len(key.encode())
            except UnicodeEncodeError:
                raise Invalid(f"the key {key[:40]!a} is no UTF-8: encode it, for example with hex()") from None
        if key_bytes > MAX_KEY_BYTES:
            raise Invalid(
                f"the key {key!r:.42}… has {key_bytes} bytes in UTF-8, at most {MAX_KEY_BYTES} are allowed: shorten it "
                "or hash it"
            )
        pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers)
        size = key_bytes + len(data) + sum(len(name.encode()) + len(found or b"") for name, found in pairs)
        if size > limit:
            raise Invalid(
                f"the message with key {key!r} has {size} bytes, the queue takes {limit}: keep large payloads "
                "elsewhere and publish their address, or raise the limit (max_message_bytes)"
            )
        return cls(key=key, value=bytes(data), headers=pairs, topic=topic, size=size + MESSAGE_BYTES, future=future)


def publish_together(
    where: NamespaceAddress, queue: QueueLog, messages: Sequence[Outgoing], publish_id: str | None
) -> list[Published]:
    """Publish the messages in order, all at once; where each lies. Raises as `log.fanout.publish_all`."""
    seed = publish_id or new_id()
    identity = None if publish_id is None else PublishIdentity.of_publish_id(publish_id)
    by_topic = any(each.topic is not None for each in messages)
    if by_topic:
        plan = destinations.plan_topics(where.namespace, shared_namespace(where).queues(), queue)
    else:
        plan = destinations.plan_queue(queue)
    batch = _batch(messages)
    with fanout.Fan(queue.store, plan, seed=f"{seed}/0/0", headers="headers" in batch.schema.names) as fan:
        fan.add(batch, pa.array([each.topic for each in messages], pa.string()) if by_topic else None)
        staged, _ = fan.finish()
    others: dict[str, QueueLog] = {queue.name: queue}

    def opened(name: str) -> QueueLog:
        return others.setdefault(name, queue.another(name))

    outcomes = fanout.publish_all(opened, [staged], identity, seed=f"{seed}/0")
    if by_topic:
        return [NOWHERE] * len(messages)
    (done,) = [each.published for each in outcomes]
    if done is None or done.duplicate or not done.begin:
        return [NOWHERE] * len(messages)
    stage = plan.destinations[0].stage
    if done.generation != stage.generation:  # the partition count has changed meanwhile: they were placed again
        return _found(queue, stage.queue_id, done, messages)
    keys = batch.column("key").cast(pa.binary())
    following = dict(done.begin)
    places = []
    for partition in partitions_of(keys, stage.partitions, f"{seed}/0/0", 0).to_pylist():
        places.append(Published(partition, following[partition]))
        following[partition] += 1
    return places


def _batch(messages: Sequence[Outgoing]) -> pa.RecordBatch:
    columns: list[Any] = [
        pa.array([each.key for each in messages], pa.string()),
        pa.array([each.value for each in messages], pa.binary()),
    ]
    headers = any(each.headers for each in messages)
    if headers:
        rows = [[{"key": name, "value": found} for name, found in each.headers] or None for each in messages]
        columns.append(pa.array(rows, HEADERS))
    return pa.RecordBatch.from_arrays(columns, schema=segment_schema(headers))


def _found(queue: QueueLog, queue_id: str, done: PublishResult, messages: Sequence[Outgoing]) -> list[Published]:
    """Where the messages lie, by what is published: those that are alike lie in the order of sending."""
    wanted = {partition: (begin, begin + _rows(done, partition)) for partition, begin in done.begin.items()}
    places: dict[object, deque[Published]] = defaultdict(deque)
    try:
        for piece in RangeReader(queue, queue_id, tree.view(queue.require(queue_id), wanted)).pieces():
            batch = piece.batch
            keys, values = (batch.column(name).to_pylist() for name in ("key", "value"))
            rows = [None] * batch.num_rows if piece.headers is None else piece.headers.to_pylist()
            for index, (key, value, headers) in enumerate(zip(keys, values, rows, strict=True)):
                pairs = tuple((each["key"], each["value"]) for each in headers or ())
                places[key, value, pairs].append(Published(piece.partition, piece.offset + index))
    except PartqError:  # trimmed already, perhaps: they are published, whatever can be read of them
        return [NOWHERE] * len(messages)
    return [places[each.key, each.value, each.headers].popleft() for each in messages]


def _rows(done: PublishResult, partition: int) -> int:
    return done.per_partition.get(partition, 0)
