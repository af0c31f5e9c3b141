"""Whether a batch is in the log already, under a number that its writer has used (DIS-10).

The slices tell where they can: where their checksums are equal the messages are. Else the rows decide, however they
lie: the number is the writer's last one, and every row of the new try is among those of that publish, as often. Fewer
are a repetition too. Anything else is refused, in words that say how to go on; new rows are never dropped. No pyspark;
Arrow only where rows are read.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import xxhash

from partq_spark.base.effects import format_rfc3339
from partq_spark.base.errors import Invalid
from partq_spark.log import tree, writers
from partq_spark.log.destinations import StagedSegment, check_version, have_same_columns
from partq_spark.log.model import Entry, Head, Resolution, WriterRecord
from partq_spark.log.queue import QueueLog
from partq_spark.log.writers import PublishIdentity

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


class Published(NamedTuple):
    """A batch that is in the log already: the last publish of its writer, and what a person said of its batch since."""

    record: WriterRecord
    said: Resolution | None


def published_before(
    queue: QueueLog, identity: PublishIdentity, segments: Sequence[StagedSegment], token: str = ""
) -> Published | None:
    """Guard: this writer's batch is in the log already, by this call (a lost answer) or by an earlier one, as far as
    the head tells that the queue's handle knows. None: it is not, or a person said that it is new.

    Raises `Invalid` for a writer name in use, `BatchRefused` for other rows or if nobody can tell, `Outdated` if what
    is compared has gone since it was staged, `Corrupt` if that, what was published or a page of writers is damaged.
    """
    earlier = writers.last_batch(queue, identity.writer)
    if earlier is None:
        return None
    if identity.owner is not None and earlier.owner is not None and identity.owner != earlier.owner:
        raise Invalid(
            f"writer {identity.name!r} belongs to query {earlier.owner} (its last batch is {earlier.batch}); this is "
            f"query {identity.owner}, whose batches are others with the same numbers: choose another txnAppId"
        )
    if earlier.batch < identity.batch:
        return None
    said = writers.resolution(queue.head, identity.writer, earlier)
    if said is not None and identity.batch < said.batch:
        said = None
    if said is not None and not said.published:
        return None
    if earlier.token != token and said is None and not identity.is_callers_word:
        check_alike_rows(queue, earlier, identity, segments)
    return Published(earlier, said)


def check_alike_rows(
    queue: QueueLog, earlier: WriterRecord, identity: PublishIdentity, segments: Sequence[StagedSegment]
) -> None:
    """Guard: the batch is the writer's last one, as its slices show, or its rows. Raises `BatchRefused`."""
    if earlier.batch == identity.batch and have_same_columns(segments):
        columns = segments[0].stage.columns
        version = columns.version if columns is not None else None
        checksums = (piece.xxh3 for segment in segments for piece in segment.slices)
        if earlier.sum == writers.slices_sum(version, any(segment.headers for segment in segments), checksums):
            return
    row, why = _first_new(queue, queue.head, earlier, segments, identity)
    if row is not None:
        raise BatchRefused(_refusal(queue, identity, earlier, row, why)) from None


# --- comparing rows ---------------------------------------------------------------------------------------------------


def _first_new(
    queue: QueueLog, head: Head, record: WriterRecord, tasks: Sequence[StagedSegment], identity: PublishIdentity
) -> tuple[str | None, str]:
    """A row, in words, that makes the batch another one than the writer's last, and why; None: there is none."""
    from partq_spark.log.segment import segment_schema
    from partq_spark.log.staging import staged_batches

    for task in tasks:
        check_version(task.stage, head)
    schema = segment_schema(head.columns, headers=True)
    new = partial(staged_batches, queue, tasks, schema)
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
