"""Opens what `partq publish` reads: files by their extension, standard input as JSON lines. What they hold becomes
messages in `messages`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from partq_spark.base.errors import Invalid, WrongUse

if TYPE_CHECKING:
    from partq_spark.client.files.messages import MessageSource
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


@contextmanager
def open_source(
    path: str, *, key_column: str | None, whole_rows: bool, max_message_bytes: int, stage: Stage | None = None
) -> Iterator[MessageSource]:
    """The messages in the file at `path`, or on standard input for `-`. `stage` is that of a queue that gets them: a
    typed one gets rows. Raises `Invalid` for what cannot be read.

    `max_message_bytes` bounds the memory for a line.
    """
    from partq_spark.client.files.messages import KeysAndValues, Rows
    from partq_spark.client.files.readers import Lines

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
