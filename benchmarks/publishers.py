"""Part `publishers`: eight processes publish to one queue at once, 200 publishes each, on `file:` and on Azurite.

Each publish stages a segment of 10 messages and swaps it into the head, as a sink does; a writer's identity goes with
it. Counted from the moment all processes are ready until the last one is done. One process alone is shown beside.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from benchmarks.bed import NAMESPACE
from benchmarks.environment import ROOT
from benchmarks.messages import make_messages
from benchmarks.report import Measure, Series
from benchmarks.settings import PARTITIONS, Settings
from benchmarks.staging import staged
from partq_spark.log.admin import create_queue
from partq_spark.log.publish import PublishIdentity, publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.staged import stage_of
from partq_spark.objects import open_store
from tests.support.servers import Azurite, running

PROCESSES: Final = 8
PUBLISHES: Final = 200
_ROWS: Final = 10
_LIMIT_S: Final = 300
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """On both stores: one process, then eight."""
    publishes = PUBLISHES // 10 if settings.quick else PUBLISHES
    measures = _on(f"file://{settings.work}/store", "file:", publishes, settings.rounds)
    with running(Azurite()) as azurite:
        os.environ["AZURE_STORAGE_CONNECTION_STRING"] = azurite.connection_string
        measures += _on(azurite.fresh_url(), "Azurite", publishes, settings.rounds)
    return measures, []


def _on(url: str, name: str, publishes: int, rounds: int) -> list[Measure]:
    measures: list[Measure] = []
    for processes in (1, PROCESSES):
        rates: list[float] = []
        conflicts: list[float] = []
        for number in range(rounds):
            took_s, lost = _together(url, f"by-{processes}-round-{number}", processes, publishes)
            rates.append(processes * publishes / took_s)
            conflicts.append(lost / (processes * publishes))
        who = f"{name}, {processes} process{'es' if processes > 1 else ''}"
        logger.info("%s: %s publishes/s, %s conflicts each", who, rates, conflicts)
        measures += [
            Measure(what=f"{who}, publishes", subject=Series(name="partq", unit="/s", samples=tuple(rates))),
            Measure(
                what=f"{who}, conflicts",
                subject=Series(name="partq", unit="per publish", samples=tuple(conflicts)),
            ),
        ]
    return measures


def _together(url: str, name: str, processes: int, publishes: int) -> tuple[float, int]:
    """Seconds and conflicts; the queue must hold every message in the end."""
    queue = create_queue(open_store(url), NAMESPACE, name, PARTITIONS)
    command = (sys.executable, "-m", "benchmarks.publishers", url, name, str(publishes))
    children = [
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        for child in children:
            _line(child)  # ready
        begun_s = time.perf_counter()
        for child in children:
            _send(child)
        outcomes: list[Mapping[str, int]] = [json.loads(_line(child)) for child in children]
        took_s = time.perf_counter() - begun_s
        for child in children:
            if child.wait(_LIMIT_S) != 0:
                raise RuntimeError(f"a publisher ended with {child.returncode}")
    finally:
        for child in children:
            child.kill()
            child.wait(10)
    expected = processes * publishes * _ROWS
    if queue.refresh().messages != expected:
        raise RuntimeError(f"{queue} has {queue.head.messages} messages, {expected} were published")
    return took_s, sum(outcome["conflicts"] for outcome in outcomes)


def _line(child: subprocess.Popen[str]) -> str:
    line = child.stdout.readline() if child.stdout else ""
    if not line:
        raise RuntimeError(f"publisher {child.pid} ended before it was done: its message is above")
    return line


def _send(child: subprocess.Popen[str]) -> None:
    if child.stdin:
        child.stdin.write("go\n")
        child.stdin.flush()


# --- in a process of its own ------------------------------------------------------------------------------------------


def main(url: str, name: str, publishes: int) -> None:
    """Say ready, wait for a line, publish, say how many conflicts there were."""
    store = open_store(url)
    queue = QueueLog(store, NAMESPACE, name)
    queue.refresh()
    messages = make_messages(publishes * _ROWS, os.getpid()).combine_chunks()
    writer = f"publisher-{os.getpid()}"
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    conflicts = sum(_publish_one(queue, messages, writer, number) for number in range(publishes))
    sys.stdout.write(json.dumps({"conflicts": conflicts}) + "\n")
    store.close()


def _publish_one(queue: QueueLog, messages: pa.Table, writer: str, number: int) -> int:
    stage = stage_of(queue.refresh())
    segment = staged(queue, stage, messages.slice(number * _ROWS, _ROWS), seed=f"{writer}/{number}")
    return publish(queue, stage, [segment], PublishIdentity(writer=writer, batch=number)).conflicts


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
