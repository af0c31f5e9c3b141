"""One message, several queues: what a sink publishes by topic, and that a batch which Spark repeats is completed and
never doubled, queue by queue.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark import Lab, ended
from tools import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.conformance("DIS-07")]

TOPICS = ["orders/new/eu", "orders/new/us", "orders/old/eu", "bills/eu", "bills/us"]
QUEUES = {"archive": (1, [">"]), "eu": (7, ["orders/*/eu", "bills/eu"]), "new": (3, ["orders/new/>"]), "rest": (2, [])}
"""Partitions and subscriptions: all, two that overlap in `orders/new/eu`, and one for what has no topic."""
WANTED = {"archive": (0, 1, 2, 3, 4), "eu": (0, 2, 3), "new": (0, 1), "rest": (5,)}
"""Of six numbers each: those that a queue attracts."""


@pytest.fixture
def queues(lab: Lab) -> Lab:
    for name, (partitions, subscriptions) in QUEUES.items():
        lab.create(name, partitions).subscribe(*subscriptions)
    return lab


def numbered(lab: Lab, numbers: range, tasks: int = 3) -> DataFrame:
    """One message per number: 0 has the first topic, 1 the second, …; each sixth has none."""
    topics = [None if n % 6 == 5 else TOPICS[n % 6] for n in numbers]
    rows = [(f"k{n % 11}", f"{n:04}", topic) for n, topic in zip(numbers, topics, strict=True)]
    frame = lab.spark.createDataFrame(rows, "key string, value string, topic string")
    return frame.repartition(tasks, "key").sortWithinPartitions("value")


def write(lab: Lab, rows: DataFrame, **options: str) -> None:
    rows.write.format("partq").options(store=lab.url, **options).mode("append").save()


def stream(lab: Lab, rows: DataFrame, **options: str) -> StreamingQuery:
    writer = rows.writeStream.format("partq").options(store=lab.url, **options)
    return writer.option("checkpointLocation", str(lab.folder / "publisher")).trigger(availableNow=True).start()


def check(lab: Lab, numbers: range) -> None:
    """Every queue has exactly what it attracts of these numbers, each key in its partition and in order."""
    for queue, theirs in WANTED.items():
        check_values(lab, queue, [n for n in numbers if n % 6 in theirs])


def check_values(lab: Lab, queue: str, numbers: Sequence[int]) -> None:
    found = lab.browse(queue)
    assert sorted(int(message.value) for message in found) == sorted(numbers), queue
    of_key: dict[str | None, list[bytes]] = defaultdict(list)
    for message in found:
        of_key[message.key].append(message.value)
    assert all(values == sorted(values) for values in of_key.values()), queue


@pytest.mark.conformance("DIS-02", "DIS-09")
def test_each_message_reaches_every_queue_that_attracts_it_where_its_key_belongs_in_order(queues: Lab) -> None:
    lab = queues
    for _ in range(2):  # with a version, once
        write(lab, numbered(lab, range(300)), queue="rest", txnAppId="nightly", txnVersion="7")
        check(lab, range(300))
    for name, partitions in (("eu", 7), ("new", 3)):
        said = f.pmod(f.xxhash64("key"), f.lit(partitions)).cast("int")
        assert lab.read(name).where(said != f.col("partition")).count() == 0
        assert lab.queue(name).describe().log.entries == 1, "one publish"


@pytest.mark.conformance("DIS-09")
def test_a_micro_batch_that_spark_repeats_is_completed_and_adds_nothing_to_those_that_have_it(queues: Lab) -> None:
    """Partition counts and subscriptions change between the first try and the repetition."""
    lab, inbox = queues, str(queues.folder / "inbox")
    for number in range(2):
        numbered(lab, range(100 * number, 100 * (number + 1)), 1).write.mode("append").parquet(inbox)
    rows = lab.spark.readStream.schema("key string, value string, topic string")
    files = rows.option("maxFilesPerTrigger", "1").parquet(inbox)
    ended(stream(lab, files, queue="rest"))
    check(lab, range(200))
    heads = {name: lab.head(name) for name in WANTED}
    consumer = lab.consumer("publisher")
    newest = consumer.forget_commit()
    ended(stream(lab, files, queue="rest"))
    assert {name: lab.head(name) for name in WANTED} == heads

    # As if the driver had died before the last of the queues: one that has nothing of the batch yet.
    lab.create("zone", 4).subscribe("bills/>")
    lab.queue("eu").unsubscribe("bills/eu")
    heads["eu"] = lab.head("eu")
    assert consumer.forget_commit() == newest
    ended(stream(lab, files, queue="rest"))
    assert {name: lab.head(name) for name in WANTED} == heads
    check_values(lab, "zone", [n for n in range(100, 200) if n % 6 in (3, 4)])
    zone = lab.head("zone")
    assert consumer.forget_commit() == newest
    ended(stream(lab, files, queue="rest"))
    assert lab.head("zone") == zone


def test_the_example_of_the_document_does_what_it_says(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs/topics.md").read_text(encoding="utf-8")
    (shell,), (example,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("bash", "python"))
    for partitions, line in enumerate(shell.splitlines(), start=1):
        words = shlex.split(line)
        assert words[:3] == ["partq", "queue", "subscribe"]
        lab.create(words[3], partitions).subscribe(*words[4:])
    exec(example, {"spark": lab.spark, "store": lab.url})  # noqa: S102 (the document's own)
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", example, re.MULTILINE)
