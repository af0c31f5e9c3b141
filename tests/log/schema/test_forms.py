"""Values in other forms of Arrow's: rows as Spark's JVM writes them, with null in what is NOT NULL within a struct that
is null, are what they are wherever they go.
"""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.log.schema.bring import Bringing
from partq_spark.log.schema.conform import Taking
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.forms import entries_of
from partq_spark.log.schema.sizes import row_bytes
from partq_spark.log.schema.types import list_of, map_of
from tests.log.schema.shapes import as_by_jvm, batches, same


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


def test_the_entries_of_a_part_of_maps_are_its_own() -> None:
    maps = pa.array([[("a", 1)], None, [], [("b", 2), ("c", None)]], map_of(pa.string(), pa.int32()))
    assert entries_of(maps.slice(1)).to_pylist() == [None, [], [{"key": "b", "value": 2}, {"key": "c", "value": None}]]
