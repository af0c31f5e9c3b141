"""Messages as tables: which columns, and how slices of the log become them; reading without a group is no more. And a
batch: what its receiver sees of it, what the consumer remembers, and what becomes of it when the next is asked for.

    taken       The consumer has it from the queue, and nobody was given it yet: who asks next gets it, unmarked.
    given       Somebody asked for it. It is looked into once it was iterated over, measured, taken as a table or
                acknowledged in part; one that nobody looked into, and that nobody holds any more, was never received.
    settled     Acknowledged as a whole, or given back: it comes again, marked.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import (
    ACKNOWLEDGE,
    LOOKED_AT,
    PROCESS_RECEIVED,
    RECEIVE,
    SpanSubject,
    TraceContext,
    Tracing,
    chosen_links,
    of_headers,
)
from partq_spark.client.arguments import checked
from partq_spark.client.messages import Message, messages_of
from partq_spark.log import tree
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import schema_of
from partq_spark.query import columns as source_columns
from partq_spark.query import planning
from partq_spark.query.acknowledgements import RoundPosition
from partq_spark.query.columns import WantedColumns, default_columns, named_columns
from partq_spark.query.settings import STORED, Boundary

_log = logging.getLogger("partq.client")


def read(queue: QueueLog, starting: Boundary, ending: Boundary, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """The messages between two places, as a stream of Arrow batches that is read on demand. Raises `Invalid`."""
    head = queue.refresh()
    wanted = wanted_columns(head.columns, columns)
    spans = planning.between(head, starting, ending, ("starting", "ending"), queue.offsets_at)
    log = planning.log_view(head, spans, fail_on_data_loss=True, warn=_log.warning)
    return stream(pieces(queue, head.queue_id, log, True, head.columns, wanted), queue.name, {}, wanted)


def wanted_columns(columns: Columns | None, names: Sequence[str] | None) -> WantedColumns:
    """The columns of a table, by their names; None: all but headers. `columns` are those of a typed queue. Raises
    `Invalid`.
    """
    return default_columns(columns, False) if names is None else named_columns(columns, names)


def pieces(
    queue: QueueLog,
    queue_id: str,
    log: tree.LogView,
    fail_on_data_loss: bool,
    columns: Columns | None,
    wanted: WantedColumns | None,
) -> Iterator[Piece]:
    """What the log has of the columns that are wanted; None: all of it."""
    payload = None if columns is None else schema_of(columns) if wanted is None else wanted.payload
    only = None if wanted is None else wanted.stored
    return RangeReader(queue, queue_id, log, fail_on_data_loss=fail_on_data_loss, payload=payload, only=only).pieces()


def stream(
    found: Iterator[Piece] | Sequence[Piece], queue: str, below: Mapping[int, int], wanted: WantedColumns
) -> pa.RecordBatchReader:
    """As a table of these columns; `below`: of each partition before which offset messages are marked."""
    batches = source_columns.batches(iter(found), queue=queue, wanted=wanted, redelivered_below=below)
    return pa.RecordBatchReader.from_batches(wanted.schema, batches)


# --- in traces --------------------------------------------------------------------------------------------------------


class BatchTrace(NamedTuple):
    """Where a batch that was received stands in a trace. Its span links to messages of it."""

    tracing: Tracing
    where: SpanSubject
    messages: int
    received: TraceContext
    links: tuple[TraceContext, ...]

    @classmethod
    def begun(cls, tracing: Tracing, where: SpanSubject, pieces: Sequence[Piece], since_ns: int) -> BatchTrace:
        """A batch is given out, which was looked for since then (Unix)."""
        messages = sum(piece.batch.num_rows for piece in pieces)
        links = chosen_links(_contexts(pieces))
        span = tracing.begin(RECEIVE, where, messages=messages, links=links, at_ns=since_ns)
        span.end()
        return cls(tracing, where, messages, span.context, links)

    def processing(self) -> AbstractContextManager[None]:
        """Around what is done with it."""
        span = self.tracing.begin(
            PROCESS_RECEIVED, self.where, messages=self.messages, links=self.links, parent=self.received
        )
        return span.around()

    def acknowledging(self) -> AbstractContextManager[None]:
        """Around its acknowledgement, or that of a part of it."""
        return self.tracing.begin(ACKNOWLEDGE, self.where, parent=self.received).around()


def _contexts(pieces: Sequence[Piece]) -> Iterator[TraceContext | None]:
    """Of the first messages of a batch, as far as their headers were read."""
    left = LOOKED_AT
    for piece in pieces:
        headers = piece.headers
        if headers is not None:
            for row in headers.slice(0, left).to_pylist():
                pairs = [(each["key"], each["value"]) for each in row or () if each is not None]
                yield of_headers(pairs)
        left -= min(left, piece.batch.num_rows)


# --- batches ----------------------------------------------------------------------------------------------------------


class Fate(StrEnum):
    """What is to become of a batch that was given."""

    ACKNOWLEDGE = "acknowledge"  # its receiver asked on: it is handled
    GIVE_BACK = "give back"


@dataclass(slots=True, kw_only=True, eq=False)
class Delivery:
    """A batch as the consumer knows it. `process`: which gave it out; `end`: of the consumer's position; `ends`: of its
    partitions, with their rounds; `below`: before which offset messages are marked. `columns`: of a typed queue as the
    consumer saw them first. `wanted`: None for whole messages; `read` reads them again. `asker`: the loop that it was
    given to, None for `poll`.
    """

    process: str
    end: dict[str, Any]
    ends: Mapping[int, RoundPosition]
    queue: str
    below: Mapping[int, int]
    columns: Columns | None
    wanted: WantedColumns | None
    read: Callable[[WantedColumns | None], Iterator[Piece]]
    pieces: Sequence[Piece] | None = None  # not read yet
    trace: BatchTrace | None = None
    asker: object = None
    fate: Fate | None = None
    is_looked_into: bool = False
    is_dropped: bool = False  # nobody looked into it, and nobody can
    is_settled: bool = False


def fate_of(last: Delivery, asker: object, *, by_next: bool) -> Fate | None:
    """What asking says of the batch that was given last; None: nothing. `asker`: the loop that asks or begins, None for
    `poll`; `by_next`: whether asking acknowledges. What was said before stays.
    """
    if last.is_settled or last.fate is not None:
        return last.fate
    if last.is_dropped and not last.is_looked_into:  # else it was given once more, by another `Batch`
        return Fate.GIVE_BACK
    if not by_next:
        return None
    if last.asker is not asker:  # the former loop was left in its body
        return Fate.GIVE_BACK
    if asker is None and not last.is_looked_into:  # a poll that was abandoned returns it to nobody
        return Fate.GIVE_BACK
    return Fate.ACKNOWLEDGE


class Giver(Protocol):
    """What gave it, and carries out what becomes of it."""

    def acknowledge(self, delivery: Delivery, due: Mapping[int, RoundPosition]) -> frozenset[int]:
        """Those partitions of `due` for which it counts."""

    def release(self, delivery: Delivery) -> None:
        """It comes again."""

    def dropped(self, delivery: Delivery) -> None:
        """Nobody looked into it, and nobody holds it."""


@checked
class Batch:
    """Messages that were given out together: iterate over them, or take them as a table (`__arrow_c_stream__`, so that
    pyarrow, polars, pandas and duckdb read it), with the columns of the Spark source, or those that the consumer was
    asked for. Iterating gives whole messages; where these columns do not make any, they are read again.
    """

    def __init__(self, giver: Giver, delivery: Delivery) -> None:
        self._giver = giver
        self._delivery = delivery

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)  # a signal's exception comes before the first line, too
        if delivery is not None and not (delivery.is_looked_into or delivery.is_settled):
            self._giver.dropped(delivery)

    @property
    def pieces(self) -> Sequence[Piece]:
        """The messages as the log keeps them, with what of them is wanted."""
        self._delivery.is_looked_into = True
        return self._delivery.pieces or ()

    @property
    def is_settled(self) -> bool:
        """Acknowledged as a whole, or released."""
        return self._delivery.is_settled

    @property
    def trace(self) -> BatchTrace | None:
        """Where it stands in a trace; None: tracing is off."""
        return self._delivery.trace

    def __len__(self) -> int:
        return sum(piece.batch.num_rows for piece in self.pieces)

    def __iter__(self) -> Iterator[Message]:
        return self._messages(self.pieces)

    def _messages(self, pieces: Sequence[Piece]) -> Iterator[Message]:
        of = self._delivery
        is_whole = of.wanted is None or (of.columns is None and set(STORED.values()) <= set(of.wanted.stored))
        for piece in pieces if is_whole else of.read(None):
            yield from messages_of(piece, of.queue, of.columns, of.below)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        of = self._delivery
        wanted = of.wanted or wanted_columns(of.columns, None)
        return stream(self.pieces, of.queue, of.below, wanted).__arrow_c_stream__(requested_schema)

    def acknowledge(self, message: Message | None = None) -> frozenset[int]:
        """All of it is dealt with; or of one partition everything up to this message. What came before it in the same
        partitions, in earlier batches, is too. Returns the partitions for which that does not count, because they have
        moved on since, or were given out anew after a release: their messages come again.

        Raises `Invalid` for a message of another batch, and in a forked child; `Fenced` if another took the whole group
        over (`ownership="none"`), `Unavailable` if a store does not answer: repeating it is harmless.
        """
        due = self._delivery.ends
        if message is not None:
            end = due.get(message.partition)
            if end is None or message.offset >= end.offset:
                raise Invalid(
                    f"offset {message.offset} of partition {message.partition} is not in this batch: acknowledge a "
                    "message by the batch that it came in"
                )
            due = {message.partition: end._replace(offset=message.offset + 1)}
        return frozenset(due.keys() - self._giver.acknowledge(self._delivery, due))

    def release(self) -> None:
        """What of it is not acknowledged comes again, marked: with the next batches, here or elsewhere. Raises as
        `acknowledge`.
        """
        self._giver.release(self._delivery)
