"""The columns that people see, as names and types in Spark's own words, and the checks of given ones. No pyspark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partq_spark.base.errors import Invalid

HEADERS_TYPE = "array<struct<key:string,value:binary>>"
SOURCE_TYPES: Mapping[str, str] = {
    "key": "string",
    "value": "binary",
    "queue": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "redelivered": "boolean",
}

# What a sink takes; the source's other columns are ignored, so that a plain copy from queue to queue works.
SINK_TYPES: Mapping[str, tuple[str, ...]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (HEADERS_TYPE,),
    "topic": ("string",),
}
IGNORED = ("queue", "partition", "offset", "timestamp", "redelivered")


def source_types(include_headers: bool) -> dict[str, str]:
    """The source's columns in order, name to Spark's simple type string."""
    return {**SOURCE_TYPES, "headers": HEADERS_TYPE} if include_headers else dict(SOURCE_TYPES)


def source_ddl(include_headers: bool) -> str:
    """The source's columns as a DDL string."""
    return ", ".join(f"{name} {kind}" for name, kind in source_types(include_headers).items())


def check_source_columns(columns: Sequence[tuple[str, str]], include_headers: bool) -> None:
    """Raises `Invalid` for a schema that the user gave and that is not the source's (spark-traps 16)."""
    if list(columns) != list(source_types(include_headers).items()):
        found = ", ".join(f"{name} {kind}" for name, kind in columns)
        raise Invalid(
            f"schema ({found}) is not that of a partq source ({source_ddl(include_headers)}): leave .schema() out"
        )


def check_sink_columns(columns: Sequence[tuple[str, str]]) -> None:
    """`columns` are name and Spark's simple type string, in order. Raises `Invalid` naming the first column that a sink
    cannot take.
    """
    allowed = f"value (string or binary), key (string or binary), headers ({HEADERS_TYPE}), topic (string)"
    names = [name for name, _ in columns]
    for name, kind in columns:
        if names.count(name) > 1:
            raise Invalid(f"column {name!r} is there {names.count(name)} times: select it once")
        if name in IGNORED:
            continue
        if name not in SINK_TYPES:
            raise Invalid(
                f"column {name!r} ({kind}) is no column of a partq sink: it takes {allowed}; put payload columns into "
                "value, for example with to_json(struct(...))"
            )
        if kind not in SINK_TYPES[name]:
            raise Invalid(
                f"column {name!r} has type {kind}, a partq sink takes {' or '.join(SINK_TYPES[name])}: cast it"
            )
    if "value" not in names:
        raise Invalid(f"column 'value' is missing (found: {', '.join(names) or 'none'}): a partq sink takes {allowed}")
