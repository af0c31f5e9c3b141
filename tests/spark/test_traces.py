"""One trace from a publisher through the queue to `foreachBatch`, and on to the next queue, with a real Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from pyspark.sql import DataFrame

import partq
from partq_spark.base.trace_context import of_headers
from partq_spark.spark import source, tracing
from tests.support.spark import Lab, ended
from tests.support.traces import Traces, linked, span_id, told, trace_id, traces
from tests.support.waiting import wait_until

__all__ = ["traces"]

pytestmark = pytest.mark.spark


@pytest.fixture
def listening(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As `partq.register(spark)` does it."""
    monkeypatch.setattr(source, "_listening", [])
    listener = source.listen(lab.spark)
    yield
    lab.spark.streams.removeListener(listener)


def processed(lab: Lab, rows: DataFrame, next_queue: str | None = None) -> None:
    """A query handles all that there is, as an application would."""

    def handle(batch: DataFrame, _batch_id: int) -> None:
        with partq.processing(batch), trace.get_tracer_provider().get_tracer("app").start_as_current_span("bill"):
            if next_queue is not None:
                lab.append(batch.select("key", "value", "headers"), next_queue)
            else:
                batch.collect()

    writer = rows.writeStream.foreachBatch(handle).option("checkpointLocation", str(lab.folder / "checkpoint"))
    ended(writer.trigger(availableNow=True).start())


@pytest.mark.usefixtures("listening")
@pytest.mark.conformance("OBS-04")
def test_one_trace_goes_from_the_publisher_to_foreach_batch_and_on(lab: Lab, traces: Traces) -> None:
    orders = partq.create_queue("orders", partitions=2, store=lab.url)
    billed = partq.create_queue("billed", partitions=1, store=lab.url)
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
    carried = [of_headers(each.headers or ()) for each in billed.browse()]
    assert {each.span_id for each in carried if each is not None} == {span_id(each) for each in sent}


def test_rows_are_linked_to_their_publishers(lab: Lab, traces: Traces) -> None:
    lab.create_typed("orders", "id BIGINT, headers INT")
    orders = partq.open_queue("orders", store=lab.url)
    with orders.publisher() as publisher:
        for number in range(2):
            publisher.send({"id": number})
    processed(lab, lab.stream("orders", startingOffsets="earliest", includeHeaders="true"))
    of_batch = traces.one("process orders")
    assert {*linked(of_batch)} == {span_id(each) for each in traces.named("send orders")}
    assert of_batch.parent is None, "they are of two traces"


def test_without_a_provider_a_batch_costs_no_job(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(_batch: DataFrame) -> None:
        raise AssertionError("nobody traces")

    monkeypatch.setattr(tracing, "_sample", asked)
    lab.create("orders")
    lab.publish("orders", [("a", b"1")])
    with partq.processing(lab.read("orders", includeHeaders="true")):
        pass
