"""The page on metrics, the dashboard and the alerts: every metric is explained and shown. That what the dashboard and
the alerts ask for exists is shown by `test_alerts` and, in a real Prometheus, by `tests/coordinator/test_prometheus`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from coordinator.metrics import METRICS as COORDINATOR
from partq_spark.base.metrics import Metric
from partq_spark.spark.query_metrics import METRICS as QUERY

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
ALERTS: Final = [
    rule
    for group in yaml.safe_load((ROOT / "conf" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
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


def test_the_page_explains_every_metric_in_the_words_that_a_scrape_has() -> None:
    rows = re.findall(r"^\| `(partq_\w+)` \| (\w+) \| (.*?) \| (.*) \|$", PAGE, re.MULTILINE)
    expected = [(m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in METRICS.values()]
    assert sorted(rows) == sorted(expected)


def test_the_page_names_no_metric_that_is_not_there() -> None:
    assert set(re.findall(r"\bpartq_(?!spark)[a-z_]+\b", PAGE)) <= METRICS.keys()
    assert set(re.findall(r"\bprocess_[a-z_]+\b", PAGE)) == PROCESS


def test_the_page_says_of_every_alert_what_it_means() -> None:
    sections = dict(re.findall(r"^### (Partq\w+)\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {alert["alert"] for alert in ALERTS}
    assert all(len(text.split()) > 15 for text in sections.values())


def test_an_alert_says_where_it_is_explained_and_tells_only_what_it_has() -> None:
    assert len({alert["alert"] for alert in ALERTS}) == len(ALERTS)
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("info", "warning", "critical")
        assert alert["annotations"]["runbook"] == f"docs/metrics.md#{alert['alert'].lower()}"
        words = alert["annotations"]["summary"] + alert["annotations"]["description"]
        told = set(re.findall(r"\$labels\.(\w+)", words))
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby\s*\(([^)]*)\)", alert["expr"]))))
        assert not kept or told <= kept | {"instance"}, alert["alert"]


def test_the_dashboard_or_an_alert_shows_every_metric() -> None:
    queries = [*dashboard_queries(), *(alert["expr"] for alert in ALERTS)]
    shown = set(re.findall(r"\bpartq_[a-z_]+\b", " ".join(queries)))
    assert {metric.name for metric in METRICS.values() if not series(metric) & shown} == set()
