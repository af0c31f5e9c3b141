"""Opens what `partq publish` reads: files by their extension, standard input as JSON lines. What they hold is read by
the sources beside this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

from partq_spark.base.errors import Invalid, WrongUse

if TYPE_CHECKING:
    from partq_spark.client.files.messages import Lines, MessageSource
    from partq_spark.log.schema.columns import Columns
    from partq_spark.log.staged import Stage

FileKind = Literal["csv", "json", "parquet"]
_KINDS: dict[str, FileKind] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
STANDARD_INPUT = "-"


def checked_file_kind(path: str) -> tuple[FileKind, bool]:
    """What a file is, and whether it is gzipped, by its name. Raises `WrongUse` naming the extensions there are."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    compressed = suffixes[-1:] == [".gz"]
    kind = _KINDS.get(suffixes[-2] if compressed and len(suffixes) > 1 else "".join(suffixes[-1:]))
    if kind is None or (compressed and kind == "parquet"):
        raise WrongUse(
            f"{path!r} is of no kind that is known: name it .csv, .jsonl, .ndjson or .json (each also with .gz), or "
            ".parquet"
        )
    return kind, compressed


@dataclass(frozen=True, kw_only=True, slots=True)
class _KeysAndValues:
    """Sources of messages for untyped queues."""

    key_column: str | None
    whole_rows: bool

    def json(self, lines: Lines, *, messages_only: bool) -> MessageSource:
        from partq_spark.client.files.json_source import JsonLines

        only = messages_only and self.key_column is None and not self.whole_rows
        return JsonLines(lines, key_column=self.key_column, whole_rows=self.whole_rows, messages_only=only)

    def csv(self, lines: Lines, most_chars: int) -> MessageSource:
        from partq_spark.client.files.table_source import Csv

        return Csv(lines, key_column=self.key_column, whole_rows=self.whole_rows, most_chars=most_chars)

    def parquet(self, file: BinaryIO, name: str) -> MessageSource:
        from partq_spark.client.files.table_source import Parquet

        return Parquet(file, name, key_column=self.key_column, whole_rows=self.whole_rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """Sources of rows for typed queues."""

    stage: Stage
    columns: Columns

    def json(self, lines: Lines, *, messages_only: bool) -> MessageSource:
        from partq_spark.client.files.row_source import JsonRows

        return JsonRows(lines, self.columns)

    def csv(self, lines: Lines, most_chars: int) -> MessageSource:
        from partq_spark.client.files.row_source import CsvRows

        return CsvRows(lines, self.stage, self.columns, most_chars=most_chars)

    def parquet(self, file: BinaryIO, name: str) -> MessageSource:
        from partq_spark.client.files.row_source import ParquetRows

        return ParquetRows(file, name, self.stage)


def _forms(stage: Stage | None, key_column: str | None, whole_rows: bool) -> _KeysAndValues | _Rows:
    """Raises `Invalid` for what does not go with a typed queue."""
    if stage is None or stage.columns is None:
        return _KeysAndValues(key_column=key_column, whole_rows=whole_rows)
    key = stage.columns.key
    if key_column is not None:
        is_key = "its messages have no key" if key is None else f"its key is its column {key!r}"
        raise Invalid(f"queue {stage.queue!r} is typed, and {is_key}: leave the key column (--key-column) out")
    if whole_rows:
        raise Invalid(f"queue {stage.queue!r} is typed, its messages are rows: leave whole rows (--whole-rows) out")
    return _Rows(stage=stage, columns=stage.columns)


@contextmanager
def open_source(
    path: str, *, key_column: str | None, whole_rows: bool, max_message_bytes: int, stage: Stage | None = None
) -> Iterator[MessageSource]:
    """The messages in the file at `path`, or on standard input for `-`. `stage` is that of a queue that gets them: a
    typed one gets rows. Raises `Invalid` for what cannot be read.

    `max_message_bytes` bounds the memory for a line.
    """
    from partq_spark.client.files.messages import Lines

    forms = _forms(stage, key_column, whole_rows)
    # JSON may spend six characters on a byte (\u0000), and CSV two.
    most_bytes = 6 * max_message_bytes + 1024 * 1024
    if path == STANDARD_INPUT:
        if sys.stdin is None:
            raise Invalid("standard input is closed: give it JSON lines, or name a file")
        lines = Lines(sys.stdin.buffer, "standard input", compressed=False, most_bytes=most_bytes)
        yield forms.json(lines, messages_only=True)
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
        yield forms.csv(lines, most_bytes) if kind == "csv" else forms.json(lines, messages_only=False)
