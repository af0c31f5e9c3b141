"""A consumer in plain Python: a flow of its group like any other, or reading without a group.

It drives the loop that stands behind a streaming query (`query.consumer`, with the threads of
`query.consumer_process`), as an application that acknowledges by itself. The rules: a batch is acknowledged by asking
for the next one, or by a call; no way of leaving acknowledges what was not handled; what was given out and is neither
acknowledged nor released stays this flow's until its partition moves on.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self

import pyarrow as pa

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import now_ns
from partq_spark.client.message_spans import BatchTrace, ReceiveSpans
from partq_spark.client.messages import Message, messages_of
from partq_spark.group.claims import Position
from partq_spark.group.heartbeat import Liveness
from partq_spark.log import tree
from partq_spark.log.connect import QueueAddress
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import schema_of
from partq_spark.query import columns as source_columns
from partq_spark.query import offsets, planning
from partq_spark.query.consumer_process import ConsumerProcess
from partq_spark.query.joining import beat_interval_s, open_consumer
from partq_spark.query.offsets import BatchSpan
from partq_spark.query.schema import STORED, WantedColumns, default_columns, named_columns
from partq_spark.query.settings import Boundary, GroupOptions, SourceOptions
from partq_spark.query.typed_columns import TypedColumns, default_typed_columns, named_typed_columns
from partq_spark.query.waiting import StoreRetry

_Wanted = WantedColumns | TypedColumns
_Read = Callable[["_Wanted | None"], Iterator[Piece]]
"""Reads the messages of a batch, with what they have of the columns that are wanted, or all of it."""

_SLICE_S: Final = 0.1  # of a wait, between two looks at whether to stop
_log = logging.getLogger("partq.client")


def options_of(
    target: QueueAddress,
    group: str,
    *,
    flow: str | None,
    ownership: str,
    acknowledge: Literal["next", "manual"],
    start: Boundary,
    max_messages: int,
    max_bytes: int,
    max_poll_interval_s: float | None,
    session_timeout_s: float,
) -> SourceOptions:
    """What a query would be told by its options. Names and `ownership` are checked already. Raises `Invalid` for a
    number out of its range.
    """
    if max_messages < 1 or max_bytes < 1 or session_timeout_s < 5:
        raise Invalid(
            f"max_messages={max_messages}, max_bytes={max_bytes}, session_timeout_s={session_timeout_s} is not "
            "allowed: give at least 1, 1 and 5"
        )
    return SourceOptions(
        target=target,
        group=GroupOptions(
            name=group,
            ownership=ownership,
            keep_offsets=True,
            flow=flow,
            checkpoint_interval_s=None,
            session_timeout_s=session_timeout_s,
            max_poll_interval_s=max_poll_interval_s,
            manual_acks=True,
        ),
        start=start,
        end=Boundary(edge="latest"),
        max_messages=max_messages,
        max_bytes=max_bytes,
        max_delivered_unacked=None if acknowledge == "next" else 10_000,
        fail_on_data_loss=True,
        include_headers=True,
        poll_interval_s=None,
    )


class _Stopped(Exception):
    """`stop` was called while something waited."""


class Batch:
    """Messages that were given out together: iterate over them, or take them as a table (`__arrow_c_stream__`, so that
    pyarrow, polars, pandas and duckdb read it), with the columns of the Spark source, or those that the consumer was
    asked for. Iterating gives whole messages; where these columns do not make any, they are read again.
    """

    def __init__(
        self,
        process: ConsumerProcess,
        name: str,
        queue: str,
        spans: Mapping[int, BatchSpan],
        columns: Columns | None,
        wanted: _Wanted | None,
        read: _Read,
    ) -> None:
        """`columns`: of a typed queue as the consumer saw them first. `wanted`: None for whole messages; `read` reads
        them again.
        """
        self._process = process
        self._name = name
        self._queue = queue
        self._columns = columns
        self.pieces: Sequence[Piece] = ()
        """The messages as the log keeps them, with what of them is wanted."""
        self._wanted = wanted
        self._read = read
        self._below = {partition: span.redelivered_below for partition, span in spans.items()}
        self._ends = {partition: Position(span.epoch, span.to) for partition, span in spans.items()}
        self.is_settled = False
        """Acknowledged as a whole, or released."""
        self.trace: BatchTrace | None = None
        """Where it stands in a trace; None: tracing is off."""

    def __len__(self) -> int:
        return sum(piece.batch.num_rows for piece in self.pieces)

    def __iter__(self) -> Iterator[Message]:
        wanted = self._wanted
        is_whole = wanted is None or (self._columns is None and set(STORED) <= set(wanted.stored))
        for piece in self.pieces if is_whole else self._read(None):
            yield from messages_of(piece, self._queue, self._columns, self._below)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        wanted = self._wanted or _wanted(self._columns, None)
        return _stream(self.pieces, self._queue, self._below, wanted).__arrow_c_stream__(requested_schema)

    def acknowledge(self, message: Message | None = None) -> frozenset[int]:
        """All of it is dealt with; or of one partition everything up to this message. What came before it in the same
        partitions, in earlier batches, is too. Returns the partitions that have moved on since, for which that does not
        count: their messages come again elsewhere.

        Raises `Invalid` for a message of another batch, `Fenced` if another took the whole group over
        (`ownership="none"`), `Unavailable` if a store does not answer: repeating it is harmless.
        """
        due = self._ends
        if message is not None:
            end = self._ends.get(message.partition)
            if end is None or message.offset >= end.offset:
                raise Invalid(
                    f"offset {message.offset} of partition {message.partition} is not in this batch: acknowledge a "
                    "message by the batch that it came in"
                )
            due = {message.partition: Position(end.epoch, message.offset + 1)}
        with nullcontext() if self.trace is None else self.trace.acknowledging():
            still = self._process.acknowledge(self._name, due)
        self.is_settled = self.is_settled or message is None
        return frozenset(due.keys() - still)

    def release(self) -> None:
        """What of it is not acknowledged comes again, marked: with the next batches, here or elsewhere."""
        self.is_settled = True
        self._process.release(self._name, self._ends)


class Consumer:
    """Use as a context manager, and iterate over it, or `poll`. Made by `Queue.consumer`."""

    def __init__(
        self,
        options: SourceOptions,
        head: Head,
        *,
        acknowledge: Literal["next", "manual"],
        columns: Sequence[str] | None,
        idle_timeout_s: float | None,
    ) -> None:
        """Nothing is joined yet. `head` is the queue's; of a typed queue the consumer keeps the columns that it has
        there. Raises `Invalid` for a column that there is not.
        """
        if acknowledge not in ("next", "manual"):
            raise Invalid(f"acknowledge={acknowledge!r} is not allowed: give 'next' or 'manual'")
        self._options = options
        self._names = columns
        self._load(head)
        self._by_next = acknowledge == "next"
        name = None if options.group is None else options.group.name
        self._spans = ReceiveSpans.of(options.target.namespace, options.target.queue, name)
        self._idle_timeout_s = idle_timeout_s
        self._pid = os.getpid()
        self._at: dict[str, Any] = dict(offsets.INITIAL)
        self._last: Batch | None = None
        self._process: ConsumerProcess | None = None
        self._stopping = self._closed = False
        self._polling = 0  # the thread that waits for a batch
        self._former: Any = None  # what SIGTERM did before
        self._effects = Effects(sleep=self._sleep)
        self._store_retry = StoreRetry(options.target.retry_timeout_s, self._effects, f"queue {options.target.queue!r}")

    def _load(self, head: Head) -> None:
        """Which columns this queue's batches have from now on."""
        self._queue_id = head.queue_id
        self._columns = head.columns
        self._wanted = None if self._names is None else _wanted(head.columns, self._names)

    # --- batches ------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch; None after `timeout_s` without one (None: no end), and once `stop` was called. With
        `acknowledge="next"` this acknowledges the last one.

        Raises `Fenced` if another took the group over (`ownership="none"`), `Invalid` if another live process has the
        flow's name, `Unavailable` if a store does not answer for `retry_timeout_s`.
        """
        self._require_usable()
        last = self._last
        if last is not None and self._by_next and not last.is_settled:
            self._store_retry.call(last.acknowledge)
        self._last = None  # not before: a caller that asks again after an error acknowledges it then
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._polling = threading.get_ident()
        try:
            while not self._stopping:
                batch = self._look()
                if batch is not None:
                    self._last = batch
                    return batch
                if until_s is not None and time.monotonic() >= until_s:
                    return None
        except _Stopped:
            pass
        finally:
            self._polling = 0
        return None

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self.poll(self._idle_timeout_s)
        if batch is None:
            raise StopIteration
        return batch

    def stop(self) -> None:
        """End the loop after the batch that is being handled; asking for the next one acknowledges it first. May be
        called by any thread, and by a signal handler.
        """
        self._stopping = True

    # --- coming and going ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and give up what was not acknowledged: it comes again, marked. Bounded; may be repeated."""
        self._stopping = self._closed = True
        if self._former is not None and threading.current_thread() is threading.main_thread():
            if signal.getsignal(signal.SIGTERM) == self._end_in_good_order:
                signal.signal(signal.SIGTERM, self._former)
            self._former = None
        if self._process is not None and os.getpid() == self._pid:
            self._process.stop()

    def __enter__(self) -> Self:
        self._require_usable()
        if threading.current_thread() is threading.main_thread():
            former = signal.getsignal(signal.SIGTERM)
            if former is signal.SIG_DFL:  # else somebody has a better use for it
                self._former = signal.signal(signal.SIGTERM, self._end_in_good_order)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end_in_good_order(self, _signal: int, _frame: FrameType | None) -> None:
        self.stop()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _look(self) -> Batch | None:
        """One look, up to the poll interval. Only what a batch gives out moves the position."""
        process = self._beside()
        since_ns = now_ns()
        with process.asked() as consumer:
            end = consumer.next_end(self._at)
        if end == self._at:
            return None
        with process.asked() as consumer:
            found = consumer.batch(self._at, end, partial(self._planned, consumer.queue), None)
            name = consumer.acknowledgements.given_out.process
        self._at = end
        if found is None:
            return None
        queue, head, log, spans = found
        read = partial(_pieces, queue, head.queue_id, log, self._options.fail_on_data_loss, self._columns)
        batch = Batch(process, name, queue.name, spans, self._columns, self._wanted, read)
        try:
            batch.pieces = tuple(read(self._wanted))
        except BaseException:
            batch.release()  # nobody has it, and what is acknowledged later must not skip it
            raise
        if self._spans is not None:
            batch.trace = self._spans.received(batch.pieces, since_ns)
        return batch

    def _planned(
        self, queue: QueueLog, head: Head, spans: Mapping[int, BatchSpan]
    ) -> tuple[QueueLog, Head, tree.LogView, Mapping[int, BatchSpan]]:
        if head.queue_id != self._queue_id:  # made again since, and before the first batch
            self._load(head)
        own = queue.another()  # the threads beside look at the other
        log = planning.log_view(head, spans, fail_on_data_loss=self._options.fail_on_data_loss, warn=_log.warning)
        return own, head, log, spans

    def _beside(self) -> ConsumerProcess:
        if self._process is None:
            self._process = ConsumerProcess(
                lambda wait: open_consumer(self._options, self._effects, wait=wait),
                liveness=Liveness(parent=None, main_thread=threading.current_thread()),
                mailbox=False,
                beat_s=beat_interval_s(self._options.group, self._options.target.store),
            )
        return self._process

    def _sleep(self, duration_s: float) -> None:
        """What waits for a store, or for a coordinator's first answer, ends when the loop is to end."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._stopping and self._polling == threading.get_ident():
                raise _Stopped
            time.sleep(min(left_s, _SLICE_S))

    def _require_usable(self) -> None:
        if os.getpid() != self._pid:
            raise Invalid("this consumer belongs to the process that made it, and this is its fork: make another one")
        if self._closed:
            raise Invalid("the consumer is closed: what was not acknowledged comes again; make another one")


# --- reading without a group ------------------------------------------------------------------------------------------


def read(queue: QueueLog, starting: Boundary, ending: Boundary, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """The messages between two places, as a stream of Arrow batches that is read on demand. Raises `Invalid`."""
    head = queue.refresh()
    wanted = _wanted(head.columns, columns)
    spans = planning.between(head, starting, ending, ("starting", "ending"), queue.offsets_at)
    log = planning.log_view(head, spans, fail_on_data_loss=True, warn=_log.warning)
    return _stream(_pieces(queue, head.queue_id, log, True, head.columns, wanted), queue.name, {}, wanted)


def _wanted(columns: Columns | None, names: Sequence[str] | None) -> _Wanted:
    """The columns of a table, by their names; None: all but headers. `columns` are those of a typed queue. Raises
    `Invalid`.
    """
    if columns is None:
        return default_columns(False) if names is None else named_columns(names)
    return default_typed_columns(columns, False) if names is None else named_typed_columns(columns, names)


def _pieces(
    queue: QueueLog,
    queue_id: str,
    log: tree.LogView,
    fail_on_data_loss: bool,
    columns: Columns | None,
    wanted: _Wanted | None,
) -> Iterator[Piece]:
    """What the log has of the columns that are wanted; None: all of it."""
    payload = None if columns is None else schema_of(columns) if wanted is None else wanted.payload
    only = None if wanted is None else wanted.stored
    return RangeReader(queue, queue_id, log, fail_on_data_loss=fail_on_data_loss, payload=payload, only=only).pieces()


def _stream(
    pieces: Iterator[Piece] | Sequence[Piece], queue: str, below: Mapping[int, int], wanted: _Wanted
) -> pa.RecordBatchReader:
    batches = source_columns.batches(iter(pieces), queue=queue, wanted=wanted, redelivered_below=below)
    return pa.RecordBatchReader.from_batches(source_columns.batch_schema(wanted), batches)
