"""Messages as tables: which columns, and how slices of the log become them; reading without a group is no more. And a
batch: what the consumer remembers of it, and what becomes of it when the next is asked for.

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
from typing import Any, NamedTuple

import pyarrow as pa

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
from partq_spark.log import tree
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import Piece, RangeReader
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.versions import schema_of
from partq_spark.query import columns as source_columns
from partq_spark.query import planning
from partq_spark.query.acknowledgements import RoundPosition
from partq_spark.query.columns import WantedColumns, named_columns
from partq_spark.query.settings import Boundary

_log = logging.getLogger("partq.client")


def read(queue: QueueLog, starting: Boundary, ending: Boundary, columns: Sequence[str] | None) -> pa.RecordBatchReader:
    """The messages between two places, as a stream of Arrow batches that is read on demand. Raises `Invalid`."""
    head = queue.refresh()
    wanted = named_columns(head.columns, columns)
    spans = planning.between(head, starting, ending, ("starting", "ending"), queue.offsets_at)
    log = planning.log_view(head, spans, fail_on_data_loss=True, warn=_log.warning)
    return stream(pieces(queue, head.queue_id, log, True, head.columns, wanted), queue.name, {}, wanted)


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
