"""How heads, chunks and writer pages are written down: JSON that a person can read, under a checksum that a machine
checks.

A flipped bit in a number would still be JSON, so what is changed carries its xxh3 (head, collection's marks), and what
is immutable is referred to with it (chunk, page).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import xxhash

from partq_spark.errors import Corrupt, Invalid
from partq_spark.log.model import (
    FORMAT,
    ChunkRef,
    Entry,
    Group,
    Head,
    Layout,
    Marked,
    Marks,
    QueueConfig,
    Slice,
    StageFloor,
    WriterPage,
    WriterRecord,
)

Wanted = Mapping[int, tuple[int, int]]  # partition -> half-open range of offsets

_PREFIX = b'{"xxh3":"'
_HASH_END = len(_PREFIX) + 16


def checksum(data: bytes | memoryview) -> str:
    """xxh3 (64 bits) as 16 hex digits: catches damage, not malice."""
    return xxhash.xxh3_64_hexdigest(data)


def _dump(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# --- entries and references -------------------------------------------------------------------------------------------


def _entry_out(entry: Entry) -> dict[str, object]:
    out: dict[str, object] = {
        "sequence": entry.sequence,
        "token": entry.token,
        "writer": entry.writer,
        "batch": entry.batch,
        "time_us": entry.time_us,
        "generation": entry.generation,
        "headers": entry.headers,
        "segments": entry.segments,
        "slices": entry.slices,
    }
    if entry.first is not None:
        out["first"] = entry.first
    return out


def _entry_in(raw: dict[str, Any]) -> Entry:
    return Entry(
        sequence=raw["sequence"],
        token=raw["token"],
        writer=raw["writer"],
        batch=raw["batch"],
        time_us=raw["time_us"],
        generation=raw["generation"],
        headers=raw["headers"],
        segments=tuple(raw["segments"]),
        slices=tuple(map(Slice._make, raw["slices"])),
        first=(raw["first"][0], raw["first"][1]) if "first" in raw else None,
    )


def _ref_out(ref: ChunkRef) -> dict[str, object]:
    out: dict[str, object] = {
        "name": ref.name,
        "xxh3": ref.xxh3,
        "level": ref.level,
        "sequence": (ref.first_sequence, ref.last_sequence),
        "time_us": (ref.first_time_us, ref.last_time_us),
        "rows": ref.rows,
        "bytes": ref.bytes,
        "slices": ref.slices,
        "coarsest": ref.coarsest,
    }
    if ref.holds is not None:
        out["holds"] = ref.holds
    return out


def _ref_in(raw: dict[str, Any]) -> ChunkRef:
    return ChunkRef(
        name=raw["name"],
        xxh3=raw["xxh3"],
        level=raw["level"],
        first_sequence=raw["sequence"][0],
        last_sequence=raw["sequence"][1],
        first_time_us=raw["time_us"][0],
        last_time_us=raw["time_us"][1],
        rows=tuple(raw["rows"]),
        # References that were written before they were counted have none of these.
        bytes=raw.get("bytes", 0),
        slices=raw.get("slices", 0),
        coarsest=raw.get("coarsest", 0),
        holds=raw.get("holds"),
    )


def entry_bytes(entry: Entry) -> int:
    """About how many bytes the entry takes in a head; exact to a few bytes, without encoding it."""
    return 250 + 40 * len(entry.segments) + 56 * len(entry.slices)


# --- chunks and pages: immutable, checked against the reference's checksum --------------------------------------------


def encode_entries(entries: Sequence[Entry]) -> bytes:
    """A chunk of level 0."""
    return _dump({"format": FORMAT, "entries": [_entry_out(entry) for entry in entries]})


def encode_refs(refs: Sequence[ChunkRef]) -> bytes:
    """A chunk of a higher level."""
    return _dump({"format": FORMAT, "chunks": [_ref_out(ref) for ref in refs]})


def _checked(data: bytes | memoryview, xxh3: str, name: str, what: str) -> dict[str, Any]:
    found = checksum(data)
    if found != xxh3:
        raise Corrupt(
            f"{what} {name} is damaged: its checksum is {found}, the log says {xxh3}; restore the object from a backup"
        )
    raw = json.loads(bytes(data))
    _check_format(raw, name)
    return raw  # type: ignore[no-any-return]


def decode_entries(data: bytes | memoryview, ref: ChunkRef, wanted: Wanted | None = None) -> tuple[Entry, ...]:
    """The entries of a chunk; with `wanted` only their slices that overlap it, and only entries that have one.

    Raises `Corrupt` if the bytes are not those that the reference names.
    """
    raw = _checked(data, ref.xxh3, ref.name, "log chunk")["entries"]
    if wanted is None:
        return tuple(map(_entry_in, raw))
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
    return tuple(_entry_in(entry) for entry in raw if entry["slices"])


def decode_refs(data: bytes | memoryview, ref: ChunkRef) -> tuple[ChunkRef, ...]:
    """Raises `Corrupt` if the bytes are not those that the reference names."""
    raw = _checked(data, ref.xxh3, ref.name, "log chunk")
    return tuple(_ref_in(child) for child in raw["chunks"])


def encode_writers(writers: Mapping[str, WriterRecord]) -> bytes:
    """A page of writer records."""
    return _dump({"format": FORMAT, "writers": {name: _writer_out(record) for name, record in writers.items()}})


def decode_writers(data: bytes | memoryview, page: WriterPage) -> dict[str, WriterRecord]:
    """Raises `Corrupt` if the bytes are not those that the page's reference names."""
    raw = _checked(data, page.xxh3, page.name, "writer page")
    return {name: _writer_in(record) for name, record in raw["writers"].items()}


def _writer_out(record: WriterRecord) -> list[object]:
    return [record.batch, record.owner, record.token, record.sequence, record.time_us]


def _writer_in(raw: list[Any]) -> WriterRecord:
    return WriterRecord(batch=raw[0], owner=raw[1], token=raw[2], sequence=raw[3], time_us=raw[4])


# --- documents under their own checksum -------------------------------------------------------------------------------


def _sealed(kind: str, body: bytes) -> bytes:
    """The checksum first, at a fixed place, so that the body need not be parsed to be checked."""
    return _PREFIX + checksum(body).encode() + f'","{kind}":'.encode() + body + b"}"


def _opened(kind: str, document: bytes, name: str, repair: str) -> Any:
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
    raw = json.loads(body)
    _check_format(raw, name)
    return raw


def encode_marks(marks: Marks) -> bytes:
    """Collection's memory: about 40 bytes for each name."""
    rounds = [{"time_us": marked.time_us, "folders": _folders_out(marked.names)} for marked in marks.rounds]
    return _sealed("marks", _dump({"format": FORMAT, "rounds": rounds}))


def decode_marks(document: bytes, name: str) -> Marks:
    """Raises `Corrupt` if the document at `name` is damaged."""
    raw = _opened("marks", document, name, "delete it, the next rounds make it anew")
    if "rounds" not in raw:  # written when there was one round in it
        return Marks(rounds=(Marked(time_us=raw["time_us"], names=tuple(raw["names"])),))
    return Marks(
        rounds=tuple(
            Marked(time_us=marked["time_us"], names=_folders_in(marked["folders"])) for marked in raw["rounds"]
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
    return tuple(folder + name for folder, together in raw for name in together)


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
            "groups": {name: _group_out(group) for name, group in head.groups.items()},
            "writers": {name: _writer_out(record) for name, record in head.writers.items()},
            "writer_pages": [[x.name, x.xxh3, x.level, x.writers, x.last_time_us] for x in head.writer_pages],
            "floor": [head.floor.sequence, head.floor.next_sequence, head.floor.next_time_us],
            "trimmed_sequence": head.trimmed_sequence,
            "subscriptions": head.subscriptions,
            "tree_begin": head.tree_begin,
            "tree": [_ref_out(ref) for ref in head.tree],
            "entries": [_entry_out(entry) for entry in head.entries],
        }
    )
    return _sealed("head", body)


def decode_head(document: bytes, name: str) -> Head:
    """Raises `Corrupt` if the document at `name` is damaged, `Invalid` if a newer partq wrote it."""
    raw = _opened("head", document, name, "restore the object from a backup")
    try:
        return _head_in(raw)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise Corrupt(f"{name} has the right checksum but not the fields of format {FORMAT}: {error!r}") from error


def _head_in(raw: dict[str, Any]) -> Head:
    config = raw["config"]
    return Head(
        namespace=raw["namespace"],
        queue=raw["queue"],
        queue_id=raw["queue_id"],
        created_us=raw["created_us"],
        sequence=raw["sequence"],
        time_us=raw["time_us"],
        config=QueueConfig(
            rebalance_delay_s=config["rebalance_delay_s"],
            max_handoff_time_s=config["max_handoff_time_s"],
            access_type=config["access_type"],
            max_message_bytes=config["max_message_bytes"],
            # Heads that were written before there were topics, retention and quotas have none of them.
            retention_s=config.get("retention_s"),
            quota_bytes=config.get("quota_bytes"),
        ),
        layouts=tuple(
            Layout(generation=x[0], partitions=x[1], since_sequence=x[2], begin=tuple(x[3])) for x in raw["layouts"]
        ),
        next=tuple(raw["next"]),
        earliest=tuple(raw["earliest"]),
        groups={name: _group_in(x) for name, x in raw["groups"].items()},
        writers={name: _writer_in(x) for name, x in raw["writers"].items()},
        writer_pages=tuple(
            WriterPage(name=x[0], xxh3=x[1], level=x[2], writers=x[3], last_time_us=x[4]) for x in raw["writer_pages"]
        ),
        floor=StageFloor(sequence=raw["floor"][0], next_sequence=raw["floor"][1], next_time_us=raw["floor"][2]),
        trimmed_sequence=raw["trimmed_sequence"],
        subscriptions=tuple(raw.get("subscriptions", ())),
        tree_begin=tuple(raw["tree_begin"]),
        tree=tuple(_ref_in(ref) for ref in raw["tree"]),
        entries=tuple(_entry_in(entry) for entry in raw["entries"]),
    )


def _group_out(group: Group) -> list[object]:
    return [group.since_sequence, group.start, group.rewinds]


def _group_in(raw: list[Any]) -> Group:
    # Heads that were written before groups could be rewound have no counter.
    return Group(since_sequence=raw[0], start=tuple(raw[1]), rewinds=raw[2] if len(raw) > 2 else 0)


def _check_format(raw: Any, name: str) -> None:
    version = raw.get("format") if isinstance(raw, dict) else None
    if version != FORMAT:
        raise Invalid(
            f"{name} has log format {version!r}, this partq reads format {FORMAT}: install the partq that wrote it"
        )
