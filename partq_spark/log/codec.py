"""How heads, chunks and writer pages are written down: JSON that a person can read, under a checksum that a machine
checks.

A flipped bit in a number would still be JSON, so what is changed carries its xxh3 (head, collection's marks), and what
is immutable is referred to with it (chunk, page).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

import xxhash

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.log.entries import entries_in, entry_out, ref_in, ref_out
from partq_spark.log.model import (
    ACCESS_TYPES,
    FORMAT,
    ChunkRef,
    Entry,
    Group,
    Head,
    Layout,
    Marked,
    Marks,
    QueueConfig,
    StageFloor,
    WriterPage,
    WriterRecord,
)
from partq_spark.log.typed import MALFORMED, refuse, seconds, text, text_or_none, texts, whole, whole_or_none, wholes

T = TypeVar("T")
Wanted = Mapping[int, tuple[int, int]]  # partition -> half-open range of offsets

WRITERS_IN_A_LINE = 32
"""On average, in a page of writer records: a line is some kilobytes, and what fills it up about half of that."""

_RESTORE = "restore the object from a backup"
_PREFIX = b'{"xxh3":"'
_HASH_END = len(_PREFIX) + 16


def checksum(data: bytes | memoryview) -> str:
    """xxh3 (64 bits) as 16 hex digits: catches damage, not malice."""
    return xxhash.xxh3_64_hexdigest(data)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# --- chunks and pages: immutable, checked against the reference's checksum --------------------------------------------


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """A chunk of level 0."""
    return _dump({"format": FORMAT, "entries": [entry_out(entry) for entry in entries]})


def encode_refs(refs: Sequence[ChunkRef]) -> bytes:
    """A chunk of a higher level."""
    return _dump({"format": FORMAT, "chunks": [ref_out(ref) for ref in refs]})


def _checked(data: bytes | memoryview, xxh3: str, name: str, what: str, build: Callable[[dict[str, Any]], T]) -> T:
    _check_sum(data, xxh3, name, what)
    return _built(bytes(data), f"{what} {name}", _RESTORE, build)


def _check_sum(data: bytes | memoryview, xxh3: str, name: str, what: str) -> None:
    found = checksum(data)
    if found != xxh3:
        raise Corrupt(f"{what} {name} is damaged: its checksum is {found}, the log says {xxh3}; {_RESTORE}")


def _built(body: bytes, name: str, repair: str, build: Callable[[dict[str, Any]], T]) -> T:
    """What `build` makes of the document. A right checksum does not mean that whoever wrote it knew the format."""
    try:
        raw = json.loads(body)
        _check_format(raw, name)
        return build(raw)
    except MALFORMED as error:
        raise Corrupt(
            f"{name} has the right checksum but not the fields of format {FORMAT}: {type(error).__name__}: {error};"
            f" {repair}"
        ) from None


def decode_entries(data: bytes | memoryview, ref: ChunkRef, wanted: Wanted | None = None) -> tuple[Entry, ...]:
    """The entries of a chunk; with `wanted` only their slices that overlap it, and only entries that have one.

    Raises `Corrupt` if the bytes are not those that the reference names.
    """
    return _checked(data, ref.xxh3, ref.name, "log chunk", lambda raw: _entries_in(raw["entries"], wanted))


def _entries_in(raw: list[Any], wanted: Wanted | None) -> tuple[Entry, ...]:
    if wanted is None:
        return entries_in(raw)
    # Sorted out before they become values: a task wants few of the partitions, and there may be millions of slices.
    spans = dict(wanted)
    nothing = (0, 0)
    for entry in raw:
        kept = []
        for piece in entry["slices"]:
            start, to = spans.get(piece[0], nothing)
            if piece[4] < to and piece[4] + piece[5] > start:
                kept.append(piece)
        entry["slices"] = kept
    return entries_in(entry for entry in raw if entry["slices"])


def decode_refs(data: bytes | memoryview, ref: ChunkRef) -> tuple[ChunkRef, ...]:
    """Raises `Corrupt` if the bytes are not those that the reference names."""
    return _checked(data, ref.xxh3, ref.name, "log chunk", lambda raw: tuple(ref_in(child) for child in raw["chunks"]))


def page_lines(writers: int) -> int:
    """How many lines a page has."""
    return -(-writers // WRITERS_IN_A_LINE) or 1


def page_line(writer: str, lines: int) -> int:
    """The line of a page that a writer's record is in."""
    return xxhash.xxh3_64_intdigest(writer.encode()) % lines


def encode_writers(writers: Mapping[str, WriterRecord]) -> bytes:
    """A page of writer records: lines of JSON, each under its own checksum, filled up to the same length."""
    held: list[dict[str, object]] = [{} for _ in range(page_lines(len(writers)))]
    for name, record in writers.items():
        held[page_line(name, len(held))][name] = _writer_out(record)
    lines = [
        _sealed("line", _dump({"format": FORMAT, "line": number, "writers": each})) for number, each in enumerate(held)
    ]
    longest = max(map(len, lines))
    return b"".join(line.ljust(longest) + b"\n" for line in lines)


def decode_writers(data: bytes | memoryview, page: WriterPage) -> dict[str, WriterRecord]:
    """All of a page. Raises `Corrupt` if the bytes are not those that its reference names."""
    _check_sum(data, page.xxh3, page.name, "writer page")
    found: dict[str, WriterRecord] = {}
    for number, line in enumerate(bytes(data).splitlines()):
        found |= decode_writer_line(line, page, number)
    return found


def decode_writer_line(data: bytes | memoryview, page: WriterPage, number: int) -> dict[str, WriterRecord]:
    """One line of a page, counted from 0. Raises `Corrupt` if it is damaged or another one, `Invalid` for another
    format.
    """
    line, name = bytes(data).rstrip(), f"line {number + 1} of writer page {page.name}"
    if line.startswith(b'{"format":'):
        _built(line, name, _RESTORE, lambda _: None)
        raise Invalid(f"writer page {page.name} is of an earlier partq: use that one, or create the queue anew")
    return _opened("line", line, name, _RESTORE, lambda raw: _line_in(raw, number))


def _line_in(raw: dict[str, Any], number: int) -> dict[str, WriterRecord]:
    if raw["line"] != number:
        refuse(raw["line"], f"the number of the line, {number}")
    return _writers_in(raw["writers"])


def _writers_in(raw: dict[str, Any]) -> dict[str, WriterRecord]:
    return {name: _writer_in(record) for name, record in raw.items()}


def _writer_out(record: WriterRecord) -> list[object]:
    return [record.batch, record.owner, record.token, record.sequence, record.time_us]


def _writer_in(raw: list[Any]) -> WriterRecord:
    batch, owner, token, sequence, time_us = raw
    return WriterRecord(
        batch=whole(batch),
        owner=text_or_none(owner),
        token=text(token),
        sequence=whole(sequence),
        time_us=whole(time_us),
    )


# --- documents under their own checksum -------------------------------------------------------------------------------


def _sealed(kind: str, body: bytes) -> bytes:
    """The checksum first, at a fixed place, so that the body need not be parsed to be checked."""
    return _PREFIX + checksum(body).encode() + f'","{kind}":'.encode() + body + b"}"


def _opened(kind: str, document: bytes, name: str, repair: str, build: Callable[[dict[str, Any]], T]) -> T:
    """The body's value. Raises `Corrupt`, which says how to repair, and `Invalid` for another format."""
    middle = f'","{kind}":'.encode()
    begin = _HASH_END + len(middle)
    # The checksum covers the body alone, so what stands around it is compared.
    if not document.startswith(_PREFIX) or document[_HASH_END:begin] != middle or document[-1:] != b"}":
        raise Corrupt(f"{name} is damaged: it does not begin or end as a {kind} document does; {repair}")
    body = document[begin:-1]
    found, said = checksum(body), document[len(_PREFIX) : _HASH_END].decode(errors="replace")
    if found != said:
        raise Corrupt(f"{name} is damaged: its checksum is {found}, it says {said}; {repair}")
    return _built(body, name, repair, build)


def encode_marks(marks: Marks) -> bytes:
    """Collection's memory: about 40 bytes for each name."""
    rounds = [{"time_us": marked.time_us, "folders": _folders_out(marked.names)} for marked in marks.rounds]
    return _sealed("marks", _dump({"format": FORMAT, "rounds": rounds}))


def decode_marks(document: bytes, name: str) -> Marks:
    """Raises `Corrupt` if the document at `name` is damaged."""
    return _opened("marks", document, name, "delete it, the next rounds make it anew", _marks_in)


def _marks_in(raw: dict[str, Any]) -> Marks:
    if "rounds" not in raw:  # written when there was one round in it
        return Marks(rounds=(Marked(time_us=whole(raw["time_us"]), names=texts(raw["names"])),))
    return Marks(
        rounds=tuple(
            Marked(time_us=whole(marked["time_us"]), names=_folders_in(marked["folders"])) for marked in raw["rounds"]
        )
    )


def _folders_out(paths: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Neighbours of one folder share its name: it is longer than theirs."""
    split = (path.rpartition("/") for path in paths)
    return [
        (folder, [name for _, _, name in together])
        for folder, together in groupby(split, lambda parts: parts[0] + parts[1])
    ]


def _folders_in(raw: list[Any]) -> tuple[str, ...]:
    return tuple(text(folder) + name for folder, together in raw for name in texts(together))


# --- the head ---------------------------------------------------------------------------------------------------------


def encode_head(head: Head) -> bytes:
    """The head's document."""
    body = _dump(
        {
            "format": FORMAT,
            "namespace": head.namespace,
            "queue": head.queue,
            "queue_id": head.queue_id,
            "created_us": head.created_us,
            "sequence": head.sequence,
            "time_us": head.time_us,
            "config": {
                "rebalance_delay_s": head.config.rebalance_delay_s,
                "max_handoff_time_s": head.config.max_handoff_time_s,
                "access_type": head.config.access_type,
                "max_message_bytes": head.config.max_message_bytes,
                "retention_s": head.config.retention_s,
                "quota_bytes": head.config.quota_bytes,
            },
            "layouts": [[x.generation, x.partitions, x.since_sequence, x.begin] for x in head.layouts],
            "next": head.next,
            "earliest": head.earliest,
            "groups": _groups_out(head.groups),
            "writers": {name: _writer_out(record) for name, record in head.writers.items()},
            "writer_pages": [
                [x.name, x.xxh3, x.level, x.writers, x.last_time_us, x.lines, x.bytes] for x in head.writer_pages
            ],
            "floor": [head.floor.sequence, head.floor.next_sequence, head.floor.next_time_us],
            "trimmed_sequence": head.trimmed_sequence,
            "subscriptions": head.subscriptions,
            "tree_begin": head.tree_begin,
            "tree": [ref_out(ref) for ref in head.tree],
            "entries": [entry_out(entry) for entry in head.entries],
        }
    )
    return _sealed("head", body)


def decode_head(document: bytes, name: str) -> Head:
    """Raises `Corrupt` if the document at `name` is damaged, `Invalid` if a newer partq wrote it."""
    return _opened("head", document, name, _RESTORE, _head_in)


def _head_in(raw: dict[str, Any]) -> Head:
    config = raw["config"]
    floor_sequence, next_sequence, next_time_us = wholes(raw["floor"])
    head = Head(
        namespace=text(raw["namespace"]),
        queue=text(raw["queue"]),
        queue_id=text(raw["queue_id"]),
        created_us=whole(raw["created_us"]),
        sequence=whole(raw["sequence"]),
        time_us=whole(raw["time_us"]),
        config=QueueConfig(
            rebalance_delay_s=seconds(config["rebalance_delay_s"]),
            max_handoff_time_s=seconds(config["max_handoff_time_s"]),
            access_type=text(config["access_type"]),
            max_message_bytes=whole(config["max_message_bytes"]),
            # Heads that were written before there were topics, retention and quotas have none of them.
            retention_s=None if config.get("retention_s") is None else seconds(config["retention_s"]),
            quota_bytes=whole_or_none(config.get("quota_bytes")),
        ),
        layouts=tuple(map(_layout_in, raw["layouts"])),
        next=wholes(raw["next"]),
        earliest=wholes(raw["earliest"]),
        groups={name: _group_in(x) for name, x in raw["groups"].items()},
        writers=_writers_in(raw["writers"]),
        writer_pages=tuple(map(_page_in, raw["writer_pages"])),
        floor=StageFloor(sequence=floor_sequence, next_sequence=next_sequence, next_time_us=next_time_us),
        trimmed_sequence=whole(raw["trimmed_sequence"]),
        subscriptions=texts(raw.get("subscriptions", [])),
        tree_begin=wholes(raw["tree_begin"]),
        tree=tuple(ref_in(ref) for ref in raw["tree"]),
        entries=entries_in(raw["entries"]),
    )
    _check_width(head)
    return head


def _check_width(head: Head) -> None:
    """Vectors have a place for every partition that is spoken of, or who looks one up finds none."""
    if not head.layouts:
        refuse(head.layouts, "a list of layouts: a queue has at least one")
    if head.config.access_type not in ACCESS_TYPES:
        refuse(head.config.access_type, f"one of {', '.join(ACCESS_TYPES)}")
    most = max(layout.partitions for layout in head.layouts)
    most = max(most, 1 + max((piece[0] for entry in head.entries for piece in entry.slices), default=0))
    for vector in (head.next, head.earliest):
        if len(vector) < most:
            refuse(vector, f"a list of offsets for {most} partitions")


def _layout_in(raw: list[Any]) -> Layout:
    generation, partitions, since_sequence, begin = raw
    layout = Layout(
        generation=whole(generation),
        partitions=whole(partitions),
        since_sequence=whole(since_sequence),
        begin=wholes(begin),
    )
    if not layout.partitions or len(layout.begin) != layout.partitions:
        refuse(begin, f"the first offsets of {partitions} partitions")
    return layout


def _page_in(raw: list[Any]) -> WriterPage:
    name, xxh3, level, writers, last_time_us, lines, size = raw
    if not whole(lines):
        refuse(lines, "a number of lines")
    return WriterPage(
        name=text(name),
        xxh3=text(xxh3),
        level=whole(level),
        writers=whole(writers),
        last_time_us=whole(last_time_us),
        lines=lines,
        bytes=whole(size),
    )


def _groups_out(groups: Mapping[str, Group]) -> dict[str, list[object]]:
    return {name: [each.since_sequence, each.start, each.rewinds, each.ownership] for name, each in groups.items()}


def groups_bytes(groups: Mapping[str, Group]) -> int:
    """The bytes that groups take in a head."""
    return len(_dump(_groups_out(groups)))


def _group_in(raw: list[Any]) -> Group:
    # Heads that were written before groups could be rewound have no counter, nor how a group is shared.
    return Group(
        since_sequence=whole(raw[0]),
        start=wholes(raw[1]),
        rewinds=whole(raw[2]) if len(raw) > 2 else 0,
        ownership=text_or_none(raw[3]) if len(raw) > 3 else None,
    )


def _check_format(raw: Any, name: str) -> None:
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise Invalid(
            f"{name} has log format {version!r}, this partq reads format {FORMAT}: install the partq that wrote it"
        )
