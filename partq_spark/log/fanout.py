"""How a task stages messages for all queues that get them, and how all of it is published (DIS-07).

What attracts what is decided before (`destinations`). A task stages one segment for each queue that gets something.
Publishing then takes one queue after the other, each all or nothing under the batch's identity in its own head. A batch
that is cut off between two queues is completed by its repetition, which adds nothing to the queues that have it. No
pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from partq_spark.base.errors import BadRow, Invalid, PartqError
from partq_spark.log.destinations import (
    Attraction,
    FanPlan,
    StagedSegment,
    check_alike,
    check_floor,
    checked_topic,
    stage_of,
    taking,
)
from partq_spark.log.publish import PublishResult, Repartitioned, check_quota, publish
from partq_spark.log.queue import QueueGone, QueueLog
from partq_spark.log.repetition import published_before
from partq_spark.log.schema.forms import first_not_utf8
from partq_spark.log.segment import HEADERS, HEADERS_NAME
from partq_spark.log.staging import RUN_BYTES, Stager, check_keys, check_values, restaged
from partq_spark.log.writers import PublishIdentity
from partq_spark.objects.api import ObjectStore

if TYPE_CHECKING:
    from partq_spark.log.schema.conform import Conversion

LEAST_RUN_BYTES = 1024 * 1024  # of each of a task's queues; together they have what a single one would have
MOST_KNOWN = 50_000  # topics that a task keeps in mind
MOST_CHANGES = 16  # of the partition count during one publish; a queue that changes faster than that is not in order
SHOWN_TOPICS = 5  # of those that nobody attracts
SHOWN_QUEUES = 20  # in the message of a batch that ended between two

logger = logging.getLogger(__name__)


# --- staging, in a task -----------------------------------------------------------------------------------------------


class Unattracted(NamedTuple):
    """Messages whose topic no queue attracts, and some of those topics: one more than are shown, if there are."""

    messages: int = 0
    topics: tuple[str, ...] = ()


class Fan(ExitStack[None]):
    """Takes one task's messages and stages them for every queue that gets them, one segment each, in the memory that a
    single queue would take, more only with many queues. Use as a context manager; leaving it by an exception leaves no
    object.

    `given`: the columns that the messages for typed queues have, in any form and order that these take; None: messages
    are keys and values, with the columns of an untyped queue's segment.
    """

    def __init__(
        self,
        store: ObjectStore,
        plan: FanPlan,
        *,
        seed: str,
        headers: bool = False,
        compression: str = "lz4",
        given: pa.Schema | None = None,
        run_bytes: int = RUN_BYTES,
        least_run_bytes: int = LEAST_RUN_BYTES,
    ) -> None:
        super().__init__()
        self._store = store
        self._plan = plan
        self._seed = seed
        self._headers = headers
        self._given = given
        self._compression = compression
        self._run_bytes = max(least_run_bytes, run_bytes // max(len(plan.destinations), 1))
        self._attraction = Attraction(plan.subscriptions or ())
        self._rest = next((number for number, each in enumerate(plan.destinations) if each.named), None)
        self._owners: dict[str, tuple[int, ...]] = {}
        self._stagers: dict[int, tuple[Conversion | None, Stager]] = {}
        self._rows = 0
        self._unattracted = Unattracted()

    def add(self, batch: pa.RecordBatch, topics: pa.Array | None = None) -> None:
        """Take messages in publish order, as `Stager.add` does; `topics` (text, may be null) if the plan goes by them.
        Rows have the columns `given`, and behind them `_headers` if there are headers.

        Raises `BadRow` for a message that cannot be published anywhere or has a malformed topic; its row is counted
        from 0 in this task.
        """
        first_row = self._rows
        self._rows += batch.num_rows
        try:
            self._add(batch, topics)
        except BadRow as bad:
            raise bad.moved(first_row + bad.row) from None

    def _add(self, batch: pa.RecordBatch, topics: pa.Array | None) -> None:
        by_topic, goes_nowhere = self._plan.by_topic and topics is not None, not self._plan.destinations
        if self._given is None:  # rows are looked at by what takes them: no queue says what others are
            check_values(batch.column("value"))
            if by_topic or goes_nowhere:
                check_keys(batch.column("key"))  # a `Stager` does so for its own
        if by_topic:
            self._spread(batch, topics)
            return
        made: dict[Conversion | None, pa.RecordBatch] = {None: batch}
        for number in range(len(self._plan.destinations)):
            self._stage(number, made)
        if self._plan.topic is not None and goes_nowhere:
            self._missed(batch.num_rows, [self._plan.topic])

    def finish(self) -> tuple[list[StagedSegment], Unattracted]:
        """Make all segments durable. Raises `Unavailable` if the store does not take one."""
        finished = (stager.finish() for _, (_, stager) in sorted(self._stagers.items()))
        made = [segment for segment in finished if segment is not None]
        self.close()
        return made, self._unattracted

    def _spread(self, batch: pa.RecordBatch, topics: pa.Array) -> None:
        # Nulls become an entry of the dictionary too, so each distinct topic is looked at once, and so is their lack.
        encoded = topics.cast(pa.string()).dictionary_encode(null_encoding="encode")
        if first_not_utf8(encoded.dictionary) is not None:
            said = " cannot be published: its topic is not valid UTF-8; topics are text"
            raise BadRow.of(first_not_utf8(topics) or 0, said)
        distinct: list[str | None] = encoded.dictionary.to_pylist()
        theirs: dict[int, list[int]] = {}  # destination → entries of the dictionary
        missed: list[int] = []
        for entry, topic in enumerate(distinct):
            owners = self._of(topic, topics)
            for owner in owners:
                theirs.setdefault(owner, []).append(entry)
            if not owners:
                missed.append(entry)
        made: dict[Conversion | None, pa.RecordBatch] = {None: batch}
        for owner, entries in theirs.items():
            is_all = len(entries) == len(distinct)
            self._stage(owner, made, None if is_all else _chosen(entries, len(distinct)).take(encoded.indices))
        if missed:
            chosen = _chosen(missed, len(distinct)).take(encoded.indices)
            self._missed(chosen.true_count, [topic for entry in missed if (topic := distinct[entry]) is not None])

    def _of(self, topic: str | None, topics: pa.Array) -> tuple[int, ...]:
        if topic is None:
            if self._rest is None:
                said = (
                    " has no topic (null), and no queue was named for such messages: give the option queue for them, "
                    "or a topic to every row"
                )
                raise BadRow.of(pc.index(pc.is_null(topics), True).as_py(), said)
            return (self._rest,)
        owners = self._owners.get(topic)
        if owners is None:
            try:
                owners = self._attraction.owners(checked_topic(topic))
            except Invalid as error:
                raise BadRow.of(topics.to_pylist().index(topic), f" cannot be published: {error}") from None
            if len(self._owners) >= MOST_KNOWN:
                self._owners.clear()
            self._owners[topic] = owners
        return owners

    def _missed(self, messages: int, topics: Iterable[str]) -> None:
        self._unattracted = unattracted([self._unattracted, Unattracted(messages, tuple(topics))])

    def _stage(
        self, number: int, made: dict[Conversion | None, pa.RecordBatch], chosen: pa.Array | None = None
    ) -> None:
        """Stage a batch for a destination, or those of its messages that are `chosen` (booleans). `made`: the batch
        itself, then as queues take it, made once for all that have their columns in the same order.
        """
        if number not in self._stagers:
            self._stagers[number] = self._begun(number)
        how, stager = self._stagers[number]
        if how is not None and how not in made:
            taken = how(made[None])
            if self._headers:
                taken = taken.append_column(pa.field(HEADERS_NAME, HEADERS), made[None].column(HEADERS_NAME))
            made[how] = taken
        if chosen is None:
            stager.add(made[how])
            return
        try:
            stager.add(made[how].filter(chosen))
        except BadRow as bad:
            raise bad.moved(pc.indices_nonzero(chosen)[bad.row].as_py()) from None

    def _begun(self, number: int) -> tuple[Conversion | None, Stager]:
        """How a destination takes the messages, and what stages them. Raises `Invalid` if it does not, or if the batch
        goes to one with other columns too.
        """
        stage = self._plan.destinations[number]
        for other in self._stagers:
            check_alike(self._plan.destinations[other], stage)
        how = taking(stage, self._given)
        stager = Stager(
            self._store,
            stage,
            seed=self._seed,
            headers=self._headers,
            compression=self._compression,
            run_bytes=self._run_bytes,
        )
        return how, self.enter_context(stager)


def _chosen(entries: Sequence[int], count: int) -> pa.Array:
    """`count` booleans, true at `entries`. From buffers, as in `columns`: `pa.array` imports pandas."""
    bits = bytearray((count + 7) // 8)
    for entry in entries:
        bits[entry // 8] |= 1 << entry % 8
    return pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(bytes(bits))], null_count=0)


# --- publishing, on the driver ----------------------------------------------------------------------------------------


class QueueOutcome(NamedTuple):
    """How it ended for one queue. `published` is None if it was deleted meanwhile and nobody had named it."""

    queue: QueueLog
    published: PublishResult | None


def unattracted(parts: Iterable[Unattracted]) -> Unattracted:
    """That of all parts together."""
    every = list(parts)
    topics = sorted({topic for each in every for topic in each.topics})
    return Unattracted(sum(each.messages for each in every), tuple(topics[: SHOWN_TOPICS + 1]))


def said(missed: Unattracted, namespace: str) -> str:
    """A sentence about messages that nobody attracts."""
    shown = ", ".join(map(repr, missed.topics[:SHOWN_TOPICS])) + (", …" if len(missed.topics) > SHOWN_TOPICS else "")
    messages = "1 message" if missed.messages == 1 else f"{missed.messages:,} messages"
    return f"{messages} with topics that no queue of namespace {namespace!r} attracts ({shown})"


def publish_all(
    open_queue: Callable[[str], QueueLog],
    tasks: Iterable[Sequence[StagedSegment]],
    identity: PublishIdentity | None,
    *,
    seed: str,
    compression: str = "lz4",
) -> list[QueueOutcome]:
    """Publish what the tasks, in their order, have staged: queue by queue in order of name, all or nothing for each.

    Each queue keeps the identity in its own head, so repeating the call after a crash completes it and adds nothing to
    those that have it. `open_queue` gives a handle by name. Raises as `publish_tasks` does, for the first queue for
    which it does: before anything is published, if that can be seen in the heads (a full queue, a number that its
    writer has used for other rows, messages staged too long ago) or in what was staged (queues with other columns);
    else the message says which queues have the batch. A queue that has been deleted since the batch was planned is an
    error only if it was named.
    """
    by_queue: dict[str, list[StagedSegment]] = {}
    for task in tasks:
        for staged in task:
            by_queue.setdefault(staged.stage.queue, []).append(staged)
    queues = {name: open_queue(name) for name in sorted(by_queue)}
    for staged_for in by_queue.values():  # tasks see each their own part of the batch
        check_alike(next(iter(by_queue.values()))[0].stage, staged_for[0].stage)
    if len(queues) > 1:  # a single one refuses by itself, whole
        for name, queue in queues.items():
            queue.backoff().call(partial(_check, queue, by_queue[name], identity))
    outcomes: list[QueueOutcome] = []
    for name, queue in queues.items():
        try:
            outcomes.append(_published(queue, by_queue[name], identity, seed=seed, compression=compression))
        except PartqError as error:
            if all(each.published is None for each in outcomes):
                raise
            raise type(error)(f"{error}; {_said_of_half(outcomes, list(queues)[len(outcomes) :], identity)}") from error
    return outcomes


def _check(queue: QueueLog, staged: Sequence[StagedSegment], identity: PublishIdentity | None) -> None:
    """Raise what the queue's head says now against this publish. What it says later is refused at the swap."""
    stage = staged[0].stage
    try:
        head = queue.require(stage.queue_id)
    except QueueGone:
        if stage.named:
            raise
        return
    if identity is not None and queue.settled(lambda _: published_before(queue, identity, staged)) is not None:
        return  # a repetition adds nothing here
    for each in staged:
        check_floor(each.stage, head)
    check_quota(queue, head, sum(each.rows for each in staged))


def _said_of_half(outcomes: Sequence[QueueOutcome], left: Sequence[str], identity: PublishIdentity | None) -> str:
    """Which queues have a batch that ended between two of them, and how to go on."""
    there = _listed([f"{q.name!r} (sequence {done.sequence})" for q, done in outcomes if done is not None])
    which = f"this batch had been published to {there} before, not to {_listed([repr(name) for name in left])}"
    if identity is not None:
        return (
            f"{which}: repeat it under the same identity, which adds nothing where it is and completes the rest (a "
            "stream does so by itself when it is started again, a batch write with the same txnAppId and txnVersion, "
            "`partq publish` with the same --publish-id)"
        )
    return (
        f"{which}: it has no identity, so repeating it would double it where it is; publish it to the others by their "
        "names, and give a batch write txnAppId and txnVersion, `partq publish` a --publish-id: then repeating is safe"
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_QUEUES} more" if len(names) > SHOWN_QUEUES else ""
    return ", ".join(names[:SHOWN_QUEUES]) + more


def _published(
    queue: QueueLog, staged: Sequence[StagedSegment], identity: PublishIdentity | None, *, seed: str, compression: str
) -> QueueOutcome:
    try:
        return QueueOutcome(queue, publish_tasks(queue, staged, identity, seed=seed, compression=compression))
    except QueueGone:
        if staged[0].stage.named:
            raise
    rows = sum(each.rows for each in staged)
    logger.warning(
        "%s was deleted after it had attracted %d messages of this batch: they do not go there any more", queue, rows
    )
    return QueueOutcome(queue, None)


def publish_tasks(
    queue: QueueLog,
    staged: Sequence[StagedSegment],
    identity: PublishIdentity | None = None,
    *,
    seed: str,
    compression: str = "lz4",
) -> PublishResult:
    """Publish to one queue what tasks, which may have seen different layouts or columns, have staged: where the
    partition count has changed since, or not all have the same columns, messages are staged again for the present ones.

    `seed` names writer and batch: it decides, with the number of the task, where messages without a key go when they
    are placed again (DIS-03). Raises as `publish` does, `Repartitioned` only after 16 changes in a row, `Corrupt` if a
    staged segment is damaged, and `Invalid` also if the queue was deleted and created again between the tasks.
    """
    tasks = list(staged)
    queue_id = tasks[0].stage.queue_id
    if any(task.stage.queue_id != queue_id for task in tasks):
        raise Invalid(
            f"{queue} was deleted and created again while its tasks staged: nothing was published, run it again"
        )
    changes = 0
    while True:
        try:
            return publish(queue, tasks, identity)
        except Repartitioned:
            changes += 1
            if changes > MOST_CHANGES:
                raise
        present = stage_of(queue.require(queue_id))
        tasks = [
            task
            if task.stage.fits(present)
            else restaged(queue, task, present, seed=f"{seed}/{number}", compression=compression)
            for number, task in enumerate(tasks)
        ]
