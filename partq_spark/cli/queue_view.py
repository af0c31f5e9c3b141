"""What `partq queue` shows of a queue's head, as JSON and for people. Reads the log only to count stored bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from partq_spark.cli import output
from partq_spark.cli.output import Json
from partq_spark.log import codec, tree
from partq_spark.timestamps import format_rfc3339

if TYPE_CHECKING:
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

CHEAP_CHUNKS = 64  # small objects that describing may read unasked: at most some seconds on a slow store
MOST_PARTITIONS_SHOWN = 64
_BAR = 16  # characters of the longest bar


def last_published_us(head: Head) -> int | None:
    """When something was published last; None if nothing ever was. `Head.time_us` begins as the time of creation."""
    return head.time_us if any(head.next) else None


def contents(head: Head) -> str:
    """What would be lost with the queue, in words."""
    published = last_published_us(head)
    words = f"{output.plural(head.messages, 'message')} in {output.plural(head.partitions, 'partition')}"
    if head.groups:
        words += f", {output.plural(len(head.groups), 'group')} ({', '.join(sorted(head.groups))})"
    return words + (f", last published {output.when(published)} UTC" if published is not None else "")


# --- JSON -------------------------------------------------------------------------------------------------------------


def summary(head: Head) -> dict[str, Json]:
    """One queue of a list."""
    published = last_published_us(head)
    return {
        "namespace": head.namespace,
        "queue": head.queue,
        "partitions": head.partitions,
        "messages": head.messages,
        "access_type": head.config.access_type,
        "created": format_rfc3339(head.created_us),
        "last_published": None if published is None else format_rfc3339(published),
    }


def description(head: Head, stored: Sequence[int] | None) -> dict[str, Json]:
    """Everything that `describe` knows. Offsets are half-open: `next` is the offset of the next message to come."""
    published = last_published_us(head)
    return {
        "namespace": head.namespace,
        "queue": head.queue,
        "queue_id": head.queue_id,
        "created": format_rfc3339(head.created_us),
        "last_published": None if published is None else format_rfc3339(published),
        "config": {
            "rebalance_delay_s": head.config.rebalance_delay_s,
            "max_handoff_time_s": head.config.max_handoff_time_s,
            "access_type": head.config.access_type,
            "max_message_bytes": head.config.max_message_bytes,
        },
        "layout": {"generation": head.layout.generation, "partitions": head.partitions},
        "messages": head.messages,
        "bytes": None if stored is None else sum(stored),
        "partitions": [
            {
                "partition": partition,
                "earliest": earliest,
                "next": following,
                "messages": following - earliest,
                "bytes": None if stored is None else stored[partition],
            }
            for partition, (earliest, following) in enumerate(zip(head.earliest, head.next, strict=True))
        ],
        "groups": [{"group": name, "start": list(head.groups[name].start)} for name in sorted(head.groups)],
        "writers": writers(head),
        "head": {"sequence": head.sequence, "bytes": len(codec.encode_head(head))},
        "log": {"entries": len(head.entries), "chunks": leaves(head), "depth": depth(head)},
    }


def writers(head: Head) -> int:
    """Writers whose last batch is remembered; one that moved between pages may count twice."""
    return len(head.writers) + sum(page.writers for page in head.writer_pages)


def depth(head: Head) -> int:
    """How many chunks lie on the longest way from the head to a message."""
    return max((ref.level + 1 for ref in head.tree), default=0)


def leaves(head: Head) -> int:
    """Chunks that hold entries: nodes are always full."""
    return sum(tree.FAN_OUT**ref.level for ref in head.tree)


def stored_bytes(queue: Queue, head: Head, *, at_any_cost: bool) -> tuple[int, ...] | None:
    """Stored (compressed) bytes per partition of the messages that can be read; None if many chunks would be read.

    A slice that is trimmed in part counts whole, as it is stored whole.
    """
    if leaves(head) > CHEAP_CHUNKS and not at_any_cost:
        return None
    counted = [0] * len(head.next)
    wanted = {p: (head.earliest[p], head.next[p]) for p in range(len(head.next))}
    for entry in tree.walk(tree.view(head, wanted), queue.load_chunk):
        for piece in entry.slices:
            counted[piece.partition] += piece.length
    return tuple(counted)


# --- for people -------------------------------------------------------------------------------------------------------


def print_list(heads: Sequence[Head]) -> None:
    """One row per queue."""
    from rich.text import Text

    rows: list[list[Text]] = []
    for head in heads:
        published = last_published_us(head)
        day = "never" if published is None else output.when(published)[:19]
        rows.append([Text(head.queue), Text(str(head.partitions)), Text(f"{head.messages:,}"), Text(day)])
    output.print_table((("queue", "<"), ("partitions", ">"), ("messages", ">"), ("last published (UTC)", "<")), rows)


def print_description(head: Head, stored: Sequence[int] | None, store_url: str) -> None:
    """Facts below each other, then one row per partition."""
    published = last_published_us(head)
    config = head.config
    chunks = output.plural(leaves(head), "chunk")
    pairs = [
        ("queue", head.queue),
        ("namespace", head.namespace),
        ("store", store_url),
        ("id", head.queue_id),
        ("created", output.when(head.created_us) + " UTC"),
        ("last published", "never" if published is None else output.when(published) + " UTC"),
        ("messages", f"{head.messages:,} in {output.plural(head.partitions, 'partition')}"),
        ("stored", output.size(sum(stored)) if stored is not None else f"not counted ({chunks} to read): add --bytes"),
        ("access type", config.access_type),
        ("rebalance delay", output.seconds(config.rebalance_delay_s)),
        ("max handoff time", output.seconds(config.max_handoff_time_s)),
        ("max message", f"{config.max_message_bytes:,} bytes"),
        ("groups", ", ".join(sorted(head.groups)) or "none"),
        ("writers", f"{writers(head):,} remembered"),
        ("head", f"{output.size(len(codec.encode_head(head)))}, change {head.sequence:,}"),
        ("log", f"{output.plural(len(head.entries), 'publish')} in the head, {chunks}"),
    ]
    if head.tree:
        pairs[-1] = ("log", f"{pairs[-1][1]} in {output.plural(depth(head), 'level')}")
    output.facts(pairs)
    _print_partitions(head, stored)


def _print_partitions(head: Head, stored: Sequence[int] | None) -> None:
    from rich.text import Text

    columns = [("partition", ">"), ("earliest", ">"), ("next", ">"), ("messages", ">")]
    columns += [("stored", ">"), ("", "<")] if stored is not None else [("", "<")]
    most = max(following - earliest for earliest, following in zip(head.earliest, head.next, strict=True))
    rows: list[list[Text]] = []
    for partition in range(min(len(head.next), MOST_PARTITIONS_SHOWN)):
        earliest, following = head.earliest[partition], head.next[partition]
        cells = [str(partition), f"{earliest:,}", f"{following:,}", f"{following - earliest:,}"]
        if stored is not None:
            cells.append(output.size(stored[partition]))
        bar = output.bar(following - earliest, most, _BAR)
        rows.append([*(Text(cell) for cell in cells), Text(bar, style="cyan")])
    click.echo()
    output.print_table(columns, rows)
    left = len(head.next) - MOST_PARTITIONS_SHOWN
    if left > 0:
        click.echo(f"… and {output.plural(left, 'more partition')}: --json shows all")
