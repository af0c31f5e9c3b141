"""What `partq queue` shows of a queue: its head, and what was found out beside it, as JSON and for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partq_spark.base.timestamps import format_rfc3339
from partq_spark.cli import output
from partq_spark.cli.checkpoints_view import age
from partq_spark.cli.output import Json
from partq_spark.log import codec, tree

if TYPE_CHECKING:
    from partq_spark.group.retention import HeldBack
    from partq_spark.log.admin import Listed
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

MOST_PARTITIONS_SHOWN = 64
_BAR = 16  # characters of the longest bar


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What a head does not say by itself. `now_us`: when it was found out (Unix, microseconds); `oldest_us`: when the
    oldest message that can be read was published; `stored`: bytes of each partition, None if they were not counted.
    """

    now_us: int
    oldest_us: int | None
    held_back: tuple[HeldBack, ...]
    stored: tuple[int, ...] | None


def find_out(queue: Queue, *, count_bytes: bool) -> Findings:
    """Look beside the head that `queue` knows: one listing per group, one way down the log, all of it to count bytes.

    Raises as reading the log and listing checkpoints do.
    """
    from partq_spark.group import retention
    from partq_spark.log.reading import oldest_us

    head = queue.head
    oldest = queue.settled(
        lambda head: oldest_us(queue, head, dict(enumerate(zip(head.earliest, head.next, strict=True))))
    )
    return Findings(
        now_us=queue.now_us(),
        oldest_us=oldest,
        held_back=retention.holding_back(queue, head),
        stored=queue.settled(lambda head: stored_bytes(queue, head)) if count_bytes else None,
    )


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


def list_document(namespace: str, found: Listed) -> list[Json]:
    """All queues of a list; one that cannot be read has `error`, and nothing else."""
    damaged: dict[str, dict[str, Json]] = {
        name: {"namespace": namespace, "queue": name, "error": str(problem)} for name, problem in found.problems.items()
    }
    known = {name: summary(queue.head) for name, queue in found.readable.items()}
    return [each for _, each in sorted({**known, **damaged}.items())]


def description(head: Head, found: Findings | None = None) -> dict[str, Json]:
    """Everything that `describe` knows. Offsets are half-open: `next` is the offset of the next message to come."""
    published = last_published_us(head)
    config = head.config
    stored = found.stored if found is not None else None
    described: dict[str, Json] = {
        "namespace": head.namespace,
        "queue": head.queue,
        "queue_id": head.queue_id,
        "created": format_rfc3339(head.created_us),
        "last_published": None if published is None else format_rfc3339(published),
        "config": {
            "rebalance_delay_s": config.rebalance_delay_s,
            "max_handoff_time_s": config.max_handoff_time_s,
            "access_type": config.access_type,
            "max_message_bytes": config.max_message_bytes,
            "retention_s": config.retention_s,
            "quota_bytes": config.quota_bytes,
        },
        "layout": {"generation": head.layout.generation, "partitions": head.partitions},
        "layouts": [
            {"generation": each.generation, "partitions": each.partitions, "begin": list(each.begin)}
            for each in head.layouts
        ],
        "messages": head.messages,
        "bytes": head.stored_bytes,
        "quota_used": quota_used(head),
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
        "subscriptions": list(head.subscriptions),
        "writers": writers(head),
        "head": {"sequence": head.sequence, "bytes": len(codec.encode_head(head))},
        "log": {"entries": len(head.entries), "chunks": len(head.tree), "slices": slices(head), "depth": depth(head)},
    }
    if found is not None:
        oldest = found.oldest_us
        described["oldest"] = None if oldest is None else format_rfc3339(oldest)
        described["oldest_age_s"] = None if oldest is None else age_s(found.now_us, oldest)
        described["held_back"] = held_back(found.held_back)
    return described


def age_s(now_us: int, time_us: int) -> float:
    """Seconds since `time_us`; never negative, for clocks differ."""
    return round(max(now_us - time_us, 0) / 1e6, 3)


def quota_used(head: Head) -> float | None:
    """How full the queue is, 1 being its quota; None without one."""
    quota = head.config.quota_bytes
    return None if quota is None else round(head.stored_bytes / quota, 4)


def held_back(found: Sequence[HeldBack]) -> list[Json]:
    """What groups keep, as JSON."""
    return [
        {
            "group": each.group,
            "partition": each.partition,
            "offset": each.offset,
            "messages": each.messages,
            "for_ever": each.for_ever,
        }
        for each in found
    ]


def held_back_words(found: Sequence[HeldBack]) -> str:
    """What groups keep, in words: for each group how much, and where most of it lies."""
    of_group: dict[str, list[HeldBack]] = defaultdict(list)
    for each in found:
        of_group[each.group].append(each)
    words = []
    for group, mine in of_group.items():
        most = max(mine, key=lambda each: each.messages)
        text = f"group {group} needs {output.plural(sum(each.messages for each in mine), 'message')}"
        where = f"{most.messages:,} of them in partition {most.partition}, from offset {most.offset:,}"
        alone = f"in partition {most.partition}, from offset {most.offset:,}"
        for_ever = ", for ever: checkpoints=none writes no acknowledgement down" if most.for_ever else ""
        words.append((f"{text} ({where})" if len(mine) > 1 else f"{text} {alone}") + for_ever)
    return "; ".join(words)


def writers(head: Head) -> int:
    """Writers whose last batch is remembered; one that moved between pages may count twice."""
    return len(head.writers) + sum(page.writers for page in head.writer_pages)


def depth(head: Head) -> int:
    """How many chunks lie on the longest way from the head to a message."""
    return max((ref.level + 1 for ref in head.tree), default=0)


def slices(head: Head) -> int:
    """How many pieces the messages lie in; what was written before they were counted is left out."""
    return sum(ref.slices for ref in head.tree) + sum(len(entry.slices) for entry in head.entries)


def stored_bytes(queue: Queue, head: Head) -> tuple[int, ...]:
    """Stored (compressed) bytes per partition of the messages that can be read; reads the whole log, not the messages.

    A slice that is trimmed in part counts whole, as it is stored whole.
    """
    counted = [0] * len(head.next)
    wanted = {p: (head.earliest[p], head.next[p]) for p in range(len(head.next))}
    for entry in tree.walk(tree.view(head, wanted), queue.load_chunk):
        for piece in entry.slices:
            counted[piece.partition] += piece.length
    return tuple(counted)


# --- for people -------------------------------------------------------------------------------------------------------


def print_list(found: Listed) -> None:
    """One row per queue."""
    from rich.text import Text

    rows: list[list[Text]] = []
    for name in sorted({*found.readable, *found.problems}):
        if name in found.problems:
            rows.append([Text(name), Text(""), Text(""), Text("damaged", style="red")])
            continue
        head = found.readable[name].head
        published = last_published_us(head)
        day = "never" if published is None else output.when(published)[:19]
        rows.append([Text(name), Text(str(head.partitions)), Text(f"{head.messages:,}"), Text(day)])
    output.print_table((("queue", "<"), ("partitions", ">"), ("messages", ">"), ("last published (UTC)", "<")), rows)


def print_description(head: Head, found: Findings, store_url: str) -> None:
    """Facts below each other, then one row per partition."""
    published = last_published_us(head)
    config = head.config
    pairs = [
        ("queue", head.queue),
        ("namespace", head.namespace),
        ("store", store_url),
        ("id", head.queue_id),
        ("created", output.when(head.created_us) + " UTC"),
        ("last published", "never" if published is None else output.when(published) + " UTC"),
        ("messages", f"{head.messages:,} in {output.plural(head.partitions, 'partition')}"),
        ("oldest message", _oldest(found)),
        ("stored", output.size(head.stored_bytes)),
        ("quota", "none" if config.quota_bytes is None else _quota(head)),
        ("retention", "none" if config.retention_s is None else output.seconds(config.retention_s)),
        ("access type", config.access_type),
        ("rebalance delay", output.seconds(config.rebalance_delay_s)),
        ("max handoff time", output.seconds(config.max_handoff_time_s)),
        ("max message", f"{config.max_message_bytes:,} bytes"),
        ("groups", ", ".join(sorted(head.groups)) or "none"),
        ("held back", held_back_words(found.held_back) or "nothing"),
        ("writers", f"{writers(head):,} remembered"),
        ("head", f"{output.size(len(codec.encode_head(head)))}, change {head.sequence:,}"),
        ("log", _log(head)),
    ]
    if len(head.layouts) > 1:
        counts = " → ".join(str(each.partitions) for each in head.layouts)
        pairs.insert(7, ("layouts", f"{counts} partitions; messages of all of them are still there"))
    if head.subscriptions:
        pairs.append(("topics", ", ".join(head.subscriptions)))
    output.facts(pairs)
    _print_partitions(head, found.stored)


def _oldest(found: Findings) -> str:
    if found.oldest_us is None:
        return "none"
    return f"{output.when(found.oldest_us)} UTC, {age(format_rfc3339(found.oldest_us), found.now_us)}"


def _quota(head: Head) -> str:
    return f"{output.size(head.config.quota_bytes or 0)}, {(quota_used(head) or 0.0):.0%} used"


def _log(head: Head) -> str:
    words = (
        f"{output.plural(len(head.entries), 'publish')} in the head, {output.plural(len(head.tree), 'chunk')} below it"
    )
    if head.tree:
        words += f" in {output.plural(depth(head), 'level')}"
    return f"{words}, {output.plural(slices(head), 'slice')}"


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
    output.say()
    output.print_table(columns, rows)
    left = len(head.next) - MOST_PARTITIONS_SHOWN
    if left > 0:
        output.say(f"… and {output.plural(left, 'more partition')}: --json shows all")
