"""How rows of files become messages: by a typed queue's columns, or as keys, values and headers. CSV and JSON lines go
one way to a typed queue, through the checks of `client.rows`; CSV is a table of texts for an untyped one, as Parquet
is a table of columns. What does not fit is named by file, and line or row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import BadRow, Invalid
from partq_spark.client.files import json_text
from partq_spark.client.files.parsing import (
    ENCODING,
    bytes_of,
    encoded,
    field_of_csv,
    headers_of,
    json_kind,
    member_of_json,
)
from partq_spark.client.files.readers import CsvFile, JsonFile, JsonLine, Lines, ParquetFile, Part, is_text
from partq_spark.client.json_values import ExactDecoder, number
from partq_spark.client.rows import RefusedValue, RowTaker
from partq_spark.client.tables import headers_taking, taken_headers
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.forms import first_not_utf8
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment_columns import HEADERS, HEADERS_NAME, segment_schema
from partq_spark.log.staged import Stage
from partq_spark.query.columns import METADATA
from partq_spark.query.settings import IGNORED


class MessageSource:
    """The messages of a file, read once, in bounded memory. `name` is the file as the user wrote it; `meaning` says how
    rows become messages, or is empty where there is nothing to say.
    """

    def __init__(
        self,
        file: CsvFile | JsonFile | ParquetFile,
        parts: Iterator[Part[Any]],
        messages: Callable[[Part[Any]], pa.RecordBatch],
        *,
        meaning: str = "",
    ) -> None:
        self.name = file.name
        self.meaning = meaning
        self.progress = file.progress
        """How much has been read, and of how much (None: nobody knows), in one unit."""
        self._parts = parts
        self._messages = messages

    def batches(self) -> Iterator[tuple[pa.RecordBatch, Callable[[int], str]]]:
        """With the columns of a segment, each with what says where its rows stand. Raises `Invalid` naming file and
        line or row for what is no message; what no queue takes the log refuses, by `BadRow`.
        """
        for part in self._parts:
            yield self._messages(part), part.place


def _from_values(schema: pa.Schema, part: Part[list[Sequence[Any]]]) -> pa.RecordBatch:
    """Of rows, each the values of these columns."""
    arrays = [pa.array(values, field.type) for values, field in zip(zip(*part.rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# --- for a typed queue ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """How files become rows of a typed queue: columns by their names, values by their types."""

    stage: Stage
    columns: Columns

    def csv(self, lines: Lines, most_chars: int) -> MessageSource:
        file = CsvFile(lines, most_chars=most_chars)
        schema = schema_of(self.columns)
        known = [self.columns.column(name) for name in file.columns]
        kinds = [pa.string() if column is None else schema.field(column.name).type for column in known]
        places = self._taking(file.name, pa.schema(list(zip(file.columns, kinds, strict=True)))).places
        take = partial(RowTaker(self.columns, field_of_csv).take_fields, places)
        how = [(field, place, field_of_csv(field)) for field, place in zip(schema, places, strict=True)]

        def made(part: Part[list[list[str]]]) -> pa.RecordBatch:
            """Column by column, which is faster; by rows where one is refused, to say the first."""
            given = list(zip(*part.rows, strict=True))
            rows = len(part.rows)
            try:
                arrays = [
                    pa.nulls(rows, field.type)
                    if place is None
                    else pa.array(list(map(taken, given[place])), field.type)
                    for field, place, taken in how
                ]
            except RefusedValue:
                for index, row in enumerate(part.rows):
                    try:
                        take(row)
                    except RefusedValue as error:
                        raise error.at(part.place(index)) from None
                raise
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        return MessageSource(file, file.parts(), made)

    def json(self, lines: Lines) -> MessageSource:
        """Objects whose members are the columns, and perhaps `_headers`."""
        example = ", ".join(f'"{name}": …' for name in self.columns.names[:3])
        file = JsonFile(lines, example=f"{{{example}}}", decoder=ExactDecoder())
        taker = RowTaker(self.columns, member_of_json)

        def take(line: JsonLine) -> Sequence[Any]:
            row = line[1]
            headers = headers_of(row.pop(HEADERS_NAME, None))
            return (*taker.take(row), headers)

        # Whether a later line has headers nobody knows yet.
        made = partial(_from_values, segment_schema(self.columns, headers=True))
        return MessageSource(file, file.parts(take), made)

    def parquet(self, opened: BinaryIO, name: str) -> MessageSource:
        """Columns in any form that loses nothing, and perhaps `_headers`."""
        file = ParquetFile(opened, name, instants=True)
        payload = [field for field in file.schema if field.name not in (HEADERS_NAME, METADATA)]
        names = [field.name for field in payload]
        taking = self._taking(name, pa.schema(payload))
        try:
            headers = headers_taking(file.schema, HEADERS_NAME)
        except Invalid as error:
            raise Invalid(f"{name}: {error}") from None

        def made(part: Part[pa.RecordBatch]) -> pa.RecordBatch:
            try:
                rows = taking(part.rows.select(names))
                if headers is None:
                    return rows
                taken = taken_headers(headers, part.rows, 0)
                return rows.append_column(pa.field(HEADERS_NAME, HEADERS), taken)
            except BadRow as bad:
                raise bad.at(part.place(bad.row)) from None

        return MessageSource(file, file.parts([*names, *([] if headers is None else [HEADERS_NAME])]), made)

    def _taking(self, name: str, given: pa.Schema) -> Conversion:
        """How the queue takes a file's columns. Raises `Invalid` that names the file and the first that does not
        fit.
        """
        try:
            return Conversion.to_queue(given, schema_of(self.columns))
        except Invalid as error:
            raise Invalid(f"{name}: queue {self.stage.queue!r} cannot take these rows: {error}") from None


# --- for an untyped queue ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class KeysAndValues:
    """How files become messages of an untyped queue. `messages_only`: a line of JSON without `value` is refused, where
    it could be a slip of the pen.
    """

    key_column: str | None
    whole_rows: bool
    messages_only: bool

    def csv(self, lines: Lines, most_chars: int) -> MessageSource:
        """An empty field is null. CSV has no types: in rows that become JSON a field that is a JSON number becomes one,
        all else a string.
        """
        file = CsvFile(lines, most_chars=most_chars)
        shape = self._shape(file.name, file.columns)
        if not shape.whole and "headers" in file.columns:
            raise Invalid(f"{file.name} has a column 'headers': CSV cannot hold them, use JSON lines or Parquet")

        def made(part: Part[list[list[str]]]) -> pa.RecordBatch:
            columns: dict[str, pa.Array] = {}
            for name, column in zip(file.columns, zip(*part.rows, strict=True), strict=True):
                texts = pa.array(column, pa.string())
                columns[name] = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            return _from_table(shape, file.name, columns, part, untyped=True)

        return MessageSource(file, file.parts(), made, meaning=shape.meaning)

    def json(self, lines: Lines) -> MessageSource:
        """One object per line, in the form that `partq browse --json` prints, or rows of any shape: the first line
        decides.
        """
        file = JsonFile(lines, example='{"key": "a", "value": "text"}', decoder=ExactDecoder(number))
        columns = file.columns
        shape = _Shape(key="key", whole=False)
        if file.first_line is not None and ("value" in columns or not self.messages_only):
            shape = self._shape(f"{file.name} line {file.first_line}", columns, also=(ENCODING,))
        if shape.key is None and not shape.whole:
            shape = _Shape(key="key", whole=False)  # a later line may have one
        known = {shape.key, "value", "headers", ENCODING, *IGNORED}

        def message(line: JsonLine) -> Sequence[Any]:
            row = line[1]
            key = self._key(shape.key, row)
            if row.get("value") is None:
                raise RefusedValue("has no value: every message needs one (an empty string is allowed, null is not)")
            if not row.keys() <= known:
                unknown = next(name for name in row if name not in known)
                raise RefusedValue(
                    f"has {unknown!r}, which is no part of a message: give --whole-rows, or leave it out"
                )
            value = bytes_of(row["value"], row.get(ENCODING), "value")
            return key, value, headers_of(row.get("headers"))

        def whole(line: JsonLine) -> Sequence[Any]:
            return self._key(shape.key, line[1]), line[0].strip().encode()

        # Whether a later line has headers nobody knows yet, and all segments of a publish have the same columns.
        made = partial(_from_values, segment_schema(headers=not shape.whole))
        return MessageSource(file, file.parts(whole if shape.whole else message), made, meaning=shape.meaning)

    def parquet(self, opened: BinaryIO, name: str) -> MessageSource:
        file = ParquetFile(opened, name)
        names = file.schema.names
        shape = self._shape(name, names)
        wanted = None if shape.whole else [each for each in names if each in (shape.key, "value", "headers")]

        def made(part: Part[pa.RecordBatch]) -> pa.RecordBatch:
            columns = dict(zip(part.rows.schema.names, part.rows.columns, strict=True))
            return _from_table(shape, name, columns, part, untyped=False)

        return MessageSource(file, file.parts(wanted), made, meaning=shape.meaning)

    def _shape(self, name: str, columns: Sequence[str], also: Sequence[str] = ()) -> _Shape:
        return _shape_of(name, columns, key_column=self.key_column, whole_rows=self.whole_rows, also=also)

    def _key(self, name: str | None, row: Mapping[str, Any]) -> str | None:
        if name is None:
            return None
        if name not in row and self.key_column is not None:
            raise RefusedValue(f"has no {name!r} (--key-column): give null for a message without a key")
        key = row.get(name)
        if isinstance(key, dict | list):
            raise RefusedValue(f"has {json_kind(key)} for its key {name!r}: a key is a string, a number or null")
        if isinstance(key, str):
            encoded(key, "key")
            return key
        return None if key is None else bytes_of(key, None, "key").decode()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """How the columns of a table become messages. `key` is the column of the key, if there is one.

    `whole`: the whole row becomes the value, as a JSON object; else there is a column `value`.
    """

    key: str | None
    whole: bool

    @property
    def meaning(self) -> str:
        """For the summary; empty for a plain table of messages."""
        if not self.whole:
            return "" if self.key in (None, "key") else f"key from {self.key!r}"
        return "each row as a JSON object, " + ("without keys" if self.key is None else f"key from {self.key!r}")


def _shape_of(
    name: str, columns: Sequence[str], *, key_column: str | None, whole_rows: bool, also: Sequence[str] = ()
) -> _Shape:
    """How to publish a table with these columns. Raises `Invalid` where it could be meant in two ways.

    A table with a column `value` holds messages (key, value, headers). In any other each whole row becomes a value.
    `also` are further columns that a table of messages may have.
    """
    if key_column is not None and key_column not in columns:
        raise Invalid(
            f"{name} has no column {key_column!r} (--key-column), it has {', '.join(columns)}: name one of them"
        )
    key = key_column if key_column is not None else ("key" if "key" in columns else None)
    if whole_rows or "value" not in columns:
        return _Shape(key=key, whole=True)
    known = {key, "value", "headers", *IGNORED, *also}
    unknown = [column for column in columns if column not in known]
    if unknown:
        raise Invalid(
            f"{name} has a column 'value', so its rows are taken for messages, but {unknown[0]!r} is no part of a "
            "message: give --whole-rows to publish each row as a JSON object, or leave that column out"
        )
    return _Shape(key=key, whole=False)


def _from_table(
    shape: _Shape, name: str, columns: Mapping[str, pa.Array], part: Part[Any], *, untyped: bool
) -> pa.RecordBatch:
    """Of the columns of a table; `untyped`: they are texts. Raises `Invalid` naming the column whose type cannot be
    one.
    """
    rows = len(part.numbers)
    key = pa.nulls(rows, pa.string()) if shape.key is None else _key(columns[shape.key], shape.key)
    if not shape.whole:
        arrays = [key, _value(columns["value"], name)]
        if "headers" in columns:
            arrays.append(_headers(columns["headers"], name))
        return pa.RecordBatch.from_arrays(arrays, schema=segment_schema(headers="headers" in columns))
    for column in () if untyped else columns:  # what has no types was decoded when it was read
        bad = first_not_utf8(columns[column])
        if bad is not None:
            raise Invalid(
                f"{part.place(bad)} has text in {column!r} that is not UTF-8, which JSON cannot hold: make that column "
                "binary (it becomes base64), or encode it"
            )
    value = json_text.objects(columns, untyped=untyped).cast(pa.binary())
    return pa.RecordBatch.from_arrays([key, value], schema=segment_schema())


def _key(column: pa.Array, key: str) -> pa.Array:
    """As text; whether it is UTF-8, the log says."""
    if pa.types.is_binary(column.type):
        return column.view(pa.string())
    if pa.types.is_large_binary(column.type):
        return column.cast(pa.binary()).view(pa.string())
    return json_text.texts(column, key)


def _value(column: pa.Array, name: str) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _value(column.dictionary_decode(), name)
    if is_text(kind):
        return column.cast(pa.binary())
    raise Invalid(
        f"{name} has a column 'value' of type {kind}, a message's value is text or bytes: give --whole-rows to publish "
        "each row as a JSON object, or turn the column into text"
    )


def _headers(column: pa.Array, name: str) -> pa.Array:
    try:
        return column.cast(HEADERS)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Invalid(
            f"{name} has a column 'headers' of type {column.type}, it must be a list of structs of key (string) and "
            f"value (binary): {error}"
        ) from None
