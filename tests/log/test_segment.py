"""Segments: what a task stages is what a reader gets, in order, or nothing is left; every refusal and every damage."""

from __future__ import annotations

import random
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Conflict, Corrupt, Invalid, ObjectMissing
from partq_spark.log import destinations, names
from partq_spark.log.admin import subscribe
from partq_spark.log.destinations import Stage, StagedSegment, stage_of
from partq_spark.log.fanout import Fan
from partq_spark.log.model import Slice
from partq_spark.log.partitioner import partitions_of
from partq_spark.log.schema.forms import check_batch, first_not_utf8
from partq_spark.log.segment import read_slice, segment_schema
from partq_spark.log.settings import QueueConfig
from partq_spark.log.staging import RUN_BYTES, Stager
from partq_spark.objects.api import ObjectStore
from partq_spark.spark.columns import message_columns
from tests.log.queues import World, empty_head
from tests.support.properties import examples
from tests.support.texts import BAD, headers_of, texts
from tests.support.way import Hooked

SEED = "writer/1/0"


Message = tuple[str | None, bytes, list[dict[str, Any]] | None]


def stage(partitions: int = 4) -> Stage:
    return stage_of(empty_head(partitions))


def block_of(messages: list[Message], *, headers: bool = False) -> pa.RecordBatch:
    schema = segment_schema(headers=headers)
    columns = [[message[at] for message in messages] for at in range(len(schema))]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def put(store: ObjectStore, *blocks: pa.RecordBatch, to: Stage | None = None, **options: Any) -> StagedSegment | None:
    with Stager(store, to or stage(), seed=SEED, **options) as stager:
        for block in blocks:
            stager.add(block)
        return stager.finish()


def some(made: StagedSegment | None) -> StagedSegment:
    assert made is not None
    return made


def path_of(made: StagedSegment) -> str:
    return names.segment_folder("default", "orders", empty_head(1).queue_id) + made.name


def slices_of(made: StagedSegment) -> list[Slice]:
    return [piece._replace(offset=17) for piece in made.slices]


# --- order and content ------------------------------------------------------------------------------------------------


HEADER = st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)})
MESSAGES = st.lists(
    st.tuples(st.none() | st.text(max_size=8), st.binary(max_size=20), st.none() | st.lists(HEADER, max_size=2)),
    max_size=12,
)
OPTIONS = st.fixed_dictionaries(
    {
        "headers": st.booleans(),
        "compression": st.sampled_from(["none", "lz4", "zstd"]),
        "run_bytes": st.sampled_from([1, 300, RUN_BYTES]),
    }
)


@pytest.mark.conformance("DIS-02")
@examples(80)
@given(st.lists(MESSAGES, max_size=6), st.sampled_from([1, 3, 8, 1000]), OPTIONS)
def test_any_arrow_tool_opens_what_comes(blocks: list[list[Message]], partitions: int, options: dict[str, Any]) -> None:
    store, messages = World().store, [message for block in blocks for message in block]
    parts = [block_of(block, headers=options["headers"]) for block in blocks]
    made = put(store, *parts, to=stage(partitions), **options)
    if made is None:
        assert (messages, list(store.list(""))) == ([], [])
        return
    found = read_back(store, made)
    keys = pa.array([None if key is None else key.encode() for key, *_ in messages], pa.binary())
    wanted: dict[int, list[tuple[Any, ...]]] = {}
    for message, partition in zip(messages, partitions_of(keys, partitions, SEED, 0).to_pylist(), strict=True):
        wanted.setdefault(partition, []).append(message[: 2 + options["headers"]])
    assert found == wanted


def read_back(store: ObjectStore, made: StagedSegment) -> dict[int, list[tuple[Any, ...]]]:
    """Partition → its messages; fails if a slice is not as in the whole file, which Arrow itself opens."""
    data = bytes(store.read(path_of(made)))
    assert len(data) == made.bytes
    found: dict[int, list[tuple[Any, ...]]] = {}
    with pa.ipc.open_file(pa.py_buffer(data)) as file:
        assert file.schema == segment_schema(headers=made.headers)
        assert file.num_record_batches == len(made.slices)
        for index, piece in enumerate(slices_of(made)):
            batch = read_slice(store, path_of(made), piece, segment_schema(headers=made.headers))
            assert batch.num_rows == piece.rows > 0
            assert file.get_batch(index).equals(batch)
            columns = [column.to_pylist() for column in batch.columns]
            found.setdefault(piece.partition, []).extend(zip(*columns, strict=True))
    return found


@pytest.mark.conformance("DIS-02")
def test_order_is_kept_over_the_blocks_that_a_run_is_sorted_in(world: World) -> None:
    block = block_of([(f"key {number % 7}", b"%06d" % number, None) for number in range(30_000)])
    made = some(put(world.store, *(block.slice(start, 5_000) for start in range(0, 30_000, 5_000))))
    found = read_back(world.store, made)
    assert len(made.slices) == len(found), "one run: one slice for each"
    assert sum(map(len, found.values())) == 30_000
    assert all(mine == sorted(mine, key=lambda message: message[1]) for mine in found.values())


def test_a_run_is_written_when_it_is_full(world: World) -> None:
    hooked = Hooked(world.store)
    block = block_of([(f"key {number}", b"v" * 1000, None) for number in range(100)])
    with Stager(hooked, stage(), seed=SEED, run_bytes=5 * block.nbytes, compression="none") as stager:
        for number in range(1, 51):
            stager.add(block)
            written = sum(kind == "write" for kind, _ in hooked.calls)
            assert (written > 0) == (number >= 5), "nothing is kept until the end"
        made = some(stager.finish())
    assert [piece.partition for piece in made.slices] == [0, 1, 2, 3] * 10, "ten runs, each with every partition once"
    assert made.rows == 5_000


@pytest.mark.parametrize("is_own", [True, False])
def test_a_conflict_on_its_own_name_is_settled_by_what_is_there(world: World, is_own: bool) -> None:
    """A network may send a creation twice, which then meets its own success."""

    def answer(kind: str, name: str) -> None:
        if kind == "written" and is_own:
            raise Conflict(name)
        if kind == "written":
            world.store.create(name, bytes(10_000))

    hooked = Hooked(world.store)
    hooked.before, hooked.after = (None, answer) if is_own else (answer, None)
    if is_own:
        assert read_back(world.store, some(put(hooked, block_of([("key", b"tea", None)]))))
    else:
        with pytest.raises(Conflict):
            put(hooked, block_of([("key", b"tea", None)]))


# --- refusals ---------------------------------------------------------------------------------------------------------


def limited(value_bytes: int, *, headers: bool) -> dict[str, pa.Array]:
    """The last of three messages has a key of 9 bytes, headers of 8 if any, and a value of so many."""
    given_headers = [None, [], [{"key": "é", "value": b"123"}, {"key": "abc", "value": None}]]
    columns = {"key": texts(b"a", None, "ключx".encode()), "value": pa.array([b"1", b"1", b"v" * value_bytes])}
    return columns | (
        {"headers": pa.array(given_headers, segment_schema(headers=True).field("_headers").type)} if headers else {}
    )


def keyed(*keys: str) -> dict[str, pa.Array]:
    return {"key": texts(*(key.encode() for key in keys))}


TOO_LONG = "key of row 12 has 256 bytes in UTF-8, at most 255"


@pytest.mark.conformance("DIS-04")
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": texts(b"a", b"b", BAD)}, r"the key of row 12 is not valid UTF-8 \(b'\\xffA'\): encode it"),
        ({"key": texts(b"a", b"b", BAD, large=True)}, r"the key of row 12 is not valid UTF-8"),
        ({"headers": headers_of(b"ok", BAD, b"ok")}, "a header of row 11 has a key that is not valid UTF-8"),
        ({"topic": texts(b"eu", BAD, None)}, "row 11 cannot be published: its topic is not valid UTF-8"),
        ({"value": texts(BAD, BAD, BAD)}, None),
        ({"value": pa.array([b"", b"", None])}, "row 12 has no value"),
        (keyed("a", "b", "x" * 256), f"{TOO_LONG}.*x{{40}}|x{{40}}.*{TOO_LONG}"),
        (keyed("a", "b", "é" * 128), TOO_LONG),
        (keyed("a", "b", "客" * 85 + "x"), TOO_LONG),
        (keyed("a", "b", "🚲" * 64), TOO_LONG),
        (keyed("x" * 255, "é" * 127 + "x", "客" * 85), None),
        (limited(283, headers=True), None),
        (limited(284, headers=True), r"message of row 12 has 301 bytes .* takes 300.*--max-message-bytes"),
        (limited(291, headers=False), None),
        (limited(292, headers=False), r"message of row 12 has 301 bytes .* takes 300.*--max-message-bytes"),
    ],
)
def test_a_message_that_no_queue_takes_is_refused_by_its_row_and_nothing_is_staged(
    world: World, changed: dict[str, pa.Array], said: str | None
) -> None:
    """As a task of the Spark sink stages it; 10 rows came before. A value may be any bytes."""
    queue = world.create(2, config=QueueConfig(max_message_bytes=300))
    subscribe(queue, "eu")
    headers = "headers" in changed

    def rows(count: int, **other: pa.Array) -> pa.RecordBatch:
        plain = {"key": texts(*[b"k"] * count), "value": texts(*[BAD] * count), "topic": texts(*[b"eu"] * count)}
        plain |= {"headers": headers_of(*[b"h"] * count)} if headers else {}
        return pa.RecordBatch.from_pydict({**plain, **other})

    def stage_all() -> int:
        with Fan(world.store, destinations.plan_topics([queue], queue), seed="s", headers=headers) as fan:
            for batch in (rows(10), rows(3, **changed)):
                columns = message_columns(batch.schema.names)
                fan.add(columns.taken(batch), columns.topics(batch))
            (staged, *_), _ = fan.finish()
        return staged.rows

    if said is None:
        assert stage_all() == 13
    else:
        with pytest.raises(Invalid, match=said):
            stage_all()
        assert list(world.store.list("default/orders/_segments/")) == []


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_every_flipped_bit_and_every_missing_end_of_a_slice_is_noticed(world: World, compression: str) -> None:
    store = world.store
    made = some(put(store, block_of([("key", b"value %d" % n, None) for n in range(50)]), compression=compression))
    name, piece, plain = path_of(made), slices_of(made)[0], segment_schema()
    data = bytes(store.read(name))
    end = piece.start + piece.length
    bits = random.Random(compression).sample(range(8 * piece.start, 8 * end), 400)
    harmed = [data[:length] for length in (0, 1, piece.start, piece.start + 1, end - 1)]
    for bit in [8 * piece.start, 8 * end - 1, *bits]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        harmed.append(bytes(flipped))
    for each in harmed:
        store.delete(name)
        store.create(name, each)
        with pytest.raises(Corrupt, match=re.escape(name)) as caught:
            read_slice(store, name, piece, plain)
        assert not isinstance(caught.value, ObjectMissing)
        assert len(each) < len(data) or f"offsets 17 to {17 + piece.rows}" in str(caught.value)
    store.delete(name)
    with pytest.raises(ObjectMissing, match=re.escape(name)):
        read_slice(store, name, piece, plain)
    store.create(name, data)
    assert read_slice(store, name, piece, plain).num_rows == piece.rows
    with pytest.raises(Corrupt, match=r"has 50 messages at byte .* the log says 49"):
        read_slice(store, name, piece._replace(rows=49), plain)


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
            assert first_not_utf8(column.slice(0, at + 1)) is None
            assert first_not_utf8(column.slice(at + 2)) is None
    for column in (pa.array([BAD]), pa.array([1, None]), pa.nulls(3), pa.array([[BAD]])):
        assert first_not_utf8(column) is None, "bytes and numbers are no texts"


def test_texts_are_not_looked_at_again_when_they_are_read() -> None:
    """What lies under a null is no message's, and nobody looked at it when it was published."""
    batch = pa.RecordBatch.from_arrays(
        [texts(b"a", BAD), pa.array([b"1", b"2"]), headers_of(BAD, b"h")], schema=segment_schema(headers=True)
    )
    check_batch(batch, thoroughly=True)
