"""The log's guards, each with a way to switch it off: the negative controls of the interleaving check.

A guard is off in here and nowhere else. If the check does not notice, it could not notice a bug there either. Two that
a seed hardly ever reaches have scenarios of their own: that a group which was made again is another
(tests/group/test_retention.py), and the floor under what compaction wrote (test_compaction_races.py).
`python -m tests.log.guards --seeds N` prints the first seed that notices each.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from unittest.mock import patch

import pyarrow as pa
from msgspec import structs

from partq_spark.base import json_documents
from partq_spark.group import rewinding
from partq_spark.log import admin, codec, compaction, housekeeping, names, publish, reading, restaging, tree, writers
from partq_spark.log.model import Entry, Head, Marks, Slice
from partq_spark.log.publish import PublishIdentity, PublishResult
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema import bring
from partq_spark.log.segment_columns import SegmentColumns
from partq_spark.log.staged import Stage, StagedSegment
from partq_spark.objects.api import ObjectStore
from tests.log.interleave import run_seed
from tests.support import guards
from tests.support.faulty import FaultyStore
from tests.support.guards import Finding


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard(guards.Guard):
    """One thing that stands between a fault and a wrong log."""

    fatal: bool = False  # without it the process may crash in native code: to be tried in a process of its own


def first_finding(guard: Guard, seeds: Iterable[int]) -> Finding | None:
    """Run seeds with the guard off until one fails: whatever goes wrong without a guard is the finding."""
    return guards.search(guard, seeds, lambda seed: run_seed(seed, conditional=guard.conditional))


# --- what stands in a guard's place -----------------------------------------------------------------------------------


def _places_once() -> AbstractContextManager[object]:
    """The first place is kept after a conflict, instead of going behind what came in between."""
    real, first = publish.place, dict[str, Entry]()

    def place(
        head: Head,
        stage: Stage,
        segments: Sequence[StagedSegment],
        identity: PublishIdentity | None,
        token: str,
        now_us: int,
    ) -> Entry:
        now = real(head, stage, segments, identity, token, now_us)
        return structs.replace(now, slices=first.setdefault(token, now).slices)

    return patch.object(publish, "place", place)


def _takes_own_time() -> AbstractContextManager[object]:
    real = publish.place

    def place(
        head: Head,
        stage: Stage,
        segments: Sequence[StagedSegment],
        identity: PublishIdentity | None,
        token: str,
        now_us: int,
    ) -> Entry:
        return structs.replace(real(head, stage, segments, identity, token, now_us), time_us=now_us)

    return patch.object(publish, "place", place)


def _looks_only_for_the_token() -> AbstractContextManager[object]:
    def landed(queue: QueueLog, tried: Entry, identity: PublishIdentity | None, conflicts: int) -> PublishResult | None:
        entry = tree.find_publish(queue.head, tried.sequence, queue.load_chunk)
        if entry is None or entry.token != tried.token:
            return None
        return PublishResult(
            sequence=entry.sequence, time_us=entry.time_us, rows=entry.rows, duplicate=False, conflicts=conflicts
        )

    return patch.object(publish, "_landed", landed)


def _raises_the_floor_at_once() -> AbstractContextManager[object]:
    real = housekeeping.raise_floor
    return patch.object(housekeeping, "raise_floor", lambda queue, grace_us: real(queue, 0))


def _deletes_without_waiting() -> AbstractContextManager[object]:
    real = housekeeping._load_marks

    def load_marks(queue: QueueLog) -> tuple[Marks, str | None]:
        marks, etag = real(queue)
        return Marks(rounds=tuple(replace(marked, time_us=0) for marked in marks.rounds)), etag

    return patch.object(housekeeping, "_load_marks", load_marks)


def _forgets_older_writers() -> AbstractContextManager[object]:
    return patch.object(writers, "last_batch", lambda queue, writer: queue.head.writers.get(writer))


@contextmanager
def _checks_no_chunk() -> Iterator[None]:
    """One in five is damaged where any may be: few seeds go on with what a damaged one says; most stumble over it."""
    real = FaultyStore._perhaps_damaged

    def damaged(store: FaultyStore, data: bytes) -> bytes:
        chunk = store._rates.damage and data.startswith((b'{"format":1,"entries"', b'{"format":1,"chunks"'))
        with patch.object(store, "_rates", replace(store._rates, damage=0.2) if chunk else store._rates):
            return real(store, data)

    with patch.object(codec, "check_sum", _never), patch.object(FaultyStore, "_perhaps_damaged", damaged):
        yield


def _checks_no_slice() -> AbstractContextManager[object]:
    def unchecked(
        store: ObjectStore, name: str, piece: Slice, columns: SegmentColumns, *, only: object
    ) -> pa.RecordBatch:
        data = store.read(name, start=piece.start, length=piece.length)
        return pa.ipc.read_record_batch(pa.py_buffer(data), columns.schema)

    return patch.object(reading, "read_slice", unchecked)


def _narrows_without_a_check(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column.cast(kind, safe=False)


def _same_generation(stage: Stage, other: Stage) -> bool:
    return stage.generation == other.generation


def _all_of(marks: Sequence[str], unnamed: Mapping[str, int]) -> frozenset[str]:
    return frozenset(unnamed)


def _swaps_anything() -> AbstractContextManager[object]:
    """In place of the first reference that is there, whatever it is."""
    return patch.object(compaction, "where_it_stands", lambda head, run: 0 if head.tree else None)


def _always(*_: object) -> bool:
    return True


def _never(*_: object) -> None:
    return None


GUARDS = (
    Guard(name="the store's swap condition", off=nullcontext, conditional=False),
    Guard(name="publish: a writer's batch is there already", off=lambda: patch.object(publish, "already", _never)),
    Guard(name="publish: an unknown outcome is settled", off=lambda: patch.object(publish, "_landed", _never)),
    Guard(name="publish: an outcome that was trimmed is unknown", off=_looks_only_for_the_token, first=87),
    Guard(name="publish: the stage floor", off=lambda: patch.object(publish, "check_stage", _never)),
    Guard(name="publish: placed anew after a conflict", off=_places_once),
    Guard(name="publish: time grows strictly", off=_takes_own_time),
    Guard(
        name="the queue's id",
        off=lambda: patch.object(QueueLog, "require", lambda queue, queue_id: queue.refresh()),
    ),
    Guard(name="writers: pages", off=_forgets_older_writers),
    Guard(name="collection: the floor is one grace old", off=_raises_the_floor_at_once),
    Guard(
        name="collection: only below the floor",
        off=lambda: patch.object(housekeeping, "below_floor", lambda name, head: names.staged_at(name) is not None),
    ),
    Guard(name="collection: only what was marked", off=lambda: patch.object(housekeeping, "marks_due", _all_of)),
    Guard(name="collection: one grace after marking", off=_deletes_without_waiting),
    Guard(
        name="trimming: what a group needs stays",
        off=lambda: patch.object(housekeeping, "held_back_at", lambda head, acknowledged=None: head.next),
    ),
    Guard(
        name="trimming: a rewind that was counted",
        off=lambda: patch.object(housekeeping, "not_rewound", _always),
        first=330,
    ),
    Guard(
        name="trimming: tokens that are gone",
        off=lambda: patch.object(tree, "tokens_gone_until", lambda head, earliest: head.trimmed_sequence),
        first=42,
    ),
    Guard(name="rewinding: what is gone is told", off=lambda: patch.object(rewinding, "gone", lambda *_: ()), first=75),
    Guard(name="publish: the layout", off=lambda: patch.object(publish, "check_stage", publish.check_floor)),
    Guard(name="compaction: the run as it was chosen", off=_swaps_anything),
    Guard(
        name="compaction: tokens that are gone",
        off=lambda: patch.object(compaction, "tokens_compacted_until", lambda head, run: head.trimmed_sequence),
        first=194,
    ),
    Guard(name="altering: a change whose answer was lost", off=lambda: patch.object(admin, "_has_been", _never)),
    Guard(
        name="publish: tasks that saw other columns",
        off=lambda: patch.object(restaging, "_fits", _same_generation),
    ),
    Guard(
        name="reading: a value that a query's type does not hold",
        off=lambda: patch.object(bring, "_cast", _narrows_without_a_check),
    ),
    Guard(name="checksum of chunks and pages", off=_checks_no_chunk),
    Guard(name="checksum of heads", off=lambda: patch.object(json_documents, "check_sum", _never)),
    Guard(name="checksum of slices", off=_checks_no_slice, fatal=True),
)


if __name__ == "__main__":
    fatal = [guard for guard in GUARDS if guard.fatal]
    sys.exit(guards.main(GUARDS, first_finding, seeds=300, only_by_name=fatal))
