"""SIGKILL of a Spark driver while a batch is published to the first of several queues and not yet to the next: the
restart completes the batch, and adds nothing to the queue that has it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partq_spark.log.admin import create_queue
from partq_spark.log.subscriptions import subscribe
from partq_spark.objects import open_store
from tests.support.faults import Faults
from tests.support.messages import browse, open_queue
from tests.support.processes import Program, spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).with_name("fanning.py")
FILES, ROWS, KILLED_IN = 3, 60, 1
QUEUES = {"a-first": ("eu/*", 2), "b-second": (">", 3), "c-third": ("us/>", 1)}


def write_inbox(folder: Path) -> dict[str, list[list[bytes]]]:
    """Files of messages, half of them `eu/n`, half `us/n`; returns what each queue is to have of each file."""
    folder.mkdir()
    wanted: dict[str, list[list[bytes]]] = {queue: [] for queue in QUEUES}
    for file in range(FILES):
        values = [b"%d/%03d" % (file, row) for row in range(ROWS)]
        topics = [f"{'eu' if row % 2 else 'us'}/{row}" for row in range(ROWS)]
        table = pa.table({"key": [f"k{row % 7}" for row in range(ROWS)], "value": values, "topic": topics})
        path = folder / f"{file}.parquet"
        pq.write_table(table, path)
        os.utime(path, (1_790_000_000 + file, 1_790_000_000 + file))  # Spark takes the oldest first
        wanted["a-first"].append([value for row, value in enumerate(values) if row % 2])
        wanted["b-second"].append(values)
        wanted["c-third"].append([value for row, value in enumerate(values) if not row % 2])
    return wanted


@pytest.mark.conformance("DIS-07")
@pytest.mark.conformance("DIS-09")
def test_killed_between_two_queues(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    for queue, (subscription, partitions) in QUEUES.items():
        subscribe(create_queue(open_store(url), "default", queue, partitions), subscription)
    wanted = write_inbox(tmp_path / "input")
    faults = Faults(tmp_path / "faults")
    faults.hold("before-publish", "b-second", KILLED_IN)
    plan = {"store": url, "input": f"{tmp_path}/input", "checkpoint": f"{tmp_path}/checkpoint"}

    def driver(name: str) -> Program:
        environment = spark_environment(tmp_path, faults.environment)
        return Program.script(SCRIPT, plan, name=name, folder=tmp_path, environment=environment)

    def assert_has(queue: str, files: int) -> None:
        values = sorted(message.value for message in browse(url, queue))
        assert values == sorted(value for file in wanted[queue][:files] for value in file), queue

    with driver("first") as first:
        first.wait_until(lambda: faults.held("before-publish", "b-second", KILLED_IN), "a batch between two queues")
        first.kill()
    assert_has("a-first", KILLED_IN + 1)
    assert_has("b-second", KILLED_IN)
    assert_has("c-third", KILLED_IN)

    with driver("second") as second:
        assert second.wait_end() == 0, second.tail()
    assert faults.outcomes("a-first", KILLED_IN) == ["duplicate", "new"]
    assert faults.outcomes("b-second", KILLED_IN) == ["new"]
    for queue in QUEUES:
        assert_has(queue, FILES)
        assert [entry.batch for entry in open_queue(url, queue).refresh().entries] == [0, 1, 2]
