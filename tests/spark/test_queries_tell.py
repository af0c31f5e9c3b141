"""What real queries tell of themselves: metrics in a registry, and one trace from a publisher through the queue to
`foreachBatch` and on to the next queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from prometheus_client import CollectorRegistry, write_to_textfile
from pyspark.sql import DataFrame

import partq
from partq_spark.spark import source, tracing
from partq_spark.spark.listener import PartqListener
from tests.support.spark import Lab, ended, failure
from tests.support.traces import Traces, linked, span_id, told, trace_id, traces
from tests.support.waiting import wait_until

__all__ = ["traces"]

pytestmark = pytest.mark.spark


@pytest.fixture
def listener(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[PartqListener]:
    """As `partq.register(spark)` installs it, in a session that nobody has registered; once, however often."""
    monkeypatch.setattr(source, "_listening", [])
    made = source.listen(lab.spark)
    assert source.listen(lab.spark) is made
    yield made
    lab.spark.streams.removeListener(made)


def test_queries_tell_of_themselves_in_a_registry(lab: Lab, listener: PartqListener, tmp_path: Path) -> None:
    """Also without a server: written to a file, as for a node exporter."""
    registry = CollectorRegistry()
    for _ in range(2):
        partq.register(lab.spark, metrics=registry)
    assert listener.metrics is not None
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"1"), ("b", b"2"), ("c", b"3")])
    rows = lab.stream("orders", startingOffsets="earliest")
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "one"))
    one = writer.queryName("one").start()
    two = lab.consumer("two")
    two.failing = lambda _batch: True
    failure(two.start(rows))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"partq_query_{name}", {"query": "one", **labels})

    where = {"queue": "orders", "group": ""}
    wait_until(lambda: value("source_lag_messages", **where) == 0, "the only batch")
    one.stop()
    wait_until(lambda: value("running") == 0, "the end")
    assert (value("batches_total"), value("input_rows_total")) == (1, 3)
    assert 0 < (value("batch_duration_seconds_sum") or 0) < 60
    assert value("source_lag_messages", **where) is None, "it has ended"

    def failures() -> float:
        samples = (sample for each in registry.collect() for sample in each.samples)
        return sum(each.value for each in samples if each.name.endswith("failures_total"))

    wait_until(lambda: failures() == 1, "the failure")
    write_to_textfile(str(tmp_path / "partq.prom"), registry)
    assert 'partq_query_batches_total{query="one"} 1.0' in (tmp_path / "partq.prom").read_text()


def processed(lab: Lab, rows: DataFrame, next_queue: str | None = None) -> None:
    """A query handles all that there is, as an application would."""

    def handle(batch: DataFrame, _batch_id: int) -> None:
        with partq.processing(batch), trace.get_tracer_provider().get_tracer("app").start_as_current_span("bill"):
            if next_queue is not None:
                lab.append(batch.select("key", "value", "headers"), next_queue)
            else:
                batch.collect()

    writer = rows.writeStream.foreachBatch(handle)
    writer = writer.option("checkpointLocation", str(lab.folder / "checkpoint" / str(next_queue)))
    ended(writer.trigger(availableNow=True).start())


@pytest.mark.usefixtures("listener")
@pytest.mark.conformance("OBS-04")
def test_one_trace_goes_from_the_publisher_to_foreach_batch_and_on(lab: Lab, traces: Traces) -> None:
    orders, billed = lab.create("orders", 2), lab.create("billed")
    with traces.tracer.start_as_current_span("checkout"), orders.publisher() as publisher:
        for number in range(3):
            publisher.send(b"created", key=f"customer-{number}")
    processed(lab, lab.stream("orders", startingOffsets="earliest", group="billing", includeHeaders="true"), "billed")
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


def test_rows_are_linked_to_their_publishers_and_without_a_provider_a_batch_costs_no_job(
    lab: Lab, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = lab.create("orders", schema="id BIGINT, headers INT")
    with orders.publisher() as publisher:
        for number in range(2):
            publisher.send({"id": number})
    processed(lab, lab.stream("orders", startingOffsets="earliest", includeHeaders="true"))
    of_batch = traces.one("process orders")
    assert {*linked(of_batch)} == {span_id(each) for each in traces.named("send orders")}
    assert of_batch.parent is None, "they are of two traces"

    def asked(_batch: DataFrame) -> None:
        raise AssertionError("nobody traces")

    monkeypatch.undo()  # no provider any more
    monkeypatch.setattr(tracing, "_sample", asked)
    with partq.processing(lab.read("orders", includeHeaders="true")):
        pass
