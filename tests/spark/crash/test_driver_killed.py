"""SIGKILL of a publishing Spark driver, and of its tasks, at chosen instants: one copy of each batch, in order.

Two drivers are enough: the first runs a query for each instant and is killed when every one of them is where it should
be, the second is the restart.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pytest

import partq
from tests.support.faults import Faults, Point
from tests.support.jvm import spark_environment
from tests.support.messages import assert_published, opened, write_files
from tools.processes import Program

SCRIPT = Path(__file__).with_name("publisher.py")
FILES, ROWS = 4, 60
KILLED_IN = 2
"""The batch in which the kill comes: two are complete, and one is to follow."""
QUERIES: Final[dict[str, tuple[Point, int, list[str]]]] = {
    "uncommitted": ("before-publish", 2, ["new"]),
    "unlogged": ("after-publish", 3, ["duplicate", "new"]),  # by partq it is committed, by Spark it is not
    # The commit was under way when the driver died, in a process that lives on: when it comes, its number is lower
    # than the last (DIS-10), so it ends without an outcome.
    "overtaken": ("before-publish", 2, ["new"]),
}
"""Where its batch is when the driver is killed, how many files are published by then, and what the batch comes to."""


@pytest.mark.spark
@pytest.mark.crash
@pytest.mark.timeout(400)
@pytest.mark.conformance("DIS-03", "DIS-09")
def test_each_batch_is_published_once_wherever_it_was_when_driver_or_task_was_killed(tmp_path: Path) -> None:
    faults, url = Faults(tmp_path / "faults"), f"file://{tmp_path}/store"
    queries = {**dict.fromkeys(QUERIES, 1), "retried": 2}
    rows = {queue: write_files(tmp_path / "input" / queue, FILES, ROWS) for queue in queries}
    for queue in queries:
        partq.create_queue(queue, partitions=3, store=url)
    for queue, (point, _, _) in QUERIES.items():
        faults.hold(point, queue, KILLED_IN)
    faults.hold("staged", "retried", 0)
    faults.hold("writing", "retried", 1)

    def driver(name: str) -> Program:
        plan = {"store": url, "folder": str(tmp_path), "queries": queries}
        environment = spark_environment(tmp_path, faults.environment)
        return Program.script(SCRIPT, plan, name=name, folder=tmp_path, environment=environment)

    with driver("first") as first:

        def held(point: Point, queue: str, batch: int) -> psutil.Process:
            return psutil.Process(first.wait_until(lambda: faults.held(point, queue, batch), f"{queue} {point}"))

        held("staged", "retried", 0).kill()
        held("writing", "retried", 1).kill()
        processes = {queue: held(point, queue, KILLED_IN) for queue, (point, _, _) in QUERIES.items()}
        commits = tmp_path / "retried" / "commits"
        first.wait_until(lambda: len([*commits.glob("[0-9]*")]) == FILES / 2, "the batches of the retried tasks")
        sleeper = processes["overtaken"]
        first.kill(spare=[sleeper.pid])
        assert first.text().count("Python worker exited unexpectedly") >= 2
        published = {queue: opened(url, queue).describe().messages / ROWS for queue in queries}
        assert published == {**{queue: files for queue, (_, files, _) in QUERIES.items()}, "retried": FILES}
        with driver("second") as second:
            assert second.wait_end() == 0, second.tail()
        for woken in (False, True):
            if woken:
                faults.release("before-publish", "overtaken", KILLED_IN)
                sleeper.wait(60)
            for queue in queries:
                assert_published(url, queue, rows[queue])
            for queue, (_, _, outcomes) in QUERIES.items():
                assert faults.outcomes(queue, KILLED_IN) == outcomes
    # What the killed driver had staged is still there: nothing but collection may delete, which does so much later.
    assert len(segments(tmp_path, "uncommitted")) == FILES + 1

    # A message without a key goes where the first attempt put it: of the killed tasks one had its segment durable,
    # which is a published one's twin, and one had not.
    contents = segments(tmp_path, "retried")
    assert len(contents) == FILES + 1
    (twin,) = [each for number, each in enumerate(contents) if each in contents[:number]]
    assert any(None in batch["key"] for batch in twin)
    assert len(twin) == 3, "partitions"


def segments(folder: Path, queue: str) -> list[list[dict[str, list[object]]]]:
    """The slices of all segment files in the queue's folder, whether or not they were published."""
    found = []
    for path in sorted((folder / "store" / "default" / queue / "_segments").rglob("*.arrow")):
        with pa.ipc.open_file(path) as reader:
            found.append([reader.get_batch(index).to_pydict() for index in range(reader.num_record_batches)])
    return found
