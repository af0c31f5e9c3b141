"""What publishers hand over becomes a queue's columns, or is refused with row and column (TYP-02, TYP-04). Values in
other forms of Arrow's, such as Spark's JVM writes, are what they are wherever they go.
"""

from __future__ import annotations

import mmap
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.forms import as_form, pieces, row_bytes
from partq_spark.log.schema.types import list_of, map_of, normal_schema
from tests.log.schema.shapes import as_by_jvm, batches, foreign, hiding, same, types, values


def taken(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    return Conversion.to_queue(batch.schema, schema)(batch)


@given(st.builds(list_of, types()) | st.builds(map_of, st.just(pa.int8()), types()), st.integers(0, 3), st.data())
def test_what_null_lists_and_maps_hide_is_not_looked_at(kind: pa.DataType, start: int, data: st.DataObject) -> None:
    rows = [data.draw(values(kind)) for _ in range(4)]
    part = pa.record_batch([hiding(pa.array(rows, kind), data.draw)], names=["a"]).slice(start)
    found = taken(part, pa.schema([("a", kind)]))
    assert same(found.to_pylist(), part.to_pylist())


ENDS = pa.array([0, 2, 3, 5], pa.int32())
FIRST_HIDES = pa.array([True, False, False])


def test_what_is_refused_beside_lists_and_maps_that_hide_something_is_named_by_its_own_row() -> None:
    def maps(*keys: str) -> pa.RecordBatch:
        items = pa.array(range(5), pa.int32())
        found = pa.MapArray.from_arrays(ENDS, pa.array(keys), items, mask=FIRST_HIDES)
        return pa.record_batch([found], names=["a"])

    schema = parse_ddl("a MAP<STRING, INT>")
    for keys in (("x", "x", "y", "y", "z"), ("x", "y", "y", "x", "y")):
        assert taken(maps(*keys), schema).to_pylist() == maps(*keys).to_pylist()
    with pytest.raises(Invalid, match=r"^row 2, column 'a\.key': the key 'z' twice in one map"):
        taken(maps("x", "y", "y", "z", "z"), schema)
    days = pa.array([0, 0, 0, 0, 3_000_000], pa.int32()).view(pa.date32())
    lists = pa.ListArray.from_arrays(ENDS, days, mask=FIRST_HIDES)
    with pytest.raises(Invalid, match=r"^row 2, column 'a\.element': a DATE outside"):
        taken(pa.record_batch([lists], names=["a"]), parse_ddl("a ARRAY<DATE>"))
    within = pa.StructArray.from_arrays([pa.ListArray.from_arrays(ENDS, days)], names=["l"], mask=FIRST_HIDES)
    with pytest.raises(Invalid, match=r"^row 2, column 'a\.l\.element': a DATE outside"):
        taken(pa.record_batch([within], names=["a"]), parse_ddl("a STRUCT<l: ARRAY<DATE>>"))


def used(words: pa.Array, *indices: int | None) -> pa.RecordBatch:
    """A dictionary's words by their places, from the second row on; not every word needs to be used."""
    found = pa.DictionaryArray.from_arrays(pa.array([0, *indices], pa.int8()), words)
    return pa.record_batch([found], names=["a"]).slice(1)


MOMENTS = pa.array([1_000, 1_001, None], pa.int64()).cast(pa.timestamp("ns", "UTC"))
LARGE = pa.array([Decimal("1.5"), Decimal("-100.0"), None], pa.decimal256(9, 1)).view(pa.decimal256(3, 1))


def column(kind: pa.DataType, *rows: Any) -> pa.RecordBatch:
    return pa.record_batch([pa.array(rows, kind)], names=["a"])


NOT_UTF8 = pa.record_batch([pa.array([b"ok", b"\xff"]).view(pa.string())], names=["a"])
DEEP: pa.Array = pa.array([1], pa.int32())
for _ in range(500):
    DEEP = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), DEEP)
LISTS = pa.ListArray.from_arrays(
    pa.array([0, 1, 3], pa.int32()),
    pa.StructArray.from_arrays([pa.array([b"x", b"y", b"\xff"]).view(pa.string())], names=["b"]),
)
TWICE = pa.record_batch([pa.array([1], pa.int32())] * 2, names=["A", "a"])
REFUSED = [
    ("a INT", column(pa.int64(), 1), "column 'a' has type BIGINT, the queue's is INT"),
    ("a BIGINT", column(pa.uint64(), 1), "column 'a' has type uint64, the queue's is BIGINT"),
    ("a DATE", column(pa.timestamp("us"), None), "column 'a' has type TIMESTAMP_NTZ, the queue's is DATE"),
    ("a TIMESTAMP", column(pa.timestamp("us"), None), "has type TIMESTAMP_NTZ, the queue's is TIMESTAMP"),
    ("a ARRAY<BIGINT>", column(pa.list_(pa.int32()), None), "has type ARRAY<INT>, the queue's is ARRAY<BIGINT>"),
    ("a INT NOT NULL", column(pa.null(), None), "column 'a' has type null, the queue's is INT"),
    ("a INT, b INT NOT NULL", column(pa.int32(), 1), "column 'b' (INT NOT NULL) is missing"),
    ("b INT", column(pa.int32(), 1), "column 'a' (INT) is none of the queue's (b)"),
    ("a INT NOT NULL", column(pa.int32(), 1, None), "row 1, column 'a': null, where the queue's schema says NOT NULL"),
    ("a STRING", NOT_UTF8, "row 1, column 'a': a STRING that is not UTF-8"),
    ("a DATE", column(pa.date32(), date(1, 1, 1), None), None),
    ("a DATE", pa.record_batch([pa.array([0, 2932897], pa.int32()).view(pa.date32())], names=["a"]), "row 1, column"),
    ("a DATE", pa.record_batch([pa.array([-719163], pa.int32()).view(pa.date32())], names=["a"]), "row 0, column 'a'"),
    ("a TIMESTAMP_NTZ", column(pa.timestamp("s"), None, datetime(9999, 12, 31, tzinfo=UTC).replace(tzinfo=None)), None),
    ("a TIMESTAMP_NTZ", column(pa.timestamp("ns"), 1_000, 1_001), "row 1, column 'a': "),
    ("a TIMESTAMP_NTZ", column(pa.timestamp("s"), 0, 253402300800), "a TIMESTAMP outside of the years 1 to 9999"),
    (
        "a DECIMAL(3,1)",
        pa.record_batch(
            [pa.array([Decimal("1.5"), Decimal("-100.0")], pa.decimal128(9, 1)).view(pa.decimal128(3, 1))], names=["a"]
        ),
        "row 1, column 'a': -100.0 has more digits than DECIMAL(3,1)",
    ),
    ("a MAP<STRING, INT>", column(pa.map_(pa.string(), pa.int32()), [], [("x", 1), ("y", 2), ("x", 3)]), "'x' twice"),
    ("a MAP<FLOAT, INT>", column(pa.map_(pa.float32(), pa.int32()), [(1.0, 1)], [(-0.0, 1), (0.0, 2)]), "twice"),
    (
        "a MAP<ARRAY<DOUBLE>, INT>",
        column(pa.map_(pa.list_(pa.float64()), pa.int32()), [], [([0.0], 1), ([-0.0], 2)]),
        "row 1, column 'a.key': the key [-0.0] twice in one map",
    ),
    (
        "a STRUCT<b: INT NOT NULL>",
        column(pa.struct([("b", pa.int32())]), None, {"b": None}),
        "row 1, column 'a.b': null, where",
    ),
    ("a STRUCT<b: INT NOT NULL>", column(pa.struct([("b", pa.int32())]), None, {"b": 1}), None),
    (
        "a ARRAY<STRUCT<b: STRING>>",
        pa.record_batch([LISTS], names=["a"]),
        "row 1, column 'a.element.b': a STRING that is",
    ),
    ("a ARRAY<INT>", pa.record_batch([DEEP], names=["a"]), "column 'a' has type list<item: list<"),
    *(
        case
        for ddl, words in (("a TIMESTAMP", MOMENTS), ("a DECIMAL(3,1)", LARGE))
        for case in ((ddl, used(words, 2, 0, 1, 0), "row 2, column 'a': "), (ddl, used(words, 0, 2, None), None))
    ),
    ("a BIGINT", column(pa.int8(), -128, None, 127), None),
    ("a BIGINT", column(pa.int32(), -(2**31), None), None),
    ("a DOUBLE", column(pa.float32(), 0.5, None, float("inf"), 1e-45), None),
    ("a DECIMAL(10,4)", column(pa.decimal128(5, 2), Decimal("-999.99"), None), None),
    ("a INT", TWICE, "columns 'A' and 'a' are both the queue's column 'a'"),
    ("a INT", TWICE.select([0]), None),
]


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize(("ddl", "batch", "message"), REFUSED)
def test_what_does_not_fit_is_refused_by_row_and_column(ddl: str, batch: pa.RecordBatch, message: str | None) -> None:
    if message is None:
        found = Conversion.to_queue(batch.schema, parse_ddl(ddl))(batch)
        assert found.schema == parse_ddl(ddl)
        assert found.column(0).to_pylist() == batch.column(0).to_pylist()
        return
    with pytest.raises(Invalid) as refused:
        Conversion.to_queue(batch.schema, parse_ddl(ddl))(batch)
    assert message in str(refused.value)


WORDS = pa.struct([pa.field("b", pa.dictionary(pa.int16(), pa.string()), nullable=False)])  # without any word


@pytest.mark.conformance("TYP-04")
@pytest.mark.parametrize(
    ("ddl", "given", "value"),
    [
        ("a STRUCT<b: STRING NOT NULL>", WORDS, None),
        ("a STRUCT<lat: DOUBLE, lon: DOUBLE>", pa.struct([("lat", pa.float64()), ("lon", pa.null())]), {"lat": 1.0}),
        ("a STRUCT<b: STRUCT<c: ARRAY<INT>>>", pa.struct([("b", pa.struct([("c", pa.null())]))]), {"b": {}}),
        ("a ARRAY<STRUCT<b: MAP<STRING, DATE>>>", pa.large_list(pa.struct([("b", pa.null())])), [{}, None]),
        ("a ARRAY<INT>", pa.list_(pa.null()), [None]),
        ("a MAP<STRING, INT>", pa.map_(pa.string(), pa.null()), [("x", None)]),
    ],
)
def test_void_inside_is_null_of_the_type_that_is_wanted(ddl: str, given: pa.DataType, value: Any) -> None:
    """And what a null struct has in its fields is not looked at."""
    schema = parse_ddl(ddl)
    found = taken(column(given, value, None), schema)
    found.validate(full=True)
    assert found.column(0).equals(pa.array([value, None], schema.field("a").type))


@given(batches(), st.integers(0, 3), st.data())
def test_every_form_of_the_same_values_is_taken_in_any_order_of_columns_whole_and_in_part_and_cut_into_pieces(
    batch: pa.RecordBatch, start: int, data: st.DataObject
) -> None:
    assert normal_schema(batch.schema) == batch.schema
    own = data.draw(st.booleans())
    forms = [field.type if own else foreign(field.type, data.draw) for field in batch.schema]
    columns = [pa.array(column.to_pylist(), kind) for column, kind in zip(batch.columns, forms, strict=True)]
    order = data.draw(st.permutations(range(len(columns))))
    names = [batch.schema.names[index] for index in order]
    part = pa.RecordBatch.from_arrays([columns[index] for index in order], names=names)
    part, plain = part.slice(min(start, batch.num_rows)), batch.slice(min(start, batch.num_rows))
    found = taken(part, batch.schema)
    found.validate(full=True)
    assert found.schema == batch.schema
    assert same(found.to_pylist(), plain.to_pylist())

    sizes = row_bytes(plain).to_pylist()
    assert row_bytes(part).to_pylist() == sizes
    most = data.draw(st.sampled_from([1, 10, 40, *filter(None, accumulate(sizes))]))  # two rows may just fit
    cut = list(pieces(part, range(len(columns)), most))
    assert same([row for piece in cut for row in piece.select(batch.schema.names).to_pylist()], plain.to_pylist())
    mine = iter(sizes)
    held = [[next(mine) for _ in range(piece.num_rows)] for piece in cut]
    assert all(sum(each) <= most or len(each) == 1 for each in held)
    assert all(sum(each) + after[0] > most for each, after in pairwise(held)), "no piece could have had one row more"


# --- other forms ------------------------------------------------------------------------------------------------------


def by_jvm(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([as_by_jvm(column) for column in batch.columns], schema=batch.schema)


def loosened(kind: pa.DataType, data: st.DataObject) -> pa.DataType:
    """With some of what is NOT NULL nullable."""
    if pa.types.is_struct(kind):
        nulls = [field.nullable or data.draw(st.booleans()) for field in kind]
        fields = zip(kind, nulls, strict=True)
        return pa.struct([pa.field(field.name, loosened(field.type, data), null) for field, null in fields])
    if pa.types.is_map(kind):
        return map_of(loosened(kind.key_type, data), loosened(kind.item_type, data))
    if pa.types.is_list(kind):
        return list_of(loosened(kind.value_type, data))
    return kind


@given(batches(), st.integers(0, 3), st.data())
def test_rows_of_the_jvm_are_taken_whole_and_in_part(batch: pa.RecordBatch, start: int, data: st.DataObject) -> None:
    part, plain = by_jvm(batch).slice(start), batch.slice(start)
    found = Conversion.to_queue(batch.schema, batch.schema)(part)
    assert same(found.to_pylist(), plain.to_pylist())
    assert row_bytes(part).to_pylist() == row_bytes(plain).to_pylist()
    loose = pa.schema([field.with_type(loosened(field.type, data)) for field in batch.schema])
    again = Conversion.to_queue(loose, batch.schema)
    bringing = Conversion.to_reader(batch.schema, loose)
    for brought in (part, plain):
        seen = brought if bringing is None else bringing(brought)
        assert seen.schema.types == loose.types
        assert same(seen.to_pylist(), plain.to_pylist())
        assert same(again(seen).to_pylist(), plain.to_pylist())


def test_a_map_of_null_structs_within_a_struct_can_be_loosened() -> None:
    """Arrow's own cast refuses this one."""
    schema = parse_ddl("s STRUCT<m: MAP<STRING, STRUCT<a: INT NOT NULL>>, x: INT NOT NULL>")
    loose = parse_ddl("s STRUCT<m: MAP<STRING, STRUCT<a: INT NOT NULL>>, x: INT>")
    rows = [{"m": [("k", None), ("l", {"a": 1})], "x": 1}, None]
    batch = by_jvm(pa.RecordBatch.from_arrays([pa.array(rows, schema.field(0).type)], schema=schema))
    bringing = Conversion.to_reader(schema, loose)
    assert bringing is not None
    assert bringing(batch).column(0).to_pylist() == rows
    assert row_bytes(batch).to_pylist() == [4 + 2 + 4 * 2, 4]


TEXTS = ["a", "bb", "", "a long text that lies beside its view"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary(), pa.binary(4)])
def test_texts_far_behind_the_beginning_of_their_buffer_are_cast(tmp_path: Path, kind: pa.DataType) -> None:
    """More than 2 GiB, with nothing before them; of a fixed size Arrow itself takes others without a word."""
    begin, fixed = 2**31, pa.types.is_fixed_size_binary(kind)
    with (tmp_path / "sparse").open("w+b") as file:
        file.seek(begin)
        file.write("".join(TEXTS).encode())
        file.flush()
        data = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    small = pa.string() if kind == pa.large_string() else pa.binary()
    if fixed:
        found = as_form(pa.Array.from_buffers(kind, 2, [None, data], offset=begin // kind.byte_width), small)
        found.validate(full=True)
        assert found.to_pylist() == [b"abba", b" lon"]
        return
    ends = pa.array(accumulate(map(len, TEXTS), initial=begin), pa.int64()).buffers()[1]
    given_texts = pa.Array.from_buffers(kind, len(TEXTS), [None, ends, data])
    wanted = [text if kind == pa.large_string() else text.encode() for text in TEXTS]
    for start, length in ((0, 4), (1, 2), (1, 0)):
        assert as_form(given_texts.slice(start, length), small).to_pylist() == wanted[start : start + length]
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1, 4], pa.int64()), given_texts)
    assert as_form(lists, pa.list_(small)).to_pylist() == [wanted[:1], wanted[1:]]
