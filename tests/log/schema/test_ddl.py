"""Spark's DDL without a JVM, and a typed queue's columns: what is read and written, what is refused with its place, and
what every version of the columns was.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log.schema import versions
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.ddl import MAX_TEXT, ddl_of, parse_ddl
from partq_spark.log.schema.types import MAX_COLUMNS, MAX_DEPTH, list_of, map_of, normal
from partq_spark.log.schema.versions import columns_of, schema_from, schema_of
from tests.log.schema.shapes import schemas
from tests.log.schema.texts import a_ddl


@given(st.randoms(use_true_random=False))
def test_every_text_is_read_or_refused_in_words(rng: random.Random) -> None:
    text = a_ddl(rng)
    try:
        schema = parse_ddl(text)
    except Invalid:
        with pytest.raises(Invalid, match=r"^schema"):
            parse_ddl(text)
        return
    assert parse_ddl(ddl_of(schema)) == schema


REFUSED = [
    ("", "at character 1: the end stands where a column's name was expected"),
    ("a", "at character 2: the end stands where a type was expected"),
    ("a int,", "at character 7: the end stands where a column's name was expected"),
    ("a array<int", "at character 12: the end stands where '>' was expected"),
    ("a struct<>", "at character 3: STRUCT<> has no field"),
    ("a int(3)", "at character 6: INT takes nothing in parentheses"),
    ("a decimal(3,4)", "at character 3: DECIMAL(3,4) is not possible"),
    ("a-b int", "at character 2: a name with '-' needs back quotes"),
    ("é int", "at character 1: the name 'é' has letters that need back quotes: write `é`"),
    ("a time(3)", "at character 3: type 'time' is none that a queue keeps: it keeps BIGINT"),
    ("a string collate UTF8_LCASE", "at character 10: collations are not kept"),
    ("a int /* open", "at character 7: this comment does not end"),
    ("a int; b int", "at character 6: ';' belongs to no column"),
    ("a int, b string, A date", "'a' and 'A' differ in case alone"),
    ("a struct<x: int, y: struct<Z: int, z: int>>", "fields in column 'a': 'Z' and 'z' differ in case alone"),
    ("_a int", "column '_a' begins with '_'"),
    ("a " + "array<" * MAX_DEPTH + "int" + ">" * MAX_DEPTH, f"types are nested more than {MAX_DEPTH} deep"),
    (", ".join(f"c{n} int" for n in range(2 * MAX_COLUMNS)), f"schema has {2 * MAX_COLUMNS} columns, 1 to"),
    ("a int " + " " * MAX_TEXT, "characters, at most"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text[:30] for text, _ in REFUSED])
def test_what_cannot_be_kept_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_ddl(text)
    assert message in str(refused.value)


def test_the_deepest_type_can_be_written_as_a_file_of_arrow() -> None:
    deepest = parse_ddl("a " + "map<int, " * (MAX_DEPTH - 1) + "int" + ">" * (MAX_DEPTH - 1))
    kind = deepest.field("a").type
    assert normal(kind) == kind
    assert normal(list_of(kind)) is None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, deepest) as writer:
        writer.write_batch(pa.record_batch([pa.nulls(1, deepest.field("a").type)], schema=deepest))
    assert pa.ipc.open_file(sink.getvalue()).read_all().num_rows == 1


def arrow_nested(word: str, depth: int) -> pa.Schema:
    kind = pa.int32()
    for _ in range(depth - 1):
        kind = {"ARRAY": list_of(kind), "MAP": map_of(pa.string(), kind), "STRUCT": pa.struct([("f", kind)])}[word]
    return pa.schema([("a", kind)])


def spark_nested(word: str, depth: int) -> str:
    """As `StructType.json()`."""
    before, after = {
        "ARRAY": ('{"type": "array", "containsNull": true, "elementType": ', "}"),
        "MAP": ('{"type": "map", "keyType": "string", "valueContainsNull": true, "valueType": ', "}"),
        "STRUCT": ('{"type": "struct", "fields": [{"name": "f", "nullable": true, "type": ', "}]}"),
    }[word]
    kind = before * (depth - 1) + '"integer"' + after * (depth - 1)
    return f'{{"type": "struct", "fields": [{{"name": "a", "nullable": true, "type": {kind}}}]}}'


@pytest.mark.parametrize("form", [arrow_nested, spark_nested])
@pytest.mark.parametrize("word", ["ARRAY", "MAP", "STRUCT"])
def test_foreign_schemas_are_nested_as_deep_not_deeper(form: Callable[[str, int], str | pa.Schema], word: str) -> None:
    """Far deeper than Python can call, too."""
    assert schema_from(form(word, MAX_DEPTH)) == arrow_nested(word, MAX_DEPTH)
    for depth in (MAX_DEPTH + 1, 200):
        with pytest.raises(Invalid, match=r"^schema: column 'a.*' is nested more than 32 deep: nest less"):
            schema_from(form(word, depth))
    with pytest.raises(Invalid, match=r"^schema.* is nested more than 32 deep: nest less"):
        schema_from(form(word, 1200))


# --- versions of columns ----------------------------------------------------------------------------------------------


ORDERS = columns_of(parse_ddl("id INT NOT NULL, name STRING, total DECIMAL(5,2), weight FLOAT"), "ID")


@given(schemas())
def test_columns_come_back_from_their_ddl_and_from_a_head(schema: pa.Schema) -> None:
    columns = columns_of(schema)
    assert schema_of(columns) == parse_ddl(ddl_of(schema)) == schema
    assert columns.ddl == ddl_of(schema)
    assert msgspec.json.decode(msgspec.json.encode(columns), type=Columns) == columns


STEPS = st.lists(
    st.sampled_from(
        [
            ("with_added", "coupon STRING"),
            ("with_added", "tags ARRAY<INT>, when DATE"),
            ("with_widened", "id BIGINT"),
            ("with_widened", "total DECIMAL(9,4)"),
            ("with_widened", "total DECIMAL(6,2), weight DOUBLE"),
            ("with_widened", "total DECIMAL(38,4)"),
        ]
    ),
    max_size=8,
)


@given(STEPS)
def test_every_version_can_be_told_from_the_columns_of_today(steps: list[tuple[str, str]]) -> None:
    columns, schemas = ORDERS, {1: schema_of(ORDERS)}
    for change, ddl in steps:
        try:
            columns = getattr(versions, change)(columns, ddl)
        except Invalid:
            continue  # it was done before
        schemas[columns.version] = schema_of(columns)
    assert {version: schema_of(columns, version) for version in schemas} == schemas
    assert columns.key == "id"


@pytest.mark.parametrize("ddl", ["id INT", "total DECIMAL(6,4)", "weight DOUBLE NOT NULL"])
def test_columns_become_wider_and_nothing_else(ddl: str) -> None:
    with pytest.raises(Invalid, match=r"column '(id|total|weight)'"):
        versions.with_widened(ORDERS, ddl)
