"""Lines of text from a file or standard input, numbered, each bounded in length: below both CSV and JSON lines."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from typing import BinaryIO, cast

from partq_spark.base.errors import Invalid


class Lines:
    """Iterates over the lines of a binary file as text, line ends kept. `number` is that of the last line given.

    A line beyond `most_bytes`, one that is not UTF-8, and compressed data that is damaged or cut off raise `Invalid`,
    naming the line. A byte order mark at the beginning is left out.
    """

    def __init__(self, file: BinaryIO, name: str, *, compressed: bool, most_bytes: int) -> None:
        self.name = name
        self.number = 0
        self._raw = file
        self._file = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if compressed else file
        self._most_bytes = most_bytes
        try:
            self._total: int | None = os.fstat(file.fileno()).st_size if file.seekable() else None
        except OSError:
            self._total = None

    def __iter__(self) -> Iterator[str]:
        while line := self._read():
            self.number += 1
            if len(line) > self._most_bytes:
                raise Invalid(
                    f"{self.name} line {self.number} has more than {self._most_bytes:,} bytes, more than any message "
                    "of this queue may take: is it one JSON object or CSV row per line?"
                )
            try:
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise Invalid(
                    f"{self.name} line {self.number} is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start}): "
                    "convert the file, for example with iconv"
                ) from None

    def progress(self) -> tuple[int, int | None]:
        """Bytes read of the file as it lies on the disk, and its size; only the first where nobody knows the size."""
        return (self._raw.tell(), self._total) if self._total else (0, None)

    def _read(self) -> bytes:
        try:
            return self._file.readline(self._most_bytes + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise Invalid(f"{self.name} cannot be read after line {self.number}: {error}") from error
