"""Values in other forms of Arrow's: rows as Spark's JVM writes them, with null in what is NOT NULL within a struct that
is null, are what they are wherever they go.
"""

from __future__ import annotations

import mmap
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.log.schema.bring import Bringing
from partq_spark.log.schema.conform import Taking
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.forms import as_form, entries_of
from partq_spark.log.schema.sizes import pieces, row_bytes
from partq_spark.log.schema.types import list_of, map_of
from tests.log.schema.shapes import as_by_jvm, batches, foreign, same


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
    found = Taking.of(batch.schema, batch.schema)(part, lambda row: row)
    assert same(found.to_pylist(), plain.to_pylist())
    assert row_bytes(part).to_pylist() == row_bytes(plain).to_pylist()
    loose = pa.schema([field.with_type(loosened(field.type, data)) for field in batch.schema])
    again = Taking.of(loose, batch.schema)
    bringing = Bringing.of(batch.schema, loose)
    for brought in (part, plain):
        seen = brought if bringing is None else bringing(brought, str)
        assert seen.schema.types == loose.types
        assert same(seen.to_pylist(), plain.to_pylist())
        assert same(again(seen, lambda row: row).to_pylist(), plain.to_pylist())


def test_a_map_of_null_structs_within_a_struct_can_be_loosened() -> None:
    """Arrow's own cast refuses this one."""
    schema = parse_ddl("s STRUCT<m: MAP<STRING, STRUCT<a: INT NOT NULL>>, x: INT NOT NULL>")
    loose = parse_ddl("s STRUCT<m: MAP<STRING, STRUCT<a: INT NOT NULL>>, x: INT>")
    rows = [{"m": [("k", None), ("l", {"a": 1})], "x": 1}, None]
    batch = by_jvm(pa.RecordBatch.from_arrays([pa.array(rows, schema.field(0).type)], schema=schema))
    bringing = Bringing.of(schema, loose)
    assert bringing is not None
    assert bringing(batch, str).column(0).to_pylist() == rows
    assert row_bytes(batch).to_pylist() == [4 + 2 + 4 * 2, 4]


@given(batches(), st.integers(0, 3), st.integers(1, 40), st.data())
def test_pieces_are_as_large_as_they_may_be_once_they_are_written_out(
    batch: pa.RecordBatch, start: int, most: int, data: st.DataObject
) -> None:
    forms = [foreign(field.type, data.draw) for field in batch.schema]
    columns = [pa.array(column.to_pylist(), kind) for column, kind in zip(batch.columns, forms, strict=True)]
    other = pa.RecordBatch.from_arrays(columns, names=batch.schema.names).slice(start)
    plain = batch.slice(start)
    sizes = row_bytes(plain).to_pylist()
    assert row_bytes(other).to_pylist() == sizes
    found = list(pieces(other, range(len(columns)), most))
    assert same([row for piece in found for row in piece.to_pylist()], plain.to_pylist())
    mine = iter(sizes)
    held = [[next(mine) for _ in range(piece.num_rows)] for piece in found]
    assert all(sum(each) <= most or len(each) == 1 for each in held)
    assert all(sum(each) + after[0] > most for each, after in pairwise(held)), "no piece could have had one row more"


TEXTS = ["a", "bb", "", "a long text that lies beside its view"]


def behind_2_gib(tmp_path: Path, kind: pa.DataType) -> pa.Array:
    """`TEXTS`, or ten bytes for those of a fixed size, more than 2 GiB behind the beginning of their buffer; there
    is nothing before them.
    """
    begin = 2**31
    with (tmp_path / "sparse").open("w+b") as file:
        file.seek(begin)
        file.write(b"12345abcde" if pa.types.is_fixed_size_binary(kind) else "".join(TEXTS).encode())
        file.flush()
        data = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    if pa.types.is_fixed_size_binary(kind):
        rows = begin // kind.byte_width
        return pa.Array.from_buffers(kind, 2, [None, data], offset=rows)
    ends = list(accumulate(map(len, TEXTS), initial=begin))
    return pa.Array.from_buffers(kind, len(TEXTS), [None, pa.array(ends, pa.int64()).buffers()[1], data])


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_texts_far_behind_the_beginning_of_their_buffer_are_cast(tmp_path: Path, kind: pa.DataType) -> None:
    given_texts = behind_2_gib(tmp_path, kind)
    small = pa.string() if kind == pa.large_string() else pa.binary()
    wanted = given_texts.to_pylist()
    assert [len(each) for each in wanted] == [len(each) for each in TEXTS]
    assert as_form(given_texts, small).to_pylist() == wanted
    assert as_form(given_texts.slice(1, 2), small).to_pylist() == wanted[1:3]
    assert as_form(given_texts.slice(1, 0), small).to_pylist() == []
    lists = pa.LargeListArray.from_arrays(pa.array([0, 1, 4], pa.int64()), given_texts)
    assert as_form(lists, pa.list_(small)).to_pylist() == [wanted[:1], wanted[1:]]


def test_bytes_of_one_size_far_behind_the_beginning_of_their_buffer_are_cast(tmp_path: Path) -> None:
    """Arrow itself takes others without a word."""
    found = as_form(behind_2_gib(tmp_path, pa.binary(4)).slice(0, 2), pa.binary())
    found.validate(full=True)
    assert found.to_pylist() == [b"1234", b"5abc"]


def test_the_entries_of_a_part_of_maps_are_its_own() -> None:
    maps = pa.array([[("a", 1)], None, [], [("b", 2), ("c", None)]], map_of(pa.string(), pa.int32()))
    assert entries_of(maps.slice(1)).to_pylist() == [None, [], [{"key": "b", "value": 2}, {"key": "c", "value": None}]]
