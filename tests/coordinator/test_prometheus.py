"""A real Prometheus scrapes two coordinators and a driver, and each query of the dashboard shows something."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import prometheus_client
import pytest

import partq
from partq_spark.base.metrics import Collector
from partq_spark.spark.listener import QueryMetrics
from tests.cast.sidecars import Place
from tests.house.test_metrics_files import ALERTS, dashboard_queries
from tests.support.waiting import wait_until
from tools.servers import Prometheus, free_port, running

pytestmark = [pytest.mark.prometheus, pytest.mark.crash, pytest.mark.slow]

TOKEN: Final = "a-token-of-the-tests"
QUIET: Final = re.compile(r"_errors_total")
"""Where nothing is shown while all is well."""


@contextmanager
def driver() -> Iterator[int]:
    """What a driver serves of a query; its port."""
    metrics = QueryMetrics()
    metrics.started("id", "billing")
    told = {"queue": "orders", "group": "billing", "partitions": {"0": {"lag": 3}, "1": {"lag": 2}}}
    sources = [SimpleNamespace(latestOffset=json.dumps(told))]
    took_ms = {"addBatch": 200, "latestOffset": 100, "triggerExecution": 400}
    progress = SimpleNamespace(id="id", name="billing", batchId=1, numInputRows=7, durationMs=took_ms, sources=sources)
    metrics.progressed(progress)  # type: ignore[arg-type] # Spark's own has these fields, and more
    registry = prometheus_client.CollectorRegistry()
    registry.register(Collector(metrics.samples))
    port = free_port()
    server, serving = prometheus_client.start_http_server(port, addr="127.0.0.1", registry=registry)
    try:
        yield port
    finally:
        server.shutdown()
        server.server_close()
        serving.join(10)


@pytest.mark.conformance("OBS-02")
@pytest.mark.timeout(300)
def test_it_reads_what_coordinators_and_a_driver_tell_and_the_dashboard_shows_it(tmp_path: Path) -> None:
    """One of the coordinators leads, and tells what status says; one of them keeps house."""
    place = Place(tmp_path, "store")
    queue = partq.create_queue(
        "orders", partitions=4, store=place.url, rebalance_delay_s=0.5, max_handoff_time_s=1.0, quota_bytes=10**9
    )
    queue.create_group("billing", starting="earliest", ownership="store")
    with ExitStack() as stack:
        one, two = (stack.enter_context(place.sidecar(name, PARTQ_UI_TOKEN=TOKEN)) for name in ("c1", "c2"))
        wait_until(lambda: one.is_ready() and two.is_ready(), "two coordinators")
        port = stack.enter_context(driver())
        targets = {"partq": [f"127.0.0.1:{each.port}" for each in (one, two)], "driver": [f"127.0.0.1:{port}"]}
        prometheus = stack.enter_context(running(Prometheus(targets, token=TOKEN)))

        def values(query: str) -> list[float]:
            return [float(each["value"][1]) for each in prometheus.ask("query", query=query)["result"]]

        wait_until(lambda: values("sum(up)") == [3], "three targets")
        with queue.publisher() as publisher:
            for number in range(400):
                publisher.send("message", key=str(number))
        with place.application(queue, "a", max_messages=5), place.application(queue, "b", max_messages=5):
            wait_until(lambda: values('sum(partq_group_flows{state="active"})') == [2], "two flows")
            wait_until(lambda: sum(values("partq_group_handoffs_total")) >= 2, "handoffs")
            epochs = sorted(each.epoch for each in place.status(queue).partitions)
            wait_until(lambda: sorted(values("partq_group_partition_epoch")) == epochs, "the epochs that status has")
        # Rates need two scrapes of what has begun.
        queries = {query for query in dashboard_queries() if not query.startswith("label_values")}

        def silent() -> list[str]:
            """Those that show nothing, and should."""
            asked = {query: re.sub(r"\$(namespace|queue|group)", ".*", query) for query in queries}
            return [query for query in queries if not values(asked[query]) and not QUIET.search(query)]

        wait_until(lambda: silent() == [], "something of each query of the dashboard")
        rules = prometheus.ask("rules")["groups"]
        assert {rule["name"] for group in rules for rule in group["rules"]} == {alert["alert"] for alert in ALERTS}
        assert {rule["health"] for group in rules for rule in group["rules"]} == {"ok"}
        found = prometheus.ask("targets")["activeTargets"]
        assert {(each["health"], each["lastError"]) for each in found} == {("up", "")}
        assert values("sum(partq_group_leader)") == [1]
        assert values("partq_coordinator_ready") == [1, 1]
        assert min(values("partq_queue_messages")) > 0, "of a queue both tell"
        wait_until(lambda: values("sum(partq_coordinator_housekeeper)") == [1], "one of them to keep house")
