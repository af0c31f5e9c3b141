"""Segments: what a task stages is what a reader gets, in order, or nothing is left; every refusal and every damage."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Corrupt, Invalid, ObjectMissing
from partq_spark.log import destinations, names, segment
from partq_spark.log.fanout import Fan
from partq_spark.log.model import Slice
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.segment import Stager, read_slice
from partq_spark.log.segment_columns import segment_columns, segment_schema
from partq_spark.log.staged import Stage, StagedSegment, stage_of
from partq_spark.log.subscriptions import subscribe
from partq_spark.log.validation import check_batch, first_not_utf8, is_utf8
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.local import LocalStore
from partq_spark.spark.sink_columns import normalised, topics_of
from tests.log.queues import Row, World, batch_of, empty_head
from tests.support.properties import examples
from tests.support.texts import BAD, headers_of, texts
from tests.support.way import Hooked

SEED = "writer/1/0"


PLAIN = segment_columns(None)


def stage(partitions: int = 4, max_message_bytes: int = 10_000_000) -> Stage:
    return replace(stage_of(empty_head(partitions)), max_message_bytes=max_message_bytes)


def put(
    store: ObjectStore,
    blocks: list[pa.RecordBatch],
    *,
    to: Stage | None = None,
    headers: bool = False,
    compression: str = "lz4",
    run_bytes: int = segment.RUN_BYTES,
) -> StagedSegment | None:
    with Stager(
        store, to or stage(), seed=SEED, headers=headers, compression=compression, run_bytes=run_bytes
    ) as stager:
        for block in blocks:
            stager.add(block)
        return stager.finish()


def some(made: StagedSegment | None) -> StagedSegment:
    assert made is not None
    return made


def path_of(made: StagedSegment) -> str:
    return names.segment_folder("default", "orders", empty_head(1).queue_id) + made.name


def got(store: ObjectStore, made: StagedSegment) -> dict[int, list[tuple[str | None, bytes]]]:
    """Partition → its messages, slice after slice."""
    found: dict[int, list[tuple[str | None, bytes]]] = {}
    for piece in made.slices:
        sliced = Slice(piece.partition, 0, piece.start, piece.length, 0, piece.rows, piece.xxh3)
        batch = read_slice(store, path_of(made), sliced, segment_columns(None, headers=made.headers))
        assert batch.num_rows == piece.rows > 0
        rows = zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        found.setdefault(piece.partition, []).extend(rows)
    return found


def first_slice(made: StagedSegment) -> Slice:
    piece = made.slices[0]
    return Slice(piece.partition, 0, piece.start, piece.length, 17, piece.rows, piece.xxh3)


def by_partition(rows: list[Row], partitions: int) -> dict[int, list[Row]]:
    """What belongs where, in the order given."""
    keys = pa.array([None if key is None else key.encode() for key, _ in rows], pa.binary())
    expected: dict[int, list[Row]] = {}
    for row, partition in zip(rows, partitions_of(keys, partitions, SEED, 0).to_pylist(), strict=True):
        expected.setdefault(partition, []).append(row)
    return expected


# --- order and content ------------------------------------------------------------------------------------------------


@pytest.mark.conformance("DIS-02")
@examples(25)
@given(data=st.data(), partitions=st.sampled_from([1, 3, 8, 1000]), run_bytes=st.sampled_from([1, 300, 10**6]))
def test_any_messages_come_back_in_order(data: st.DataObject, partitions: int, run_bytes: int) -> None:
    row = st.tuples(st.none() | st.text(max_size=8), st.binary(max_size=20))
    blocks = data.draw(st.lists(st.lists(row, max_size=12), max_size=6))
    rows = [each for block in blocks for each in block]
    store = World().store
    made = put(store, [batch_of(block) for block in blocks], to=stage(partitions), run_bytes=run_bytes)
    if not rows:
        assert made is None
    else:
        assert got(store, some(made)) == by_partition(rows, partitions)


@pytest.mark.conformance("DIS-02")
def test_order_is_kept_over_the_blocks_that_a_run_is_sorted_in(world: World) -> None:
    rows: list[Row] = [(f"key {number % 7}", b"%06d" % number) for number in range(30_000)]
    block = batch_of(rows)
    made = some(put(world.store, [block.slice(start, 5_000) for start in range(0, 30_000, 5_000)]))
    assert got(world.store, made) == by_partition(rows, 4)
    assert len(made.slices) == len({piece.partition for piece in made.slices})  # one run: one slice for each


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_the_whole_segment_opens_as_an_arrow_file(
    world: World, tmp_path: Path, compression: str, headers: bool, local: bool
) -> None:
    store: ObjectStore = LocalStore(str(tmp_path)) if local else world.store
    rows: list[Row] = [(f"key {number % 9}", b"value %d " % number * 20) for number in range(500)]
    plain = batch_of(rows)
    given_headers = [None, [], [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]]
    column = pa.array([given_headers[number % 3] for number in range(500)], segment_schema(True).field("headers").type)
    block = pa.RecordBatch.from_arrays([*plain.columns, column], schema=segment_schema(True)) if headers else plain
    blocks = [block.slice(0, 200), block.slice(200)]
    made = some(put(store, blocks, headers=headers, compression=compression, run_bytes=1))

    data = bytes(store.read(path_of(made)))
    assert len(data) == made.bytes
    with pa.ipc.open_file(pa.py_buffer(data)) as file:
        assert file.schema == segment_schema(headers)
        assert file.num_record_batches == len(made.slices)
        whole = file.read_all()
        for index, piece in enumerate(made.slices):
            sliced = Slice(piece.partition, 0, piece.start, piece.length, 0, piece.rows, piece.xxh3)
            assert file.get_batch(index).equals(
                read_slice(store, path_of(made), sliced, segment_columns(None, headers=headers))
            )
    assert sorted(whole.column("value").to_pylist()) == sorted(value for _, value in rows)
    if headers:
        found = dict(zip(whole.column("value").to_pylist(), whole.column("headers").to_pylist(), strict=True))
        assert all(found[value] == given_headers[number % 3] for number, (_, value) in enumerate(rows))
    smaller = sum(len(value) for _, value in rows) > len(data)
    assert smaller == (compression != "none")


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value_bytes", "taken"), [(83, True), (84, False)])
@pytest.mark.parametrize("headers", [False, True])
def test_the_limit_of_a_message_counts_key_value_and_headers_exactly(
    world: World, value_bytes: int, taken: bool, headers: bool
) -> None:
    # 100 bytes: a key of 9 ("ключ" and one more), headers of 8 or a longer value, the value.
    key, length = "ключx", value_bytes + (0 if headers else 8)
    rows: list[Row] = [("a", b"1"), (None, b"1"), (key, b"v" * length)]
    block = batch_of(rows)
    if headers:
        last = [{"key": "é", "value": b"123"}, {"key": "abc", "value": None}]
        column = pa.array([None, [], last], segment_schema(True).field("headers").type)
        block = pa.RecordBatch.from_arrays([*block.columns, column], schema=segment_schema(True))
    limited = stage(max_message_bytes=100)
    if taken:
        assert some(put(world.store, [block], to=limited, headers=headers)).rows == 3
    else:
        with pytest.raises(Invalid, match=r"message of row 2 has 101 bytes .* takes 100") as caught:
            put(world.store, [block], to=limited, headers=headers)
        assert "--max-message-bytes" in str(caught.value)
        assert list(world.store.list("")) == []


@pytest.mark.parametrize("local", [False, True])
def test_an_exception_leaves_nothing_behind(world: World, tmp_path: Path, local: bool) -> None:
    store: ObjectStore = LocalStore(str(tmp_path)) if local else world.store
    seen = 0

    def task() -> None:
        nonlocal seen
        with Stager(store, stage(), seed=SEED, run_bytes=1) as stager:
            stager.add(batch_of([("a", b"1" * 1000)]))
            stager.add(batch_of([("b", b"1" * 1000)]))
            seen = len([path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"])
            raise RuntimeError("the task ends")

    with pytest.raises(RuntimeError, match="the task ends"):
        task()
    assert seen == (1 if local else 0)  # there was something to leave behind
    assert list(store.list("")) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_run_is_written_when_it_is_full(world: World) -> None:
    hooked = Hooked(world.store)
    block = batch_of([(f"key {number}", b"v" * 1000) for number in range(100)])
    with Stager(hooked, stage(), seed=SEED, run_bytes=5 * block.nbytes, compression="none") as stager:
        for number in range(1, 51):
            stager.add(block)
            written = sum(kind == "write" for kind, _ in hooked.calls)
            assert (written > 0) == (number >= 5)  # nothing is kept until the end
        made = some(stager.finish())
    assert len(made.slices) == 4 * 10  # ten runs, each with every partition once
    assert [piece.partition for piece in made.slices] == [0, 1, 2, 3] * 10
    assert made.rows == 5_000


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("compression", "local"), [("none", False), ("lz4", False), ("zstd", False), ("zstd", True)])
def test_every_flipped_bit_and_every_missing_end_of_a_slice_is_noticed(
    world: World, tmp_path: Path, compression: str, local: bool
) -> None:
    store: ObjectStore = LocalStore(str(tmp_path)) if local else world.store
    made = some(put(store, [batch_of([("key", b"value %d" % n) for n in range(50)])], compression=compression))
    name, piece = path_of(made), first_slice(made)
    data = bytes(store.read(name))
    end = piece.start + piece.length
    bits = random.Random(compression).sample(range(8 * piece.start, 8 * end), 40 if local else 400)
    harmed = [data[:length] for length in (0, 1, piece.start, piece.start + 1, end - 1)]
    for bit in [8 * piece.start, 8 * end - 1, *bits]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        harmed.append(bytes(flipped))
    for each in harmed:
        store.delete(name)
        store.create(name, each)
        with pytest.raises(Corrupt, match=re.escape(name)) as caught:
            read_slice(store, name, piece, PLAIN)
        assert not isinstance(caught.value, ObjectMissing)
        assert len(each) < len(data) or f"offsets 17 to {17 + piece.rows}" in str(caught.value)
    store.delete(name)
    with pytest.raises(ObjectMissing, match=re.escape(name)):
        read_slice(store, name, piece, PLAIN)
    store.create(name, data)
    assert read_slice(store, name, piece, PLAIN).num_rows == piece.rows


def test_a_slice_with_another_number_of_messages_is_noticed(world: World) -> None:
    made = some(put(world.store, [batch_of([("key", b"value")] * 50)]))
    with pytest.raises(Corrupt, match=r"has 50 messages at byte .* the log says 49"):
        read_slice(world.store, path_of(made), first_slice(made)._replace(rows=49), PLAIN)


@pytest.mark.parametrize("key", ["x" * 256, "é" * 128, "客" * 85 + "x", "🚲" * 64])
@pytest.mark.conformance("DIS-04")
def test_a_key_of_255_bytes_is_taken_and_of_256_refused_and_nothing_is_staged(world: World, key: str) -> None:
    assert len(key.encode()) == 256
    with pytest.raises(Invalid, match=r"key of row 5 has 256 bytes in UTF-8, at most 255") as caught:
        put(world.store, [batch_of([("a", b"1")] * 3), batch_of([("a", b"1"), (None, b"2"), (key, b"3")])], run_bytes=1)
    assert key[:40] in str(caught.value)
    assert list(world.store.list("")) == []
    short = key[:-1] + "x" * (len(key[-1].encode()) - 1)
    assert len(short.encode()) == 255
    assert list(got(world.store, some(put(world.store, [batch_of([(short, b"1")])]))).values()) == [[(short, b"1")]]


def test_a_message_without_a_value_is_refused_by_its_row(world: World) -> None:
    columns = [pa.array(["a", "b"], pa.string()), pa.array([b"", None], pa.binary())]
    with pytest.raises(Invalid, match="row 4 has no value"):
        put(world.store, [batch_of([("a", b"")] * 3), pa.RecordBatch.from_arrays(columns, names=["key", "value"])])
    assert list(world.store.list("")) == []


# --- texts that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 100])
def test_the_first_text_of_a_column_that_is_none_is_found(rows: int) -> None:
    for at in range(rows):
        values: list[bytes | None] = [None if n % 3 == 1 else "ä".encode() * n for n in range(rows)]
        values[at] = BAD
        plain = texts(None, *values)
        nested = pa.ListArray.from_arrays(
            pa.array(range(rows + 2), pa.int32()), pa.StructArray.from_arrays([plain], ["k"])
        )
        columns = (plain, texts(None, *values, large=True), plain.dictionary_encode(), nested)
        for column in columns:
            assert first_not_utf8(column) == at + 1
            assert first_not_utf8(column.slice(1)) == at
            assert is_utf8(column.slice(0, at + 1))
            assert is_utf8(column.slice(at + 2))
    for column in (pa.array([BAD]), pa.array([1, None]), pa.nulls(3), pa.array([[BAD]])):
        assert first_not_utf8(column) is None, "bytes and numbers are no texts"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": texts(b"a", b"b", BAD)}, r"the key of row 12 is not valid UTF-8 \(b'\\xffA'\): encode it"),
        ({"key": texts(b"a", b"b", BAD, large=True)}, r"the key of row 12 is not valid UTF-8"),
        ({"headers": headers_of(b"ok", BAD, b"ok")}, "a header of row 11 has a key that is not valid UTF-8"),
        ({"topic": texts(b"eu", BAD, None)}, "row 11 cannot be published: its topic is not valid UTF-8"),
        ({"value": texts(BAD, BAD, BAD)}, None),
    ],
)
def test_a_text_that_is_none_is_refused_by_its_row(
    world: World, changed: dict[str, pa.Array], said: str | None
) -> None:
    """As a task of the Spark sink stages it; 10 rows came before. A value may be any bytes."""
    queue = world.create(2)
    subscribe(queue, "eu")

    def rows(count: int, **other: pa.Array) -> pa.RecordBatch:
        plain = {
            "key": texts(*[b"k"] * count),
            "value": texts(*[BAD] * count),
            "headers": headers_of(*[b"h"] * count),
            "topic": texts(*[b"eu"] * count),
        }
        return pa.RecordBatch.from_pydict({**plain, **other})

    def stage_all() -> None:
        with Fan(world.store, destinations.plan_topics("default", [queue], queue), seed="s", headers=True) as fan:
            for batch, first_row in ((rows(10), 0), (rows(3, **changed), 10)):
                fan.add(normalised(batch, batch.schema.names, True, first_row), topics_of(batch, batch.schema.names))
            fan.finish()

    if said is None:
        stage_all()
    else:
        with pytest.raises(Invalid, match=said):
            stage_all()
        assert list(world.store.list("default/orders/_segments/")) == []


def test_texts_are_not_looked_at_again_when_they_are_read() -> None:
    """What lies under a null is no message's, and nobody looked at it when it was published."""
    batch = pa.RecordBatch.from_arrays(
        [texts(b"a", BAD), pa.array([b"1", b"2"]), headers_of(BAD, b"h")], schema=segment_schema(True)
    )
    check_batch(batch, thoroughly=True)
