"""JSON lines as messages of a key and a value: one object per line, in the form that `partq browse --json` prints, or
rows of any shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from partq_spark.client.files.json_file import ENCODING, JsonFile, held_bytes, json_kind
from partq_spark.client.files.messages import CHUNK_BYTES, CHUNK_ROWS, Chunk, Lines, Shape, shape_of
from partq_spark.log.segment_columns import HEADERS, segment_schema
from partq_spark.query.settings import IGNORED


class JsonLines:
    """A `MessageSource` of JSON lines. The first line decides whether lines are messages or rows.

    With `messages_only` a line without `value` is refused, where it could be a slip of the pen.
    """

    unit = "line"

    def __init__(self, lines: Lines, *, key_column: str | None, whole_rows: bool, messages_only: bool) -> None:
        self.name = lines.name
        self._file = JsonFile(lines, example='{"key": "a", "value": "text"}')
        self._key_is_required = key_column is not None
        self._rows = self._file.objects()
        self._first = next(self._rows, None)
        columns = list(self._first[1]) if self._first else []
        self._shape = Shape(key="key", whole=False)
        if self._first is not None and not (messages_only and "value" not in columns):
            self._shape = shape_of(
                f"{self.name} line {self._file.line}",
                columns,
                key_column=key_column,
                whole_rows=whole_rows,
                also=(ENCODING,),
            )
        if self._shape.key is None and not self._shape.whole:
            self._shape = Shape(key="key", whole=False)  # a later line may have one
        self._known = {self._shape.key, "value", "headers", ENCODING, *IGNORED}
        # Whether a later line has headers nobody knows yet, and all segments of a publish have the same columns.
        self.headers = not self._shape.whole
        self.meaning = self._shape.meaning

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

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
                size += held_bytes(row_headers)
            places.append(self._file.line)
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

    def _key(self, row: dict[str, Any]) -> str | None:
        name = self._shape.key
        if name is None:
            return None
        if name not in row and self._key_is_required:
            self._file.refuse(f"has no {name!r} (--key-column): give null for a message without a key")
        key = row.get(name)
        if isinstance(key, dict | list):
            self._file.refuse(f"has {json_kind(key)} for its key {name!r}: a key is a string, a number or null")
        if key is None or isinstance(key, str):
            if key is not None:
                self._file.encoded(key, "key")
            return key
        return self._file.bytes_of(key, None, "key").decode()

    def _message(self, row: dict[str, Any]) -> tuple[bytes, list[dict[str, Any]] | None]:
        if row.get("value") is None:
            self._file.refuse("has no value: every message needs one (an empty string is allowed, null is not)")
        if not row.keys() <= self._known:
            unknown = next(name for name in row if name not in self._known)
            self._file.refuse(f"has {unknown!r}, which is no part of a message: give --whole-rows, or leave it out")
        value = self._file.bytes_of(row["value"], row.get(ENCODING), "value")
        return value, self._file.headers_of(row.get("headers"))
