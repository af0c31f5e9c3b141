"""Who publishes which batch, and which was a writer's last, for as long as a repetition may come: the newest in the
head, older ones in pages.

A record stays for at least `WRITER_AGE_S` of the queue's own time after its writer's last publish, and longer while
the queue has fewer than `LogSizes.head_writers` writers. Pages merge as chunks of the log do, so that many one-time
writers cost a head little; of each a look for a writer reads one line, of some kilobytes, however large the page is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import xxhash

from partq_spark.base.json_documents import checksum
from partq_spark.log import codec, names
from partq_spark.log.model import Head, Resolution, WriterPage, WriterRecord
from partq_spark.log.queue import QueueLog

WRITER_AGE_S = 7 * 24 * 3600

MOST_RESOLUTIONS = 32
"""Writers of which a head remembers what a person said last. Of one that is forgotten the person is asked again."""


TRANSACTION = "txnAppId:"
PUBLISH_ID = "publish-id:"


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishIdentity:
    """Who publishes which batch: batches of a `writer` only grow, and each is published once (DIS-09, DIS-10).

    `owner` is the Spark query behind a writer name that a user chose; another query under the same name is refused.
    What users name is a writer by its kind and name: a `--publish-id` repeats no batch of a `txnAppId` of that name.
    """

    writer: str
    batch: int
    owner: str | None = None

    @classmethod
    def of_query(cls, query: str, batch: int) -> PublishIdentity:
        """A micro-batch of a Spark query, whose id is unique by itself."""
        return cls(writer=query, batch=batch, owner=query)

    @classmethod
    def of_transaction(cls, app: str, version: int, owner: str | None) -> PublishIdentity:
        """A batch write with `txnAppId` and `txnVersion`, inside of the query `owner` if there is one."""
        return cls(writer=TRANSACTION + app, batch=version, owner=owner)

    @classmethod
    def of_publish_id(cls, publish_id: str) -> PublishIdentity:
        """What is published once under this id."""
        return cls(writer=PUBLISH_ID + publish_id, batch=0)

    @property
    def name(self) -> str:
        """The writer's name, as people know it."""
        return self.writer.removeprefix(TRANSACTION)

    @property
    def is_callers_word(self) -> bool:
        """Whether a repetition is what the caller calls so; of others it is judged by the number and the rows."""
        return self.writer.startswith(PUBLISH_ID)


def slices_sum(version: int | None, headers: bool, checksums: Iterable[str]) -> str:
    """One sum over the checksums of all slices of a publish: where it is equal the messages are, in whichever order and
    partitions the slices lie. `version` is that of a typed queue's columns: the bytes do not say their types.
    """
    return xxhash.xxh3_64_hexdigest(f"{version or 0}/{headers:d}/{''.join(sorted(checksums))}".encode())


def last_batch(queue: QueueLog, writer: str) -> WriterRecord | None:
    """The newest record of `writer`; a line of each page is read only for a writer that the head does not know."""
    head = queue.head
    record = head.writers.get(writer)
    if record is not None:
        return record
    for page in reversed(head.writer_pages):
        number = codec.page_line(writer, page.lines)
        start, length = number * page.line_bytes, page.line_bytes
        data = queue.store.read(queue.log_folder + page.name, start=start, length=length)
        record = codec.decode_writer_line(data, page, number).get(writer)
        if record is not None:
            return record
    return None


def rolled(queue: QueueLog, head: Head, stage_sequence: int) -> Head:
    """`head` with at most `LogSizes.head_writers` writers: the older half moves to a page, records past their age are
    dropped.
    """
    sizes = queue.sizes
    if len(head.writers) <= sizes.head_writers:
        return head
    oldest_us = head.time_us - WRITER_AGE_S * 1_000_000
    order = sorted(head.writers, key=lambda name: head.writers[name].sequence)  # a time may be false (`clocks`)
    kept = dict.fromkeys(order[len(order) // 2 :])
    moved = {name: record for name, record in head.writers.items() if name not in kept and record.time_us >= oldest_us}
    pages = [page for page in head.writer_pages if page.last_time_us >= oldest_us]
    if moved:
        pages.append(_page(queue, moved, 0, stage_sequence))
    level, fan_out = 0, sizes.page_fan_out
    while len(same := [page for page in pages if page.level == level]) > fan_out:
        if sum(page.writers for page in same[:fan_out]) > sizes.page_writers:
            break
        merged = _merged(queue, same[:fan_out], oldest_us)
        first = pages.index(same[0])
        pages[first : first + fan_out] = [_page(queue, merged, level + 1, stage_sequence)] if merged else []
        level += 1
    return replace(
        head,
        writers={name: record for name, record in head.writers.items() if name in kept},
        writer_pages=tuple(pages),
    )


def _merged(queue: QueueLog, pages: Sequence[WriterPage], oldest_us: int) -> dict[str, WriterRecord]:
    merged: dict[str, WriterRecord] = {}
    for page in pages:  # oldest first, so that a writer's newest record wins
        merged.update(codec.decode_writers(queue.store.read(queue.log_folder + page.name), page))
    return {name: record for name, record in merged.items() if record.time_us >= oldest_us}


def _page(queue: QueueLog, writers: dict[str, WriterRecord], level: int, stage_sequence: int) -> WriterPage:
    data = codec.encode_writers(writers)
    name = names.new_page(stage_sequence)
    queue.create_blob(name, data)
    return WriterPage(
        name=name,
        xxh3=checksum(data),
        level=level,
        writers=len(writers),
        last_time_us=max(record.time_us for record in writers.values()),
        lines=codec.page_lines(len(writers)),
        bytes=len(data),
    )


# --- what a person said -----------------------------------------------------------------------------------------------


def resolution(head: Head, writer: str, record: WriterRecord) -> Resolution | None:
    """What was said of the writer's batches since `record`, its last publish; None: nothing."""
    said = (each for each in head.resolutions if each.writer == writer and each.token == record.token)
    return next(said, None)


def resolve(queue: QueueLog, writer: str, batch: int, *, published: bool, by: str) -> bool:
    """Write down that the writer's batches from `batch` up to its last one are published already, or new (DIS-10);
    whether it has used that number here. Said twice it changes nothing.
    """
    known = False

    def decide(head: Head) -> Head:
        nonlocal known
        record = last_batch(queue, writer)
        known = record is not None and record.batch >= batch
        if record is None or not known:
            return head
        said = Resolution(
            writer=writer, batch=batch, published=published, token=record.token, time_us=queue.now_us(), by=by
        )
        before = resolution(head, writer, record)
        if before is not None and (before.batch, before.published) == (batch, published):
            return head
        kept = [each for each in head.resolutions if each.writer != writer]
        return replace(head, resolutions=(*kept, said)[-MOST_RESOLUTIONS:])

    queue.settled(lambda _: queue.change(decide))
    return known
