"""The page on metrics, the dashboard and the alerts: every metric is explained, and whatever they name exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
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
ADDED: Final = {"instance", "job", "le"}
"""Labels that Prometheus adds, and that a histogram has."""


def series(metric: Metric) -> set[str]:
    """The names under which Prometheus keeps it."""
    kinds = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    return {metric.name + kind for kind in kinds}


NAMES: Final = {name: metric for metric in METRICS.values() for name in series(metric)}


def dashboard_queries() -> Iterator[str]:
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def check(query: str) -> None:
    """It names metrics that exist, and of them labels that they have."""
    without_texts = re.sub(r'"[^"]*"', '""', query)
    named = set(re.findall(r"\b(?:partq|process)_[a-z_]+\b", without_texts))
    assert named, query
    assert named <= NAMES.keys() | PROCESS, query
    for name, labels in re.findall(r"\b(partq_[a-z_]+)\{([^}]*)\}", without_texts):
        assert set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", labels)) <= {*NAMES[name].labels, *ADDED}, query
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on|group_left)\s*\(([^)]*)\)", without_texts))))
    known = {label for name in named & NAMES.keys() for label in NAMES[name].labels}
    assert grouped <= known | ADDED, query


# --- the page ---------------------------------------------------------------------------------------------------------


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


# --- alerts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: str(alert["alert"]))
def test_an_alert_asks_for_what_there_is_and_says_where_it_is_explained(alert: dict[str, Any]) -> None:
    check(alert["expr"])
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert alert["annotations"]["runbook"] == f"docs/metrics.md#{alert['alert'].lower()}"
    words = alert["annotations"]["summary"] + alert["annotations"]["description"]
    told = set(re.findall(r"\$labels\.(\w+)", words))
    kept = set(re.findall(r"\w+", " ".join(re.findall(r"\bby\s*\(([^)]*)\)", alert["expr"]))))
    if kept:
        assert told <= kept | {"instance"}, "what the alert does not have cannot be told"


def test_no_alert_has_the_name_of_another() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(names) == len(set(names)) == 20


# --- the dashboard ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", sorted(set(dashboard_queries())))
def test_a_query_of_the_dashboard_asks_for_what_there_is(query: str) -> None:
    check(query)


def test_the_dashboard_shows_every_metric() -> None:
    shown = set(re.findall(r"\bpartq_[a-z_]+\b", " ".join(dashboard_queries())))
    watched = set(re.findall(r"\bpartq_[a-z_]+\b", " ".join(alert["expr"] for alert in ALERTS)))
    unseen = {metric.name for metric in METRICS.values() if not series(metric) & (shown | watched)}
    assert unseen == set()


def test_the_dashboards_panels_do_not_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
