"""Eight processes publish to one queue at once, on both stores."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.log.admin import create_queue
from partq_spark.objects import open_store
from partq_spark.objects.azure_access import CONNECTION_STRING
from tests.log.publishers import NAMESPACE, QUEUE, judge, publish_many
from tests.objects.processes import start

PROCESSES = 8
PUBLISHES = {"local": 200, "azurite": 50}
"""Of each: hundreds of conflicts on both. Azurite answers all with one core; `scripts/bench publishers` measures."""
WAIT_S = 240.0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["local", pytest.param("azurite", marks=pytest.mark.azurite)])
def test_eight_processes_publish_at_once(
    kind: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    report: Callable[[str], None],
) -> None:
    url = f"file://{tmp_path}/store"
    if kind == "azurite":
        server = request.getfixturevalue("azurite")
        monkeypatch.setenv(CONNECTION_STRING, server.connection_string)
        url = server.fresh_url()
    create_queue(open_store(url), NAMESPACE, QUEUE, 6)
    writers = [f"writer{number}" for number in range(PROCESSES)]
    ready = multiprocessing.get_context("spawn").Barrier(PROCESSES)
    processes = [start(publish_many, url, writer, PUBLISHES[kind], ready) for writer in writers]
    try:
        for process in processes:
            process.join(WAIT_S)
        assert [process.exitcode for process in processes] == [0] * PROCESSES
    finally:
        for process in processes:
            process.kill()
            process.join(10)
    report(f"{PROCESSES} processes publish at once, {kind}: {judge(url, writers, PUBLISHES[kind])}")
