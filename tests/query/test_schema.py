"""The columns that a source has and a sink takes, by name and Spark's word for the type."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.query.schema import HEADERS_TYPE, check_sink_columns, check_source_columns, source_ddl, source_types

PLAIN = [
    ("key", "string"),
    ("value", "binary"),
    ("queue", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("redelivered", "boolean"),
]
VALUE = ("value", "binary")


def test_the_source_has_the_columns_of_the_interface() -> None:
    assert list(source_types(False).items()) == PLAIN
    assert list(source_types(True).items()) == [*PLAIN, ("headers", HEADERS_TYPE)]
    assert source_ddl(False) == (
        "key string, value binary, queue string, partition int, offset bigint, timestamp timestamp, redelivered boolean"
    )


def test_the_sources_own_schema_may_be_repeated_by_the_user() -> None:
    check_source_columns(PLAIN, False)
    check_source_columns([*PLAIN, ("headers", HEADERS_TYPE)], True)


@pytest.mark.parametrize(
    ("columns", "headers"),
    [
        ([("value", "string")], False),
        (PLAIN[::-1], False),
        (PLAIN[:-1], False),
        ([*PLAIN, ("headers", HEADERS_TYPE)], False),
        (PLAIN, True),
        ([*PLAIN, PLAIN[0]], False),
    ],
)
def test_any_other_schema_is_refused_with_both_shown(columns: list[tuple[str, str]], headers: bool) -> None:
    with pytest.raises(Invalid, match=r"leave .schema\(\) out") as caught:
        check_source_columns(columns, headers)
    assert f"{columns[0][0]} {columns[0][1]}" in str(caught.value)
    assert source_ddl(headers) in str(caught.value)


@pytest.mark.parametrize(
    "columns",
    [
        [VALUE],
        [("value", "string")],
        [("key", "string"), VALUE],
        [("key", "binary"), VALUE],
        [VALUE, ("headers", HEADERS_TYPE), ("key", "string")],
        [VALUE, ("topic", "string")],
        [*PLAIN, ("headers", HEADERS_TYPE)],  # a plain copy from queue to queue
    ],
)
def test_what_a_sink_takes(columns: list[tuple[str, str]]) -> None:
    check_sink_columns(columns)


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        ([], "'value' is missing"),
        ([("key", "string")], "'value' is missing (found: key)"),
        ([("value", "int")], "'value' has type int"),
        ([VALUE, ("key", "bigint")], "'key' has type bigint"),
        ([VALUE, ("headers", "map<string,binary>")], "'headers' has type map<string,binary>"),
        ([VALUE, ("headers", "array<struct<key:string,value:string>>")], "'headers' has type"),
        ([VALUE, ("payload", "string")], "'payload' (string) is no column of a partq sink"),
        ([("Value", "string")], "'Value' (string) is no column of a partq sink"),
        ([VALUE, ("topic", "binary")], "'topic' has type binary, a partq sink takes string"),
        ([VALUE, VALUE], "'value' is there 2 times"),
    ],
)
def test_what_a_sink_refuses_by_name(columns: list[tuple[str, str]], named: str) -> None:
    with pytest.raises(Invalid) as caught:
        check_sink_columns(columns)
    assert named in str(caught.value)
