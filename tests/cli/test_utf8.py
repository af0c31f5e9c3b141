"""Texts that are none: `partq publish` refuses them by row, and what lies in old queues is shown all the same."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from partq_spark.log.publish import publish, stage_for
from partq_spark.log.queue import Queue
from partq_spark.log.segment import SegmentWriter, segment_schema
from partq_spark.log.staged import StagedSegment
from partq_spark.objects import open_store
from tests.cli.conftest import Partq
from tests.support.texts import BAD, headers_of, texts


@pytest.mark.parametrize(
    ("columns", "words", "said"),
    [
        ({"key": texts(b"a", BAD), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"key": pa.array([b"a", BAD]), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"id": texts(b"a", BAD), "n": pa.array([1, 2])}, ("--key-column", "id"), "row 2 has text in 'id'"),
        ({"n": pa.array([1, 2]), "t": texts(b"a", BAD)}, (), "row 2 has text in 't' that is not UTF-8"),
        (
            {"value": texts(b"1", b"2"), "headers": headers_of(b"ok", BAD)},
            (),
            "row 2 has a header's key that is not UTF-8",
        ),
    ],
)
def test_parquet_that_holds_such_is_refused_by_row(
    partq: Partq, tmp_path: Path, columns: dict[str, pa.Array], words: tuple[str, ...], said: str
) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    assert f"bad.parquet {said}" in partq.error("publish", "orders", "--file", path, *words)
    assert partq.json("queue", "describe", "orders")["messages"] == 0


# --- what is there already --------------------------------------------------------------------------------------------


def old_queue(queue: Queue) -> None:
    """Messages as they could be published before anybody looked."""
    stage = stage_for(queue)
    name = "000000000001-0123456789abcdef.arrow"
    rows = pa.RecordBatch.from_arrays(
        [texts(b"a", BAD), texts(b"1", BAD).view(pa.binary()), headers_of(BAD, b"h")], schema=segment_schema(True)
    )
    with SegmentWriter(queue.store, queue.segment_folder + name, segment_schema(True)) as writer:
        writer.write(0, rows)
    segment = StagedSegment(name=name, headers=True, slices=tuple(writer.slices), bytes=writer.position)
    publish(queue, stage, [segment])


def test_what_lies_in_a_queue_is_shown_and_counted(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    old_queue(Queue(open_store(partq.url), "default", "orders"))
    good, bad = (json.loads(line) for line in partq("browse", "orders", "--json").stdout.splitlines())
    assert (good["key"], bad["key"], bad["key_encoding"]) == ("a", "/0E=", "base64")
    assert good["headers"] == [{"key": "/0E=", "key_encoding": "base64", "value": "x"}]
    assert bad["headers"] == [{"key": "h", "value": "x"}]
    shown = partq("browse", "orders").stdout
    assert "0xff41=x" in shown
    assert shown.count("0xff41") >= 3
    assert "Nothing was changed" in partq("queue", "alter", "orders", "--partitions", 3, "--dry-run").stdout


def test_what_was_browsed_with_such_a_key_is_not_taken_for_text(partq: Partq) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    old_queue(Queue(open_store(partq.url), "default", "orders"))
    lines = partq("browse", "orders", "--json").stdout.splitlines()
    said = partq.error("publish", "orders", stdin=lines[1] + "\n")
    assert "'key_encoding'" in said
