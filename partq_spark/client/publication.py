"""One publish in the making: messages are staged piece by piece, however many they are, then become visible at once.

Where they go is decided when it begins: to one queue, or to every queue that attracts a topic, all or nothing for each.
Nothing is published before `commit`, and nothing stays behind where that is not reached.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from os import PathLike, fspath
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from partq_spark.base.effects import RETRY_TIMEOUT_S, as_datetime, new_token
from partq_spark.base.errors import BadRow, Invalid, WrongUse
from partq_spark.base.tracing import SEND_BATCH, SpanSubject, around
from partq_spark.client.arguments import address, checked, checked_publish_id
from partq_spark.log import destinations, writers
from partq_spark.log.admin import Namespace
from partq_spark.log.destinations import FanPlan, Stage, checked_topic
from partq_spark.log.fanout import Fan, QueueOutcome, publish_all
from partq_spark.log.names import checked_name
from partq_spark.log.publish import PublishResult
from partq_spark.log.queue import NamespaceAddress, QueueLog, open_queue, shared_store
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.forms import keys_of
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment import HEADERS, HEADERS_NAME
from partq_spark.log.settings import QueueConfig
from partq_spark.log.writers import PublishIdentity


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionMessages:
    """How many messages a partition got."""

    partition: int
    messages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuePublish:
    """How a publish ended for one queue. `already_published`: it had this publish id before, and nothing was added.

    `sequence` and `timestamp` are those of the publish; None if the queue was deleted meanwhile, and nothing went
    there.
    """

    queue: str
    published: bool
    already_published: bool
    messages: int
    partitions: tuple[PartitionMessages, ...]
    sequence: int | None
    timestamp: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishReport:
    """How a publish ended: `messages` were given, `without_key` of them went to random partitions, `unattracted` went
    nowhere, because no queue attracts the topic.
    """

    topic: str | None
    messages: int
    without_key: int
    unattracted: int
    queues: tuple[QueuePublish, ...]


@checked
class Publication:
    """Use as a context manager: `add` or `add_file`, then `commit`. Leaving it without `commit` publishes nothing.

    With a `publish_id` it is published at most once under this name, however often it is repeated: `is_done` says that
    nothing need be added, because all queues have it.
    """

    def __init__(
        self,
        where: NamespaceAddress,
        *,
        queue: str | None = None,
        topic: str | None = None,
        publish_id: str | None = None,
        fail_unattracted: bool = False,
    ) -> None:
        """Reads heads. Raises `Invalid` if there is no such queue, and with `fail_unattracted` if no queue attracts the
        topic.
        """
        if (queue is None) == (topic is None):
            raise WrongUse(
                "say where to: give either the queue's NAME or a topic (--topic), which says what queues get it"
            )
        if topic is None and fail_unattracted:
            raise WrongUse("fail_unattracted (--fail-unattracted) is for a topic (--topic): leave it out")
        self._where = where
        self._topic = topic
        self._publish_id = None if publish_id is None else checked_publish_id(publish_id)
        self._store = shared_store(where.store, where.retry_timeout_s)
        self._queues: Mapping[str, QueueLog]
        self._plan: FanPlan
        if topic is not None:
            namespace = Namespace(self._store, where.namespace, retry_timeout_s=where.retry_timeout_s)
            self._queues = {each.name: each for each in namespace.queues()}
            self._plan = destinations.plan_topic(self._queues.values(), checked_topic(topic))
            if fail_unattracted and not self._plan.destinations:
                raise Invalid(
                    f"no queue of namespace {where.namespace!r} attracts {topic}: nothing was published; let one with "
                    f"`partq queue subscribe NAME {topic}`"
                )
        else:
            opened = open_queue(where.target(checked_name("queue", queue or "")))
            self._queues = {opened.name: opened}
            self._plan = destinations.plan_queue(opened)
        self._identity, self._known = self._already()
        self._exit = ExitStack()
        self._fan: Fan | None = None
        self._headers = False
        self._messages = self._without_key = self._staged_batches = 0
        self._refused: BaseException | None = None
        self._pid = os.getpid()

    @property
    def is_done(self) -> bool:
        """Whether all queues have what was published under this id, so that nothing need be added."""
        return bool(self._known) and len(self._known) == len(self._plan.destinations)

    @property
    def max_message_bytes(self) -> int:
        """The least limit of the queues that get the messages: key, value and headers of one."""
        limits = [each.max_message_bytes for each in self._plan.destinations]
        return min(limits, default=QueueConfig().max_message_bytes)

    @property
    def ddl(self) -> str | None:
        """The columns that rows are given with, of a typed queue; None: messages are keys and values."""
        return None if self._columns is None else self._columns.ddl

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        left = error or Invalid("left before it was committed")  # so what was staged leaves no object
        self._exit.__exit__(type(left), left, trace)
        self._fan, self._refused = None, self._refused or left

    def add(self, table: Any) -> None:
        """Stage the messages of anything with `__arrow_c_stream__` (a table of pyarrow, polars, pandas, duckdb), in
        order: columns `value` (text or bytes), and if it has them `key` (text) and `headers`. For a typed queue its
        columns by name, in any order and form that loses nothing, and if it has them `_headers`; columns that may be
        null may be missing. Memory stays bounded.

        Raises `Invalid` for another column or type, and for a message that no queue takes, naming its row.
        """
        from partq_spark.client.tables import table_source

        parts, take = table_source(table, self._stage)
        with self._as_a_whole():
            for rows in parts:
                self._add(rows, take)

    def add_file(
        self,
        path: str | PathLike[str],
        *,
        key_column: str | None = None,
        whole_rows: bool = False,
        watch: Callable[[int, int, int | None], None] | None = None,
    ) -> tuple[str, str]:
        """Stage what is in a file: `.csv`, `.jsonl`, `.ndjson` or `.json` (each also with `.gz`), `.parquet`; `-` is
        JSON lines on standard input. Returns its name, and how its rows became messages, in words (or nothing).

        `key_column` is the column that holds the key, `whole_rows` makes each row the value, as a JSON object; both are
        refused for a typed queue, which takes its columns by name. `watch` is told how many messages were staged, and
        how much of the file was read, of how much (None: nobody knows). Raises `Invalid` that names file and line or
        row, and the column and value that do not fit.
        """
        from partq_spark.client.files import open_source

        most_bytes = self.max_message_bytes
        with (
            open_source(
                fspath(path),
                key_column=key_column,
                whole_rows=whole_rows,
                max_message_bytes=most_bytes,
                stage=self._stage,
            ) as source,
            self._as_a_whole(),
        ):
            for rows, place in source.parts:
                before = self._messages
                try:
                    self._add(rows, source.messages)
                except BadRow as bad:
                    raise bad.at(place(bad.row - before)) from None
                if watch is not None:
                    watch(self._messages, *source.file.progress())
        return source.file.name, source.meaning

    @contextmanager
    def _as_a_whole(self) -> Iterator[None]:
        """A guard: of what is refused a part may be staged already, in some of the queues. None of it is published."""
        before = self._staged_batches
        try:
            yield
        except BaseException as error:
            if self._staged_batches != before:
                self._refused = self._refused or error
            raise

    def _add(self, rows: Any, take: Callable[[Any], pa.RecordBatch]) -> None:
        """Stage what `take` makes of some rows: a batch with the columns of a segment (`log.segment`). Raises `BadRow`
        with the number of the row, counted from the first of all.
        """
        try:
            batch = take(rows)
        except BadRow as bad:
            raise bad.moved(self._messages + bad.row) from None
        fan = self._begin(headers=HEADERS_NAME in batch.schema.names)
        self._staged_batches += 1
        fan.add(self._alike(batch))
        self._messages += batch.num_rows
        self._without_key += keys_of(batch, self._columns).null_count

    def _alike(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With a column of headers, or without, as the first batch was."""
        if self._headers == (HEADERS_NAME in batch.schema.names):
            return batch
        if self._headers:
            return batch.append_column(pa.field(HEADERS_NAME, HEADERS), pa.nulls(batch.num_rows, HEADERS))
        if batch.column(HEADERS_NAME).null_count < batch.num_rows:
            given = "headers" if self._columns is None else HEADERS_NAME
            raise Invalid(
                f"some of the messages have headers and some do not: give the column {given!r} from the first on"
            )
        return batch.drop_columns([HEADERS_NAME])

    def commit(self) -> PublishReport:
        """Make all that was added visible, once: all or nothing for each queue. Raises as `log.fanout.publish_all`;
        under a publish id another publication of it all is harmless.
        """
        outcomes = self._known
        if not self.is_done:
            fan = self._begin(headers=False)
            self._refused = Invalid("it was committed before, and only the first commit can tell what became of it")
            segments = fan.finish()[0]
            self._exit.close()
            queue = next(iter(self._queues)) if self._topic is None else None
            with around(SEND_BATCH, SpanSubject(queue, self._where.namespace), messages=self._messages):
                outcomes = publish_all(
                    self._queues.__getitem__, [segments], self._identity, seed=f"{self._publish_id or new_token()}/0"
                )
        return PublishReport(
            topic=self._topic,
            messages=self._messages,
            without_key=self._without_key,
            unattracted=self._messages if self._topic is not None and not outcomes else 0,
            queues=tuple(_ended(each) for each in outcomes),
        )

    @property
    def _stage(self) -> Stage | None:
        """Of a queue that gets the messages; all of them have the same columns, or nothing is published."""
        return self._plan.destinations[0] if self._plan.destinations else None

    @property
    def _columns(self) -> Columns | None:
        """Of the rows that are given; None: keys and values."""
        return None if self._stage is None else self._stage.columns

    def _begin(self, *, headers: bool) -> Fan:
        """All segments of a publish have the same columns: the first that is added says whether there are headers.
        Raises `Invalid` after what was refused, and after a commit, even one that failed: nothing is staged any more.
        """
        if self._refused is not None or os.getpid() != self._pid:
            raise Invalid(f"this publication is over, make another publication: {self._refused or 'this is a fork'}")
        if self._fan is None:
            given = None if self._columns is None else schema_of(self._columns)
            seed = f"{self._publish_id or new_token()}/0/0"
            self._fan = self._exit.enter_context(Fan(self._store, self._plan, seed=seed, headers=headers, given=given))
            self._headers = headers
        return self._fan

    def _already(self) -> tuple[PublishIdentity | None, list[QueueOutcome]]:
        """The identity of this publish, and the queues that have this publish id already."""
        if self._publish_id is None:
            return None, []
        identity = PublishIdentity.of_publish_id(self._publish_id)
        known = []
        for destination in self._plan.destinations:
            queue = self._queues[destination.queue]
            earlier = queue.settled(lambda _: writers.last_batch(queue, identity.writer))  # noqa: B023 (called at once)
            if earlier is not None:
                done = PublishResult(sequence=earlier.sequence, time_us=earlier.time_us, duplicate=True)
                known.append(QueueOutcome(queue, done))
        return identity, known


@checked
def topic_publication(
    topic: str,
    *,
    publish_id: str | None = None,
    fail_unattracted: bool = False,
    store: str | None = None,
    namespace: str = "default",
    retry_timeout_s: float = RETRY_TIMEOUT_S,
) -> Publication:
    """One publish in the making to every queue that attracts `topic`. Raises `Invalid` for what is no topic, and with
    `fail_unattracted` if nobody attracts it.
    """
    where = address(store, namespace, retry_timeout_s)
    return Publication(where, topic=topic, publish_id=publish_id, fail_unattracted=fail_unattracted)


def _ended(outcome: QueueOutcome) -> QueuePublish:
    done = outcome.published
    per_partition = done.per_partition if done is not None else {}
    return QueuePublish(
        queue=outcome.queue.name,
        published=done is not None and not done.duplicate,
        already_published=done is not None and done.duplicate,
        messages=sum(per_partition.values()),
        partitions=tuple(PartitionMessages(partition=p, messages=rows) for p, rows in per_partition.items()),
        sequence=None if done is None else done.sequence,
        timestamp=None if done is None else as_datetime(done.time_us),
    )
