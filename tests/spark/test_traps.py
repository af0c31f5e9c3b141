"""What Spark's Python data source API really does, where partq leans on it: a Spark that differs fails here, loudly.

The numbers are those of docs/spark-traps.md; what a test of partq itself shows is not shown again, nor is the order of
the calls, which `test_recorded_calls` compares with the simulated world's.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.probe import calls, install
from tests.support.spark import Lab, ended, failure
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark


@pytest.fixture
def log(lab: Lab) -> Path:
    """Where the probe writes its calls."""
    install(lab.spark)
    path = lab.folder / "calls"
    path.touch()
    return path


def stream(lab: Lab, log: Path, **options: str) -> DataFrame:
    return lab.spark.readStream.format("probe").options(log=str(log), ends="[3, 5]", **options).load()


def write(lab: Lab, log: Path, rows: DataFrame, **options: str) -> StreamingQuery:
    writer = rows.coalesce(1).writeStream.format("probe").options(log=str(log), **options).queryName("a name")
    return writer.option("checkpointLocation", str(lab.folder / "sink")).trigger(availableNow=True).start()


def test_a_sources_life(lab: Lab, log: Path) -> None:
    consumer = lab.consumer()
    assert [row.number for row in consumer.run(stream(lab, log))] == [0, 1, 2, 3, 4]
    # 1: commit comes when a later batch has been planned, and never for the last one.
    assert [each["call"] for each in calls(log, "commit")] == ["commit 3"]
    # 3: readers are made in several processes, and read() runs in none that plans.
    planners = {each["pid"] for each in calls(log, "latestOffset") + calls(log, "partitions")}
    assert len(planners) == 1
    assert planners.isdisjoint({each["pid"] for each in calls(log, "read ")})
    assert len({each["pid"] for each in calls(log, "reader")}) >= 2
    # 5: the initial offset is asked for more than once, and the log stores ends only.
    assert len(calls(log, "initialOffset")) == 2
    written = [(consumer.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1] for batch in (0, 1)]
    assert [json.loads(line) for line in written] == [{"at": 3, "z": 1}, {"at": 5, "z": 1}]
    # 8: the driver-side options are the user's alone.
    assert calls(log, "reader")[0]["options"] == ["ends", "log"]
    # 13: AvailableNow hands back the default limit, in snake_case. 23: an end that equals the start ends the query.
    asked = [(each["call"], each["limit"]) for each in calls(log, "latestOffset")]
    assert asked == [(f"latestOffset {at} some", {"max_rows": 77}) for at in (0, 3, 5)]


def test_offsets_are_compared_as_text_so_another_order_of_keys_is_news(lab: Lab, log: Path) -> None:
    """6. With AvailableNow it never ends, hence a plain trigger."""
    consumer = lab.consumer()
    query = consumer.start(stream(lab, log, shuffled="true"))
    wait_until(lambda: len(consumer.batches) >= 2 + 3, "empty batch")
    query.stop()
    assert consumer.sizes == [3, 2]


def test_a_sinks_life_and_how_it_fails(lab: Lab, log: Path) -> None:
    lab.spark.range(0, 25_000, 1, 1).selectExpr("cast(id as int) number").write.parquet(str(lab.folder / "rows"))
    rows = lab.spark.readStream.schema("number int").parquet(str(lab.folder / "rows"))
    query = ended(write(lab, log, rows))
    (wrote,), (commit,) = calls(log, "write"), calls(log, "sink commit")
    assert commit["call"] == "sink commit 0 1"
    # 8: tasks know query and batch; the writer's options have what Spark put there.
    assert wrote["task"] == [str(query.id), "0"]
    assert {"checkpointlocation", "queryname"} <= set(commit["options"])
    # 12: batches have at most 10,000 rows.
    assert (max(wrote["sizes"]), sum(wrote["sizes"])) == (10_000, 25_000)

    # 9: a commit that fails is followed by abort, with all messages and in another process than the task's. 12: a task
    # without rows writes too.
    log.write_text("")
    lab.spark.range(1).selectExpr("cast(id as int) number").write.mode("append").parquet(str(lab.folder / "rows"))
    assert "it fails on purpose" in failure(write(lab, log, rows.where("number < 0"), fails="[1, 0]"))
    (wrote,) = calls(log, "write")
    assert wrote["sizes"] == []
    assert [each["call"] for each in calls(log, "sink commit") + calls(log, "abort")] == [
        "sink commit 1 1",
        "abort 1 1",
    ]
    assert wrote["pid"] not in {each["pid"] for each in calls(log, "sink commit") + calls(log, "abort")}


def test_the_first_batch_must_match_the_schema_to_the_letter(lab: Lab, log: Path) -> None:
    """11."""
    with pytest.raises(PySparkException, match="DATA_SOURCE_RETURN_SCHEMA_MISMATCH"):
        lab.spark.read.format("probe").option("large", "yes").option("log", str(log)).load().collect()


def test_partq_takes_no_filters() -> None:
    """14: an override makes every batch read fail while Spark's setting for it is off, which is its default."""
    from partq_spark.spark.reader import PartqBatchReader

    assert PartqBatchReader.pushFilters is DataSourceReader.pushFilters
