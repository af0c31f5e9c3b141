"""Random columns and values on their whole way: published, altered, placed again, compacted and read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from partq_spark.log.admin import alter_queue, create_queue
from partq_spark.log.compaction import compact
from partq_spark.log.destinations import StagedSegment, plan_queue
from partq_spark.log.fanout import Fan, publish_all
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import name_text
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.types import KEY_TYPES
from partq_spark.log.schema.versions import columns_of, schema_of
from tests.log import typed
from tests.log.schema.shapes import batches, same, schemas, types
from tests.support.memory_store import MemoryStore
from tests.support.properties import examples

NUMBER = pa.field("row number", pa.int32(), nullable=False)  # no drawn name is as long


SIZES = LogSizes(inline_entries=2, fan_out=2, slice_gain=2)


WIDER = {"TINYINT": "SMALLINT", "SMALLINT": "BIGINT", "INT": "BIGINT", "FLOAT": "DOUBLE"}


def stage(queue: QueueLog, batch: pa.RecordBatch, task: int) -> list[StagedSegment]:
    """As a task of a sink does it."""
    with Fan(queue.store, plan_queue(queue), seed=f"q/1/{task}", given=batch.schema) as fan:
        fan.add(batch)
        staged, _ = fan.finish()
    return staged


def check(queue: QueueLog, expected: Mapping[int, Mapping[str, Any]]) -> None:
    """All rows are there once, with null in columns that they were published without."""
    columns, found = queue.refresh().columns, typed.read_flat(queue)
    assert columns is not None
    wanted = {number: {name: row.get(name) for name in columns.names} for number, row in expected.items()}
    assert same({row[NUMBER.name]: row for row in found}, wanted)
    assert len(found) == len(wanted)


@pytest.mark.conformance("TYP-02")
@examples(40, suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large))
@given(data=st.data())
def test_rows_come_back_as_they_were_given(data: st.DataObject) -> None:
    schema = data.draw(schemas()).append(NUMBER)
    keys = [field.name for field in schema if field.type in KEY_TYPES and not pa.types.is_binary(field.type)]
    key = data.draw(st.sampled_from([None, *keys]))
    store = MemoryStore(clock=lambda: 0.0, rng=random.Random(1))
    create_queue(store, "default", "orders", 3, columns=columns_of(schema, key))
    queue = QueueLog(store, "default", "orders", sizes=SIZES)
    expected: dict[int, dict[str, Any]] = {}
    for number in range(data.draw(st.integers(2, 8))):
        tasks = []
        for task in range(data.draw(st.integers(1, 2))):
            batch = numbered(data, queue, len(expected))
            tasks.append(stage(queue, batch, task))
            expected.update({row[NUMBER.name]: row for row in batch.to_pylist()})
            alter(data, queue.another(), number)
        if any(tasks):
            publish_all(lambda _: queue, tasks, None, seed="q/1")
    check(queue, expected)
    while compact(queue, min_age_s=0.0) is not None:
        pass
    check(queue, expected)


def numbered(data: st.DataObject, queue: QueueLog, first: int) -> pa.RecordBatch:
    """Rows for the queue's columns of today, numbered on from `first`."""
    columns = queue.refresh().columns
    assert columns is not None
    schema = schema_of(columns)
    place = schema.get_field_index(NUMBER.name)
    batch = data.draw(batches(schema))
    key = schema.get_field_index(columns.key or "")
    if key >= 0 and schema.field(key).type == pa.string():  # a key has 255 bytes at most
        batch = batch.set_column(key, schema.field(key), pc.utf8_slice_codeunits(batch.column(key), 0, 60))
    return batch.set_column(place, NUMBER, pa.array(range(first, first + batch.num_rows), pa.int32()))


def alter(data: st.DataObject, queue: QueueLog, number: int) -> None:
    """By somebody else, while what was staged is not published yet."""
    what = data.draw(st.sampled_from(["nothing", "nothing", "add", "widen", "resize"]))
    columns = queue.refresh().columns
    assert columns is not None
    if what == "add" and columns.column(f"added {number}") is None:
        alter_queue(queue, add_columns=f"`added {number}` {type_text(data.draw(types()))}")
    elif what == "widen":
        narrow = [each for each in columns.columns if each.type in WIDER and each.name != NUMBER.name]
        for column in narrow[:1]:
            alter_queue(queue, widen=f"{name_text(column.name)} {WIDER[column.type]}")
    elif what == "resize":
        alter_queue(queue, partitions=data.draw(st.integers(1, 5)))
