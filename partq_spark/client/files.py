"""How rows of files become messages: by a typed queue's columns, or as keys, values and headers. Parquet, and CSV for
an untyped queue, is taken as any table is (`client.tables`), CSV for a typed one and JSON lines by the checks of
`client.rows`. What does not fit is named by file, and line or row.

Files are known by their extension; standard input is JSON lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import BadRow, Invalid
from partq_spark.client.arguments import STANDARD_INPUT, checked_file_kind
from partq_spark.client.parsing import (
    ENCODING,
    bytes_of,
    encoded,
    field_of_csv,
    headers_of,
    json_kind,
    member_of_json,
)
from partq_spark.client.readers import (
    CsvFile,
    ExactDecoder,
    JsonFile,
    JsonLine,
    Lines,
    ParquetFile,
    Place,
)
from partq_spark.client.rows import RefusedValue, RowTaker, batch_of
from partq_spark.client.tables import TakeBatch, keys_in, messages_taking, objects, rows_taking
from partq_spark.log.destinations import Stage
from partq_spark.log.schema.columns import Columns
from partq_spark.log.schema.conform import Conversion
from partq_spark.log.schema.forms import first_not_utf8
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.segment import HEADERS_NAME, segment_schema
from partq_spark.query.columns import METADATA
from partq_spark.query.settings import IGNORED


@dataclass(frozen=True, slots=True)
class MessageSource:
    """The rows of a file, read once, in bounded memory, part by part, each with what says where they stand. `messages`
    makes a batch of a part, with the columns of a segment, or raises `BadRow`; `meaning` says how, or is empty where
    there is nothing to say.
    """

    file: CsvFile | JsonFile | ParquetFile
    parts: Iterator[tuple[Any, Place]]
    messages: Callable[[Any], pa.RecordBatch]
    meaning: str = ""


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
        given = pa.schema(list(zip(file.columns, kinds, strict=True)))
        places = self._taking(file.name, given).places
        how = [(field, place, field_of_csv(field)) for field, place in zip(schema, places, strict=True)]

        def made(rows: list[list[str]]) -> pa.RecordBatch:
            """Column by column, which is faster. The first row of which one refuses something is named."""
            given = list(zip(*rows, strict=True))
            arrays: list[pa.Array] = []
            refused: list[tuple[int, RefusedValue]] = []
            for field, place, taken in how:
                values: list[Any] = []
                try:
                    values.extend(map(taken, [""] * len(rows) if place is None else given[place]))
                except RefusedValue as error:
                    refused.append((len(values), error.inside(field.name)))
                arrays.append(pa.array(values, field.type))
            if refused:
                row, first = min(refused, key=itemgetter(0))
                raise first.of_row(row)
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
        made = partial(batch_of, segment_schema(self.columns, headers=True))
        return MessageSource(file, file.parts(take), made)

    def parquet(self, opened: BinaryIO, name: str) -> MessageSource:
        """Columns in any form that loses nothing, and perhaps `_headers`."""
        file = ParquetFile(opened, name)
        names = [each for each in file.schema.names if each != METADATA]
        taking = self._taking(name, pa.schema([file.schema.field(each) for each in names]))
        return MessageSource(file, file.parts(names), lambda batch: taking(batch.select(names)))

    def _taking(self, name: str, given: pa.Schema) -> Conversion:
        """How the queue takes a file's columns. Raises `Invalid` that names the file and the first that does not
        fit.
        """
        try:
            return rows_taking(given, self.stage)
        except Invalid as error:
            raise Invalid(f"{name}: {error}") from None


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
        schema = pa.schema([pa.field(name, pa.string()) for name in file.columns])
        taken = self._taking(shape, file.name, schema, untyped=True)

        def made(rows: list[list[str]]) -> pa.RecordBatch:
            texts = [pa.array(column, pa.string()) for column in zip(*rows, strict=True)]
            columns = [pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column) for column in texts]
            return taken(pa.RecordBatch.from_arrays(columns, schema=schema))

        return MessageSource(file, file.parts(), made, shape.meaning)

    def json(self, lines: Lines) -> MessageSource:
        """One object per line, in the form that `partq browse --json` prints, or rows of any shape: the first line
        decides.
        """
        file = JsonFile(lines, example='{"key": "a", "value": "text"}', decoder=ExactDecoder(str.encode))
        shape = _Shape(key="key", whole=False)
        if file.first_line is not None and ("value" in file.columns or not self.messages_only):
            shape = self._shape(f"{file.name} line {file.first_line}", file.columns, also=(ENCODING,))
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
        made = partial(batch_of, segment_schema(headers=not shape.whole))
        return MessageSource(file, file.parts(whole if shape.whole else message), made, shape.meaning)

    def parquet(self, opened: BinaryIO, name: str) -> MessageSource:
        file = ParquetFile(opened, name)
        names = file.schema.names
        shape = self._shape(name, names)
        wanted = None if shape.whole else [each for each in names if each in (shape.key, "value", "headers")]
        taken = self._taking(shape, name, file.schema)
        return MessageSource(file, file.parts(wanted), taken, shape.meaning)

    def _shape(self, name: str, columns: Sequence[str], also: Sequence[str] = ()) -> _Shape:
        """How to publish a table with these columns. Raises `Invalid` where it could be meant in two ways.

        A table with a column `value` holds messages (key, value, headers). In any other each whole row becomes a value.
        `also` are further columns that a table of messages may have.
        """
        given = self.key_column
        if given is not None and given not in columns:
            raise Invalid(
                f"{name} has no column {given!r} (--key-column), it has {', '.join(columns)}: name one of them"
            )
        key = "key" if given is None else given
        if self.whole_rows or "value" not in columns:
            return _Shape(key=key if key in columns else None, whole=True)
        known = {key, "value", "headers", *IGNORED, *also}
        unknown = [column for column in columns if column not in known]
        if unknown:
            raise Invalid(
                f"{name} has a column 'value', so its rows are taken for messages, but {unknown[0]!r} is no part of a "
                "message: give --whole-rows to publish each row as a JSON object, or leave that column out"
            )
        return _Shape(key=key, whole=False)

    def _taking(self, shape: _Shape, name: str, given: pa.Schema, *, untyped: bool = False) -> TakeBatch:
        """How batches of a file's columns become messages; `untyped`: they are texts. Raises `Invalid` naming the
        column whose type cannot be one.
        """
        if shape.whole:
            return partial(_whole_rows, shape.key, untyped=untyped)
        try:
            return messages_taking(given, shape.key)
        except Invalid as error:
            raise Invalid(f"{name}: {error}, or give --whole-rows to publish each row as a JSON object") from None

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
    """How rows become messages. `key` is the column of the key; None: there is none.

    `whole`: the whole row becomes the value, as a JSON object; else there is a column `value`.
    """

    key: str | None
    whole: bool

    @property
    def meaning(self) -> str:
        """For the summary; empty for a plain table of messages."""
        if not self.whole:
            return "" if self.key == "key" else f"key from {self.key!r}"
        return "each row as a JSON object, " + ("without keys" if self.key is None else f"key from {self.key!r}")


def _whole_rows(key: str | None, batch: pa.RecordBatch, *, untyped: bool) -> pa.RecordBatch:
    """Each row as a JSON object."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name, column in () if untyped else columns.items():  # what has no types was decoded when it was read
        bad = first_not_utf8(column)
        if bad is not None:
            raise BadRow.of(
                bad,
                f" has text in {name!r} that is not UTF-8, which JSON cannot hold: make that column binary (it becomes "
                "base64), or encode it",
            )
    value = objects(columns, untyped=untyped).cast(pa.binary())
    return pa.RecordBatch.from_arrays([keys_in(batch, key), value], schema=segment_schema())


# --- opened -----------------------------------------------------------------------------------------------------------


@contextmanager
def open_source(
    path: str, *, key_column: str | None, whole_rows: bool, max_message_bytes: int, stage: Stage | None = None
) -> Iterator[MessageSource]:
    """The messages in the file at `path`, or on standard input for `-`. `stage` is that of a queue that gets them: a
    typed one gets rows. Raises `Invalid` for what cannot be read.

    `max_message_bytes` bounds the memory for a line.
    """
    forms: KeysAndValues | Rows
    if stage is None or stage.columns is None:
        slip = path == STANDARD_INPUT and key_column is None and not whole_rows
        forms = KeysAndValues(key_column=key_column, whole_rows=whole_rows, messages_only=slip)
    else:
        _check_typed(stage.queue, stage.columns, key_column, whole_rows=whole_rows)
        forms = Rows(stage=stage, columns=stage.columns)
    # JSON may spend six characters on a byte (\u0000), and CSV two.
    most_bytes = 6 * max_message_bytes + 1024 * 1024
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise Invalid("standard input is closed: give it JSON lines, or name a file")
        lines = Lines(sys.stdin.buffer, "standard input", compressed=False, most_bytes=most_bytes)
        yield forms.json(lines)
        return
    kind, compressed = checked_file_kind(path)
    try:
        file = Path(path).open("rb")  # noqa: SIM115 - entered below, so that only what opening raises is caught
    except (OSError, ValueError) as error:  # ValueError: a null character
        said = getattr(error, "strerror", None) or error
        raise Invalid(f"{path!r} cannot be opened: {said}; give the path of a file that can be read") from None
    with file:
        if kind == "parquet":
            yield forms.parquet(file, path)
            return
        lines = Lines(file, path, compressed=compressed, most_bytes=most_bytes)
        yield forms.csv(lines, most_bytes) if kind == "csv" else forms.json(lines)


def _check_typed(queue: str, columns: Columns, key_column: str | None, *, whole_rows: bool) -> None:
    """Raises `Invalid` for what does not go with a typed queue."""
    if key_column is not None:
        is_key = "its messages have no key" if columns.key is None else f"its key is its column {columns.key!r}"
        raise Invalid(f"queue {queue!r} is typed, and {is_key}: leave the key column (--key-column) out")
    if whole_rows:
        raise Invalid(f"queue {queue!r} is typed, its messages are rows: leave whole rows (--whole-rows) out")
