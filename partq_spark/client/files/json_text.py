"""Arrow columns as JSON text, without a Python object per value: what rows of a table are published as.

Numbers keep the text that Arrow gives them; what JSON cannot hold is written as Spark's `to_json` does: NaN and
infinity as strings, bytes in base64, times in ISO 8601. Maps and other types without such a form are refused by name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import Invalid

_NULL = pa.scalar("null")
# As JSON has it, without exponents: 1e5 in a CSV file is more often a name than a number.
_NUMBER = r"\A-?(0|[1-9][0-9]*)(\.[0-9]+)?\z"
_CONTROL = r"[\x00-\x1f]"


def objects(columns: Mapping[str, pa.Array], *, untyped: bool = False) -> pa.Array:
    """One compact JSON object per row, as strings; the order of the columns is kept.

    `untyped`: the columns are texts without types (CSV), so a field that is a JSON number becomes one, digit by digit.
    Raises `Invalid` naming a column whose type has no JSON form.
    """
    parts: list[pa.Array | pa.Scalar] = []
    for index, (name, column) in enumerate(columns.items()):
        parts.append(pa.scalar(("," if index else "{") + json.dumps(name, ensure_ascii=False) + ":"))
        parts.append(_untyped(column) if untyped else values(column, name))
    if not parts:
        raise Invalid("a table without columns has nothing to publish: give one with at least one column")
    return pc.binary_join_element_wise(*parts, pa.scalar("}"), "")


def values(column: pa.Array, name: str) -> pa.Array:
    """The JSON text of each value, as strings without nulls. Raises `Invalid` naming the column `name`."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return values(column.dictionary_decode(), name)
    if pa.types.is_struct(kind):
        return _struct(column, name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _list(column, name)
    text = texts(column, name)
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind)):
        quoted = _quoted(text)
        text = pc.if_else(pc.is_finite(column), text, quoted) if pa.types.is_floating(kind) else quoted
    return pc.fill_null(text, _NULL)


def texts(column: pa.Array, name: str) -> pa.Array:
    """Each value as plain text, nulls kept: what a key is made of, and a JSON value that is no list or struct."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return texts(column.dictionary_decode(), name)
    if pa.types.is_float16(kind):
        return texts(column.cast(pa.float32()), name)
    if pa.types.is_floating(kind):
        plain = column.cast(pa.string())
        spark = pc.if_else(pc.is_nan(column), "NaN", pc.if_else(pc.greater(column, 0), "Infinity", "-Infinity"))
        return pc.if_else(pc.is_finite(column), plain, spark)
    if pa.types.is_timestamp(kind):
        utc = kind.tz is not None
        plain = column.cast(pa.timestamp(kind.unit)).cast(pa.string()) if utc else column.cast(pa.string())
        plain = pc.replace_substring(plain, " ", "T")
        return pc.binary_join_element_wise(plain, pa.scalar("Z"), "") if utc else plain
    if _is_binary(kind):
        return pa.array(
            [None if raw is None else base64.b64encode(raw).decode() for raw in column.to_pylist()], pa.string()
        )
    if _is_plain(kind):
        return column.cast(pa.string())
    raise Invalid(
        f"column {name!r} has type {kind}, which cannot be published as text: leave it out, or turn it into a string "
        "first"
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_boolean, types.is_null)
    return any(test(kind) for test in (*tests, types.is_decimal, types.is_date, types.is_time))


def _untyped(column: pa.Array) -> pa.Array:
    number = pc.match_substring_regex(column, _NUMBER)
    return pc.fill_null(pc.if_else(number, column, _quoted(column)), _NULL)


def _quoted(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _CONTROL)).as_py():  # rare, and has many cases
        return pa.array(
            [None if text is None else json.dumps(text, ensure_ascii=False) for text in column.to_pylist()], pa.string()
        )
    escaped = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise(pa.scalar('"'), escaped, pa.scalar('"'), "")


def _struct(column: pa.StructArray, name: str) -> pa.Array:
    fields = {field.name: column.field(index) for index, field in enumerate(column.type)}
    text = objects(fields) if fields else pa.array(["{}"] * len(column), pa.string())
    return pc.if_else(pc.is_valid(column), text, _NULL)


def _list(column: pa.Array, name: str) -> pa.Array:
    lengths: Sequence[int | None] = pc.list_value_length(column).to_pylist()
    items = iter(values(column.flatten(), name).to_pylist())  # flatten leaves out what lies under a null list
    return pa.array(
        ["null" if length is None else f"[{','.join(next(items) for _ in range(length))}]" for length in lengths],
        pa.string(),
    )
