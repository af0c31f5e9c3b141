"""What `partq checkpoints` and `partq checkpoints rewind` show, as JSON and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.cli import output
from partq_spark.cli.output import Json

if TYPE_CHECKING:
    from rich.text import Text

    from partq_spark.group.checkpoints import Checkpoint
    from partq_spark.group.rewinding import Outcome, Step
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

MOST_SHOWN = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One partition. `checkpoint` None: there is none yet, or it cannot be read, and `error` says why."""

    partition: int
    checkpoint: Checkpoint | None
    acknowledged: int  # where there is no offset: where the group begins
    end: int
    error: str

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged."""
        return max(self.end - self.acknowledged, 0)


def rows(head: Head, group: str, found: Mapping[int, Checkpoint], damaged: Mapping[int, Corrupt]) -> Sequence[Row]:
    """The queue's partitions, and what is left of others."""
    from partq_spark.group.checkpoint import acknowledged_to
    from partq_spark.log.model import group_start

    made: list[Row] = []
    for number in sorted({*range(head.partitions), *(p for p in (*found, *damaged) if p < len(head.next))}):
        checkpoint = found.get(number)
        begin = group_start(head.groups[group], number)
        made.append(
            Row(
                partition=number,
                checkpoint=checkpoint,
                acknowledged=acknowledged_to(checkpoint, begin),
                end=head.next[number],
                error=str(damaged[number]) if number in damaged else "",
            )
        )
    return made


def document(queue: Queue, group: str, shown: Sequence[Row]) -> dict[str, Json]:
    """All partitions. One without a checkpoint has `epoch` 0; one that cannot be read has `error`, and nothing else."""
    return {
        "namespace": queue.namespace,
        "queue": queue.name,
        "group": group,
        "partitions": [_partition(each) for each in shown],
        "lag": sum(each.lag for each in shown if not each.error),
    }


def _partition(row: Row) -> dict[str, Json]:
    if row.error:
        return {"partition": row.partition, "error": row.error}
    checkpoint = row.checkpoint
    owner = checkpoint.owner if checkpoint is not None else None
    return {
        "partition": row.partition,
        "epoch": checkpoint.epoch if checkpoint is not None else 0,
        "flow": owner.flow if owner is not None else None,
        "instance": owner.instance if owner is not None else None,
        "acknowledged": row.acknowledged,
        "end": row.end,
        "lag": row.lag,
        "redelivered_below": checkpoint.redelivered_below if checkpoint is not None else 0,
        "updated": checkpoint.updated if checkpoint is not None else None,
    }


def rewound_document(
    queue: Queue, group: str, steps: Sequence[Step], outcome: Outcome | None, notes: Sequence[str]
) -> dict[str, Json]:
    """What would be done (`outcome` None), or what was."""
    done = {each.after.partition: each for each in outcome.done} if outcome is not None else {}
    partitions: list[Json] = []
    for step in steps:
        change = done.get(step.partition)
        before = step.acknowledged if change is None or change.before.offset is None else change.before.offset
        partitions.append(
            {
                "partition": step.partition,
                "from": before,
                "to": step.to,
                "messages": step.messages_from(before),
                "flow": step.owner.flow if step.owner is not None else None,
                "rewound": change is not None,
            }
        )
    return {
        "namespace": queue.namespace,
        "queue": queue.name,
        "group": group,
        "partitions": partitions,
        "rewound": outcome is not None and outcome.error is None,
        "notes": list(notes),
    }


# --- for people -------------------------------------------------------------------------------------------------------


def print_rows(shown: Sequence[Row], *, now_us: int) -> None:
    """One row per partition, and the sum."""
    from rich.text import Text

    columns = [("partition", ">"), ("epoch", ">"), ("flow", "<"), ("acknowledged", ">"), ("end", ">"), ("lag", ">")]
    columns += [("redelivered below", ">"), ("updated", ">")]
    lines: list[list[Text]] = []
    # Where not everything can be shown, what is damaged and what is furthest behind.
    first = sorted(shown, key=lambda each: (not each.error, -each.lag))[:MOST_SHOWN]
    for each in sorted(first, key=lambda each: each.partition):
        checkpoint = each.checkpoint
        if each.error:
            cells = ["", "damaged", "", f"{each.end:,}", "", "", ""]
        elif checkpoint is None:
            cells = ["", "none yet", f"{each.acknowledged:,}", f"{each.end:,}", f"{each.lag:,}", "", ""]
        else:
            below = f"{checkpoint.redelivered_below:,}" if checkpoint.redelivered_below > each.acknowledged else ""
            cells = [
                f"{checkpoint.epoch:,}",
                checkpoint.owner.flow if checkpoint.owner is not None else "nobody",
                f"{each.acknowledged:,}",
                f"{each.end:,}",
                f"{each.lag:,}",
                below,
                age(checkpoint.updated, now_us),
            ]
        style = "red" if each.error else ""
        lines.append([Text(str(each.partition)), *(Text(cell, style=style) for cell in cells)])
    output.print_table(columns, lines)
    if len(shown) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(shown) - MOST_SHOWN, 'more partition')}: --json shows all")
    lag = output.plural(sum(each.lag for each in shown if not each.error), "message")
    output.say()
    output.say(f"Total: {output.plural(len(shown), 'partition')}, {lag} to be acknowledged.")


def print_plan(steps: Sequence[Step], notes: Sequence[str]) -> None:
    """What would be done."""
    _print_steps([(step, step.acknowledged) for step in steps])
    _print_notes(notes)


def print_rewound(queue: Queue, group: str, steps: Sequence[Step], outcome: Outcome, notes: Sequence[str]) -> None:
    """What was done."""
    by_partition = {step.partition: step for step in steps}
    done = [(by_partition[each.after.partition], each.before.offset or 0) for each in outcome.done]
    if done:
        _print_steps(done)
    messages = output.plural(sum(step.messages_from(before) for step, before in done), "message")
    if done:
        partitions = output.plural(len(done), "partition")
        output.say(f"Rewound {partitions} of {queue} for group {group!r}: {messages} will be delivered again, marked.")
    elif outcome.error is None:
        output.say(f"Nothing to rewind: group {group!r} of {queue} is not past that place.")
    _print_notes(notes)


def _print_steps(steps: Sequence[tuple[Step, int]]) -> None:
    """`steps` with the offset that each begins from."""
    from rich.text import Text

    columns = [("partition", ">"), ("from", ">"), ("to", ">"), ("come again", ">"), ("flow", "<")]
    # Where not everything can be shown, what moves furthest.
    first = sorted(steps, key=lambda each: each[0].to - each[1])[:MOST_SHOWN]
    lines = [
        [
            Text(str(step.partition)),
            Text(f"{before:,}"),
            Text(f"{step.to:,}"),
            Text(f"{step.messages_from(before):,}"),
            Text(step.owner.flow if step.owner is not None else "nobody"),
        ]
        for step, before in sorted(first, key=lambda each: each[0].partition)
    ]
    output.print_table(columns, lines)
    if len(steps) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(steps) - MOST_SHOWN, 'more partition')}: --json shows all")


def _print_notes(notes: Sequence[str]) -> None:
    for note in notes:
        output.say(f"! {note}")


def age(updated: str, now_us: int) -> str:
    """How long ago a writer's clock said that it was, in words; the text as it is where that is no time."""
    from partq_spark.base.timestamps import parse_rfc3339

    try:
        seconds = (now_us - parse_rfc3339(updated)) // 1_000_000
    except Invalid:
        return updated
    for most, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < most:
            return f"{max(seconds, 0) // unit_s} {unit} ago"
    return f"{seconds // 86_400:,} days ago"
