"""What two coordinators tell Prometheus over HTTP while flows work: one of them leads, and says what status says."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import partq
from tests.coordinator.sidecars import Place, Sidecar
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.crash, pytest.mark.slow]

GROUP = {"namespace": "default", "queue": "orders", "group": "billing"}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(sidecar: Sidecar) -> Samples:
    """As Prometheus asks, read by the format's own parser."""
    accept = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    with urlopen(Request(f"http://127.0.0.1:{sidecar.port}/metrics", headers={"Accept": accept}), timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    families = text_string_to_metric_families(text)  # type: ignore[no-untyped-call]
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def leads(samples: Samples) -> float:
    return value(samples, "partq_group_leader", **GROUP) or 0


def handed_over(samples: Samples) -> float:
    outcomes = ("drained", "forced")
    return sum(value(samples, "partq_group_handoffs_total", **GROUP, outcome=each) or 0 for each in outcomes)


@contextmanager
def working(queue: partq.Queue, flow: str) -> Iterator[None]:
    """A flow that takes one message at a time, and a tenth of a second for each."""
    with queue.consumer("billing", flow=flow, ownership="store", max_messages=1) as consumer:

        def work() -> None:
            for _ in consumer:
                time.sleep(0.1)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            consumer.stop()
            thread.join(30)


def test_two_coordinators_tell_what_status_says(tmp_path: Path) -> None:
    place = Place(tmp_path, "store")
    queue = partq.create_queue("orders", partitions=2, store=place.url, rebalance_delay_s=0.0)
    queue.create_group("billing", starting="earliest", ownership="store")
    with queue.publisher() as publisher:
        for number in range(400):
            publisher.send(str(number))
    published_s = time.time()
    with place.sidecar("c1") as one, place.sidecar("c2") as two:
        wait_until(lambda: one.is_ready() and two.is_ready(), "two coordinators")

        def leader() -> Samples:
            return max((scraped(each) for each in (one, two)), key=leads)

        def housekeepers() -> float:
            return sum(value(scraped(each), "partq_coordinator_housekeeper") or 0 for each in (one, two))

        with working(queue, "a"):
            wait_until(
                lambda: value(leader(), "partq_group_partitions", **GROUP, status="Ready") == 2, "a's partitions"
            )
            with working(queue, "b"):
                wait_until(lambda: value(leader(), "partq_group_flows", **GROUP, state="active") == 2, "two flows")
                wait_until(lambda: handed_over(leader()) == 1, "a handoff")
                samples = [scraped(each) for each in (one, two)]
                view = queue.status("billing", ownership="store")
                told, silent = max(samples, key=leads), min(samples, key=leads)
                assert (leads(told), leads(silent)) == (1, 0)
                for each in view.partitions:
                    place_of = {**GROUP, "partition": str(each.partition)}
                    lag = value(told, "partq_group_partition_lag_messages", **place_of)
                    assert lag == pytest.approx(each.lag, abs=30), "some were acknowledged meanwhile"
                    lag_s = value(told, "partq_group_partition_lag_seconds", **place_of)
                    assert lag_s == pytest.approx(time.time() - published_s, abs=1)
                    assert value(told, "partq_group_partition_epoch", **place_of) == each.epoch
                assert value(silent, "partq_group_lag_messages", **GROUP) is None, "its leader alone tells"
                for one_of_them in samples:
                    assert value(one_of_them, "partq_queue_messages", namespace="default", queue="orders") == 400
                    assert value(one_of_them, "partq_coordinator_ready") == 1
                    assert (value(one_of_them, "partq_store_call_duration_seconds_count", operation="load") or 0) > 0
                    assert (value(one_of_them, "partq_ownership_call_duration_seconds_count", operation="ask") or 0) > 0
        wait_until(lambda: housekeepers() == 1, "one of them to keep house, some seconds after its start")
