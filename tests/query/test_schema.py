"""The columns that a source has and a sink takes, by name and Spark's word for the type."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.query.schema import (
    HEADERS_TYPE,
    check_sink_columns,
    default_columns,
    named_columns,
    wanted_columns,
)

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
    assert default_columns(False).ddl == (
        "key string, value binary, queue string, partition int, offset bigint, timestamp timestamp, redelivered boolean"
    )
    assert default_columns(True).ddl == f"{default_columns(False).ddl}, headers {HEADERS_TYPE}"
    assert default_columns(True).stored == ("key", "value", "timestamp", "headers")
    assert default_columns(False).stored == ("key", "value", "timestamp")


# --- columns on request -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [False, True])
def test_the_sources_own_columns_may_be_repeated(headers: bool) -> None:
    columns = [*PLAIN, ("headers", HEADERS_TYPE)] if headers else PLAIN
    assert wanted_columns(columns) == default_columns(headers)


@pytest.mark.parametrize("name", ["value", "Value", "VALUE"])
@pytest.mark.parametrize("kind", ["binary", "string"])
def test_some_may_be_named_in_any_order_and_any_letters(name: str, kind: str) -> None:
    """A reader's columns are called as it called them."""
    wanted = wanted_columns([("offset", "bigint"), ("headers", HEADERS_TYPE), (name, kind)])
    assert [(column.name, column.source, column.type) for column in wanted.columns] == [
        ("offset", "offset", "bigint"),
        ("headers", "headers", HEADERS_TYPE),
        (name, "value", kind),
    ]
    assert wanted.stored == ("headers", "value")


def test_what_is_made_needs_nothing_that_is_stored() -> None:
    assert named_columns(["partition", "offset", "queue", "redelivered"]).stored == ()


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([], ".schema() names no column: name some of key string, value binary or string"),
        ([VALUE, ("price", "double")], "column 'price' (double) is no column of a partq source"),
        ([("price", "double")], "name some of these in .schema(), or leave it out"),
        ([("price", "double")], "from_json(value, ...)"),
        ([("offset", "int")], "column 'offset' has type int in .schema(), a partq source has it as bigint"),
        ([("value", "int")], "column 'value' has type int in .schema(), a partq source has it as binary or string"),
        ([("key", "binary")], "column 'key' has type binary"),
        ([("key", "string collate UNICODE")], "column 'key' has type string collate UNICODE"),
        ([("headers", "map<string,binary>")], "column 'headers' has type map<string,binary>"),
        ([VALUE, ("value", "string")], "column 'value' is named twice in .schema() (as 'value' before): name it once"),
        ([("Key", "string"), ("KEY", "string")], "column 'KEY' is named twice in .schema() (as 'Key' before)"),
        ([("key", "string not null")], "column 'key' is NOT NULL in .schema() (string not null)"),
        ([("offset", "bigint not null")], "make it bigint, without NOT NULL"),
        ([("value", "string not null")], "make it binary or string, without NOT NULL"),
        ([("headers", HEADERS_TYPE.replace("key:string", "key:string not null"))], "column 'headers' is NOT NULL"),
        ([("offset", "int not null")], "column 'offset' has type int not null in .schema()"),
    ],
)
def test_columns_that_the_source_does_not_have_are_refused_by_name(columns: list[tuple[str, str]], says: str) -> None:
    with pytest.raises(Invalid) as caught:
        wanted_columns(columns)
    assert says in str(caught.value)


@pytest.mark.parametrize("names", [["price"], ["key", "key"], ["key", "KEY"], [], "key"])
def test_names_that_are_no_columns_are_refused_together(names: Sequence[str]) -> None:
    with pytest.raises(Invalid, match=r"columns=\[.*is not allowed: give some of key, value, .*headers, once each"):
        named_columns(names)


# --- sinks ------------------------------------------------------------------------------------------------------------


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
