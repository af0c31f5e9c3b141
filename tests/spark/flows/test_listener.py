"""The listener and the reader's local socket, with real queries, Redis and coordinator."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, write_to_textfile
from pyspark.sql.streaming.query import StreamingQueryManager

import partq_spark
from partq_spark.spark import source
from partq_spark.spark.listener import PartqListener
from tests.spark.flows.conftest import Shared, flow_of
from tests.support.spark import Lab, ended, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


@pytest.fixture
def listening(lab: Lab) -> Iterator[PartqListener]:
    listener = PartqListener()
    lab.spark.streams.addListener(listener)
    yield listener
    lab.spark.streams.removeListener(listener)


@pytest.mark.usefixtures("listening")
@pytest.mark.conformance("HAN-02")
def test_a_query_with_a_long_trigger_hands_over_as_soon_as_its_batch_is_complete(shared: Make) -> None:
    """Its next trigger, which would acknowledge the batch without a listener, is a long time off."""
    orders = shared(partitions=2)
    orders.publish((0, b"A1"), (1, b"B1"))
    one, query = orders.start("one", trigger="12 seconds", checkpointInterval="1m")
    wait_until(lambda: len(one.rows) == 2, "the batch, at the second trigger")
    two, _ = orders.start("two")
    orders.wait_for_shares(1, 1)
    assert len(one.log_files("offsets")) == 2, "no third trigger was needed"
    assert two.rows == []
    assert sorted(offset or 0 for offset in orders.offsets()) == [0, 1], "written where the handoff wanted it"
    told = json.loads(query.lastProgress.sources[0].latestOffset)  # type: ignore[union-attr] # it has made progress
    path = Path(told["notify"])
    assert path.is_socket()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    query.stop()
    wait_until(lambda: not path.exists(), "the end of the socket")
    assert flow_of(one) == told["flow"]


@pytest.mark.parametrize(
    "reported",
    [
        '{"notify": "/nowhere/at/all"}',
        '{"notify": "\\u0000"}',
        '{"notify": "' + "x" * 200 + '"}',
        '{"notify": null}',
        '{"notify": 7}',
        '["notify"]',
        '"notify',
        "",
        None,
    ],
)
@pytest.mark.parametrize("end", ['{"v": 1}', "{", None])
def test_the_listener_never_raises(reported: str | None, end: str | None) -> None:
    """Whatever this or another source reports, and whether anybody listens."""
    source_progress = SimpleNamespace(latestOffset=reported, endOffset=end)
    event = SimpleNamespace(progress=SimpleNamespace(sources=[source_progress]))
    PartqListener().onQueryProgress(event)  # type: ignore[arg-type] # as far as it looks


def test_registering_installs_the_listener_once(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[object] = []
    monkeypatch.setattr(type(lab.spark.streams), "addListener", lambda _self, listener: added.append(listener))
    monkeypatch.setattr(source, "_listening", [])
    for _ in range(2):
        partq_spark.register(lab.spark)
    assert [type(listener) for listener in added] == [PartqListener]


def test_queries_tell_of_themselves_in_a_registry(lab: Lab, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also without a server: written to a file, as for a node exporter."""
    added: list[PartqListener] = []
    streams = type(lab.spark.streams)
    really = streams.addListener

    def add(self: StreamingQueryManager, made: PartqListener) -> None:
        added.append(made)
        really(self, made)

    monkeypatch.setattr(streams, "addListener", add)
    monkeypatch.setattr(source, "_listening", [])
    registry = CollectorRegistry()
    for _ in range(2):
        partq_spark.register(lab.spark, metrics=registry)
    try:
        lab.create("orders", 2)
        lab.publish("orders", [("a", b"1"), ("b", b"2"), ("c", b"3")])
        rows = lab.stream("orders", startingOffsets="earliest")
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "one"))
        ended(writer.queryName("one").trigger(availableNow=True).start())
        two = lab.consumer("two")
        two.failing = lambda _batch: True
        failure(two.start(rows))
        where = {"query": "one", "queue": "orders", "group": ""}
        wait_until(lambda: registry.get_sample_value("partq_query_running", {"query": "one"}) == 0, "the end")
        assert registry.get_sample_value("partq_query_batches_total", {"query": "one"}) == 1
        assert registry.get_sample_value("partq_query_input_rows_total", {"query": "one"}) == 3
        took_s = registry.get_sample_value("partq_query_batch_duration_seconds_sum", {"query": "one"})
        assert took_s is not None
        assert 0 < took_s < 60
        assert registry.get_sample_value("partq_query_source_lag_messages", where) is None, "it has ended"

        def failures() -> float:
            return sum(
                s.value for each in registry.collect() for s in each.samples if s.name.endswith("failures_total")
            )

        wait_until(lambda: failures() == 1, "the failure")
        write_to_textfile(str(tmp_path / "partq.prom"), registry)
        assert 'partq_query_batches_total{query="one"} 1.0' in (tmp_path / "partq.prom").read_text()
    finally:
        for each in added:
            lab.spark.streams.removeListener(each)
