"""SIGKILL of a publishing Spark driver, and of its tasks, at chosen instants: one copy of each batch, in order.

Two drivers are enough: the first runs a query for each instant and is killed when every one of them is where it should
be, the second is the restart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import partq
from tests.support.faults import Faults
from tests.support.messages import assert_published, browse, opened, write_files
from tests.support.processes import Program, spark_environment

pytestmark = [
    pytest.mark.spark,
    pytest.mark.crash,
    pytest.mark.timeout(400),
    pytest.mark.conformance("DIS-09"),
]

SCRIPT = Path(__file__).with_name("publisher.py")
FILES, ROWS = 4, 60
KILLED_IN = 2
"""The batch in which the kill comes: two are complete, and one is to follow."""
QUERIES = {"uncommitted": 1, "unlogged": 1, "overtaken": 1, "forgotten": 1, "retried": 2, "topics": 1}
"""How many files a micro-batch of each query takes."""
ATTRACTING = {"a-first": ("eu/*", 2), "b-second": (">", 3), "c-third": ("us/>", 1)}
"""Queues of the query `topics`, in the order in which a batch is published to them."""


@dataclass(frozen=True, kw_only=True)
class Lives:
    """The drivers and what lay in the queues between them."""

    folder: Path
    faults: Faults
    rows: dict[str, list[tuple[str | None, bytes]]]
    first: Program
    second: Program
    messages_at_kill: dict[str, int] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"file://{self.folder}/store"

    def commits(self, query: str) -> list[int]:
        """The batches that are complete as Spark knows it."""
        names = (path.name for path in (self.folder / "checkpoints" / query / "commits").glob("*"))
        return sorted(int(name) for name in names if name.isdigit())

    def segments(self, queue: str) -> list[Path]:
        """The segment files in the queue's folder, whether or not they were published."""
        return sorted((self.folder / "store" / "default" / queue / "_segments").rglob("*.arrow"))

    def has_files(self, queue: str) -> float:
        """How many files were in the queue at the kill."""
        return self.messages_at_kill[queue] / ROWS


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    folder = tmp_path_factory.mktemp("killed")
    faults, url = Faults(folder / "faults"), f"file://{folder}/store"
    queues = [name for name in QUERIES if name != "topics"]
    for queue in queues:
        partq.create_queue(queue, partitions=3, store=url)
    for queue, (subscription, partitions) in ATTRACTING.items():
        partq.create_queue(queue, partitions=partitions, store=url).subscribe(subscription)
    rows = {queue: write_files(folder / "input" / queue, FILES, ROWS) for queue in queues}
    rows |= with_topics(folder / "input" / "topics")
    for point, queue, batch in (
        ("before-publish", "uncommitted", KILLED_IN),
        ("after-publish", "unlogged", KILLED_IN),
        ("before-publish", "overtaken", KILLED_IN),
        ("before-publish", "b-second", KILLED_IN),
        ("staged", "retried", 0),
        ("writing", "retried", 1),
    ):
        faults.hold(point, queue, batch)  # type: ignore[arg-type] # they are points
    plan = {"store": url, "folder": str(folder), "queries": QUERIES, "by_topic": "topics"}

    def driver(name: str) -> Program:
        environment = spark_environment(folder, faults.environment)
        return Program.script(SCRIPT, plan, name=name, folder=folder, environment=environment)

    found = Lives(folder=folder, faults=faults, rows=rows, first=driver("first"), second=driver("second"))
    with found.first as first:
        task = first.wait_until(lambda: faults.held("staged", "retried", 0), "a task that has staged")
        psutil.Process(task).kill()
        task = first.wait_until(lambda: faults.held("writing", "retried", 1), "a task that writes")
        psutil.Process(task).kill()
        first.wait_until(lambda: faults.held("before-publish", "uncommitted", KILLED_IN), "a batch that is staged")
        first.wait_until(lambda: faults.held("after-publish", "unlogged", KILLED_IN), "a batch that is published")
        first.wait_until(lambda: faults.held("before-publish", "b-second", KILLED_IN), "a batch between two queues")
        asleep = first.wait_until(lambda: faults.held("before-publish", "overtaken", KILLED_IN), "a sleeper")
        first.wait_until(lambda: len(found.commits("retried")) == FILES / 2, "the retried tasks' batches")
        first.wait_until(lambda: len(found.commits("forgotten")) == FILES, "a query's end")
        found.others["sleeper"] = asleep
        first.kill(spare=[asleep])
        found.messages_at_kill.update({queue: opened(url, queue).describe().messages for queue in rows})
        newest = found.commits("forgotten")[-1]
        for name in (str(newest), f".{newest}.crc"):  # as if the driver had died just before it
            (folder / "checkpoints" / "forgotten" / "commits" / name).unlink(missing_ok=True)
        with found.second as second:
            assert second.wait_end() == 0, second.tail()
            yield found


def with_topics(folder: Path) -> dict[str, list[tuple[str | None, bytes]]]:
    """Files of messages, half of them `eu/n`, half `us/n`; returns what each queue is to have, in order."""
    folder.mkdir(parents=True)
    wanted: dict[str, list[tuple[str | None, bytes]]] = {queue: [] for queue in ATTRACTING}
    for file in range(FILES):
        rows = [(f"k{row % 7}", b"%d/%03d" % (file, row), f"{'eu' if row % 2 else 'us'}/{row}") for row in range(ROWS)]
        columns = dict(zip(("key", "value", "topic"), zip(*rows, strict=True), strict=True))
        path = folder / f"{file}.parquet"
        pq.write_table(pa.table(columns), path)
        os.utime(path, (1_790_000_000 + file, 1_790_000_000 + file))  # Spark takes the oldest first
        wanted["a-first"] += [row[:2] for row in rows if row[2].startswith("eu")]
        wanted["b-second"] += [row[:2] for row in rows]
        wanted["c-third"] += [row[:2] for row in rows if row[2].startswith("us")]
    return wanted


def test_killed_between_staging_and_commit(lives: Lives) -> None:
    assert lives.has_files("uncommitted") == KILLED_IN
    assert_published(lives.url, "uncommitted", lives.rows["uncommitted"])
    assert lives.faults.outcomes("uncommitted", KILLED_IN) == ["new"]
    # What the killed driver had staged is still there: nothing but collection may delete, which does so much later.
    assert len(lives.segments("uncommitted")) == FILES + 1


def test_killed_between_partqs_commit_and_sparks(lives: Lives) -> None:
    assert lives.has_files("unlogged") == KILLED_IN + 1
    assert_published(lives.url, "unlogged", lives.rows["unlogged"])
    assert lives.faults.outcomes("unlogged", KILLED_IN) == ["duplicate", "new"]


def test_repeated_after_spark_forgot_its_commit(lives: Lives) -> None:
    assert lives.has_files("forgotten") == FILES
    assert_published(lives.url, "forgotten", lives.rows["forgotten"])
    assert lives.faults.outcomes("forgotten", FILES - 1) == ["duplicate", "new"]
    assert f"batch {FILES - 1} of queue 'forgotten'" in lives.second.text()
    assert "had been published before" in lives.second.text()


def test_former_driver_publishes_when_the_restarted_one_is_long_past(lives: Lives) -> None:
    """The commit was under way when the driver died, in a process that lives on: its number is lower than the last
    (DIS-10), so it ends without an outcome.
    """
    assert lives.has_files("overtaken") == KILLED_IN
    assert_published(lives.url, "overtaken", lives.rows["overtaken"])
    sleeper = psutil.Process(lives.others["sleeper"])
    lives.faults.release("before-publish", "overtaken", KILLED_IN)
    sleeper.wait(60)
    assert lives.faults.outcomes("overtaken", KILLED_IN) == ["new"]
    assert_published(lives.url, "overtaken", lives.rows["overtaken"])


@pytest.mark.conformance("DIS-03")
def test_task_killed_and_tried_again(lives: Lives) -> None:
    """A message without a key goes where the first attempt put it: the abandoned segment is a published one's twin."""
    assert lives.first.text().count("Python worker exited unexpectedly") >= 2
    assert lives.has_files("retried") == FILES
    assert_published(lives.url, "retried", lives.rows["retried"])
    # The first attempt of batch 0 had its segment durable, the one of batch 1 had not: two segments a batch, and one.
    contents = [segment(path) for path in lives.segments("retried")]
    assert len(contents) == FILES + 1
    (twin,) = [each for number, each in enumerate(contents) if each in contents[:number]]
    assert any(None in batch["key"] for batch in twin)
    assert len(twin) == 3, "partitions"


def segment(path: Path) -> list[dict[str, list[object]]]:
    """The slices of a segment file, as any Arrow tool reads it."""
    with pa.ipc.open_file(path) as reader:
        return [reader.get_batch(index).to_pydict() for index in range(reader.num_record_batches)]


@pytest.mark.conformance("DIS-07")
def test_killed_between_two_queues_that_attract_a_batch(lives: Lives) -> None:
    """The restart completes the batch, and adds nothing to the queue that has it."""
    whole = {"a-first": ROWS / 2, "b-second": ROWS, "c-third": ROWS / 2}
    files = {queue: lives.messages_at_kill[queue] / rows for queue, rows in whole.items()}
    assert files == {"a-first": KILLED_IN + 1, "b-second": KILLED_IN, "c-third": KILLED_IN}
    assert lives.faults.outcomes("a-first", KILLED_IN) == ["duplicate", "new"]
    assert lives.faults.outcomes("b-second", KILLED_IN) == ["new"]
    for queue in ATTRACTING:
        assert sorted(each.value for each in browse(lives.url, queue)) == sorted(
            value for _, value in lives.rows[queue]
        )
        assert opened(lives.url, queue).describe().log.entries == FILES
