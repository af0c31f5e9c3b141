"""Typed queues are created, described and altered through `import partq`, and what cannot be is refused in words."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

import partq
from tests.cli.conftest import Partq
from tests.client.conftest import Make

DDL = "id BIGINT NOT NULL, name STRING, count INT, tags ARRAY<STRING>"


STRUCT = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("name", StringType()),
        StructField("count", IntegerType()),
        StructField("tags", ArrayType(StringType())),
    ]
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.large_string()),
        ("count", pa.int32()),
        ("tags", pa.large_list(pa.string_view())),
    ]
)


# --- created ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [DDL, STRUCT.json(), STRUCT, ARROW])
def test_a_schema_may_come_in_each_form(make: Make, schema: Any) -> None:
    found = make(schema=schema, key="ID").describe().schema
    assert found is not None
    assert (found.ddl, found.key, found.version, found.changes) == (DDL, "id", 1, ())
    assert found.columns[0] == partq.ColumnDescription(name="id", type="BIGINT", nullable=False, since=1, former=())


def test_exist_ok_finds_the_same_columns_alone(make: Make) -> None:
    queue = make(schema=DDL, key="id")
    assert make(schema=ARROW, key="id", exist_ok=True) == queue
    assert queue.alter(schema=ARROW).schema == partq.SchemaAlteration(from_=DDL, to=DDL, changes=())
    for given, said in (
        ({}, "exists already with other columns: .* cannot become untyped"),
        ({"schema": DDL}, "has key column id, not none"),
        ({"schema": f"{DDL}, more INT", "key": "id"}, "has no column 'more': add it with `partq queue alter"),
        ({"schema": "id BIGINT NOT NULL", "key": "id"}, "column 'name' of queue 'orders' cannot be dropped"),
        ({"schema": DDL.replace("INT,", "BIGINT,"), "key": "id"}, "widen it with `partq queue alter orders --widen"),
        ({"schema": DDL.replace(" NOT NULL", ""), "key": "id"}, "whether it may be null was said"),
    ):
        with pytest.raises(partq.Invalid, match=said):
            make(exist_ok=True, **given)
    plain = make("plain")
    assert plain.describe().schema is None
    with pytest.raises(partq.Invalid, match=r"exists already with other columns: .* cannot become typed"):
        make("plain", schema=DDL, exist_ok=True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "id"}, "there is no schema: give the schema too"),
        ({"schema": DDL, "key": 5}, "key=5 is not allowed: give text or None"),
        ({"schema": DDL, "key": "nobody"}, "key column 'nobody' is none of the queue's: id, name, count, tags"),
        ({"schema": DDL, "key": "tags"}, r"key column 'tags' has type ARRAY<STRING>: a key may be STRING, TINYINT"),
        ({"schema": "a INT, b"}, "schema, at character 9: the end stands where a type was expected"),
        ({"schema": pa.schema([("a", pa.uint64())])}, "column 'a' has type uint64, which a queue does not keep"),
        ({"schema": IntegerType()}, "schema is of type IntegerType: give a DDL"),
        ({"schema": '{"type": "struct"}'}, "no JSON of a StructType"),
        ({"schema": ["a INT"]}, "schema is of type list: give a DDL such as"),
    ],
)
def test_what_no_queue_can_have_is_refused_before_there_is_one(
    make: Make, command: Partq, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(partq.Invalid, match=said):
        make(**given)
    assert partq.list_queues(store=command.url) == ()


# --- altered ----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"add_column": "coupon"}, "at character 7: the end stands where a type was expected"),
        ({"add_column": "coupon STRING NOT NULL"}, "cannot be added as NOT NULL"),
        ({"add_column": "NAME STRING"}, "column 'NAME' cannot be added: there is 'name' of type STRING"),
        ({"add_column": "_x INT"}, "begins with '_'"),
        ({"widen": "nobody BIGINT"}, "column 'nobody' cannot be widened: the queue has id, name"),
        ({"widen": "count SMALLINT"}, "column 'count' of type INT cannot become SMALLINT"),
        ({"widen": "name BINARY"}, "this type cannot be widened; add a column instead"),
        ({"schema": "id BIGINT NOT NULL, title STRING, count INT, tags ARRAY<STRING>"}, "dropped or get another name"),
        ({"schema": f"{DDL}, coupon STRING"}, r"has no column 'coupon': add it with .* --add-column 'coupon STRING'"),
        ({"key": "name"}, "alter has no argument 'key': give some of partitions"),
        ({}, "nothing to alter: give partitions, add_column, widen"),
    ],
)
def test_what_could_lose_or_change_a_value_is_refused_in_words(make: Make, given: dict[str, Any], said: str) -> None:
    queue = make(schema=DDL, key="id")
    before = queue.describe()
    for dry_run in (True, False):
        with pytest.raises(partq.Invalid, match=said):
            queue.alter(dry_run=dry_run, **given)
    assert queue.describe() == before


@pytest.mark.conformance("TYP-06")
def test_an_untyped_queue_stays_so(make: Make) -> None:
    queue = make()
    wishes: list[dict[str, Any]] = [{"add_column": "a INT"}, {"widen": "a INT"}, {"schema": "a INT"}]
    for given in wishes:
        with pytest.raises(partq.Invalid, match="is untyped, its messages are key and value"):
            queue.alter(**given)
