"""What rows of typed queues cost and how large they may be: columns on request, deep types, many columns, what tasks
import (TYP-01, TYP-02).
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partq_spark.base.errors import Invalid
from partq_spark.log import tree
from partq_spark.log.admin import alter_queue, create_queue
from partq_spark.log.destinations import plan_topics
from partq_spark.log.model import QueueConfig
from partq_spark.log.publish import publish
from partq_spark.log.reading import RangeReader
from partq_spark.log.restaging import publish_tasks
from partq_spark.log.schema.bring import chosen_columns
from partq_spark.log.schema.types import MAX_DEPTH
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of
from partq_spark.log.segment import read_slice
from partq_spark.log.segment_columns import segment_columns
from partq_spark.log.staged import Staged, stage_of
from partq_spark.log.subscriptions import subscribe
from partq_spark.objects import open_store
from tests.log import typed
from tests.log.queues import World, everything

# --- how large --------------------------------------------------------------------------------------------------------


def nested(kind: str, depth: int) -> tuple[str, Any]:
    """A type so deep, and a value of it."""
    if depth == 1:
        return "STRING", "x"
    inner, value = nested(kind, depth - 1)
    if kind == "ARRAY":
        return f"ARRAY<{inner}>", [value]
    if kind == "MAP":
        return f"MAP<STRING, {inner}>", [("k", value)]
    return f"STRUCT<a: {inner}>", {"a": value}


@pytest.mark.parametrize("kind", ["ARRAY", "MAP", "STRUCT"])
def test_columns_may_be_nested_as_deep_as_a_schema_may_say(world: World, kind: str) -> None:
    ddl, value = nested(kind, MAX_DEPTH)
    queue = typed.create(world, f"n INT, deep {ddl}", "n", partitions=2)
    rows = [{"n": number, "deep": value if number % 2 else None} for number in range(30)]
    for row in rows:
        typed.send(queue, [row])
    made = typed.staged(queue, stage_of(queue.refresh()), [{"n": 30, "deep": value}])
    stage = stage_of(queue.refresh())
    alter_queue(queue, partitions=1, widen="n BIGINT")
    publish_tasks(queue, [Staged(stage, made[0])], seed="s")
    typed.compact_all(world, queue)
    assert sorted(typed.read_flat(queue), key=lambda row: int(row["n"])) == [*rows, {"n": 30, "deep": value}]
    assert {repr(row) for row in typed.read_flat(queue, f"deep {ddl}")} == {
        repr({"deep": each}) for each in (value, None)
    }
    with pytest.raises(Invalid, match="nested more than 32 deep"):
        typed.create(world, f"deep {nested(kind, MAX_DEPTH + 1)[0]}", None, name="deeper")


def test_a_queue_of_a_thousand_columns(world: World) -> None:
    queue = typed.create(world, ", ".join(f"column_{number} INT" for number in range(1000)), "column_7")
    rows = [{f"column_{number}": row * number for number in range(1000)} for row in range(20)]
    typed.send(queue, rows)
    assert sorted(typed.read_flat(queue), key=lambda row: int(row["column_1"])) == rows
    assert {row["column_999"] for row in typed.read_flat(queue, "column_999 INT, column_3 INT")} == {
        *range(0, 19_000, 999)
    }


# --- columns on request -----------------------------------------------------------------------------------------------


def test_only_the_columns_that_the_reader_takes_are_decoded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = typed.create(world, "a INT, b STRING, c INT", partitions=1, key="a")
    stage = stage_of(queue.refresh())
    heads = [[{"key": "h", "value": b"1"}]]
    publish(queue, stage, typed.staged(queue, stage, [{"a": 1, "b": "x", "c": 2}], headers=heads))
    alter_queue(queue, add_columns="d INT")
    stage = stage_of(queue.refresh())
    publish(queue, stage, typed.staged(queue, stage, [{"a": 3, "b": "y", "c": 4, "d": 5}], headers=heads))
    decoded: list[list[str]] = []

    def noted(*given: Any, **more: Any) -> pa.RecordBatch:
        batch = read_slice(*given, **more)
        decoded.append(batch.schema.names)
        return batch

    monkeypatch.setattr("partq_spark.log.reading.read_slice", noted)
    head = queue.refresh()

    def seen(ddl: str | None, only: tuple[str, ...] | None) -> tuple[list[list[str]], list[dict[str, Any]], list[bool]]:
        decoded.clear()
        payload = pa.schema([]) if ddl is None else schema_from(ddl)
        view = tree.view(head, everything(head))
        found = list(RangeReader(queue, head.queue_id, view, payload=payload, only=only).pieces())
        assert [piece.batch.num_rows for piece in found] == [1, 1]
        return (
            [*decoded],
            [row for piece in found for row in typed.rows_of(piece)],
            [bool(each.headers) for each in found],
        )

    assert seen("c INT, a INT", ()) == ([["a", "c"]] * 2, [{"c": 2, "a": 1}, {"c": 4, "a": 3}], [False, False])
    assert seen("d INT", ()) == ([[], ["d"]], [{"d": None}, {"d": 5}], [False, False])
    assert seen("a INT", ("_headers", "_timestamp")) == ([["a", "_headers"]] * 2, [{"a": 1}, {"a": 3}], [True, True])
    assert seen(None, ("_headers",))[0] == [["_headers"], ["_headers"]]
    assert seen(None, ())[0] == [[], []]
    assert seen("b STRING", None)[0] == [["b", "_headers"]] * 2


# --- what it costs ----------------------------------------------------------------------------------------------------


def imported_by(code: str) -> set[str]:
    """The modules that a process has in the end."""
    code = f"import sys\n{code}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_tasks_of_untyped_queues_import_nothing_for_typed_ones() -> None:
    found = imported_by("import partq_spark.log.reading, partq_spark.log.fanout, partq_spark.log.restaging")
    schema = {name.removeprefix("partq_spark.log.schema.") for name in found if "partq_spark.log.schema." in name}
    assert schema == {"columns", "types"}


READS = """
import pickle
from partq_spark.log.connect import shared_store
from partq_spark.log.queue import QueueLog
from partq_spark.log.reading import RangeReader
queue_id, view, payload = pickle.loads({plan!r})
queue = QueueLog(shared_store({store!r}, 60.0), "default", "orders")
for piece in RangeReader(queue, queue_id, view, payload=payload).pieces():
    assert piece.batch.num_rows == 2
    assert piece.batch.column("id")[0].as_py() == 1
"""


def test_tasks_that_read_typed_queues_import_no_pandas_and_need_nothing_but_their_plan(tmp_path: Path) -> None:
    """0.2 s and 30 MB in every worker of Spark's; and no head is read."""
    store = open_store(f"file:{tmp_path}", retry_timeout_s=60.0)
    columns = columns_of(schema_from("id INT, n FLOAT, deep MAP<STRING, ARRAY<STRUCT<a: INT NOT NULL>>>"), "id")
    queue = create_queue(store, "default", "orders", 1, columns=columns)
    deep = [("k", [{"a": 1}])]
    typed.send(queue, [{"id": 1, "deep": deep}, {"id": 1}])
    alter_queue(queue, add_columns="coupon STRING", widen="id BIGINT, n DOUBLE")
    typed.send(queue, [{"id": 1, "n": 0.5}, {"id": 1, "deep": deep}])
    head = queue.refresh()
    wanted = schema_from("deep MAP<STRING, ARRAY<STRUCT<a: INT>>>, coupon STRING, id INT, n FLOAT")
    assert head.columns is not None
    plan = (head.queue_id, tree.view(head, everything(head)), chosen_columns(head.columns, wanted))
    (tmp_path / "default/orders/_head.json").unlink()
    found = imported_by(READS.format(plan=pickle.dumps(plan), store=store.url))
    assert "partq_spark.log.schema.bring" in found
    assert "pandas" not in found


STAGES = """
import pickle
from pathlib import Path
import pyarrow as pa
from partq_spark.log.connect import shared_store
from partq_spark.log.fanout import Fan
plan, given = pickle.loads({plan!r})
store = shared_store({store!r}, 60.0)
with pa.OSFile({rows!r}) as file, Fan(store, plan, seed="q/7/0", headers=True, given=given) as fan:
    for batch in pa.ipc.open_stream(file):
        fan.add(batch.drop_columns(["_topic"]), batch.column("_topic"))
    (staged,), unattracted = fan.finish()
assert (staged.segment.rows, unattracted.messages) == ({staged}, 1)
"""


@pytest.mark.parametrize("rows", [4, 4_000])
@pytest.mark.parametrize(
    "ddl", [None, "id INT, at TIMESTAMP, on DATE, total DECIMAL(5,2), deep MAP<STRING, ARRAY<INT>>"]
)
def test_tasks_that_publish_import_no_pandas(tmp_path: Path, ddl: str | None, rows: int) -> None:
    """With and without keys, by topics, and batches so large that each message's bytes are counted."""
    store = open_store(f"file:{tmp_path}", retry_timeout_s=60.0)
    columns = None if ddl is None else columns_of(schema_from(ddl), "id")
    queue = create_queue(store, "default", "orders", 8, QueueConfig(max_message_bytes=200), columns=columns)
    subscribe(queue, "orders/>")
    keyed = {
        "key": "key",
        "value": b"value",
        "id": 7,
        "at": datetime.now(UTC),
        "on": date(2026, 1, 1),
        "total": Decimal("1.50"),
        "deep": [("k", [1, 2])],
    }
    schema = segment_columns(columns, headers=True).schema
    batch = pa.RecordBatch.from_pylist([keyed, {**keyed, "key": None, "id": None}] * (rows // 2), schema=schema)
    batch = batch.append_column("_topic", pa.array([*["orders/new"] * (rows - 1), "else"]))
    with pa.ipc.new_stream(str(tmp_path / "rows"), batch.schema) as writer:
        writer.write_batch(batch)
    plan = pickle.dumps((plan_topics("default", [queue]), None if columns is None else schema_of(columns)))
    found = imported_by(STAGES.format(plan=plan, rows=str(tmp_path / "rows"), store=store.url, staged=rows - 1))
    assert "pandas" not in found
