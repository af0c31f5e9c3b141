"""Publishing what tasks have staged where that cannot be published as it is, by a look at its rows.

A batch may come under a number that its writer has used: whether it is the one that was published (DIS-10). `publish`
tells by the slices where it can. Here the rows decide, however they lie: the number is the writer's last one, and every
row of the new try is among those of that publish, as often. Fewer are a repetition too. Anything else is refused, in
words that say how to go on; new rows are never dropped.

Or it was staged for a partition count that the queue no longer has, where a key lies in another partition, or by tasks
of which some saw other columns than the rest. Its rows are durable already; they are read back, slice by slice, and
staged for the present layout, with the present columns of a typed queue. Nothing is deleted: what is left over is for
collection. No pyspark; Arrow only where rows are read.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import xxhash

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.base.words import format_rfc3339
from partq_spark.log import names, tree
from partq_spark.log.destinations import Stage, StagedSegment
from partq_spark.log.model import Entry, Head, WriterRecord
from partq_spark.log.publish import (
    NumberUsed,
    PublishIdentity,
    PublishResult,
    check_floor,
    check_version,
    published_before,
)
from partq_spark.log.queue import QueueLog

if TYPE_CHECKING:
    import pyarrow as pa

MOST_DIGESTS: Final = 1 << 20
"""Of rows that are compared at a time, some 150 MB. More rows are read several times, a share of them each time."""

_ROWS_TOGETHER: Final = 4_096  # of a slice, as Python's values
_SHOWN_VALUE: Final = 60  # characters in an error
_SHOWN_ROW: Final = 400

_encode = msgspec.msgpack.Encoder().encode
_Batches = Callable[[], Iterator["pa.RecordBatch"]]
_Row = tuple[Any, ...]


class BatchRefused(Invalid):
    """A batch has a number that its writer has used for other rows, or for rows that nobody can compare. Nothing of it
    was published.
    """


def restaged(queue: QueueLog, task: StagedSegment, present: Stage, *, seed: str, compression: str) -> StagedSegment:
    """The messages of `task` as one new segment for `present`, the order of each key kept, in memory of two runs.

    Raises `Outdated` if collection has passed the staged segment, `Corrupt` if it is damaged.
    """
    from partq_spark.log.segment import segment_schema
    from partq_spark.log.staging import Stager

    # What was taken once is not refused for a limit that was lowered since.
    stage = replace(present, max_message_bytes=max(present.max_message_bytes, task.stage.max_message_bytes))
    schema = segment_schema(present.columns, headers=task.headers)
    with Stager(queue.store, stage, seed=seed, headers=task.headers, compression=compression) as stager:
        # A key lies in one partition, and its slices are in publish order: so reading them one by one keeps it.
        for batch in staged_batches(queue, task, schema):
            stager.add(batch)
        made = stager.finish()
    return made if made is not None else replace(task, stage=stage, slices=(), bytes=0)


def repeated(queue: QueueLog, tasks: Sequence[StagedSegment], identity: PublishIdentity) -> PublishResult | None:
    """What publishing them would say, if it would add nothing; None: they are new, as far as the head that the queue's
    handle knows can tell. Raises as `judged`.
    """
    try:
        return queue.settled(lambda _: published_before(queue, identity, tasks))
    except NumberUsed as used:
        return judged(queue, used, tasks)


def judged(queue: QueueLog, used: NumberUsed, tasks: Sequence[StagedSegment]) -> PublishResult:
    """That the tasks' messages are a repetition, by their rows. Raises `NumberUsed` if they are not or nobody can tell,
    `Outdated` if what they have staged is gone, `Corrupt` if it or what was published is damaged.
    """
    record = used.record
    row, why = queue.settled(lambda head: _first_new(queue, head, record, tasks, used.identity))
    if row is None:
        return PublishResult(sequence=record.sequence, time_us=record.time_us, duplicate=True)
    raise BatchRefused(_refusal(queue, used.identity, record, row, why)) from None


def staged_batches(queue: QueueLog, task: StagedSegment, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """A task's messages as it staged them, slice by slice, with the columns of `schema`, of which none is narrower.

    Raises `Outdated` if collection has passed the staged segment, `Corrupt` if it is damaged.
    """
    from partq_spark.log.schema.conform import widened
    from partq_spark.log.segment import read_slice, segment_schema

    stage = task.stage
    name = names.segment_folder(stage.namespace, stage.queue, stage.queue_id) + task.name
    own = segment_schema(stage.columns, headers=task.headers)
    for piece in task.slices:
        try:
            yield widened(read_slice(queue.store, name, piece, own, thoroughly=True), schema)
        except ObjectMissing:
            check_floor(stage, queue.require(stage.queue_id))
            raise


# --- comparing rows ---------------------------------------------------------------------------------------------------


def _first_new(
    queue: QueueLog, head: Head, record: WriterRecord, tasks: Sequence[StagedSegment], identity: PublishIdentity
) -> tuple[str | None, str]:
    """A row, in words, that makes the batch another one than the writer's last, and why; None: there is none."""
    from partq_spark.log.segment import segment_schema

    for task in tasks:
        check_version(task.stage, head)
    schema = segment_schema(head.columns, headers=True)
    new = partial(_staged, queue, tasks, schema)
    entry = tree.find_publish(head, record.sequence, queue.load_chunk)
    if identity.batch < record.batch:
        row, why = next(_rows(new()), None), f"the last batch is {record.batch}, and the numbers of a writer only grow"
    elif entry is None:
        row, why = next(_rows(new()), None), "what was published under it is trimmed, so nobody can compare the rows"
    else:
        old = partial(_published, queue, head, entry, record, schema)
        row = _missing(new, old, sum(task.rows for task in tasks))
        left = ", as far as they have not been trimmed" if any(head.earliest) else ""
        why = f"that row is not among those that were published under it{left}"
    return None if row is None else _shown(schema.names, row), why


def _staged(queue: QueueLog, tasks: Sequence[StagedSegment], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for task in tasks:
        yield from staged_batches(queue, task, schema)


def _published(
    queue: QueueLog, head: Head, entry: Entry, record: WriterRecord, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The messages of the publish that `record` is of; in a compacted entry those of its time, which nothing else in
    there has.
    """
    import pyarrow.compute as pc

    from partq_spark.log.schema.conform import widened
    from partq_spark.log.segment import TIMES_NAME

    for piece in entry.slices:
        if piece.end <= head.earliest[piece.partition]:
            continue  # trimmed, and perhaps collected
        batch = queue.read_slice(entry, piece)
        if entry.times:
            times = batch.column(TIMES_NAME).cast("int64")
            batch = batch.filter(pc.equal(times, record.time_us))
        yield widened(batch, schema)


def _missing(new: _Batches, old: _Batches, rows: int) -> _Row | None:
    """The first of the `rows` rows in `new` that `old` does not have, or not as often; None: all are there."""
    shares = 1 + rows // MOST_DIGESTS
    if shares > 1 and _total(new) == _total(old):
        return None
    for share in range(shares):
        missing = Counter(digest for digest in map(_digest, _rows(new())) if digest % shares == share)
        for digest in map(_digest, _rows(old())):
            if missing[digest] > 0:
                missing[digest] -= 1
        if any(missing.values()):
            return next(row for row in _rows(new()) if missing[_digest(row)] > 0)
    return None


def _total(batches: _Batches) -> tuple[int, int]:
    """How many rows, and a sum that does not depend on their order."""
    count = total = 0
    for row in _rows(batches()):
        count, total = count + 1, total + _digest(row)
    return count, total


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[_Row]:
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_TOGETHER):
            columns = [column.to_pylist() for column in batch.slice(start, _ROWS_TOGETHER).columns]
            yield from zip(*columns, strict=True)


def _digest(row: _Row) -> int:
    """128 bits: two rows with the same one are the same row."""
    return xxhash.xxh3_128_intdigest(_encode(row))


# --- the refusal ------------------------------------------------------------------------------------------------------


def _refusal(queue: QueueLog, identity: PublishIdentity, record: WriterRecord, row: str, why: str) -> str:
    """What was refused, why, what may have caused it, and the ways out as commands to copy."""
    by_transaction = identity.name != identity.writer
    second = "; a second write to this queue under one txnAppId and txnVersion" if by_transaction else ""
    anew = "another txnAppId" if by_transaction else "a new checkpoint location"
    command = (
        f"partq queue resolve {queue.name} --writer {shlex.quote(identity.name)} --batch {identity.batch} "
        f"--store {shlex.quote(queue.store.url)} --namespace {queue.namespace} --yes --as"
    )
    return (
        f"{queue}: batch {identity.batch} of writer {identity.name!r} was refused and nothing of it was published, "
        f"because that number was used before, for other rows (last batch {record.batch}, sequence {record.sequence}, "
        f"{format_rfc3339(record.time_us)}). First such row: {row}: {why}. Likely causes: the query goes on from an "
        f"older Spark checkpoint, or from one that lost its last entries (a copy put back, a power failure){second}; "
        "rows that differ from try to try (rand(), uuid(), first(), sums of floats, a lookup, repaired code); a topic "
        "that was subscribed to meanwhile (then way 1 is right). Ways out: (1) its rows, from batch "
        f"{identity.batch} on, are published already, skip them: `{command} published`; (2) they are new, publish them "
        f"once more (at least once): `{command} new`; (3) begin anew, with {anew}"
    )


def _shown(names: Sequence[str], row: _Row) -> str:
    """A row's values that are not null, shortened."""
    values = ((name, repr(value)) for name, value in zip(names, row, strict=True) if value is not None)
    return _short(", ".join(f"{name}={_short(text, _SHOWN_VALUE)}" for name, text in values), _SHOWN_ROW)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
