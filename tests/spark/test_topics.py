"""One message, several queues: what a sink publishes by topic, and that a batch which Spark repeats is completed and
never doubled, queue by queue.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from partq_spark.log.model import QueueConfig
from partq_spark.log.subscriptions import subscribe, unsubscribe
from tests.support.spark import Lab, ended, failure

pytestmark = [pytest.mark.spark, pytest.mark.conformance("DIS-07")]

# Topic and value; the key is the topic's last level, so that one key comes under several topics.
TOPICS = ["orders/new/eu", "orders/new/us", "orders/old/eu", "bills/eu", "bills/us"]


def make(lab: Lab) -> None:
    """Queues of several partition counts: all, two that overlap in `orders/new/eu`, and one for what has no topic."""
    for name, partitions, subscriptions in (
        ("archive", 1, [">"]),
        ("eu", 7, ["orders/*/eu", "bills/eu"]),
        ("new", 3, ["orders/new/>"]),
        ("rest", 2, []),
    ):
        subscribe(lab.create(name, partitions), *subscriptions)


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


WANTED = {"archive": (0, 1, 2, 3, 4), "eu": (0, 2, 3), "new": (0, 1), "rest": (5,)}


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


def test_each_message_reaches_every_queue_that_attracts_it_where_its_key_belongs(lab: Lab) -> None:
    make(lab)
    write(lab, numbered(lab, range(300)), queue="rest")
    check(lab, range(300))
    for name, partitions in (("eu", 7), ("new", 3)):
        said = f.pmod(f.xxhash64("key"), f.lit(partitions)).cast("int")
        assert lab.read(name).where(said != f.col("partition")).count() == 0
        assert lab.head(name).sequence == 3, "one publish after the subscription"


def test_the_option_is_the_topic_of_all_rows_whatever_the_column_says(lab: Lab) -> None:
    make(lab)
    write(lab, numbered(lab, range(60)), topic="bills/eu")
    for name, numbers in (("archive", range(60)), ("eu", range(60)), ("new", range(0)), ("rest", range(0))):
        check_values(lab, name, numbers)
    plain = numbered(lab, range(60, 90)).drop("topic")
    write(lab, plain, topic="orders/new/us", queue="rest")
    for name, numbers in (("archive", range(90)), ("new", range(60, 90)), ("rest", range(0))):
        check_values(lab, name, numbers)


def test_what_nobody_attracts_goes_nowhere_or_is_refused_before_anything_is_published(lab: Lab) -> None:
    make(lab)
    unsubscribe(lab.queue("archive"), ">")
    heads = [lab.head(name) for name in WANTED]
    rows = numbered(lab, range(60)).where("topic is not null")
    with pytest.raises(Exception, match="10 messages with topics that no queue") as caught:
        write(lab, rows, failOnUnattractedTopic="true")
    assert "('bills/us')" in str(caught.value)
    assert "partq queue subscribe" in str(caught.value)
    assert [lab.head(name) for name in WANTED] == heads
    write(lab, rows)
    check_values(lab, "eu", [n for n in range(60) if n % 6 in WANTED["eu"]])
    check_values(lab, "archive", [])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([("k", "1", "bills/eu"), ("k", "2", None)], r"row 1 has no topic \(null\)"),
        ([("k", "1", "bills/eu"), ("k", "2", "bills/*")], r"row 1 cannot be published: topic 'bills/\*'"),
        ([("k", "1", "bills/eu"), ("k" * 256, "2", "bills/us")], "the key of row 1 has 256 bytes"),
        ([("k", "1", "bills/us"), ("k", "x" * 200, "bills/eu")], "the message of row 1 has 201 bytes.*queue 'small'"),
    ],
    ids=["no topic", "wildcard", "key", "size"],
)
@pytest.mark.conformance("DIS-04")
def test_a_row_that_cannot_be_published_is_named_and_nothing_of_its_batch_is_published(
    lab: Lab, rows: list[tuple[str, str, str | None]], said: str
) -> None:
    make(lab)
    subscribe(lab.create("small", 2, QueueConfig(max_message_bytes=100)), "bills/eu")
    before = {name: lab.objects(name) for name in (*WANTED, "small")}
    heads = [lab.head(name) for name in before]
    frame = lab.spark.createDataFrame(rows, "key string, value string, topic string").coalesce(1)
    with pytest.raises(Exception, match=said):
        write(lab, frame)
    assert [lab.head(name) for name in before] == heads
    assert {name: lab.objects(name) for name in before} == before


def test_a_queue_that_is_named_must_exist_and_some_place_must_be_named(lab: Lab) -> None:
    make(lab)
    with pytest.raises(Exception, match=r"queue 'nowhere' .* does not exist"):
        write(lab, numbered(lab, range(6)), queue="nowhere")
    with pytest.raises(Exception, match="no queue was named, and no topic"):
        write(lab, numbered(lab, range(6)).drop("topic"))


@pytest.mark.conformance("DIS-09")
def test_a_micro_batch_that_spark_repeats_is_completed_and_adds_nothing_to_those_that_have_it(lab: Lab) -> None:
    """Partition counts and subscriptions change between the first try and the repetition."""
    make(lab)
    inbox = str(lab.folder / "inbox")
    schema = "key string, value string, topic string"
    for number in range(2):
        numbered(lab, range(100 * number, 100 * (number + 1)), 1).write.mode("append").parquet(inbox)
    rows = lab.spark.readStream.schema(schema).option("maxFilesPerTrigger", "1").parquet(inbox)
    ended(stream(lab, rows, queue="rest"))
    check(lab, range(200))
    heads = {name: lab.head(name) for name in WANTED}

    consumer = lab.consumer("publisher")
    newest = consumer.forget_commit()
    ended(stream(lab, rows, queue="rest"))
    assert {name: lab.head(name) for name in WANTED} == heads

    # As if the driver had died before the last of the queues: one that has nothing of the batch yet.
    subscribe(lab.create("zone", 4), "bills/>")
    unsubscribe(lab.queue("eu"), "bills/eu")
    heads["eu"] = lab.head("eu")
    assert consumer.forget_commit() == newest
    ended(stream(lab, rows, queue="rest"))
    assert {name: lab.head(name) for name in WANTED} == heads
    check_values(lab, "zone", [n for n in range(100, 200) if n % 6 in (3, 4)])
    check(lab, range(200))
    zone = lab.head("zone")
    assert consumer.forget_commit() == newest
    ended(stream(lab, rows, queue="rest"))
    assert lab.head("zone") == zone


@pytest.mark.conformance("DIS-09")
def test_a_batch_write_with_a_version_is_published_once_to_every_queue(lab: Lab) -> None:
    make(lab)
    for _ in range(2):
        write(lab, numbered(lab, range(60)), queue="rest", txnAppId="nightly", txnVersion="7")
    check(lab, range(60))


def test_a_stream_whose_batch_is_refused_says_so(lab: Lab) -> None:
    make(lab)
    unsubscribe(lab.queue("archive"), ">")
    inbox = str(lab.folder / "inbox")
    rows = numbered(lab, range(12), 1)
    rows.write.parquet(inbox)
    said = failure(stream(lab, lab.spark.readStream.schema(rows.schema).parquet(inbox), failOnUnattractedTopic="true"))
    assert re.search(r"has no topic \(null\)", said)
    assert all(not lab.browse(name) for name in WANTED)
    again = lab.spark.readStream.schema(rows.schema).parquet(inbox).where("topic is not null")
    said = failure(stream(lab, again, failOnUnattractedTopic="true"))
    assert "2 messages with topics that no queue of namespace 'default' attracts ('bills/us')" in said
    assert all(not lab.browse(name) for name in WANTED)


def test_the_example_of_the_document_does_what_it_says(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "docs/topics.md").read_text(encoding="utf-8")
    (shell,), (example,) = (re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("bash", "python"))
    for partitions, line in enumerate(shell.splitlines(), start=1):
        partq, kind, command, queue, *subscriptions = shlex.split(line)
        assert (partq, kind, command) == ("partq", "queue", "subscribe")
        subscribe(lab.create(queue, partitions), *subscriptions)
    exec(example, {"spark": lab.spark, "store": lab.url})  # noqa: S102 (the document's own)
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", example, re.MULTILINE)
