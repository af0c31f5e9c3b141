"""Columns on request against reading all of them: any columns in any order, of any log, give the same values."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.log import tree
from partq_spark.log.compaction import compact
from partq_spark.log.model import Head
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.query.columns import batch_schema, batches
from partq_spark.query.schema import SOURCE_TYPES, WantedColumns, default_columns, wanted_columns
from tests.log.queues import World
from tests.support.properties import examples

pytestmark = pytest.mark.slow

Wanted = dict[int, tuple[int, int]]
Plan = list[tuple[int, bool]]

PLANS = st.lists(st.tuples(st.integers(1, 40) | st.just(9_000), st.booleans()), min_size=1, max_size=14)
"""Publishes: how many messages, and whether with headers."""


def filled(plan: Plan, compression: str, *, compacted: bool) -> QueueLog:
    """Two partitions; with `compacted` the older half lies in few slices with a time for each message."""
    world = World()
    world.sizes = LogSizes(inline_entries=3, fan_out=3)  # so the head keeps few: the others may be compacted
    queue = world.create(2)
    for number, (rows, headers) in enumerate(plan):
        world.clock.now_us += 1_000_000
        stage = stage_of(queue.refresh())
        columns = [
            pa.array([None if row % 4 == 1 else f"k{row % 5}" for row in range(rows)], pa.string()),
            pa.array([f"größe {number}.{row}" for row in range(rows)]).cast(pa.binary()),
        ]
        if headers:
            pairs = [[{"key": "n", "value": b"%d" % row}] * (row % 3) or None for row in range(rows)]
            columns.append(pa.array(pairs, HEADERS))
        with Stager(queue.store, stage, seed=str(number), headers=headers, compression=compression) as stager:
            stager.add(pa.RecordBatch.from_arrays(columns, schema=segment_schema(headers)))
            segment = stager.finish()
        assert segment is not None
        publish(queue, stage, [segment], None)
    if compacted:
        while compact(queue, min_age_s=0.0) is not None:
            pass
    return world.handle()


def test_these_logs_have_every_form_of_slice() -> None:
    forms = set()
    for headers in (False, True):
        queue = filled([(5, headers)] * 10, "lz4", compacted=True)
        head = queue.refresh()
        log = tree.view(head, {partition: (0, end) for partition, end in enumerate(head.next)})
        forms |= {(entry.headers, entry.times) for entry in tree.walk(log, queue.load_chunk)}
    assert forms == {(False, False), (False, True), (True, False), (True, True)}


def read(queue: QueueLog, head: Head, wanted: Wanted, columns: WantedColumns, below: dict[int, int]) -> pa.Table:
    reader = RangeReader(queue, head.queue_id, tree.view(head, wanted), only=columns.stored)
    made = list(batches(reader.pieces(), queue="orders", wanted=columns, redelivered_below=below))
    for batch in made:
        batch.validate(full=True)
    return pa.Table.from_batches(made, batch_schema(columns))


def named(names: Sequence[str], text: bool) -> WantedColumns:
    types = {name: kinds[-1 if text else 0] for name, kinds in SOURCE_TYPES.items()}
    return wanted_columns([(name, types[name]) for name in names])


@pytest.mark.conformance("TYP-01")
@examples(100)
@given(
    PLANS,
    st.sampled_from(["none", "lz4", "zstd"]),
    st.booleans(),
    st.lists(st.tuples(st.permutations(list(SOURCE_TYPES)), st.integers(1, 8), st.booleans()), min_size=3, max_size=6),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.dictionaries(st.integers(0, 1), st.integers(0, 200)),
)
def test_any_columns_in_any_order_are_as_in_the_whole(
    plan: Plan,
    compression: str,
    compacted: bool,
    requests: list[tuple[list[str], int, bool]],
    cut: tuple[float, float],
    below: dict[int, int],
) -> None:
    queue = filled(plan, compression, compacted=compacted)
    head = queue.refresh()
    low, high = sorted(cut)
    wanted = {partition: (int(low * end), int(high * end)) for partition, end in enumerate(head.next)}
    whole = read(queue, head, wanted, default_columns(True), below)
    assert whole.num_rows == sum(to - start for start, to in wanted.values())
    for order, count, text in requests:
        names = order[:count]
        found = read(queue, head, wanted, named(names, text), below)
        assert found.column_names == names
        for name in names:
            expected = whole.column(name)
            assert found.column(name).equals(expected.cast(found.schema.field(name).type)), name
