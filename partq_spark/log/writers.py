"""Who published which batch last, for as long as a repetition may come: the newest in the head, older ones in pages.

A record stays for at least `WRITER_AGE_S` of the queue's own time after its writer's last publish, and longer while
the queue has fewer than `LogSizes.head_writers` writers. Pages merge as chunks of the log do, so that many one-time
writers cost a head little; of each a look for a writer reads one line, of some kilobytes, however large the page is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from partq_spark.base.json_documents import checksum
from partq_spark.log import codec, names
from partq_spark.log.model import Head, WriterPage, WriterRecord
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes

WRITER_AGE_S = 7 * 24 * 3600

LoadPage = Callable[[WriterPage], bytes | memoryview]


def last_batch(queue: QueueLog, writer: str) -> WriterRecord | None:
    """The newest record of `writer`; a line of each page is read only for a writer that the head does not know."""
    head = queue.head
    record = head.writers.get(writer)
    if record is not None:
        return record
    for page in reversed(head.writer_pages):
        line = codec.page_line(writer, page.lines)
        record = codec.decode_writer_line(queue.load_page_line(page, line), page, line).get(writer)
        if record is not None:
            return record
    return None


def rolled(
    head: Head, stage_sequence: int, create: Callable[[str, bytes], None], load: LoadPage, sizes: LogSizes
) -> Head:
    """`head` with at most `sizes.head_writers` writers: the older half moves to a page, records past their age are
    dropped.
    """
    if len(head.writers) <= sizes.head_writers:
        return head
    oldest_us = head.time_us - WRITER_AGE_S * 1_000_000
    order = sorted(head.writers, key=lambda name: head.writers[name].sequence)  # a time may be false (`clocks`)
    kept = dict.fromkeys(order[len(order) // 2 :])
    moved = {name: record for name, record in head.writers.items() if name not in kept and record.time_us >= oldest_us}
    pages = [page for page in head.writer_pages if page.last_time_us >= oldest_us]
    if moved:
        pages.append(_page(moved, 0, stage_sequence, create))
    level, fan_out = 0, sizes.page_fan_out
    while len(same := [page for page in pages if page.level == level]) > fan_out:
        if sum(page.writers for page in same[:fan_out]) > sizes.page_writers:
            break
        merged = _merged(same[:fan_out], oldest_us, load)
        first = pages.index(same[0])
        pages[first : first + fan_out] = [_page(merged, level + 1, stage_sequence, create)] if merged else []
        level += 1
    return replace(
        head,
        writers={name: record for name, record in head.writers.items() if name in kept},
        writer_pages=tuple(pages),
    )


def _merged(pages: Sequence[WriterPage], oldest_us: int, load: LoadPage) -> dict[str, WriterRecord]:
    merged: dict[str, WriterRecord] = {}
    for page in pages:  # oldest first, so that a writer's newest record wins
        merged.update(codec.decode_writers(load(page), page))
    return {name: record for name, record in merged.items() if record.time_us >= oldest_us}


def _page(
    writers: dict[str, WriterRecord], level: int, stage_sequence: int, create: Callable[[str, bytes], None]
) -> WriterPage:
    data = codec.encode_writers(writers)
    name = names.new_page(stage_sequence)
    create(name, data)
    return WriterPage(
        name=name,
        xxh3=checksum(data),
        level=level,
        writers=len(writers),
        last_time_us=max(record.time_us for record in writers.values()),
        lines=codec.page_lines(len(writers)),
        bytes=len(data),
    )
