"""What a person says of batches that were refused because their writer has used their numbers: published already, or
new (DIS-10). It is written into the head of every queue of the namespace in which the writer has used them.
"""

from __future__ import annotations

import getpass
import socket
from dataclasses import dataclass
from datetime import datetime

from partq_spark.base.errors import Invalid
from partq_spark.base.timestamps import as_datetime
from partq_spark.log import admin, writers
from partq_spark.log.model import Head, WriterRecord
from partq_spark.log.publish import PUBLISH_ID, TRANSACTION
from partq_spark.log.queue import QueueLog


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """What was written down: of which writer's batches, from number `batch` on, and in which queues. Those that are
    `unreadable` were passed over: their heads cannot be read.
    """

    writer: str
    batch: int
    published: bool
    queues: tuple[str, ...]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterResolution:
    """What was said of a writer's batches from number `batch` on, `by` whom (user and machine) and when. It counts
    until the writer publishes something that is new.
    """

    writer: str
    batch: int
    published: bool
    by: str
    at: datetime


def resolve(queue: QueueLog, writer: str, batch: int, published: bool) -> Resolved:
    """Raises `Invalid` for a writer that the queue does not know, a number that it has not used yet, and a publish id,
    `Unavailable` if it could not be written everywhere: then it is to be said again.
    """
    if batch < 0:
        raise Invalid(f"batch={batch!r} is not allowed: give the number of the first batch, 0 or more")
    if writer.startswith(PUBLISH_ID):
        raise Invalid(f"{writer!r} is a publish id, which says by itself what a repetition is: publish under another")
    queue.refresh()
    name, record = _known(queue, writer)
    if record.batch < batch:
        raise Invalid(
            f"the last batch of writer {writer!r} in {queue} is {record.batch}: batch {batch} is new there as it is, "
            "and there is nothing to resolve"
        )
    found = admin.list_queues(queue.store, queue.namespace)
    by = _person()
    others = [other for other in sorted(found.readable) if other != queue.name]
    done = [
        other
        for other in [queue.name, *others]
        if writers.resolve(queue.another(other), name, batch, published=published, by=by)
    ]
    return Resolved(
        writer=writer,
        batch=batch,
        published=published,
        queues=tuple(sorted(done)),
        unreadable=tuple(sorted(found.problems)),
    )


def resolutions(head: Head) -> tuple[WriterResolution, ...]:
    """Those that the head remembers, oldest first."""
    return tuple(
        WriterResolution(
            writer=each.writer.removeprefix(TRANSACTION),
            batch=each.batch,
            published=each.published,
            by=each.by,
            at=as_datetime(each.time_us),
        )
        for each in head.resolutions
    )


def _known(queue: QueueLog, writer: str) -> tuple[str, WriterRecord]:
    """The writer's full name, and its last publish."""
    for name in (writer, TRANSACTION + writer):
        record = queue.settled(lambda _: writers.last_batch(queue, name))  # noqa: B023 (called at once)
        if record is not None:
            return name, record
    raise Invalid(
        f"{queue} knows no writer {writer!r}: give the name that the refusal says, a query's id or a txnAppId; a queue "
        "remembers its writers for 7 days at least"
    )


def _person() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
