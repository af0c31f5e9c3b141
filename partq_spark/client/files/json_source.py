"""JSON lines as messages: one object per line, in the form that `partq browse --json` prints, or rows of any shape."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.client.files.messages import CHUNK_BYTES, CHUNK_ROWS, HEADER_BYTES, Chunk, Lines, Shape, shape_of
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.query.schema import IGNORED

_ALSO = ("value_encoding",)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)  # json.loads would make one for every line


class JsonLines:
    """A `Source` of JSON lines. The first line decides whether lines are messages or rows.

    With `messages_only` a line without `value` is refused, where it could be a slip of the pen.
    """

    unit = "line"

    def __init__(self, lines: Lines, *, key_column: str | None, whole_rows: bool, messages_only: bool) -> None:
        self.name = lines.name
        self._lines = lines
        self._key_is_required = key_column is not None
        self._rows = self._parsed()
        self._first = next(self._rows, None)
        columns = list(self._first[1]) if self._first else []
        self._shape = Shape(key="key", whole=False)
        if self._first is not None and not (messages_only and "value" not in columns):
            self._shape = shape_of(
                f"{self.name} line {self._lines.number}",
                columns,
                key_column=key_column,
                whole_rows=whole_rows,
                also=_ALSO,
            )
        if self._shape.key is None and not self._shape.whole:
            self._shape = Shape(key="key", whole=False)  # a later line may have one
        self._known = {self._shape.key, "value", "headers", *_ALSO, *IGNORED}
        # Whether a later line has headers nobody knows yet, and all segments of a publish have the same columns.
        self.headers = not self._shape.whole
        self.meaning = self._shape.meaning

    def progress(self) -> tuple[int, int | None]:
        return self._lines.progress()

    def chunks(self) -> Iterator[Chunk]:
        keys: list[str | None] = []
        values: list[bytes] = []
        headers: list[list[dict[str, Any]] | None] = []
        places: list[int] = []
        size = 0
        for text, row in self._all_rows():
            key = self._key(row)
            keys.append(key)
            if self._shape.whole:
                values.append(text.strip().encode())
            else:
                value, row_headers = self._message(row)
                values.append(value)
                headers.append(row_headers)
                size += _held_bytes(row_headers)
            places.append(self._lines.number)
            size += len(values[-1]) + len(key or "")
            if size >= CHUNK_BYTES or len(values) >= CHUNK_ROWS:
                yield self._chunk(keys, values, headers, places)
                keys, values, headers, places, size = [], [], [], [], 0
        if values:
            yield self._chunk(keys, values, headers, places)

    def _chunk(
        self,
        keys: list[str | None],
        values: list[bytes],
        headers: list[list[dict[str, Any]] | None],
        places: list[int],
    ) -> Chunk:
        columns = [pa.array(keys, pa.string()), pa.array(values, pa.binary())]
        if self.headers:
            columns.append(pa.array(headers, HEADERS))
        return Chunk(pa.RecordBatch.from_arrays(columns, schema=segment_schema(self.headers)), places)

    # --- one line -----------------------------------------------------------------------------------------------------

    def _all_rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        if self._first is not None:
            first, self._first = self._first, None
            yield first
            yield from self._rows

    def _parsed(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for text in self._lines:
            if text.isspace():
                continue
            try:
                row = _DECODER.decode(text)
            except (ValueError, RecursionError) as error:
                self._refuse(f"is no JSON ({error}): write one object per line")
            if isinstance(row, list):
                self._refuse("is a JSON array: write one object per line, for example with `jq -c '.[]'`")
            if not isinstance(row, dict):
                self._refuse('is no JSON object: write one per line, such as {"key": "a", "value": "text"}')
            yield text, row

    def _key(self, row: dict[str, Any]) -> str | None:
        name = self._shape.key
        if name is None:
            return None
        if name not in row and self._key_is_required:
            self._refuse(f"has no {name!r} (--key-column): give null for a message without a key")
        key = row.get(name)
        if isinstance(key, dict | list):
            self._refuse(f"has {_kind(key)} for its key {name!r}: a key is a string, a number or null")
        if key is None or isinstance(key, str):
            if key is not None:
                self._encoded(key, "key")
            return key
        return self._bytes(key, None, "key").decode()

    def _message(self, row: dict[str, Any]) -> tuple[bytes, list[dict[str, Any]] | None]:
        if row.get("value") is None:
            self._refuse("has no value: every message needs one (an empty string is allowed, null is not)")
        if not row.keys() <= self._known:
            unknown = next(name for name in row if name not in self._known)
            self._refuse(f"has {unknown!r}, which is no part of a message: give --whole-rows, or leave it out")
        value = self._bytes(row["value"], row.get("value_encoding"), "value")
        return value, self._headers(row.get("headers"))

    def _bytes(self, value: Any, encoding: Any, what: str) -> bytes:
        if encoding not in (None, "text", "base64"):
            self._refuse(f"has value_encoding={encoding!r}: give base64, or leave it out")
        if isinstance(value, str):
            if encoding == "base64":
                try:
                    return base64.b64decode(value, validate=True)
                except (binascii.Error, ValueError) as error:
                    self._refuse(f"has a {what} that is no base64 ({error}), as its value_encoding says it is")
            return self._encoded(value, what)
        if encoding == "base64":
            self._refuse(f"has {_kind(value)} for its {what}, and value_encoding=base64: give a string")
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except (ValueError, RecursionError) as error:  # half a surrogate pair, a number that became infinite
            self._refuse(f"has a {what} that cannot be written as JSON ({error})")

    def _headers(self, headers: Any) -> list[dict[str, Any]] | None:
        if headers is None:
            return None
        if isinstance(headers, dict):
            headers = [{"key": key, "value": value} for key, value in headers.items()]
        if not isinstance(headers, list):
            self._refuse(f"has {_kind(headers)} for its headers: give an object, or a list of key and value")
        found: list[dict[str, Any]] = []
        for header in headers:
            if not isinstance(header, dict) or not isinstance(header.get("key"), str | None):
                self._refuse('has a header that is none: write {"key": "trace", "value": "text"}')
            unknown = [name for name in header if name not in ("key", "value", *_ALSO)]
            if unknown:
                self._refuse(f"has a header with {unknown[0]!r}: only key, value and value_encoding belong there")
            key, value = header.get("key"), header.get("value")
            if key is not None:
                self._encoded(key, "header's key")
            data = None if value is None else self._bytes(value, header.get("value_encoding"), "header's value")
            found.append({"key": key, "value": data})
        return found

    def _encoded(self, text: str, what: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            self._refuse(f"has half of a surrogate pair in its {what}, which is no text: give both halves")

    def _refuse(self, why: str) -> NoReturn:
        raise Invalid(f"{self.name} line {self._lines.number} {why}")


def _held_bytes(headers: list[dict[str, Any]] | None) -> int:
    """What headers take in memory, about; of texts that are not ASCII up to four times as much."""
    return sum(HEADER_BYTES + len(header["key"] or "") + len(header["value"] or b"") for header in headers or ())


def _kind(value: object) -> str:
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a string" if isinstance(value, str) else "a number or boolean"
