"""What a coordinator's metrics say of a picture, and that it is what Prometheus reads: parsed by its own parser, and by
a real one, which scrapes two coordinators and a driver: each query of the dashboard shows something.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import partq
from coordinator.health import Answers, access_beside_health
from coordinator.logs import FieldValue, Lines, Listener, Log, coordinator_logger, print_lines
from coordinator.measuring import Handoffs, Tally
from coordinator.metrics import METRICS, GroupFigures, Picture, samples
from partq_spark.base.errors import Unavailable
from partq_spark.base.metrics import Collector, Exposition, Sample
from partq_spark.group.model import GroupKey
from partq_spark.spark.listener import QueryMetrics
from tests.cast.sidecars import Place
from tests.coordinator.test_figures import Scraped
from tests.house.test_metrics_files import ALERTS, dashboard_queries
from tests.support.waiting import wait_until
from tools.servers import Prometheus, free_port, running


def away() -> None:
    raise Unavailable("away (test)")


@pytest.fixture(scope="module")
def full() -> Picture:
    """Of three flows with two partitions, of which one was taken from its flow with messages in hand."""
    scraped = Scraped(quota_bytes=9000)
    scraped.handled(3, 3, 3)
    scraped.flow("b")
    scraped.flow("c")
    scraped.run(5)
    scraped.tally.hear("pause", {})
    for calls in (scraped.tally.store, scraped.tally.ownership):
        with pytest.raises(Unavailable):
            calls.timed("load", away)
    return replace(scraped.picture(), followed=(GroupKey("default", "orders", "audit"),))


def with_partitions(group: GroupFigures, count: int) -> GroupFigures:
    partitions = {n: replace(group.state.partitions[0], partition=n) for n in range(count)}
    return replace(group, state=replace(group.state, partitions=partitions), lags=dict.fromkeys(range(count), 3))


def text(picture: Picture) -> str:
    registry = CollectorRegistry()
    registry.register(Collector(lambda: samples(picture)))
    return str(generate_latest(registry).decode())  # type: ignore[no-untyped-call]


def told(picture: Picture, *metrics: str) -> list[str]:
    """The lines of these metrics of groups, without the labels of `orders` and `billing`."""
    lines = [line.removeprefix("partq_group_") for line in text(picture).splitlines()]
    short = [re.sub(r'(group="billing"|namespace="default"|queue="orders"),?', "", line) for line in lines]
    return [line.replace(",}", "}") for line in short if line.startswith(tuple(f"{name}{{" for name in metrics))]


# --- what is told -----------------------------------------------------------------------------------------------------


def test_every_metric_is_told_and_valid(full: Picture) -> None:
    """By the parser of the format, which refuses what is not right."""
    families = {each.name: each for each in text_string_to_metric_families(text(full))}  # type: ignore[no-untyped-call]
    assert {metric.name.removesuffix("_total") for metric in METRICS} == families.keys()
    for metric in METRICS:
        assert re.fullmatch(r"partq_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram"
        assert metric.help.endswith(".")
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        assert {frozenset({*sample.labels} - {"le"}) for sample in family.samples} == {frozenset(metric.labels)}


WHOLE = """
lag_messages{} 6.0
lag_seconds{} 7.0
stuck_partitions{} 0.0
partition_lag_messages{partition="0"} 3.0
partition_lag_messages{partition="1"} 3.0
partition_lag_seconds{partition="0"} 7.0
partition_lag_seconds{partition="1"} 7.0
partition_epoch{partition="0"} 1.0
partition_epoch{partition="1"} 2.0
rebalance_status{status="Ready"} 1.0
rebalance_status{status="Holddown"} 0.0
rebalance_status{status="Rebalancing"} 0.0
partitions{status="Unassigned"} 0.0
partitions{status="Ready"} 2.0
partitions{status="Paused"} 0.0
partitions{status="Unbound"} 0.0
flows{state="active"} 2.0
flows{state="inactive"} 1.0
flows{state="unbound"} 0.0
handoffs_total{outcome="drained"} 0.0
handoffs_total{outcome="forced"} 1.0
handoffs_total{outcome="lost"} 0.0
handoffs_total{outcome="kept"} 0.0
handoffs_total{outcome="other"} 0.0
handoff_pause_seconds_count{} 1.0
handoff_pause_seconds_sum{} 3.0
redelivered_messages_total{} 3.0
leader{} 1.0
leader{group="audit"} 0.0
partq_queue_messages{} 24.0
partq_queue_published_messages_total{} 24.0
partq_queue_quota_bytes{} 9000.0
"""


def test_a_group_is_told_as_it_is_and_what_is_not_known_or_has_not_happened_is_left_out(full: Picture) -> None:
    expected = WHOLE.strip().splitlines()
    assert sorted(told(full, *(line.partition("{")[0] for line in expected))) == sorted(expected)
    assert told(full, "handoff_pause_seconds_bucket")[5:7] == [
        'handoff_pause_seconds_bucket{le="2.5"} 0.0',
        'handoff_pause_seconds_bucket{le="5.0"} 1.0',
    ]
    (group,) = full.groups
    half = replace(full, groups=[replace(group, lags={0: 3}, ages_s={0: 7.0})])
    found = told(half, "lag_messages", "lag_seconds", "partition_lag_messages")
    assert found == ["lag_messages{} 3.0", "lag_seconds{} 7.0", 'partition_lag_messages{partition="0"} 3.0']
    quiet = replace(group, handoffs=Handoffs(), lags={}, ages_s={})
    new = replace(full, groups=[quiet])
    assert told(new, "handoff_pause_seconds_bucket", "handoff_pause_seconds_count", "lag_messages", "lag_seconds") == []
    assert 'handoffs_total{outcome="lost"} 0.0' in told(new, "handoffs_total"), "a counter begins at 0"
    assert "partq_group_lag_seconds_unknown 2.0" in text(replace(full, groups=[replace(group, ages_s={})]))
    assert "partq_queue_quota_bytes{" not in text(Scraped().picture())


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_there_are_never_more_series_than_the_bounds_allow(full: Picture) -> None:
    """A group whose partitions are too many is told in sums."""
    (group,) = full.groups
    keys = [GroupKey("default", "orders", f"g{number:04}") for number in range(1000)]
    many = [replace(with_partitions(group, 21), key=key) for key in keys]
    queues = {f"q{number:04}": full.queues["orders"] for number in range(1000)}
    picture = replace(full, groups=[with_partitions(group, 2001), *many], followed=keys, queues=queues)
    found = list(samples(picture))
    assert len(found) < 200 * 8 + 200 * 22 + 200 + 3 * 2000 + 100

    def values(name: str) -> list[Sample]:
        return [sample for sample in found if sample.metric.name == name]

    left_out = {sample.labels[0]: sample.value for sample in values("partq_metrics_left_out")}
    told_whole = 2000 // 21 * 21
    assert left_out == {"queues": 800, "groups": 801, "partitions": 2001 + 1000 * 21 - told_whole}
    assert len(values("partq_group_partition_lag_messages")) == told_whole
    assert [sample.value for sample in values("partq_group_lag_messages")] == [6003, *[63] * 199]
    assert [*samples(replace(picture, groups=picture.groups[::-1]))] == found, "in any order"


# --- counting ---------------------------------------------------------------------------------------------------------


def test_the_log_is_counted_whatever_is_printed() -> None:
    tally, log = Tally(), Log("counted")
    coordinator_logger("counted").addHandler(Listener(tally.hear))
    log("debug", "fence_failed", partition=1)
    log("info", "messages_trimmed", messages=5, reason="old")
    log("info", "messages_trimmed", messages=2, held_back=None)
    log("info", "objects_deleted", objects=3, bytes=700, marked=1)
    assert tally.events.all() == {("fence_failed",): 1, ("messages_trimmed",): 2, ("objects_deleted",): 1}
    tidied = {each.metric.name: each.value for each in tally.samples() if each.value and not each.labels}
    assert tidied == {
        "partq_housekeeping_trimmed_messages_total": 7,
        "partq_housekeeping_deleted_objects_total": 3,
        "partq_housekeeping_deleted_bytes_total": 700,
    }


# --- over the wire ----------------------------------------------------------------------------------------------------


def test_it_is_told_in_the_format_that_is_asked_for(full: Picture) -> None:
    exposition = Exposition(lambda: samples(full))
    content_type, body = exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    families = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "partq_group_leader"} <= names
    content_type, body = exposition("")
    assert content_type.startswith("text/plain")
    assert b"partq_group_leader" in body


def test_without_its_package_the_way_out_is_told(full: Picture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    access = access_beside_health("127.0.0.1", {})
    answers = Answers(lambda: full.status, metrics=Exposition(lambda: samples(full)), access=access)
    answer = answers.answer("/metrics", {"host": "localhost"})
    assert answer.status == 501
    assert answer.body == b"metrics need the package prometheus_client: install it with `pip install partq[metrics]`\n"


# --- the log ----------------------------------------------------------------------------------------------------------


TEXT = "time=1970-01-01T00:00:00.250Z level=info event=pause group=a/b/c partition=3 wait_s=1.5 forced=true "


def test_lines_are_for_people_and_machines_and_none_steers_a_terminal() -> None:
    facts: dict[str, FieldValue] = {
        "group": "a/b/c",
        "partition": 3,
        "wait_s": 1.5,
        "forced": True,
        "none": None,
        "reason": 'it "moved"\n',
    }

    def line(form: str, **more: FieldValue) -> str:
        told = {"msg": "pause", "levelname": "INFO", "created": 0.25, "facts": {**facts, **more}}
        return Lines(form).format(logging.makeLogRecord(told))

    assert line("text") == TEXT + 'reason="it \\"moved\\"\\n"'
    found = {name: value for name, value in facts.items() if value is not None}
    assert json.loads(line("json")) == {"time": "1970-01-01T00:00:00.250Z", "level": "info", "event": "pause", **found}
    for value in ("\x1b[31mred", "\x9b31m", "a\u202eb", "two words\x1b]0;title\x07"):
        assert all(line(form, flow=value).isprintable() for form in ("text", "json"))


def test_what_is_below_the_level_is_left_out_and_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    root, stream = logging.getLogger(), io.StringIO()
    before = root.handlers, root.level
    try:
        print_lines("json", "warning", stream)
        log = Log("printed")
        log("info", "assign")
        log("warning", "lease_lost")
        logging.getLogger("somebody.else").warning("the store %s is tried again", "file:///x")
        own, library = map(json.loads, stream.getvalue().splitlines())
        assert own["event"] == "lease_lost"
        assert (library["event"], library["message"]) == ("library", "the store file:///x is tried again")
        stream.close()
        log("error", "group_failed")
    finally:
        root.handlers = before[0]
        root.setLevel(before[1])
        for name in ("partq", "partq_spark"):
            logging.getLogger(name).setLevel(logging.NOTSET)


# --- a real Prometheus ------------------------------------------------------------------------------------------------


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


@pytest.mark.prometheus
@pytest.mark.crash
@pytest.mark.slow
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
