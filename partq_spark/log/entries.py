"""How one entry of the log and one reference to a chunk are written down, whether in the head or in a chunk.

What is not what `codec` could have written is refused with one of `typed.MALFORMED`; the reader of the document says
which document it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, islice, repeat
from operator import ge
from typing import Any

from partq_spark.log.model import ChunkRef, Entry, Slice
from partq_spark.log.typed import check_wholes, flag, refuse, text, text_or_none, texts, whole, whole_or_none, wholes

_BLOCK = 256  # slices that are turned into columns at a time: with many more it takes three times as long


def entry_out(entry: Entry) -> dict[str, object]:
    """An entry as a JSON object; its slices as lists."""
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


def entries_in(raw: Iterable[dict[str, Any]]) -> tuple[Entry, ...]:
    """The inverse of `entry_out` for many. Raises one of `MALFORMED`."""
    entries = tuple(map(_entry_in, raw))
    _check_slices(entries)
    return entries


def _entry_in(raw: dict[str, Any]) -> Entry:
    return Entry(
        sequence=whole(raw["sequence"]),
        token=text(raw["token"]),
        writer=text_or_none(raw["writer"]),
        batch=whole(raw["batch"]),
        time_us=whole(raw["time_us"]),
        generation=whole(raw["generation"]),
        headers=flag(raw["headers"]),
        segments=texts(raw["segments"]),
        slices=tuple(map(Slice._make, raw["slices"])),
        first=_pair(raw["first"]) if "first" in raw else None,
    )


def _check_slices(entries: Sequence[Entry]) -> None:
    """Column by column over all entries, because there may be millions: some 0.4 µs for each slice."""
    slices = chain.from_iterable(entry.slices for entry in entries)
    segments = chain.from_iterable(repeat(len(entry.segments), len(entry.slices)) for entry in entries)
    while block := tuple(islice(slices, _BLOCK)):
        *numbers, sums = zip(*block, strict=True)
        for column in numbers:
            check_wholes(column)
        if set(map(type, sums)) != {str}:
            refuse(sums, "a list of checksums")
        if any(map(ge, numbers[1], islice(segments, len(block)))):
            refuse(max(numbers[1]), "the number of a segment of its entry")


def _pair(raw: Any) -> tuple[int, int]:
    first, second = wholes(raw)
    return first, second


def ref_out(ref: ChunkRef) -> dict[str, object]:
    """A reference as a JSON object."""
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


def ref_in(raw: dict[str, Any]) -> ChunkRef:
    """The inverse of `ref_out`. Raises one of `MALFORMED`."""
    (first_sequence, last_sequence), (first_time_us, last_time_us) = _pair(raw["sequence"]), _pair(raw["time_us"])
    return ChunkRef(
        name=text(raw["name"]),
        xxh3=text(raw["xxh3"]),
        level=whole(raw["level"]),
        first_sequence=first_sequence,
        last_sequence=last_sequence,
        first_time_us=first_time_us,
        last_time_us=last_time_us,
        rows=wholes(raw["rows"]),
        # References that were written before they were counted have none of these.
        bytes=whole(raw.get("bytes", 0)),
        slices=whole(raw.get("slices", 0)),
        coarsest=whole(raw.get("coarsest", 0)),
        holds=whole_or_none(raw.get("holds")),
    )


def entry_bytes(entry: Entry) -> int:
    """About how many bytes the entry takes in a head; exact to a few bytes, without encoding it."""
    return 250 + 40 * len(entry.segments) + 56 * len(entry.slices)
