"""A batch that Spark repeats is published once, however it is repeated; and nobody's batches are dropped silently."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.spark import Lab, ended, failure

pytestmark = [pytest.mark.spark, pytest.mark.conformance("DIS-09")]

Start = Callable[[], StreamingQuery]


def copying(lab: Lab, kind: str) -> Start:
    """A copy of the inbox into `orders`, ten messages at a time: by the sink, or by a batch write in `foreachBatch`."""
    lab.create("inbox")
    columns = {"schema": "key STRING, value BINARY", "key": "key"} if kind == "typed" else {}
    lab.create("orders", 3, **columns)

    def forward(batch: DataFrame, batch_id: int) -> None:
        lab.append(batch.select("key", "value"), "orders", txnAppId="forwarder", txnVersion=str(batch_id))

    def start() -> StreamingQuery:
        stream = lab.stream("inbox", startingOffsets="earliest", maxMessagesPerTrigger="10").select("key", "value")
        if kind != "foreachBatch":
            return lab.publisher(stream, "orders", "copy")
        writer = stream.writeStream.foreachBatch(forward).trigger(availableNow=True)
        return writer.option("checkpointLocation", str(lab.folder / "copy")).start()

    return start


def fill(lab: Lab, first: int, end: int) -> None:
    """Each third without a key, whose partition is chosen at random."""
    lab.publish("inbox", [(f"k{n % 4}" if n % 3 else None, b"%d" % n) for n in range(first, end)])


def values(lab: Lab) -> list[int]:
    return sorted(int(row.value) for row in lab.read("orders").select("value").collect())


def told(said: str, option: str) -> str:
    """What a refusal says is to be given to `partq queue resolve`."""
    return said.split(f"--{option} ")[1].split(maxsplit=1)[0]


@pytest.mark.conformance("DIS-03")
@pytest.mark.parametrize("kind", ["untyped", "foreachBatch"])
def test_a_replayed_micro_batch_adds_nothing_however_often_it_comes(lab: Lab, kind: str) -> None:
    start = copying(lab, kind)
    fill(lab, 0, 25)
    ended(start())
    head = lab.head("orders")
    assert values(lab) == [*range(25)]
    assert lab.queue("orders").describe().log.entries == 3
    for _ in range(2):
        lab.consumer("copy").forget_commit()
        ended(start())
        assert lab.head("orders") == head
    fill(lab, 25, 26)  # and the query goes on from there
    lab.consumer("copy").forget_commit()
    ended(start())
    assert values(lab) == [*range(26)]

    # A query that begins anew has batch numbers of its own; under one txnAppId they would be taken for repetitions.
    shutil.rmtree(lab.folder / "copy")
    if kind == "untyped":
        ended(start())
        assert values(lab) == sorted([*range(26)] * 2), "nobody's batches are lost"
    else:
        head = lab.head("orders")
        said = failure(start())
        assert "writer 'forwarder' belongs to query" in said
        assert "choose another txnAppId" in said
        assert lab.head("orders") == head


# --- numbers that come again for other rows (DIS-10) ------------------------------------------------------------------


@pytest.mark.conformance("DIS-10")
@pytest.mark.parametrize("kind", ["typed", "foreachBatch"])
def test_an_older_spark_checkpoint_drops_nothing(lab: Lab, kind: str) -> None:
    """The messages of its batch numbers have become others meanwhile; a person says that these are new."""
    start, kept, used = copying(lab, kind), lab.folder / "kept", lab.folder / "copy"
    fill(lab, 0, 15)
    ended(start())
    shutil.copytree(used, kept)
    fill(lab, 15, 40)
    ended(start())
    head = lab.head("orders")
    shutil.rmtree(used)
    kept.rename(used)
    fill(lab, 40, 45)  # the older query's third batch is [15, 25) now, and the numbers go up to the fourth

    said = failure(start())
    assert "was refused and nothing of it was published" in said
    assert "an older Spark checkpoint" in said
    assert lab.head("orders") == head
    orders, batch = lab.queue("orders"), int(told(said, "batch"))
    orders.resolve(writer=told(said, "writer"), batch=batch, published=False)
    ended(start())
    assert [*dict.fromkeys(values(lab))] == [*range(45)], "nothing is lost, and what the sink had is twice at most"
    before = lab.head("orders")
    lab.consumer("copy").forget_commit()
    ended(start())
    assert lab.head("orders") == before, "exactly once from then on"
    (resolution,) = orders.describe().resolutions
    assert (resolution.batch, resolution.published) == (batch, False)
