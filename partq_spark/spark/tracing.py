"""Spans of what a driver processes: around the user's own code for a batch, and of micro-batches that are complete.

Messages are read in Spark's workers, and the driver sees no header before somebody asks for rows. So `processing`,
which the user calls with the batch in hand, takes the first of them, in a Spark job that is bounded; and the listener,
which hears that a batch is complete, adds its acknowledgement to the same trace. Of a batch for which `processing` was
not called the listener tells when it was processed, without links. Nothing here is done where tracing is off.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeGuard

from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import (
    ACKNOWLEDGE,
    LOOKED_AT,
    PROCESS,
    TRACEPARENT,
    TRACESTATE,
    Span,
    SpanSubject,
    TraceContext,
    Tracing,
    chosen_links,
    of_headers,
    tracing,
)
from partq_spark.query import offsets
from partq_spark.query.settings import HEADERS_TYPE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row
    from pyspark.sql.streaming.listener import SourceProgress, StreamingQueryProgress
    from pyspark.sql.types import StructField, StructType

    from partq_spark.client.consumer import Batch

MOST_BATCHES: Final = 100
"""Micro-batches that were processed and whose completion was not heard of; a driver has few at a time."""

_ONLY_TRACES: Final = f"filter({{}}, h -> lower(h.key) IN ('{TRACEPARENT}', '{TRACESTATE}')) AS headers"


class MicroBatch(NamedTuple):
    """One of a query, by the ids that Spark gives them."""

    query: str
    number: int


class Processed:
    """The spans of micro-batches that were processed, until it is heard that these are complete. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: OrderedDict[MicroBatch, TraceContext] = OrderedDict()

    def note(self, batch: MicroBatch, span: TraceContext) -> None:
        """It is processed in this span; of one that is repeated the last counts."""
        with self._lock:
            self._spans[batch] = span
            self._spans.move_to_end(batch)
            if len(self._spans) > MOST_BATCHES:
                self._spans.popitem(last=False)

    def taken(self, batch: MicroBatch) -> TraceContext | None:
        """Its span, once; None: nobody called `processing` for it."""
        with self._lock:
            return self._spans.pop(batch, None)


PROCESSED: Final = Processed()


# --- around the user's code -------------------------------------------------------------------------------------------


def processing(batch: Batch | DataFrame) -> AbstractContextManager[None]:
    """A span of OpenTelemetry around what a program does with a batch, which links to the spans that sent its messages;
    where these are all of one trace it belongs to that. Inside, the span is the current one.

        def handle(batch: DataFrame, batch_id: int) -> None:
            with partq.processing(batch):
                ...

    `batch`: what `foreachBatch` gives, or a consumer's `Batch`. Looks at the headers of the first 1,000 messages and
    links to 32 of them at most. Of a DataFrame that takes a small Spark job, and its column `headers` (of a typed
    queue the field of `_metadata`); without it there are no links. Where the program has configured no tracer provider
    this does nothing. Raises `Invalid` for something else than a batch.
    """
    if _is_data_frame(batch):
        found = tracing()
        return nullcontext() if found is None else _processing(found, batch).around()
    from partq_spark.client.consumer import Batch

    if not isinstance(batch, Batch):
        raise Invalid(f"{type(batch).__name__} is no batch: give the DataFrame of foreachBatch, or a consumer's Batch")
    return nullcontext() if batch.trace is None else batch.trace.processing()


def _is_data_frame(batch: object) -> TypeGuard[DataFrame]:
    """Of classic Spark or of Spark Connect, which share no class."""
    return hasattr(batch, "selectExpr")


def _processing(tracing: Tracing, batch: DataFrame) -> Span:
    rows = _sample(batch)
    queues = {row.queue for row in rows if "queue" in row}
    where = SpanSubject(queues.pop() if len(queues) == 1 else None)
    span = tracing.begin(PROCESS, where, links=chosen_links(map(_context, rows)))
    micro_batch = _micro_batch(batch)
    if micro_batch is not None:
        PROCESSED.note(micro_batch, span.context)
    return span


def _context(row: Row) -> TraceContext | None:
    return of_headers((each.key, None if each.value is None else bytes(each.value)) for each in row.headers or ())


def _sample(batch: DataFrame) -> Sequence[Row]:
    """The first messages: what of their headers is about traces, and their queue, if the batch has it."""
    columns = sampled_columns(batch.schema)
    return batch.selectExpr(*columns).take(LOOKED_AT) if columns else []


def sampled_columns(schema: StructType) -> list[str]:
    """As expressions of SQL; none where there are no headers, or two columns of that name."""
    place, fields = "", schema
    headers, metadata = _column(schema, "headers"), _column(schema, "_metadata")
    if metadata is not None and isinstance(metadata.dataType, type(schema)) and not _are_headers(headers):
        place, fields = f"`{metadata.name}`.", metadata.dataType
        headers = _column(fields, "headers")
    if headers is None or not _are_headers(headers):
        return []
    queue = _column(fields, "queue")
    named = (
        [f"{place}`{queue.name}` AS queue"] if queue is not None and queue.dataType.simpleString() == "string" else []
    )
    return [_ONLY_TRACES.format(f"{place}`{headers.name}`"), *named]


def _are_headers(column: StructField | None) -> bool:
    return column is not None and column.dataType.simpleString() == HEADERS_TYPE


def _column(schema: StructType, name: str) -> StructField | None:
    found = [field for field in schema.fields if field.name.lower() == name]
    return found[0] if len(found) == 1 else None


def _micro_batch(batch: DataFrame) -> MicroBatch | None:
    """Which one is given to this thread's `foreachBatch`; None elsewhere, and where the driver is on another side of a
    connection.
    """
    if type(batch).__module__.startswith("pyspark.sql.connect"):
        return None
    context = batch.sparkSession.sparkContext
    query, number = (context.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
    return MicroBatch(query, int(number)) if query and number else None


# --- what the listener hears ------------------------------------------------------------------------------------------


def reported(source: SourceProgress) -> Mapping[str, Any]:
    """What a source says in a query's progress, if it is partq's; something without a queue if it is another's."""
    text = source.latestOffset
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


class _Read(NamedTuple):
    """What a micro-batch had of one queue. `acknowledged`: that it is complete acknowledges it."""

    where: SpanSubject
    messages: int
    acknowledged: bool


def completed(progress: StreamingQueryProgress, *, acknowledging_since_ns: int) -> None:
    """A micro-batch is complete, and since then its reader was told. Makes a span of the acknowledgement for each queue
    that was read in the name of a group, under the span of `processing`.
    """
    found = tracing()
    if found is None:
        return
    span = PROCESSED.taken(MicroBatch(str(progress.id), progress.batchId))
    read = [each for each in map(_read, progress.sources) if each is not None and each.messages]
    if not read:
        return
    if span is None:
        since_ns = int(datetime.fromisoformat(progress.timestamp).timestamp() * 1000) * 1_000_000  # in UTC, says the Z
        where = read[0].where if len(read) == 1 else SpanSubject(None)
        processed = found.begin(PROCESS, where, messages=sum(each.messages for each in read), at_ns=since_ns)
        processed.end(at_ns=since_ns + progress.durationMs["triggerExecution"] * 1_000_000)
        span = processed.context
    for each in read:
        if each.acknowledged:
            settled = found.begin(
                ACKNOWLEDGE, each.where, messages=each.messages, parent=span, at_ns=acknowledging_since_ns
            )
            settled.end()


def _read(source: SourceProgress) -> _Read | None:
    """By the end of the batch, which says what it reads: Spark counts a message as often as it was computed. None: the
    source is another's, or had nothing new.
    """
    told = reported(source)
    if "queue" not in told or not source.endOffset or source.startOffset == source.endOffset:
        return None
    end = offsets.decode(json.loads(source.endOffset))
    if end is None:
        return None
    by_itself = end.deliveries is None and told.get("notify") is not None
    messages = sum(span.to - span.start for span in end.spans.values())
    return _Read(SpanSubject(str(told["queue"]), group=end.group), messages, end.group is not None and by_itself)
