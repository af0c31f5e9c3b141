"""Traces from a publisher through the queue to a consumer, as an OpenTelemetry SDK gets them; and nothing without."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import partq
from partq_spark.base.tracing import SpanSubject, of_headers
from partq_spark.client import publisher as publisher_module
from tests.client.conftest import Make
from tests.docs.blocks import ROOT, blocks
from tests.support.traces import Traces, linked, provide, span_id, told, trace_id, traces

__all__ = ["traces"]

GIVEN = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = GIVEN.replace(b"b7ad6b7169203331", b"00f067aa0ba902b7")


def consuming(queue: partq.Queue, **more: Any) -> partq.Consumer:
    return queue.consumer("billing", starting="earliest", idle_timeout_s=0.5, **more)


def headers(queue: partq.Queue) -> list[dict[str | None, bytes | None]]:
    return [dict(each.headers or ()) for each in queue.browse()]


# --- one trace --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OBS-04")
def test_one_trace_goes_from_the_publisher_to_the_consumer(make: Make, traces: Traces) -> None:
    queue = make(partitions=1)
    with traces.tracer.start_as_current_span("checkout"), queue.publisher() as publisher:
        publisher.send(b"created", key="customer-1")
        publisher.send(b"paid", key="customer-1")
    with consuming(queue) as consumer:
        for batch in consumer:
            with partq.processing(batch), traces.tracer.start_as_current_span("bill"):
                pass
    assert len({trace_id(each) for each in traces.spans}) == 1
    first, second = traces.named("send orders")
    checkout, received, processed = (traces.one(name) for name in ("checkout", "receive orders", "process orders"))
    bill, acknowledged = traces.one("bill"), traces.one("ack orders")
    sent = [span_id(first), span_id(second)]
    assert linked(received) == linked(processed) == sent
    parents = {each.name: each.parent.span_id for each in traces.spans if each.parent is not None}
    assert parents == {
        "send orders": span_id(checkout),
        "receive orders": sent[0],
        "process orders": span_id(received),
        "ack orders": span_id(received),
        "bill": span_id(processed),
    }
    kinds = [each.kind for each in (first, received, processed, acknowledged, bill)]
    assert kinds == [SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.INTERNAL, SpanKind.CLIENT, SpanKind.INTERNAL]
    where = {"destination.name": "orders", "partq.namespace": "default"}
    operation = {"operation.name": "send", "operation.type": "send"}
    assert told(second) == {**where, **operation, "destination.partition.id": "0", "partq.offset": 1}
    group = {**where, "consumer.group.name": "billing"}
    operation = {"operation.name": "receive", "operation.type": "receive"}
    assert told(received) == {**group, **operation, "batch.message_count": 2}
    assert told(acknowledged) == {**group, "operation.name": "ack", "operation.type": "settle"}


@pytest.mark.conformance("OBS-04")
@pytest.mark.parametrize("of_application", [True, False])
def test_messages_of_many_traces_are_linked_not_as_children(make: Make, traces: Traces, of_application: bool) -> None:
    """Also of rows."""
    queue = make(partitions=1, schema="id BIGINT NOT NULL, customer STRING", key="customer")
    with queue.publisher() as publisher:
        for number in range(3):
            publisher.send({"id": number, "customer": "ann"})
    sent = traces.named("send orders")
    assert len({trace_id(each) for each in sent}) == 3
    with traces.tracer.start_as_current_span("job") if of_application else nullcontext(), consuming(queue) as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        batch.acknowledge()
    received = traces.one("receive orders")
    assert linked(received) == [span_id(each) for each in sent]
    assert (received.parent is not None) == of_application
    assert not of_application or trace_id(received) == trace_id(traces.one("job"))
    assert trace_id(traces.one("ack orders")) == trace_id(received)


def test_what_is_acknowledged_by_hand_is_told_too(traces: Traces) -> None:
    """In `foreachBatch`, by `Acknowledger`."""

    class Line:
        def ask(self, message: dict[str, Any]) -> dict[str, Any]:
            return {"still": [*message["p"]]}

    where = SpanSubject("orders", "default", "billing")
    hand = partq.InHand(Line(), "reader", {0: partq.Held(1, 0, 5)}, _where=where)  # type: ignore[arg-type] # as far as asked
    with traces.tracer.start_as_current_span("bill"):
        assert hand.acknowledge({0: 5}) == {0}
    assert hand.acknowledge({}) == frozenset()
    acknowledged = traces.one("ack orders")
    assert trace_id(acknowledged) == trace_id(traces.one("bill"))
    assert told(acknowledged)["consumer.group.name"] == "billing"


# --- headers ----------------------------------------------------------------------------------------------------------


def test_a_trace_that_a_message_has_already_is_kept_and_a_table_is_one_span(make: Make, traces: Traces) -> None:
    queue = make(partitions=1)
    pairs = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = {"value": pa.array(["a", "b"]), "headers": pa.array([[("traceparent", OTHER)], None], pairs)}
    with queue.publisher() as publisher:
        publisher.send(b"created", headers={"Traceparent": GIVEN, "source": b"shop"})
        publisher.send_table(pa.table(table))
    assert headers(queue) == [{"Traceparent": GIVEN, "source": b"shop"}, {"traceparent": OTHER}, {}]
    single, whole = traces.named("send orders")
    assert linked(single) == [0xB7AD6B7169203331]
    assert trace_id(single) == 0x0AF7651916CD43DD8448EB211C80319C
    assert (whole.kind, told(whole)["batch.message_count"]) == (SpanKind.CLIENT, 2)
    with consuming(queue) as consumer:
        assert consumer.poll(5) is not None
    assert linked(traces.one("receive orders")) == [0xB7AD6B7169203331, 0xF067AA0BA902B7]


@pytest.mark.parametrize(("recorded", "columns"), [(False, None), (True, ["value"])])
def test_what_is_not_recorded_or_not_asked_for_is_carried_and_not_linked(
    make: Make, monkeypatch: pytest.MonkeyPatch, recorded: bool, columns: list[str] | None
) -> None:
    queue = make(partitions=1)
    first = provide(monkeypatch, *(() if recorded else (ALWAYS_OFF,)))
    with queue.publisher() as publisher:
        publisher.send(b"created")
    (carried,) = headers(queue)
    found = of_headers(carried.items())
    assert found is not None
    assert found.trace_flags.sampled == recorded == bool(first.spans)
    traces = provide(monkeypatch)
    with consuming(queue, columns=columns) as consumer:
        assert consumer.poll(5) is not None
    received = traces.one("receive orders")
    assert (linked(received), told(received)["batch.message_count"]) == ([], 1)


def test_a_message_that_fills_its_limit_is_published_as_it_is(make: Make, traces: Traces) -> None:
    queue = make(partitions=1, max_message_bytes=1000)
    with queue.publisher() as publisher:
        publisher.send(b"x" * 1000)
        publisher.send(b"x" * 900)
    assert [[*each] for each in headers(queue)] == [[], ["traceparent"]]
    assert len(traces.named("send orders")) == 2


# --- failures, and what is not told -----------------------------------------------------------------------------------


def test_a_failed_publish_is_told_by_each_message(make: Make, traces: Traces, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise partq.Unavailable("the store of ann@example.org does not answer")

    monkeypatch.setattr(publisher_module, "publish_together", fails)
    publisher = make().publisher()
    futures = [publisher.send(b"created") for _ in range(2)]
    with pytest.raises(partq.Unavailable):  # the spans have not read the Futures in its place
        publisher.close()
    assert all(each.done() for each in futures)
    for each in traces.named("send orders"):
        assert (each.status.status_code, each.status.description, each.events) == (StatusCode.ERROR, None, ())
        assert told(each)["error.type"] == "Unavailable"


def test_no_span_tells_what_a_message_or_an_error_has(make: Make, traces: Traces) -> None:
    queue = make(partitions=1)
    with queue.publisher() as publisher:
        publisher.send(b"s3cret-value", key="s3cret-key", headers={"s3cret-name": b"s3cret"}, topic="s3cret/topic")
        publisher.send(b"s3cret-value", key="s3cret-key", headers={"s3cret-name": b"s3cret"})
    with consuming(queue) as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        with pytest.raises(ValueError, match="s3cret"), partq.processing(batch):
            raise ValueError("no such customer: s3cret")
    processed = traces.one("process orders")
    assert (processed.status.status_code, processed.events) == (StatusCode.ERROR, ())
    assert told(processed)["error.type"] == "ValueError", "an error is told by its kind alone"
    assert len(traces.spans) == 4
    assert [each.name for each in traces.spans if "s3cret" in each.to_json()] == []


# --- off --------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, partq
from partq_spark.spark import listener
{first}
queue = partq.create_queue("orders", partitions=1, store="file://{folder}")
with queue.publisher() as publisher:
    publisher.send(b"created")
with queue.publication() as publication:
    publication.commit()
with queue.consumer("billing", starting="earliest", idle_timeout_s=0.1) as consumer:
    for batch in consumer:
        assert batch.trace is None
        with partq.processing(batch):
            assert [message.headers for message in batch] == [None]
print("opentelemetry" in sys.modules)
"""


@pytest.mark.parametrize(
    "first", ["", "import opentelemetry.trace as t; t.set_tracer_provider(t.NoOpTracerProvider())"]
)
def test_nothing_is_traced_where_no_provider_is_configured(first: str, tmp_path: Path) -> None:
    program = PROGRAM.format(first=first, folder=tmp_path)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str(bool(first))


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    """But for its blocks with Spark. In a process of its own, which has its provider for good."""
    of_page = blocks(ROOT / "docs/observe.md")[-5:]  # of traces
    program = "\n".join(each.text for each in of_page if each.language == "python" and "DataFrame" not in each.text)
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nprovider.shutdown()"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PARTQ_STORE": f"file://{tmp_path}/store"},
    )
    assert "b'created'" in done.stdout
    assert len(re.findall(r'^    "name": "(.*)"', done.stdout, re.MULTILINE)) == 5
    assert len(set(re.findall(r'"trace_id": "(.*)"', done.stdout))) == 1
