"""CSV, JSON lines and Parquet as rows of a typed queue: columns by their names, values by their types. What does not
fit is named by file, line or row, and column.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.client.files.json_file import JsonFile, held_bytes
from partq_spark.client.files.messages import CHUNK_BYTES, CHUNK_ROWS, Chunk, Lines
from partq_spark.client.files.parsing import Parse, of_json, of_text
from partq_spark.client.files.table_files import CsvFile, ParquetFile
from partq_spark.client.outgoing import OBJECT_BYTES
from partq_spark.client.rows import RefusedValue, RowTaker, Take, take_of
from partq_spark.client.tables import headers_taking, taken_headers
from partq_spark.log import destinations
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.conform import Taking
from partq_spark.log.schema.ddl import type_text
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment_columns import HEADERS, HEADERS_NAME, segment_columns
from partq_spark.log.staged import Stage
from partq_spark.log.validation import BadRow
from partq_spark.query.columns import METADATA


class CsvRows:
    """A `MessageSource` of CSV. An empty field is null."""

    unit = "line"
    headers = False
    meaning = ""

    def __init__(self, lines: Lines, stage: Stage, columns: Columns, *, most_chars: int) -> None:
        self.name = lines.name
        self._file = CsvFile(lines, most_chars=most_chars)
        self._schema = schema_of(columns)
        known = [columns.column(name) for name in self._file.columns]
        kinds = [pa.string() if column is None else self._schema.field(column.name).type for column in known]
        given = pa.schema(list(zip(self._file.columns, kinds, strict=True)))
        self._places = _fitting(self.name, stage, given).places
        self._how = [(of_text(field.type), take_of(field.type)) for field in self._schema]

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

    def chunks(self) -> Iterator[Chunk]:
        for fields, places in self._file.parts():
            found: list[pa.Array] = []
            bad: list[tuple[int, str]] = []
            for field, place, (parse, take) in zip(self._schema, self._places, self._how, strict=True):
                if place is None:
                    found.append(pa.nulls(len(places), field.type))
                    continue
                values, problem = _values(fields[place], field, parse, take)
                if problem is not None:
                    bad.append(problem)
                elif not bad:
                    found.append(pa.array(values, field.type))
            if bad:
                index, said = min(bad)
                raise Invalid(f"{self.name} line {places[index]}, {said}")
            yield Chunk(pa.RecordBatch.from_arrays(found, schema=self._schema), places)


def _values(
    fields: Sequence[str], field: pa.Field, parse: Parse, take: Take
) -> tuple[list[Any], tuple[int, str] | None]:
    """The values of one column, and which is the first that does not fit and why."""
    values: list[Any] = []
    for index, text in enumerate(fields):
        try:
            value = parse(text) if text else None
            if value is None and not field.nullable:
                raise RefusedValue(
                    f"empty, which is null in CSV, and the queue's schema says {type_text(field.type)} NOT NULL: give "
                    "a value (an empty text in JSON lines or Parquet)"
                )
            values.append(None if value is None else take(value))
        except RefusedValue as error:
            return values, (index, str(error.inside(field.name)))
    return values, None


class JsonRows:
    """A `MessageSource` of JSON lines: objects whose members are the columns, and perhaps `_headers`."""

    unit = "line"
    headers = True  # whether a later line has some nobody knows yet
    meaning = ""

    def __init__(self, lines: Lines, columns: Columns) -> None:
        self.name = lines.name
        self._taker = RowTaker(columns)
        example = ", ".join(f'"{name}": …' for name in columns.names[:3])
        self._file = JsonFile(lines, example=f"{{{example}}}", exact=True)
        self._schema = segment_columns(columns, headers=True).schema
        self._parse = {field.name.lower(): of_json(field.type) for field in self._taker.schema}

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

    def chunks(self) -> Iterator[Chunk]:
        rows: list[tuple[Any, ...]] = []
        places: list[int] = []
        size = 0
        for _, row in self._file.objects():
            headers = self._file.headers_of(row.pop(HEADERS_NAME, None))
            values = self._row(row)
            rows.append((*values, headers))
            places.append(self._file.line)
            size += self._taker.size(values) + OBJECT_BYTES * self._taker.objects(values) + held_bytes(headers)
            if size >= CHUNK_BYTES or len(rows) >= CHUNK_ROWS:
                yield self._chunk(rows, places)
                rows, places, size = [], [], 0
        if rows:
            yield self._chunk(rows, places)

    def _row(self, row: dict[str, Any]) -> tuple[Any, ...]:
        row.pop(METADATA, None)
        try:
            for name, value in row.items():
                parse = self._parse.get(name.lower())
                if parse is not None and value is not None:
                    row[name] = _parsed(name, parse, value)
            return self._taker.take(row)
        except RefusedValue as error:
            raise Invalid(f"{self.name} line {self._file.line}, {error}") from None

    def _chunk(self, rows: Sequence[tuple[Any, ...]], places: Sequence[int]) -> Chunk:
        found = [
            pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), self._schema, strict=True)
        ]
        return Chunk(pa.RecordBatch.from_arrays(found, schema=self._schema), places)


def _parsed(name: str, parse: Parse, value: Any) -> Any:
    try:
        return parse(value)
    except RefusedValue as error:
        raise error.inside(name) from None


class ParquetRows:
    """A `MessageSource` of a Parquet file: its columns by name, in any form that loses nothing, and perhaps
    `_headers`.
    """

    unit = "row"
    meaning = ""

    def __init__(self, file: BinaryIO, name: str, stage: Stage) -> None:
        self.name = name
        self._file = ParquetFile(file, name, instants=True)
        schema = self._file.schema
        self.headers = HEADERS_NAME in schema.names
        payload = [field for field in schema if field.name not in (HEADERS_NAME, METADATA)]
        self._payload = [field.name for field in payload]
        self._taking = _fitting(name, stage, pa.schema(payload))
        try:
            self._headers_taking = headers_taking(schema, HEADERS_NAME)
        except Invalid as error:
            raise Invalid(f"{name}: {error}") from None

    def progress(self) -> tuple[int, int | None]:
        return self._file.progress()

    def chunks(self) -> Iterator[Chunk]:
        wanted = [*self._payload, *([HEADERS_NAME] if self.headers else ())]
        for piece, places in self._file.parts(wanted):
            try:
                made = self._taking(piece.select(self._payload))
                if self._headers_taking is not None:
                    headers = taken_headers(self._headers_taking, piece, 0)
                    made = made.append_column(pa.field(HEADERS_NAME, HEADERS), headers)
            except BadRow as bad:
                raise bad.at(f"{self.name} row {places[bad.row]}") from None
            yield Chunk(made, places)


def _fitting(name: str, stage: Stage, given: pa.Schema) -> Taking:
    """How the queue takes a file's columns. Raises `Invalid` that names the file and the first that does not fit."""
    try:
        taking = destinations.taking(stage, given)
    except Invalid as error:
        raise Invalid(f"{name}: {error}") from None
    if taking is None:
        raise Invalid(f"{name}: queue {stage.queue!r} is untyped, and takes no rows")
    return taking
