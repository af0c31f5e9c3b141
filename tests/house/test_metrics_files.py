"""The page on metrics, the dashboard and the alerts: every metric is explained and shown; each alert fires when what it
tells of is so, and none does where all is well, by Prometheus' own promtool. That what the dashboard asks for exists is
shown in a real Prometheus by `tests/coordinator/test_metrics`.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from coordinator.metrics import METRICS as COORDINATOR
from partq_spark.base.metrics import Metric
from partq_spark.spark.listener import METRICS as QUERY
from tools import from_code
from tools.servers import prometheus_program

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")
RULES: Final = ROOT / "conf" / "prometheus" / "alerts.yml"
ALERTS: Final = [
    rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
DASHBOARD: Final = json.loads((ROOT / "conf" / "grafana" / "partq.json").read_text(encoding="utf-8"))
METRICS: Final = {metric.name: metric for metric in (*COORDINATOR, *QUERY)}
PROCESS: Final = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def series(metric: Metric) -> set[str]:
    """The names under which Prometheus keeps it."""
    kinds = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return {metric.name + kind for kind in kinds}


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_the_table_beside_the_page_has_every_metric_in_the_words_that_a_scrape_has() -> None:
    assert from_code.METRICS.read_text(encoding="utf-8") == from_code.metrics_table(), "run scripts/docs --write"


def test_the_page_names_no_metric_that_is_not_there() -> None:
    assert set(re.findall(r"\bpartq_(?!spark)[a-z_]+\b", PAGE)) <= METRICS.keys()
    assert set(re.findall(r"\bprocess_[a-z_]+\b", PAGE)) == PROCESS


def test_the_page_says_of_every_alert_what_it_means() -> None:
    rows = dict(re.findall(r"^\| `(Partq\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    assert rows.keys() == {alert["alert"] for alert in ALERTS}
    assert all(len(text.split()) > 15 for text in rows.values())


def test_an_alert_says_where_it_is_explained_and_tells_only_what_it_has() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert alert["annotations"]["runbook"] == "docs/observe.md#alerts"
        words = alert["annotations"]["summary"] + alert["annotations"]["description"]
        told = set(re.findall(r"\$labels\.(\w+)", words))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby\s*\(([^)]*)\)", alert["expr"]))))
        assert not kept or told <= kept | {"instance"}, alert["alert"]


def test_the_dashboard_or_an_alert_shows_every_metric() -> None:
    queries = [*dashboard_queries(), *(alert["expr"] for alert in ALERTS)]
    shown = set(re.findall(r"\bpartq_[a-z_]+\b", " ".join(queries)))
    assert {metric.name for metric in METRICS.values() if not series(metric) & shown} == set()


# --- alerts -----------------------------------------------------------------------------------------------------------

MINUTES: Final = 40

G: Final = 'namespace="default",queue="orders",group="billing",instance="c1:8095",job="partq"'
C: Final = 'instance="c1:8095",job="partq"'
D: Final = 'instance="d1:9464",job="driver",query="billing"'


def still(value: float) -> str:
    """The same value every minute."""
    return f"{value:g}x{MINUTES}"


def growing(step: float) -> str:
    return f"0+{step:g}x{MINUTES}"


WELL: Final = {
    f"partq_coordinator_ready{{{C}}}": still(1),
    f"partq_coordinator_failing_groups{{{C}}}": still(0),
    f'partq_coordinator_info{{{C},namespace="default",name="c1",version="1"}}': still(1),
    f"partq_coordinator_housekeeper{{{C}}}": still(1),
    f'partq_coordinator_events_total{{{C},event="pause"}}': growing(2),
    f'partq_metrics_left_out{{{C},what="groups"}}': still(0),
    f"partq_group_leader{{{G}}}": still(1),
    f"partq_group_lag_messages{{{G}}}": still(500),
    f"partq_group_lag_seconds{{{G}}}": still(20),
    f'partq_group_flows{{{G},state="active"}}': still(2),
    f'partq_group_partitions{{{G},status="Unassigned"}}': still(0),
    f'partq_group_partitions{{{G},status="Unbound"}}': still(0),
    f"partq_group_stuck_partitions{{{G}}}": still(0),
    f'partq_group_rebalance_status{{{G},status="Rebalancing"}}': still(0),
    f'partq_group_handoffs_total{{{G},outcome="forced"}}': still(3),
    f'partq_group_handoffs_total{{{G},outcome="drained"}}': growing(1),
    f"partq_group_lag_seconds_unknown{{{C}}}": still(0),
    f'partq_store_call_errors_total{{{C},operation="swap",error="Conflict"}}': growing(3),
    f'partq_store_call_errors_total{{{C},operation="load",error="Unavailable"}}': still(1),
    f'partq_store_call_duration_seconds_bucket{{{C},operation="load",le="0.1"}}': growing(600),
    f'partq_store_call_duration_seconds_bucket{{{C},operation="load",le="2.5"}}': growing(600),
    f'partq_store_call_duration_seconds_bucket{{{C},operation="load",le="+Inf"}}': growing(600),
    f'partq_ownership_call_errors_total{{{C},operation="ask",error="Unavailable"}}': still(1),
    f'partq_queue_stored_bytes{{namespace="default",queue="orders",{C}}}': still(500),
    f'partq_queue_quota_bytes{{namespace="default",queue="orders",{C}}}': still(1000),
    f"partq_query_failures_total{{{D}}}": still(2),
    f"partq_query_running{{{D}}}": still(1),
    f"partq_query_last_progress_timestamp_seconds{{{D}}}": growing(60),
    f'partq_query_source_lag_messages{{{D},queue="orders",group="billing"}}': still(10),
}

TROUBLE: Final[dict[str, dict[str, str | None]]] = {
    "PartqNoCoordinator": {f"partq_coordinator_ready{{{C}}}": None},
    "PartqCoordinatorNotReady": {f"partq_coordinator_ready{{{C}}}": still(0)},
    "PartqGroupFailing": {f"partq_coordinator_failing_groups{{{C}}}": still(1)},
    "PartqGroupWithoutLeader": {f"partq_group_leader{{{G}}}": still(0)},
    "PartqNoHousekeeper": {f"partq_coordinator_housekeeper{{{C}}}": still(0)},
    "PartqHousekeepingFailing": {f'partq_coordinator_events_total{{{C},event="housekeeping_failed"}}': growing(1)},
    "PartqMetricsLeftOut": {f'partq_metrics_left_out{{{C},what="groups"}}': still(7)},
    "PartqGroupNotConsumed": {f'partq_group_flows{{{G},state="active"}}': still(0)},
    "PartqGroupBehind": {f"partq_group_lag_seconds{{{G}}}": growing(60)},
    "PartqPartitionsWithoutFlow": {f'partq_group_partitions{{{G},status="Unbound"}}': still(1)},
    "PartqPartitionStuck": {f"partq_group_stuck_partitions{{{G}}}": still(1)},
    "PartqRebalancingLong": {f'partq_group_rebalance_status{{{G},status="Rebalancing"}}': still(1)},
    "PartqHandoffsForced": {f'partq_group_handoffs_total{{{G},outcome="forced"}}': growing(1)},
    "PartqLagUnknown": {f"partq_group_lag_seconds_unknown{{{C}}}": still(2)},
    "PartqStoreFailing": {f'partq_store_call_errors_total{{{C},operation="load",error="Unavailable"}}': growing(5)},
    "PartqStoreSlow": {f'partq_store_call_duration_seconds_bucket{{{C},operation="load",le="0.1"}}': growing(500)},
    "PartqOwnershipFailing": {
        f'partq_ownership_call_errors_total{{{C},operation="ask",error="Unavailable"}}': growing(5)
    },
    "PartqQueueNearlyFull": {f'partq_queue_stored_bytes{{namespace="default",queue="orders",{C}}}': still(950)},
    "PartqQueryFailing": {f"partq_query_failures_total{{{D}}}": growing(1)},
    "PartqQueryStalled": {f"partq_query_last_progress_timestamp_seconds{{{D}}}": still(0)},
}
"""What is otherwise than well; None: it is not told at all."""


def outcome(told: dict[str, str], *firing: str) -> dict[str, Any]:
    """Which alerts fire after 40 minutes, and no other."""
    counted = {f'alertname="{name}",': 1 for name in firing} | {"": len(firing)}
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in told.items()],
        "promql_expr_test": [
            {
                "expr": f'count(ALERTS{{{which}alertstate="firing"}})',
                "eval_time": f"{MINUTES}m",
                "exp_samples": [{"labels": "{}", "value": count}] if count else [],
            }
            for which, count in counted.items()
        ],
    }


def promtool(*words: str) -> None:
    command = [prometheus_program("promtool"), *words]
    done = subprocess.run(command, check=False, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


@pytest.mark.prometheus
@pytest.mark.slow
def test_the_configuration_for_kubernetes_is_one(tmp_path: Path) -> None:
    """But for how it finds pods, which the promtool of the tests was built without."""
    config = yaml.safe_load((RULES.parent / "kubernetes.yml").read_text(encoding="utf-8"))
    for job in config["scrape_configs"]:
        assert job.pop("kubernetes_sd_configs")
    file = tmp_path / "prometheus.json"  # YAML, too
    file.write_text(json.dumps({**config, "rule_files": [str(RULES.parent / each) for each in config["rule_files"]]}))
    promtool("check", "config", "--syntax-only", str(file))


@pytest.mark.prometheus
@pytest.mark.slow
@pytest.mark.conformance("OBS-02")
def test_each_alert_fires_and_no_other_and_where_all_is_well_none(tmp_path: Path) -> None:
    assert TROUBLE.keys() == {alert["alert"] for alert in ALERTS}
    tests = [outcome(WELL)]
    for name, trouble in TROUBLE.items():
        tests.append(outcome({each: values for each, values in (WELL | trouble).items() if values is not None}, name))
    file = tmp_path / "alerts.json"  # YAML, too
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    promtool("test", "rules", str(file))


def test_what_the_alerts_were_tried_with_is_what_partq_tells() -> None:
    known = {name: metric.labels for metric in METRICS.values() for name in series(metric)}
    for each in WELL:
        name, labels = each.rstrip("}").split("{")
        told = {label.partition("=")[0] for label in labels.split(",")}
        assert told - {"instance", "job", "le"} == {*known[name]}, each
