"""SIGKILL of a publishing Spark driver, and of its tasks, at chosen instants: one copy of each batch, in order.

Two drivers are enough: the first runs a query for each instant and is killed when every one of them is where it should
be, the second is the restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from tests.spark.crash.publishing import Publishing
from tests.support.messages import assert_published, open_queue
from tests.support.processes import Program

pytestmark = [pytest.mark.spark, pytest.mark.crash, pytest.mark.timeout(400)]

FILES = 4
KILLED_IN = 2
"""The batch in which the kill comes: two are complete, and one is to follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lives:
    """The drivers and what lay in the queues between them."""

    publishing: Publishing
    first: Program
    second: Program
    sleeper: psutil.Process
    files_at_kill: dict[str, int]
    forgotten: int


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    queues = {"uncommitted": 1, "unlogged": 1, "overtaken": 1, "forgotten": 1, "retried": 2}
    publishing = Publishing(tmp_path_factory.mktemp("killed"), queues, files=FILES, rows=60)
    faults = publishing.faults
    faults.hold("before-publish", "uncommitted", KILLED_IN)
    faults.hold("after-publish", "unlogged", KILLED_IN)
    faults.hold("before-publish", "overtaken", KILLED_IN)
    faults.hold("staged", "retried", 0)
    faults.hold("writing", "retried", 1)
    first, second = publishing.life(), publishing.life()
    with first:
        task = first.wait_until(lambda: faults.held("staged", "retried", 0), "a task that has staged")
        psutil.Process(task).kill()
        task = first.wait_until(lambda: faults.held("writing", "retried", 1), "a task that writes")
        psutil.Process(task).kill()
        first.wait_until(lambda: faults.held("before-publish", "uncommitted", KILLED_IN), "a batch that is staged")
        first.wait_until(lambda: faults.held("after-publish", "unlogged", KILLED_IN), "a batch that is published")
        asleep = first.wait_until(lambda: faults.held("before-publish", "overtaken", KILLED_IN), "a sleeper")
        first.wait_until(lambda: len(publishing.spark_commits("retried")) == FILES / 2, "the retried tasks' batches")
        first.wait_until(lambda: len(publishing.spark_commits("forgotten")) == FILES, "a query's end")
        sleeper = psutil.Process(asleep)
        first.kill(spare=[asleep])
        files_at_kill = {queue: publishing.whole_files(queue) for queue in queues}
        forgotten = publishing.forget_newest_commit("forgotten")
        with second:
            assert second.wait_end() == 0, second.tail()
            yield Lives(
                publishing=publishing,
                first=first,
                second=second,
                sleeper=sleeper,
                files_at_kill=files_at_kill,
                forgotten=forgotten,
            )


@pytest.mark.conformance("DIS-09")
def test_killed_between_staging_and_commit(lives: Lives) -> None:
    publishing = lives.publishing
    assert lives.files_at_kill["uncommitted"] == KILLED_IN
    assert_published(publishing.url, "uncommitted", publishing.rows["uncommitted"])
    assert publishing.faults.outcomes("uncommitted", KILLED_IN) == ["new"]
    # What the killed driver had staged is still there: nothing but collection may delete, which does so much later.
    assert len(publishing.segments("uncommitted")) == FILES + 1


@pytest.mark.conformance("DIS-09")
def test_killed_between_partqs_commit_and_sparks(lives: Lives) -> None:
    publishing = lives.publishing
    assert lives.files_at_kill["unlogged"] == KILLED_IN + 1
    assert_published(publishing.url, "unlogged", publishing.rows["unlogged"])
    assert publishing.faults.outcomes("unlogged", KILLED_IN) == ["duplicate", "new"]


@pytest.mark.conformance("DIS-09")
def test_repeated_after_spark_forgot_its_commit(lives: Lives) -> None:
    publishing = lives.publishing
    assert lives.forgotten == FILES - 1
    assert lives.files_at_kill["forgotten"] == FILES
    assert_published(publishing.url, "forgotten", publishing.rows["forgotten"])
    assert publishing.faults.outcomes("forgotten", lives.forgotten) == ["duplicate", "new"]
    assert f"batch {lives.forgotten} of queue 'forgotten'" in lives.second.text()
    assert "had been published before" in lives.second.text()


@pytest.mark.conformance("DIS-09")
def test_former_driver_publishes_when_the_restarted_one_is_long_past(lives: Lives) -> None:
    """The commit was under way when the driver died, in a process that lives on: its number is lower than the last
    (DIS-10), so it ends without an outcome.
    """
    publishing, faults = lives.publishing, lives.publishing.faults
    assert lives.files_at_kill["overtaken"] == KILLED_IN
    assert_published(publishing.url, "overtaken", publishing.rows["overtaken"])
    before = open_queue(publishing.url, "overtaken").refresh()
    assert lives.sleeper.is_running()
    faults.release("before-publish", "overtaken", KILLED_IN)
    lives.sleeper.wait(60)
    assert faults.outcomes("overtaken", KILLED_IN) == ["new"]
    assert open_queue(publishing.url, "overtaken").refresh() == before


@pytest.mark.conformance("DIS-03")
def test_task_killed_and_tried_again(lives: Lives) -> None:
    publishing = lives.publishing
    assert lives.first.text().count("Python worker exited unexpectedly") >= 2
    assert lives.files_at_kill["retried"] == FILES
    assert_published(publishing.url, "retried", publishing.rows["retried"])

    # The first attempt of batch 0 had its segment durable, the one of batch 1 had not: two segments a batch, and one.
    head = open_queue(publishing.url, "retried").refresh()
    published = {name for entry in head.entries for name in entry.segments}
    abandoned = [path for path in publishing.segments("retried") if path.name not in published]
    assert len(published) == FILES
    assert len(abandoned) == 1
    # Row for row the second attempt's: so messages without a key went to the same partitions.
    contents = [segment(path) for path in publishing.segments("retried") if path.name in published]
    assert segment(abandoned[0]) in contents
    assert any(None in batch["key"] for batch in segment(abandoned[0]))
    assert len(segment(abandoned[0])) == 3  # partitions


def segment(path: Path) -> list[dict[str, list[object]]]:
    """The slices of a segment file, as any Arrow tool reads it."""
    with pa.ipc.open_file(path) as reader:
        return [reader.get_batch(index).to_pydict() for index in range(reader.num_record_batches)]
