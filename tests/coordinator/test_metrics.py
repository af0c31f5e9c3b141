"""What a coordinator's metrics say of a picture, and that it is what Prometheus reads: parsed by its own parser."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from coordinator import metrics
from coordinator.handoffs import Handoffs, Outcome
from coordinator.health import Status, access_beside_health, metrics_for
from coordinator.logs import LibraryLines, LineLog, silent
from coordinator.metrics import (
    METRICS,
    CallFigures,
    GroupFigures,
    PartitionFigures,
    Picture,
    QueueFigures,
    samples,
)
from coordinator.tally import HOUSEKEEPING, Tally
from partq_spark.base.metrics import Collector, Distribution, Exposition, Sample
from partq_spark.group.model import GroupKey, PartitionStatus, RebalanceStatus

KEY = GroupKey("default", "orders", "billing")
ROOT = Path(__file__).parents[2]


def partitions(count: int, lag: int | None = 3, lag_s: float | None = 1.5) -> list[PartitionFigures]:
    return [
        PartitionFigures(partition=number, status=PartitionStatus.READY, epoch=number + 1, lag=lag, lag_s=lag_s)
        for number in range(count)
    ]


GROUP = GroupFigures(
    key=KEY,
    status=RebalanceStatus.HOLDDOWN,
    partitions=partitions(2),
    stuck=0,
    flows={"active": 2, "inactive": 1, "unbound": 0},
    handoffs={Outcome.DRAINED: 4},
    pause=Distribution((0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1), 99.5),
    redelivered=7,
)
QUEUE = QueueFigures(
    namespace="default",
    queue="orders",
    partitions=2,
    messages=10,
    published=100,
    changes=12,
    stored_bytes=5000,
    quota_bytes=9000,
    groups=1,
)
CALLS = CallFigures(durations={"load": Distribution((1,) * 13, 7.0)}, errors={("load", "Unavailable"): 2})
FULL = Picture(
    version="1",
    name="c1",
    namespace="default",
    status=Status(alive=True, ready=True, looked_s=0.2, groups=2, leading=1, failing=0, housekeeper=True),
    queues=(QUEUE,),
    groups=(GROUP,),
    followed=(GroupKey("default", "orders", "audit"),),
    events={("pause",): 3},
    housekeeping={("trimmed_messages",): 5},
    store=CALLS,
    ownership=CALLS,
)


def text(picture: Picture) -> str:
    registry = CollectorRegistry()
    registry.register(Collector(lambda: samples(picture)))
    return str(generate_latest(registry).decode())  # type: ignore[no-untyped-call]


def parsed(picture: Picture) -> dict[str, Family]:
    """By the parser of the format, which refuses what is not right."""
    families = text_string_to_metric_families(text(picture))  # type: ignore[no-untyped-call]
    return {family.name: family for family in families}


def values(families: dict[str, Family], name: str, **labels: str) -> dict[tuple[tuple[str, str], ...], float]:
    """The samples of this name with these labels, by the other labels."""
    found = {}
    for family in families.values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                found[tuple(sorted(sample.labels.items() - labels.items()))] = sample.value
    return found


def value(families: dict[str, Family], name: str, **labels: str) -> float:
    (found,) = values(families, name, **labels).values()
    return found


# --- what is told -----------------------------------------------------------------------------------------------------


def test_every_metric_is_valid_and_told() -> None:
    families = parsed(FULL)
    assert {metric.name.removesuffix("_total") for metric in METRICS} == families.keys()
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert family.type == metric.kind, metric.name
        assert family.documentation == metric.help
        assert {tuple(sorted(set(sample.labels) - {"le"})) for sample in family.samples} == {
            tuple(sorted(metric.labels))
        }


def test_names_are_as_prometheus_wants_them() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"partq_[a-z]+(_[a-z]+)*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert metric.help.endswith("."), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith("_seconds")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_a_group_is_told_as_it_is() -> None:
    found = parsed(FULL)
    group = dict(zip(("namespace", "queue", "group"), KEY, strict=True))
    assert value(found, "partq_group_lag_messages", **group) == 6
    assert value(found, "partq_group_lag_seconds", **group) == 1.5
    assert value(found, "partq_group_partition_lag_messages", **group, partition="1") == 3
    assert value(found, "partq_group_partition_lag_seconds", **group, partition="1") == 1.5
    assert value(found, "partq_group_partition_epoch", **group, partition="1") == 2
    assert values(found, "partq_group_rebalance_status", **group) == {
        (("status", "Ready"),): 0,
        (("status", "Holddown"),): 1,
        (("status", "Rebalancing"),): 0,
    }
    assert value(found, "partq_group_partitions", **group, status="Ready") == 2
    assert value(found, "partq_group_partitions", **group, status="Unbound") == 0
    assert value(found, "partq_group_flows", **group, state="inactive") == 1
    assert value(found, "partq_group_handoffs_total", **group, outcome="drained") == 4
    assert value(found, "partq_group_handoffs_total", **group, outcome="forced") == 0
    assert value(found, "partq_group_handoff_pause_seconds_count", **group) == 4
    assert value(found, "partq_group_handoff_pause_seconds_bucket", **group, le="0.25") == 3
    assert value(found, "partq_group_handoff_pause_seconds_bucket", **group, le="60.0") == 3
    assert value(found, "partq_group_redelivered_messages_total", **group) == 7
    assert values(found, "partq_group_leader", namespace="default", queue="orders") == {
        (("group", "billing"),): 1,
        (("group", "audit"),): 0,
    }


def test_what_is_not_known_is_left_out() -> None:
    half = [*partitions(1), *partitions(2, lag=None, lag_s=None)[1:]]
    found = parsed(replace(FULL, groups=(replace(GROUP, partitions=half),), ages_unknown=1))
    assert [dict(labels)["partition"] for labels in values(found, "partq_group_partition_lag_messages")] == ["0"]
    assert [dict(labels)["partition"] for labels in values(found, "partq_group_partition_lag_seconds")] == ["0"]
    assert len(values(found, "partq_group_partition_epoch")) == 2
    assert value(found, "partq_group_lag_messages") == 3
    assert value(found, "partq_group_lag_seconds_unknown") == 1
    nothing = replace(GROUP, partitions=partitions(1, lag=None, lag_s=None))
    assert "partq_group_lag_messages" not in parsed(replace(FULL, groups=(nothing,)))
    assert "partq_queue_quota_bytes" not in parsed(replace(FULL, queues=(replace(QUEUE, quota_bytes=None),)))


def test_a_group_without_a_handoff_so_far_has_no_histogram_of_them() -> None:
    quiet = parsed(replace(FULL, groups=(replace(GROUP, pause=Handoffs().pause()),)))
    assert "partq_group_handoff_pause_seconds" not in quiet
    assert value(quiet, "partq_group_handoffs_total", group="billing", outcome="lost") == 0, "a counter begins at 0"


# --- bounds -----------------------------------------------------------------------------------------------------------


def groups(count: int, each: int) -> list[GroupFigures]:
    same = partitions(each)
    return [
        replace(GROUP, key=GroupKey("default", "orders", f"g{number:04}"), partitions=same) for number in range(count)
    ]


def test_there_are_never_more_series_than_the_bounds_allow() -> None:
    picture = replace(
        FULL,
        groups=groups(1000, 1000),
        followed=[GroupKey("default", "orders", f"f{number:04}") for number in range(1000)],
        queues=[replace(QUEUE, queue=f"q{number:04}") for number in range(1000)],
    )
    found = list(samples(picture))
    assert len(found) < 200 * 8 + 200 * 22 + 200 + 3 * 2000 + 100
    left_out = {sample.labels[0]: sample.value for sample in found if sample.metric is metrics.LEFT_OUT}
    assert left_out == {"queues": 800, "groups": 800, "partitions": 1000 * 1000 - 2000}
    assert sum(sample.metric is metrics.LAG for sample in found) == metrics.MOST_PARTITIONS
    assert sum(sample.metric is metrics.GROUP_LAG for sample in found) == metrics.MOST_GROUPS


def test_a_group_whose_partitions_are_too_many_is_told_in_sums_and_a_smaller_one_whole() -> None:
    large = replace(GROUP, key=GroupKey("default", "orders", "a-large-one"), partitions=partitions(2001))
    found = parsed(replace(FULL, groups=(GROUP, large)))
    assert {dict(labels)["group"] for labels in values(found, "partq_group_partition_lag_messages")} == {"billing"}
    assert value(found, "partq_group_lag_messages", group="a-large-one") == 3 * 2001
    assert value(found, "partq_metrics_left_out", what="partitions") == 2001


def test_which_ones_are_labelled_does_not_depend_on_the_order() -> None:
    many = groups(300, 20)
    assert [*samples(replace(FULL, groups=many))] == [*samples(replace(FULL, groups=many[::-1]))]


# --- counting ---------------------------------------------------------------------------------------------------------


def test_the_log_is_counted_whatever_is_printed() -> None:
    tally = Tally()
    log = tally.counting(silent)
    log("debug", "fence_failed", partition=1)
    log("info", "messages_trimmed", messages=5, reason="old")
    log("info", "messages_trimmed", messages=2, held_back=None)
    log("info", "objects_deleted", objects=3, bytes=700, marked=1)
    assert tally.events.all() == {("fence_failed",): 1, ("messages_trimmed",): 2, ("objects_deleted",): 1}
    assert tally.housekeeping.all() == {
        ("trimmed_messages",): 7,
        ("deleted_objects",): 3,
        ("deleted_bytes",): 700,
    }
    assert {*HOUSEKEEPING.values()} == metrics.TIDIED.keys()


# --- over the wire ----------------------------------------------------------------------------------------------------


def test_it_is_told_in_the_format_that_is_asked_for() -> None:
    asked: list[None] = []

    def counted() -> list[Sample]:
        asked.append(None)
        return list(samples(FULL))

    exposition = Exposition(counted)
    assert asked == [], "nothing before somebody asks"
    content_type, body = exposition("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    families = text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]
    names = {family.name for family in families}
    assert {"process_cpu_seconds", "process_resident_memory_bytes", "partq_group_leader"} <= names
    content_type, body = exposition("")
    assert content_type.startswith("text/plain")
    assert b"partq_group_leader" in body
    assert len(asked) == 2, "once for each scrape"


def test_without_its_package_the_way_out_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    access = access_beside_health("127.0.0.1", {})
    answer = metrics_for(Exposition(lambda: samples(FULL)), access, {"host": "localhost"})
    assert answer.status == 501
    assert answer.body == b"metrics need the package prometheus_client: install it with `pip install partq[metrics]`\n"


# --- the log ----------------------------------------------------------------------------------------------------------


def test_lines_are_for_people_and_machines_and_none_steers_a_terminal() -> None:
    stream = io.StringIO()
    log = LineLog(stream, wall_s=lambda: 0.25)
    log("info", "pause", group="a/b/c", partition=3, to="f", wait_s=1.5, forced=True, none=None, reason='it "moved"\n')
    assert stream.getvalue() == (
        "time=1970-01-01T00:00:00.250Z level=info event=pause group=a/b/c partition=3 to=f wait_s=1.5 forced=true "
        'reason="it \\"moved\\"\\n"\n'
    )
    stream = io.StringIO()
    LineLog(stream, form="json", wall_s=lambda: 0.0)(
        "warning", "fence_failed", partition=3, reason="two\nlines", none=None
    )
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line) == {
        "time": "1970-01-01T00:00:00.000Z",
        "level": "warning",
        "event": "fence_failed",
        "partition": 3,
        "reason": "two\nlines",
    }
    for value in ("\x1b[31mred", "\x9b31m", "a\u202eb", "two words\x1b]0;title\x07"):
        for form in ("text", "json"):
            stream = io.StringIO()
            LineLog(stream, form=form)("info", "event", flow=value)
            assert stream.getvalue().rstrip("\n").isprintable()


def test_what_is_below_the_level_is_left_out_and_a_log_that_nobody_reads_any_more_stops_nothing() -> None:
    stream = io.StringIO()
    log = LineLog(stream, level="warning")
    log("info", "assign")
    log("error", "group_failed")
    assert stream.getvalue().count("\n") == 1
    stream.close()
    log("error", "group_failed")


def test_lines_of_libraries_come_in_the_same_form() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("tests.coordinator.logs")
    logger.propagate = False
    logger.addHandler(LibraryLines(LineLog(stream, form="json")))
    logger.warning("the store %s is tried again", "file:///x")
    found = json.loads(stream.getvalue())
    assert (found["event"], found["message"]) == ("library", "the store file:///x is tried again")
