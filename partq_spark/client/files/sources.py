"""Opens what `partq publish` reads: files by their extension, standard input as JSON lines. What they hold is read by
the sources beside this module.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from partq_spark.base.errors import Invalid

if TYPE_CHECKING:
    from partq_spark.client.files.messages import Source

Kind = Literal["csv", "json", "parquet"]
_KINDS: dict[str, Kind] = {
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".parquet": "parquet",
    ".pq": "parquet",
}
STANDARD_INPUT = "-"


def checked_file_kind(path: str) -> tuple[Kind, bool]:
    """What a file is, and whether it is gzipped, by its name. Raises `Invalid` naming the extensions there are."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    compressed = suffixes[-1:] == [".gz"]
    kind = _KINDS.get(suffixes[-2] if compressed and len(suffixes) > 1 else "".join(suffixes[-1:]))
    if kind is None or (compressed and kind == "parquet"):
        raise Invalid(
            f"{path!r} is of no kind that is known: name it .csv, .jsonl, .ndjson or .json (each also with .gz), or "
            ".parquet"
        )
    return kind, compressed


@contextmanager
def open_source(path: str, *, key_column: str | None, whole_rows: bool, max_message_bytes: int) -> Iterator[Source]:
    """The messages in the file at `path`, or on standard input for `-`. Raises `Invalid` for what cannot be read.

    `max_message_bytes` bounds the memory for a line.
    """
    from partq_spark.client.files.json_source import JsonLines
    from partq_spark.client.files.messages import Lines
    from partq_spark.client.files.table_source import Csv, Parquet

    # JSON may spend six characters on a byte (\u0000), and CSV two.
    most_bytes = 6 * max_message_bytes + 1024 * 1024
    if path == STANDARD_INPUT:
        lines = Lines(sys.stdin.buffer, "standard input", compressed=False, most_bytes=most_bytes)
        messages_only = key_column is None and not whole_rows
        yield JsonLines(lines, key_column=key_column, whole_rows=whole_rows, messages_only=messages_only)
        return
    kind, compressed = checked_file_kind(path)
    with Path(path).open("rb") as file:
        if kind == "parquet":
            yield Parquet(file, path, key_column=key_column, whole_rows=whole_rows)
            return
        lines = Lines(file, path, compressed=compressed, most_bytes=most_bytes)
        if kind == "csv":
            yield Csv(lines, key_column=key_column, whole_rows=whole_rows, most_chars=most_bytes)
        else:
            yield JsonLines(lines, key_column=key_column, whole_rows=whole_rows, messages_only=False)
