"""Which headers of a batch are asked for, and what the listener makes of a progress, without a JVM (test_traces)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

from partq_spark.base.trace_context import TraceContext
from partq_spark.query.offsets import BatchEnd, BatchSpan, encode
from partq_spark.spark import tracing
from partq_spark.spark.listener import PartqListener
from partq_spark.spark.tracing import MicroBatch, Processed, sampled_columns
from tests.support.traces import Traces, provide, span_id, told, trace_id, traces

__all__ = ["traces"]

TEXT = StringType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BinaryType())]))
NAMED = "`queue` AS queue"
ONLY = "filter({}, h -> lower(h.key) IN ('traceparent', 'tracestate')) AS headers"


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (struct(key=TEXT, value=BinaryType(), queue=TEXT, headers=HEADERS), [ONLY.format("`headers`"), NAMED]),
        (struct(value=BinaryType(), headers=HEADERS), [ONLY.format("`headers`")]),
        (struct(queue=IntegerType(), headers=HEADERS), [ONLY.format("`headers`")]),
        (struct(key=TEXT, value=BinaryType(), queue=TEXT), []),
        (struct(Headers=HEADERS, Queue=TEXT), [ONLY.format("`Headers`"), "`Queue` AS queue"]),
        (StructType([*struct(id=TEXT, headers=HEADERS).fields, *struct(id=TEXT).fields]), [ONLY.format("`headers`")]),
        (struct(headers=TEXT), []),
        (StructType([*struct(headers=HEADERS).fields, *struct(headers=HEADERS).fields]), []),
        (
            struct(id=IntegerType(), headers=IntegerType(), _metadata=struct(queue=TEXT, headers=HEADERS)),
            [ONLY.format("`_metadata`.`headers`"), "`_metadata`.`queue` AS queue"],
        ),
        (struct(_metadata=struct(headers=HEADERS)), [ONLY.format("`_metadata`.`headers`")]),
        (struct(id=IntegerType(), _metadata=struct(queue=TEXT)), []),
        (struct(id=IntegerType(), _metadata=TEXT), []),
    ],
)
def test_headers_are_asked_for_where_a_batch_has_them(schema: StructType, columns: list[str]) -> None:
    assert sampled_columns(schema) == columns


def test_what_is_kept_of_batches_that_nobody_completes_is_bounded() -> None:
    kept, span = Processed(), TraceContext(1, 2, 1)
    for number in range(tracing.MOST_BATCHES + 1):
        kept.note(MicroBatch("one", number), span)
    assert kept.taken(MicroBatch("one", 0)) is None
    assert kept.taken(MicroBatch("one", 1)) == span
    assert kept.taken(MicroBatch("one", 1)) is None, "it is taken once"


# --- what the listener hears ------------------------------------------------------------------------------------------


def source(rows: int = 3, *, queue: str = "orders", by_hand: bool = False, **more: Any) -> Any:
    """What a batch read, as Spark tells it: the rows twice, since they were computed twice."""
    said = {"queue": queue, "partitions": {}, **more}
    spans = {0: BatchSpan(1, 10, 10 + rows, 0), 1: BatchSpan(1, 7, 7, 0)}
    group = more.get("group")
    end = BatchEnd(queue_id="q", spans=spans, group=group, since=1, deliveries=4 if by_hand else None)
    return SimpleNamespace(
        latestOffset=json.dumps(said), startOffset="{}", endOffset=json.dumps(encode(end)), numInputRows=2 * rows
    )


def idle(**more: Any) -> Any:
    """A source that had nothing new."""
    made = source(**more)
    made.startOffset = made.endOffset
    return made


def hear(*sources: Any, batch: int = 7) -> None:
    progress = SimpleNamespace(
        id="one",
        name=None,
        batchId=batch,
        timestamp="2026-11-22T08:00:00.250Z",
        durationMs={"triggerExecution": 1500},
        sources=sources,
    )
    PartqListener().onQueryProgress(SimpleNamespace(progress=progress))  # type: ignore[arg-type] # as far as it looks


GROUP: dict[str, Any] = {"group": "billing", "notify": "/nowhere/at/all"}


def test_a_batch_that_the_program_traced_gets_its_acknowledgement(traces: Traces) -> None:
    tracing.PROCESSED.note(MicroBatch("one", 7), TraceContext(5, 6, 1))
    hear(source(**GROUP))
    (acknowledged,) = traces.spans
    assert acknowledged.name == "ack orders"
    assert acknowledged.parent is not None
    assert (acknowledged.parent.trace_id, acknowledged.parent.span_id) == (5, 6)
    assert told(acknowledged)["consumer.group.name"] == "billing"
    assert told(acknowledged)["batch.message_count"] == 3


def test_a_batch_that_nobody_traced_is_told_with_its_times(traces: Traces) -> None:
    hear(source(**GROUP))
    processed, acknowledged = traces.one("process orders"), traces.one("ack orders")
    assert (processed.start_time, processed.end_time) == (1795334400_250_000_000, 1795334401_750_000_000)
    assert acknowledged.parent is not None
    assert acknowledged.parent.span_id == span_id(processed)
    assert trace_id(acknowledged) == trace_id(processed)


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        ([source(0, **GROUP)], []),
        ([], []),
        ([idle(**GROUP)], []),
        ([SimpleNamespace(latestOffset='{"kafka": {"0": 5}}', startOffset=None, endOffset="{}", numInputRows=9)], []),
        ([SimpleNamespace(latestOffset=None, startOffset=None, endOffset=None, numInputRows=9)], []),
        ([source()], ["process orders"]),
        ([source(group="billing", notify=None)], ["process orders"]),
        ([source(by_hand=True, **GROUP)], ["process orders"]),
        ([source(**GROUP), source(queue="paid", **GROUP)], ["process", "ack orders", "ack paid"]),
        ([source(**GROUP), idle(queue="paid", **GROUP)], ["process orders", "ack orders"]),
    ],
)
def test_what_is_told_is_what_was_read_and_what_that_acknowledges(
    sources: list[Any], names: list[str], traces: Traces
) -> None:
    hear(*sources)
    assert [each.name for each in traces.spans] == names


def test_an_empty_batch_that_the_program_traced_is_not_kept(traces: Traces) -> None:
    tracing.PROCESSED.note(MicroBatch("one", 7), TraceContext(5, 6, 1))
    hear(source(0, **GROUP))
    assert traces.spans == []
    assert tracing.PROCESSED.taken(MicroBatch("one", 7)) is None


def test_the_listener_tells_nothing_where_nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.PROCESSED.note(MicroBatch("one", 8), TraceContext(5, 6, 1))
    hear(source(**GROUP), batch=8)
    assert tracing.PROCESSED.taken(MicroBatch("one", 8)) is not None
    assert provide(monkeypatch).spans == []
