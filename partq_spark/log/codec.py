"""How heads, chunks, pages of writer records and collection's marks are written down: JSON that a person can read.

The fields and their ranges stand in `model`; here is which documents there are, and what no field alone can say. What
is changed carries its own checksum (head, marks, a page's lines), what is immutable is referred to with it (chunk,
page).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final

import msgspec
import xxhash
from msgspec import Struct

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.base.json_documents import JsonDocument, Whole, check_sum
from partq_spark.log.model import (
    FORMAT,
    Chunk,
    ChunkRef,
    Entry,
    Group,
    Head,
    WriterPage,
    WriterRecord,
)

WRITERS_IN_A_LINE = 32
"""On average, in a page of writer records: a line is some kilobytes, and what fills it up about half of that."""

_RESTORE: Final = "restore the object from a backup"
_document: Final = partial(
    JsonDocument[Any],
    format_number=FORMAT,
    repair=_RESTORE,
    upgrade="install the partq that wrote it",
    other_format=Invalid,
)


# --- what no field alone can say --------------------------------------------------------------------------------------


def _check_entries(entries: Sequence[Entry]) -> None:
    for entry in entries:
        last = max(map(itemgetter(1), entry.slices), default=-1)  # some 50 ns for each: there may be millions
        if last >= len(entry.segments):
            raise ValueError(f"a slice is in segment {last} of entry {entry.sequence}, which has {len(entry.segments)}")


def _check_head(head: Head) -> None:
    """Vectors have a place for every partition that is named anywhere, so that each can be looked up."""
    _check_entries(head.entries)
    known = head.columns.version if head.columns is not None else 0
    for entry in head.entries:
        version = entry.schema_version or 0
        if version > known or (version == 0) != (known == 0):
            raise ValueError(f"entry {entry.sequence} has version {version} of the queue's columns, which has {known}")
    for layout in head.layouts:
        if len(layout.begin) != layout.partitions:
            count = len(layout.begin)
            raise ValueError(f"layout {layout.generation} has {layout.partitions} partitions and {count} first offsets")
    most = max(layout.partitions for layout in head.layouts)
    most = max(most, 1 + max((piece.partition for entry in head.entries for piece in entry.slices), default=0))
    for name, vector in (("next", head.next), ("earliest", head.earliest)):
        if len(vector) < most:
            raise ValueError(f"{name} has {len(vector)} offsets, there are {most} partitions")


# --- the head ---------------------------------------------------------------------------------------------------------

HEAD: Final[JsonDocument[Head]] = _document(
    "head", Head, check=_check_head, is_newer=lambda head: head.columns is not None
)


def groups_bytes(groups: Mapping[str, Group]) -> int:
    """The bytes that groups take in a head."""
    return len(msgspec.json.encode(groups))


def entry_bytes(entry: Entry) -> int:
    """About how many bytes the entry takes in a head; exact to a few bytes, without encoding it."""
    return 250 + 40 * len(entry.segments) + 56 * len(entry.slices)


# --- chunks: immutable, checked against the reference's checksum ------------------------------------------------------


_CHUNK: Final[JsonDocument[Chunk]] = _document("log", Chunk, check=lambda chunk: _check_entries(chunk.entries))


def encode_chunk(chunk: Chunk) -> bytes:
    """What is created once, and referred to with its checksum."""
    return _CHUNK.write(chunk)


def decode_chunk(data: bytes | memoryview, ref: ChunkRef) -> Chunk:
    """Raises `Corrupt` if the bytes are not those that the reference names."""
    name = f"log chunk {ref.name}"
    check_sum(data, ref.xxh3, name, _RESTORE)
    return _CHUNK.read(data, name)


# --- pages of writer records ------------------------------------------------------------------------------------------


class _Line(Struct, frozen=True):
    line: int  # its number in the page, from 0
    writers: dict[str, WriterRecord]


_LINE: Final[JsonDocument[_Line]] = _document("line", _Line)


def page_lines(writers: int) -> int:
    """How many lines a page has."""
    return -(-writers // WRITERS_IN_A_LINE) or 1


def page_line(writer: str, lines: int) -> int:
    """The line of a page that a writer's record is in."""
    return xxhash.xxh3_64_intdigest(writer.encode()) % lines


def encode_writers(writers: Mapping[str, WriterRecord]) -> bytes:
    """A page of writer records: lines of JSON, each under its own checksum, filled up to the same length."""
    held: list[dict[str, WriterRecord]] = [{} for _ in range(page_lines(len(writers)))]
    for name, record in writers.items():
        held[page_line(name, len(held))][name] = record
    lines = [_LINE.seal(_Line(number, each)) for number, each in enumerate(held)]
    longest = max(map(len, lines))
    return b"".join(line.ljust(longest) + b"\n" for line in lines)


def decode_writers(data: bytes | memoryview, page: WriterPage) -> dict[str, WriterRecord]:
    """All of a page. Raises `Corrupt` if the bytes are not those that its reference names."""
    check_sum(data, page.xxh3, f"writer page {page.name}", _RESTORE)
    found: dict[str, WriterRecord] = {}
    for number, line in enumerate(bytes(data).splitlines()):
        found |= decode_writer_line(line, page, number)
    return found


def decode_writer_line(data: bytes | memoryview, page: WriterPage, number: int) -> dict[str, WriterRecord]:
    """One line of a page, counted from 0. Raises `Corrupt` if it is damaged or another one, `Invalid` for another
    format.
    """
    name = f"line {number + 1} of writer page {page.name}"
    line = _LINE.open(bytes(data).rstrip(), name)
    if line.line != number:
        raise Corrupt(f"{name} is damaged: it is line {line.line + 1}; {_RESTORE}")
    return line.writers


# --- collection's marks -----------------------------------------------------------------------------------------------


class Marked(Struct, frozen=True, kw_only=True):
    """What one round of collection found that nothing refers to."""

    time_us: Whole  # Unix time at which all of `names` were without a reference
    names: tuple[str, ...]  # within their folders


class Marks(Struct, frozen=True, kw_only=True):
    """What rounds of collection found, oldest first, about 40 bytes for each name; a later round may delete what is
    still without a reference one grace after its own marking.
    """

    rounds: tuple[Marked, ...]

    @property
    def count(self) -> int:
        """Names in all of it."""
        return sum(len(marked.names) for marked in self.rounds)


MARKS: Final[JsonDocument[Marks]] = _document("marks", Marks, repair="delete it, the next rounds make it anew")
