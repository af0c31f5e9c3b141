"""What a query's progress becomes as metrics: read by Prometheus' own parser, with bounds, and whatever Spark says."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from partq_spark.base.metrics import Collector
from partq_spark.spark import query_metrics
from partq_spark.spark.listener import PartqListener
from partq_spark.spark.query_metrics import METRICS, Progress, QueryInput, QueryMetrics, progress_of

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
ORDERS = QueryInput("orders", "billing")


def batch(number: int, **more: Any) -> Progress:
    made = {
        "batch": number,
        "rows": 10,
        "phases_s": {"addBatch": 0.5, "walCommit": 0.25},
        "duration_s": 0.8,
        "lags": {ORDERS: {"0": 3, "1": 0}},
    }
    return Progress(**{**made, **more})


def scraped(metrics: QueryMetrics) -> Samples:
    registry = CollectorRegistry()
    registry.register(Collector(metrics.samples))
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {(s.name, frozenset(s.labels.items())): s.value for each in families for s in each.samples}


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def names(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


@pytest.fixture
def metrics() -> QueryMetrics:
    return QueryMetrics(time_s=lambda: 1_800_000_000.0)


# --- what is told -----------------------------------------------------------------------------------------------------


def test_a_query_is_told_as_its_progress_says(metrics: QueryMetrics) -> None:
    metrics.started("id-1", "billing job")
    metrics.progressed("id-1", "billing job", batch(0))
    metrics.progressed("id-1", "billing job", batch(1, rows=5, duration_s=40.0, lags={ORDERS: {"0": 1, "1": 4}}))
    found = scraped(metrics)
    query = {"query": "billing job"}
    source = {**query, "queue": "orders", "group": "billing"}
    assert value(found, "partq_query_running", **query) == 1
    assert value(found, "partq_query_failures_total", **query) == 0
    assert value(found, "partq_query_batches_total", **query) == 2
    assert value(found, "partq_query_input_rows_total", **query) == 15
    assert value(found, "partq_query_batch_duration_seconds_count", **query) == 2
    assert value(found, "partq_query_batch_duration_seconds_bucket", **query, le="1.0") == 1
    assert value(found, "partq_query_phase_seconds_total", **query, phase="addBatch") == 1.0
    assert value(found, "partq_query_last_progress_timestamp_seconds", **query) == 1_800_000_000
    assert value(found, "partq_query_source_lag_messages", **source) == 5
    assert value(found, "partq_query_source_partitions", **source) == 2
    assert value(found, "partq_query_partition_lag_messages", **source, partition="1") == 4
    assert {metric.name for metric in METRICS} <= {re.sub("_(count|sum|bucket)$", "", name) for name in names(found)}


def test_a_batch_that_is_told_twice_counts_once(metrics: QueryMetrics) -> None:
    for _ in range(3):
        metrics.progressed("id-1", None, batch(7))
    assert value(scraped(metrics), "partq_query_batches_total", query="id-1") == 1


def test_the_end_of_a_query_and_its_next_start_are_told(metrics: QueryMetrics) -> None:
    metrics.started("id-1", "job")
    metrics.progressed("id-1", "job", batch(0))
    metrics.ended("id-1", failed=True)
    found = scraped(metrics)
    assert value(found, "partq_query_running", query="job") == 0
    assert value(found, "partq_query_failures_total", query="job") == 1
    assert "partq_query_partition_lag_messages" not in names(found), "it has no partition any more"
    metrics.started("id-1", "job")
    metrics.progressed("id-1", "job", batch(0))
    metrics.ended("id-1", failed=False)
    found = scraped(metrics)
    assert value(found, "partq_query_failures_total", query="job") == 1
    assert value(found, "partq_query_batches_total", query="job") == 1, "the batch that was repeated"


def test_names_are_as_prometheus_wants_them() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"partq_query_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_queries_that_have_ended_are_forgotten_first(metrics: QueryMetrics) -> None:
    for number in range(query_metrics.MOST_QUERIES):
        metrics.started(f"id-{number}", f"job {number}")
    metrics.ended("id-5", failed=False)
    metrics.started("id-new", "new")
    found = scraped(metrics)
    running = {dict(labels)["query"] for name, labels in found if name == "partq_query_running"}
    assert len(running) == query_metrics.MOST_QUERIES
    assert "job 5" not in running
    assert {"job 0", "new"} <= running


def test_there_are_never_more_series_of_partitions_than_the_bound(metrics: QueryMetrics) -> None:
    many = {str(number): 1 for number in range(1500)}
    for number in range(3):
        metrics.progressed(f"id-{number}", None, batch(0, lags={ORDERS: many}))
    found = scraped(metrics)
    assert sum(name == "partq_query_partition_lag_messages" for name, _ in found) == 1500
    assert value(found, "partq_query_metrics_left_out") == 3000
    assert value(found, "partq_query_source_lag_messages", query="id-2", queue="orders", group="billing") == 1500


# --- Spark's progress -------------------------------------------------------------------------------------------------


def progress(*reported: object, **more: Any) -> Any:
    sources = [SimpleNamespace(latestOffset=each, endOffset=None) for each in reported]
    made = {"batchId": 3, "numInputRows": 7, "durationMs": {"addBatch": 500, "other": 1, "triggerExecution": 800}}
    return SimpleNamespace(sources=sources, id="id-1", name=None, **{**made, **more})


def report(**more: Any) -> str:
    partitions = {"0": {"epoch": 1, "end": 9, "lag": 2}, "1": {"epoch": 1, "end": 9, "lag": 0}}
    return json.dumps({"queue": "orders", "flow": None, "partitions": partitions, **more})


def test_the_progress_is_read() -> None:
    found = progress_of(progress(report(), report(group="billing"), report(group="billing")))
    assert found == Progress(
        batch=3,
        rows=7,
        phases_s={"addBatch": 0.5},
        duration_s=0.8,
        lags={QueryInput("orders", ""): {"0": 2, "1": 0}, ORDERS: {"0": 2, "1": 0}},
    )


@pytest.mark.parametrize(
    "reported", [None, "", "{", "[1]", "7", '{"7": 1}', '{"partitions": {"0": 5}}', '{"queue": "q"}']
)
def test_what_another_source_reports_is_passed_over(reported: str | None) -> None:
    assert progress_of(progress(reported)).lags == {}


@pytest.mark.parametrize(
    "event",
    [
        SimpleNamespace(),
        SimpleNamespace(progress=None),
        SimpleNamespace(progress=progress('{"queue": "q", "partitions": {"0": {"lag": "many"}}}')),
        SimpleNamespace(progress=progress(report(), durationMs=None)),
    ],
)
def test_the_listener_never_raises_and_goes_on(event: Any) -> None:
    listener = PartqListener()
    listener.metrics = QueryMetrics()
    listener.onQueryStarted(event)
    listener.onQueryProgress(event)
    listener.onQueryTerminated(event)
    listener.onQueryProgress(SimpleNamespace(progress=progress(report())))  # type: ignore[arg-type] # as far as it looks
    assert value(scraped(listener.metrics), "partq_query_batches_total", query="id-1") == 1


def test_a_listener_without_metrics_keeps_nothing() -> None:
    listener = PartqListener()
    listener.onQueryProgress(SimpleNamespace(progress=progress(report())))  # type: ignore[arg-type] # as far as it looks
    assert listener.metrics is None
