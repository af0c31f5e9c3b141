"""Batch reads of a queue: which range, which columns, and what a plan shows."""

from __future__ import annotations

import pytest
from chispa import assert_df_equality
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from partq_spark.base.timestamps import format_rfc3339
from partq_spark.log import housekeeping
from tests.support.spark import Lab

pytestmark = pytest.mark.spark


def values(rows: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in rows.collect())


def test_a_batch_read_takes_what_is_there_between_two_places(lab: Lab) -> None:
    queue = lab.create("orders", 1)
    assert lab.read("orders").collect() == [], "an empty queue is no error"
    times = [lab.publish("orders", [(None, b"%d" % n), (None, b"%d" % (n + 1))]).time_us for n in (0, 2, 4)]
    at = [format_rfc3339(time) for time in times]

    def read(**options: str) -> str:
        return b"".join(values(lab.read("orders", **options))).decode()

    assert read() == "012345"
    assert read(startingOffsets='{"0": 1}', endingOffsets='{"0": 4}') == "123"
    assert read(startingOffsets="latest") == ""
    assert read(endingOffsets="earliest") == ""
    assert read(startingTimestamp=at[1]) == "2345"
    assert read(endingTimestamp=at[1]) == "01", "the end is exclusive, as for offsets"
    assert read(startingTimestamp=at[0], endingTimestamp=at[2]) == "0123"
    assert read(startingOffsets='{"0": 1}', endingTimestamp=at[2]) == "123"
    assert read(startingTimestamp="1999-01-01T00:00:00Z", endingTimestamp="2999-01-01T00:00:00Z") == "012345"
    assert read(startingTimestamp="2999-01-01T00:00:00Z") == ""

    with pytest.raises(PySparkException, match="its end lies before its start"):
        read(startingTimestamp=at[2], endingTimestamp=at[1])
    with pytest.raises(PySparkException, match="startingOffsets names offset 7 of partition 0, which ends at 6"):
        read(startingOffsets='{"0": 7}')
    with pytest.raises(PySparkException, match=r"endingOffsets must name every partition.*unknown \[1\]"):
        read(endingOffsets='{"0": 1, "1": 1}')

    housekeeping.trim(queue, [3])
    assert read() == "345"
    assert read(startingTimestamp=at[0]) == "345"
    with pytest.raises(PySparkException, match=r"offsets 1 to 3 of partition 0.*have been trimmed"):
        read(startingOffsets='{"0": 1}')
    assert read(startingOffsets='{"0": 1}', failOnDataLoss="false") == "345"


def test_the_queue_may_be_the_path_and_reading_changes_nothing(lab: Lab) -> None:
    lab.create("orders", 3)
    lab.publish("orders", [(f"k{n}", b"%d" % n) for n in range(50)])
    before = {name: (lab.store_folder / "default/orders" / name).read_bytes() for name in lab.objects("orders")}
    by_path = lab.read("Orders")
    by_option = lab.spark.read.format("partq").option("STORE", lab.url).option("Queue", "orders").load()
    assert_df_equality(by_path, by_option, ignore_row_order=True)
    assert by_path.schema.fieldNames() == ["key", "value", "queue", "partition", "offset", "timestamp", "redelivered"]
    assert by_path.count() == 50
    assert by_path.where("partition = 1").select("offset").count() == lab.head("orders").next[1]
    after = {name: (lab.store_folder / "default/orders" / name).read_bytes() for name in lab.objects("orders")}
    assert after == before


def test_the_same_name_in_two_namespaces_is_two_queues(lab: Lab) -> None:
    from partq_spark.log import admin

    lab.create("orders", 1)
    admin.create_queue(lab.queue("orders").store, "shop", "orders", 2)
    rows = lab.spark.createDataFrame([("k", "v")], "key string, value string")
    lab.append(rows, "orders", namespace="Shop")
    assert lab.read("orders").count() == 0
    assert lab.read("orders", namespace="shop").count() == 1


def test_a_query_reads_what_there_was_when_it_was_planned(lab: Lab) -> None:
    lab.create("orders", 2)
    lab.publish("orders", [("a", b"0")])
    rows = lab.read("orders").persist()
    assert rows.count() == 1
    lab.publish("orders", [("a", b"1")])
    assert rows.count() == 1
    rows.unpersist()
    assert lab.read("orders").count() == 2


def test_no_plan_shows_a_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans show options (spark-traps.md 28), so no credential may be one: those that are recognised are refused."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "AccountName=a;AccountKey=hunter2;")
    lab.create("orders", 1)
    jvm = lab.spark.sparkContext._jvm
    assert jvm is not None
    for rows in (lab.read("orders"), lab.stream("orders")):
        plan = rows._jdf.queryExecution().toString()
        assert "partq" in plan
        assert "hunter2" not in plan
    for store in ("azure://user:hunter2@container/x", "azure://container/x?sig=hunter2"):
        with pytest.raises(PySparkException) as caught:
            lab.spark.read.format("partq").option("store", store).load("orders")
        assert "hunter2" not in str(caught.value)
    with pytest.raises(PySparkException) as caught:
        lab.read("orders", ownership="redis://user:hunter2@host:6379/0")
    assert "'ownership'" in str(caught.value)
    assert "hunter2" not in str(caught.value)
