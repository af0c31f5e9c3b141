"""What the listener makes of a query's progress, without a JVM: metrics, as Prometheus' own parser reads them;
spans; and that it never raises, whatever Spark or another source says. Then what real queries tell of themselves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.types import ArrayType, BinaryType, DataType, IntegerType, StringType, StructField, StructType

import partq
from partq_spark.base.metrics import Collector
from partq_spark.query.offsets import BatchEnd, BatchSpan, encode
from partq_spark.spark import source as data_source
from partq_spark.spark import tracing
from partq_spark.spark.listener import METRICS, MOST_QUERIES, PartqListener, QueryMetrics, progress_of
from partq_spark.spark.tracing import MicroBatch, Processed, sampled_columns
from tests.support.spark import Lab, ended, failure
from tests.support.traces import Traces, linked, provide, span_id, told, trace_id, traces
from tests.support.waiting import wait_until

__all__ = ["traces"]

GROUP: dict[str, Any] = {"group": "billing", "notify": "/nowhere/at/all"}
GROUP_OF = {"queue": "orders", "group": "billing"}


def source(
    rows: int = 3, *, queue: str = "orders", lags: tuple[int, ...] = (), by_hand: bool = False, **more: Any
) -> Any:
    """What a batch read, as Spark tells it: the rows twice, since they were computed twice."""
    partitions = {str(number): {"epoch": 1, "end": 9, "lag": lag} for number, lag in enumerate(lags)}
    said = {"queue": queue, "partitions": partitions, **more}
    spans = {0: BatchSpan(1, 10, 10 + rows, 0), 1: BatchSpan(1, 7, 7, 0)}
    group = more.get("group")
    end = BatchEnd(queue_id="q", spans=spans, group=group, since=1, flow=None, deliveries=4 if by_hand else None)
    return SimpleNamespace(
        latestOffset=json.dumps(said), startOffset="{}", endOffset=json.dumps(encode(end)), numInputRows=2 * rows
    )


def idle(**more: Any) -> Any:
    """A source that had nothing new."""
    made = source(**more)
    made.startOffset = made.endOffset
    return made


def progress(*sources: Any, **more: Any) -> Any:
    made = {"id": "one", "name": None, "batchId": 7, "timestamp": "2026-11-22T08:00:00.250Z", "numInputRows": 10}
    durations = {"addBatch": 500, "walCommit": 250, "other": 1, "triggerExecution": 1500}
    return SimpleNamespace(sources=sources, **{**made, "durationMs": durations, **more})


# --- metrics ----------------------------------------------------------------------------------------------------------


class Told:
    """A listener with metrics, and what a scrape of them says."""

    def __init__(self) -> None:
        self.listener = PartqListener()
        self.listener.metrics = self.metrics = QueryMetrics(time_s=lambda: 1_800_000_000.0)

    def progressed(self, *sources: Any, **more: Any) -> None:
        self.listener.onQueryProgress(SimpleNamespace(progress=progress(*sources, **more)))  # type: ignore[arg-type] # as far as it looks

    def scraped(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        registry = CollectorRegistry()
        registry.register(Collector(self.metrics.samples))
        text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
        families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
        return {(s.name, frozenset(s.labels.items())): s.value for each in families for s in each.samples}

    def value(self, name: str, **labels: str) -> float | None:
        return self.scraped().get((f"partq_query_{name}", frozenset(labels.items())))


@pytest.fixture
def heard() -> Told:
    return Told()


def test_a_query_is_told_as_its_progress_says_each_batch_once_until_its_end(heard: Told) -> None:
    query = {"query": "billing job"}
    heard.metrics.started("one", "billing job")
    for _ in range(2):  # told twice, it counts once
        heard.progressed(source(lags=(3, 0), **GROUP), name="billing job", batchId=0)
    slow = {"addBatch": 500, "triggerExecution": 40_000}
    heard.progressed(source(lags=(1, 4), **GROUP), name="billing job", batchId=1, numInputRows=5, durationMs=slow)
    told_now: dict[str, tuple[dict[str, str], float]] = {
        "running": ({}, 1),
        "failures_total": ({}, 0),
        "batches_total": ({}, 2),
        "input_rows_total": ({}, 15),
        "batch_duration_seconds_count": ({}, 2),
        "batch_duration_seconds_bucket": ({"le": "2.5"}, 1),
        "phase_seconds_total": ({"phase": "addBatch"}, 1),
        "last_progress_timestamp_seconds": ({}, 1_800_000_000),
        "source_lag_messages": (GROUP_OF, 5),
        "source_partitions": (GROUP_OF, 2),
        "partition_lag_messages": ({**GROUP_OF, "partition": "1"}, 4),
    }
    for name, (labels, value) in told_now.items():
        assert heard.value(name, **query, **labels) == value, name
    names = {re.sub("_(count|sum|bucket)$", "", name) for name, _ in heard.scraped()}
    assert {metric.name for metric in METRICS} <= names
    for metric in METRICS:  # as Prometheus wants them
        assert re.fullmatch(r"partq_query_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name

    heard.metrics.ended("one", failed=True)
    assert (heard.value("running", **query), heard.value("failures_total", **query)) == (0, 1)
    assert heard.value("partition_lag_messages", **query, **GROUP_OF, partition="1") is None, (
        "it has no partition any more"
    )
    heard.metrics.started("one", "billing job")
    heard.progressed(source(lags=(1,), **GROUP), name="billing job", batchId=1)
    heard.metrics.ended("one", failed=False)
    assert heard.value("failures_total", **query) == 1
    assert heard.value("batches_total", **query) == 2, "the last batch was repeated"
    heard.metrics.started("two", "billing job")
    heard.progressed(id="two", name="billing job", batchId=1)
    heard.metrics.ended("two", failed=True)
    assert (heard.value("batches_total", **query), heard.value("failures_total", **query)) == (3, 2), "a new checkpoint"
    assert not heard.metrics._names, "what has ended is not kept"


def test_queries_and_partitions_have_bounds(heard: Told) -> None:
    """Queries that have ended are forgotten first; partitions have series of their own, or none of a query has."""
    for number in range(MOST_QUERIES):
        heard.metrics.started(f"id-{number}", f"job {number}")
    heard.metrics.ended("id-5", failed=False)
    heard.metrics.started("id-new", "new")
    running = {dict(labels)["query"] for name, labels in heard.scraped() if name == "partq_query_running"}
    assert len(running) == MOST_QUERIES
    assert "job 5" not in running
    assert {"job 0", "new"} <= running

    wide = Told()
    for number in range(3):
        wide.progressed(source(lags=(1,) * 1500, **GROUP), id=f"id-{number}")
    assert sum(name == "partq_query_partition_lag_messages" for name, _ in wide.scraped()) == 1500
    assert wide.value("metrics_left_out") == 3000
    assert wide.value("source_lag_messages", query="id-2", **GROUP_OF) == 1500


REPORTED = [
    *(None, "", "{", "[1]", "7", '"notify', '["notify"]', '{"7": 1}', '{"partitions": {"0": 5}}', '{"queue": "q"}'),
    '{"queue": "q", "partitions": {"0": {"lag": "many"}}}',
    *(json.dumps({"notify": path}) for path in ("/nowhere/at/all", "\0", "x" * 200, None, 7)),
]


@pytest.mark.parametrize("end", ['{"v": 1}', "{", None])
@pytest.mark.parametrize("reported", REPORTED)
def test_the_listener_never_raises_and_goes_on(heard: Told, reported: str | None, end: str | None) -> None:
    """Whatever this or another source reports, whether anybody listens, and whatever events Spark has."""
    strange = SimpleNamespace(latestOffset=reported, startOffset=None, endOffset=end, numInputRows=1)
    events = [SimpleNamespace(progress=progress(strange, batchId=1)), SimpleNamespace(), SimpleNamespace(progress=None)]
    without_metrics = PartqListener()
    for each in (heard.listener, without_metrics):
        for event in events:
            each.onQueryStarted(event)  # type: ignore[arg-type] # as far as it looks
            each.onQueryProgress(event)  # type: ignore[arg-type] # here too
            each.onQueryTerminated(event)  # type: ignore[arg-type] # here too
    heard.progressed(source(lags=(2,), **GROUP), source(lags=(5,)), batchId=2)
    lags = {dict(labels)["group"]: n for (name, labels), n in heard.scraped().items() if name.endswith("lag_messages")}
    assert lags == {"billing": 2, "": 5}, "and nothing of the other source"
    assert without_metrics.metrics is None


# --- spans ------------------------------------------------------------------------------------------------------------

TEXT = StringType()
HEADERS = ArrayType(StructType([StructField("key", TEXT), StructField("value", BinaryType())]))
ONLY = "filter({}, h -> lower(h.key) IN ('traceparent', 'tracestate')) AS headers"


def struct(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


@pytest.mark.parametrize(
    ("schema", "columns"),
    [
        (struct(key=TEXT, queue=TEXT, headers=HEADERS), [ONLY.format("`headers`"), "`queue` AS queue"]),
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


def traced(trace_id: int, span_id: int) -> trace.SpanContext:
    return trace.SpanContext(trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(1))


def test_what_is_kept_of_batches_that_nobody_completes_is_bounded() -> None:
    kept, span = Processed(), traced(1, 2)
    for number in range(tracing.MOST_BATCHES + 1):
        kept.note(MicroBatch("one", number), span)
    assert [kept.taken(MicroBatch("one", number)) for number in (0, 1, 1)] == [None, span, None], "it is taken once"


def hear(*sources: Any) -> None:
    PartqListener().onQueryProgress(SimpleNamespace(progress=progress(*sources)))  # type: ignore[arg-type] # as far as it looks


def test_a_batch_that_the_program_traced_gets_its_acknowledgement_and_another_a_span_with_times(traces: Traces) -> None:
    """An empty batch is told of by nothing, and what the program traced of it is not kept."""
    for rows in (3, 0):
        tracing.PROCESSED.note(MicroBatch("one", 7), traced(5, 6))
        hear(source(rows, **GROUP))
    (of_program,) = traces.spans
    assert of_program.name == "ack orders"
    assert told(of_program)["consumer.group.name"] == "billing"
    assert told(of_program)["batch.message_count"] == 3
    hear(source(**GROUP))
    processed = traces.one("process orders")
    assert (processed.start_time, processed.end_time) == (1795334400_250_000_000, 1795334401_750_000_000)
    acknowledged = traces.named("ack orders")[1]
    for each, trace_and_span in ((of_program, (5, 6)), (acknowledged, (trace_id(processed), span_id(processed)))):
        assert each.parent is not None
        assert (each.parent.trace_id, each.parent.span_id) == trace_and_span


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
def test_what_is_told_is_what_was_read_and_acknowledged(sources: list[Any], names: list[str], traces: Traces) -> None:
    hear(*sources)
    assert [each.name for each in traces.spans] == names


def test_the_listener_tells_nothing_where_nobody_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing.PROCESSED.note(MicroBatch("one", 7), traced(5, 6))
    hear(source(**GROUP))
    assert tracing.PROCESSED.taken(MicroBatch("one", 7)) is not None
    assert provide(monkeypatch).spans == []


# --- real queries -----------------------------------------------------------------------------------------------------


@pytest.fixture
def listener(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[PartqListener]:
    """As `partq.register(spark)` installs it, in a session that nobody has registered; once, however often."""
    monkeypatch.setattr(data_source, "_listening", [])
    made = data_source.listen(lab.spark)
    assert data_source.listen(lab.spark) is made
    yield made
    lab.spark.streams.removeListener(made)


@pytest.mark.spark
def test_queries_tell_of_themselves_in_a_registry(lab: Lab, listener: PartqListener) -> None:
    registry = CollectorRegistry()
    for _ in range(2):
        partq.register(lab.spark, metrics=registry)
    assert listener.metrics is not None
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"1"), ("b", b"2"), ("c", b"3")])
    rows = lab.stream("orders", startingOffsets="earliest")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(lab.folder / "one"))
    one = writer.queryName("one").start()
    failure(lab.publisher(rows.selectExpr("1 amount"), "orders", "two"))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"partq_query_{name}", {"query": "one", **labels})

    wait_until(lambda: value("source_lag_messages", queue="orders", group="") == 0, "the only batch")
    of_java = one._jsq.lastProgress()
    slowly, quickly = StreamingQueryProgress.fromJObject(of_java), progress_of(of_java.json())
    assert quickly.id == slowly.id
    assert (quickly.name, quickly.batchId, quickly.numInputRows) == ("one", slowly.batchId, slowly.numInputRows)
    assert (quickly.timestamp, quickly.durationMs) == (slowly.timestamp, slowly.durationMs)
    assert quickly.sources[0].startOffset == ""  # it is the first batch
    for name in ("endOffset", "latestOffset"):
        assert json.loads(quickly.sources[0][name]) == json.loads(slowly.sources[0][name])
    one.stop()
    wait_until(lambda: value("running") == 0, "the end")
    assert (value("batches_total"), value("input_rows_total")) == (1, 3)
    assert 0 < (value("batch_duration_seconds_sum") or 0) < 60

    def failures() -> float:
        samples = (sample for each in registry.collect() for sample in each.samples)
        return sum(each.value for each in samples if each.name.endswith("failures_total"))

    wait_until(lambda: failures() == 1, "the failure")


@pytest.mark.spark
@pytest.mark.usefixtures("listener")
@pytest.mark.conformance("OBS-04")
def test_one_trace_goes_from_the_publisher_to_foreach_batch_and_on(lab: Lab, traces: Traces) -> None:
    orders, billed = lab.create("orders", 2), lab.create("billed")
    with traces.tracer.start_as_current_span("checkout"), orders.publisher() as publisher:
        for number in range(3):
            publisher.send(b"created", key=f"customer-{number}")

    def handle(batch: DataFrame, _batch_id: int) -> None:
        with partq.processing(batch), trace.get_tracer_provider().get_tracer("app").start_as_current_span("bill"):
            lab.append(batch.select("key", "value", "headers"), "billed")

    rows = lab.stream("orders", startingOffsets="earliest", group="billing", includeHeaders="true")
    writer = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(lab.folder / "billing"))
    ended(writer.trigger(availableNow=True).start())
    wait_until(lambda: bool(traces.named("ack orders")), "the listener's word")
    sent, of_batch = traces.named("send orders"), traces.one("process orders")
    assert {*linked(of_batch)} == {span_id(each) for each in sent}
    assert of_batch.parent is not None
    assert of_batch.parent.span_id in linked(of_batch)
    acknowledged = traces.one("ack orders")
    assert acknowledged.parent is not None
    assert acknowledged.parent.span_id == span_id(of_batch)
    assert told(acknowledged)["batch.message_count"] == 3
    ours = [each for each in traces.spans if each.name != "process"]  # the first batch of a query is empty
    names = ["send orders"] * 3 + ["checkout", "bill", "process orders", "ack orders"]
    assert [each.name for each in ours if trace_id(each) == trace_id(sent[0])] == names
    carried = {header.value for each in billed.browse() for header in each.headers or () if header.key == "traceparent"}
    assert {int((text or b"").split(b"-")[2], 16) for text in carried} == {span_id(each) for each in sent}


@pytest.mark.spark
def test_rows_are_linked_to_their_publishers_and_without_a_provider_a_batch_costs_no_job(
    lab: Lab, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = lab.create("orders", schema="id BIGINT, headers INT")
    with orders.publisher() as publisher:
        for number in range(2):
            publisher.send({"id": number})
    with partq.processing(lab.read("orders", includeHeaders="true")):
        pass
    of_batch = traces.one("process orders")
    assert {*linked(of_batch)} == {span_id(each) for each in traces.named("send orders")}
    assert of_batch.parent is None, "they are of two traces"

    def asked(_batch: DataFrame) -> None:
        raise AssertionError("nobody traces")

    monkeypatch.undo()  # no provider any more
    monkeypatch.setattr(tracing, "_sample", asked)
    with partq.processing(lab.read("orders", includeHeaders="true")):
        pass
