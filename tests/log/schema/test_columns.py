"""A typed queue's columns: how they begin, how they change, and what every version of them was."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log.schema import versions
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.ddl import ddl_of, parse_ddl
from partq_spark.log.schema.versions import columns_of, schema_of
from tests.log.schema.shapes import schemas

ORDERS = columns_of(parse_ddl("id INT NOT NULL, name STRING, total DECIMAL(5,2), weight FLOAT"), "ID")


@given(schemas())
def test_a_queue_begins_with_the_columns_that_it_is_given(schema: pa.Schema) -> None:
    columns = columns_of(schema)
    assert schema_of(columns) == schema
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


def test_a_column_keeps_what_it_has_been() -> None:
    widened = versions.with_added(versions.with_widened(ORDERS, "ID bigint"), "coupon STRING")
    column = widened.column("id")
    assert column is not None
    assert list(column.types()) == ["INT", "BIGINT"]
    assert not schema_of(widened).field("id").nullable, "NOT NULL stays"
    assert ddl_of(schema_of(widened, 2)) == "id BIGINT NOT NULL, name STRING, total DECIMAL(5,2), weight FLOAT"


REFUSED = [
    ("with_added", "name STRING", "column 'name' cannot be added: there is 'name' of type STRING"),
    ("with_added", "NAME INT", "column 'NAME' cannot be added: there is 'name' of type STRING"),
    ("with_added", "b INT NOT NULL", "cannot be added as NOT NULL"),
    ("with_added", "_b INT", "begins with '_'"),
    ("with_added", "b TIME(3)", "is none that a queue keeps"),
    ("with_added", ", ".join(f"c{n} INT" for n in range(1000)), "schema has 1004 columns"),
    ("with_widened", "missing INT", "column 'missing' cannot be widened: the queue has id, name"),
    ("with_widened", "id INT", "column 'id' of type INT cannot become INT"),
    ("with_widened", "id SMALLINT", "TINYINT → SMALLINT → INT → BIGINT"),
    ("with_widened", "id DOUBLE", "cannot become DOUBLE"),
    ("with_widened", "total DECIMAL(6,3)", None),
    ("with_widened", "total DECIMAL(6,4)", "none fewer on either side of the point"),
    ("with_widened", "name BINARY", "this type cannot be widened"),
    ("with_widened", "weight DOUBLE NOT NULL", "column 'weight' may be null, and stays so"),
]


@pytest.mark.parametrize(("change", "ddl", "message"), REFUSED)
def test_what_could_lose_or_change_a_value_is_refused(change: str, ddl: str, message: str | None) -> None:
    if message is None:
        assert getattr(versions, change)(ORDERS, ddl).version == 2
        return
    with pytest.raises(Invalid) as refused:
        getattr(versions, change)(ORDERS, ddl)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("missing", "key column 'missing' is none of the queue's: id, name, total, weight"),
        ("total", r"key column 'total' has type DECIMAL\(5,2\): a key may be STRING, TINYINT"),
    ],
)
def test_a_key_is_a_column_whose_text_is_the_same_everywhere(key: str, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        columns_of(schema_of(ORDERS), key)
