"""Spark's own form of a schema as JSON, `StructType.json()`, as columns. Pure, without pyspark."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.schema.types import MAX_DEPTH, TIMESTAMP, TIMESTAMP_NTZ, TOO_DEEP, check_columns, list_of, map_of

_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ltz": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_DECIMAL: Final = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")
_COLLATIONS: Final = "__COLLATIONS"


def parse_struct_json(text: str) -> pa.Schema:
    """The columns of a `StructType`, checked. Whether elements of arrays and values of maps may be null is not kept:
    they may. Raises `Invalid`, by column where it can.
    """
    try:
        found = json.loads(text)
        fields = found["fields"] if found["type"] == "struct" else None
    except RecursionError:
        raise Invalid(f"schema is {TOO_DEEP}") from None
    except (ValueError, TypeError, KeyError):
        fields = None
    if not isinstance(fields, list):
        raise Invalid("schema is no JSON of a StructType: give the text of StructType.json(), or a DDL")
    schema = pa.schema([_field(field, "", 1) for field in fields])
    check_columns(schema)
    return schema


def _field(found: Any, path: str, depth: int) -> pa.Field:
    try:
        name, kind, nullable = found["name"], found["type"], found["nullable"]
        collated = _COLLATIONS in (found.get("metadata") or {})
    except (TypeError, KeyError, AttributeError):
        raise _refused(path, "is no field of a StructType") from None
    where = f"{path}.{name}" if path else str(name)
    if not isinstance(name, str) or not isinstance(nullable, bool):
        raise _refused(where, "is no field of a StructType")
    if collated:
        raise _refused(where, "has a collation, which is not kept: leave it out, and name it where you compare")
    return pa.field(name, _type(kind, where, depth), nullable)


def _type(found: Any, where: str, depth: int) -> pa.DataType:
    if depth > MAX_DEPTH:
        raise _refused(where, f"is {TOO_DEEP}")
    if isinstance(found, str):
        decimal = _DECIMAL.fullmatch(found)
        if decimal is not None:
            precision, scale = map(int, decimal.groups())
            if 1 <= precision <= 38 and scale <= precision:
                return pa.decimal128(precision, scale)
        if found in _SIMPLE:
            return _SIMPLE[found]
        raise _refused(where, f"has type {found!r}, which a queue does not keep: cast it, or keep it as text")
    kind = found.get("type") if isinstance(found, dict) else None
    try:
        if kind == "array":
            return list_of(_type(found["elementType"], f"{where}.element", depth + 1))
        if kind == "map":
            key = _type(found["keyType"], f"{where}.key", depth + 1)
            return map_of(key, _type(found["valueType"], f"{where}.value", depth + 1))
        if kind == "struct" and found["fields"]:
            return pa.struct([_field(field, where, depth + 1) for field in found["fields"]])
    except (KeyError, TypeError):
        pass
    raise _refused(where, f"has type {str(found)[:60]!r}, which a queue does not keep: cast it, or keep it as text")


def _refused(where: str, what: str) -> Invalid:
    return Invalid(f"schema: column {where!r} {what}")
