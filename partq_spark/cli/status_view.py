"""What `partq status` shows of a group, as JSON (interface.md) and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from partq_spark.cli import output
from partq_spark.cli.output import Json
from partq_spark.group.model import PartitionStatus

if TYPE_CHECKING:
    from rich.text import Text

    from partq_spark.group.status import FlowView, GroupView, PartitionView

MOST_SHOWN = 64
_COLOURS = {
    PartitionStatus.READY: "green",
    PartitionStatus.PAUSED: "yellow",
    PartitionStatus.UNBOUND: "red",
    PartitionStatus.UNASSIGNED: "red",
}


def document(view: GroupView) -> dict[str, Json]:
    """The group as interface.md has it; `reason` and `notes` are in words, for people who look at the JSON."""
    return {
        "namespace": view.key.namespace,
        "queue": view.key.queue,
        "group": view.key.group,
        "rebalance_status": str(view.rebalance_status),
        "rebalance_deadline_s": _rounded(view.rebalance_deadline_s),
        "scale_status": view.scale_status,
        "partitions": [_partition(each) for each in view.partitions],
        "flows": [
            {
                "flow": each.flow,
                "active": each.active,
                "bound": each.bound,
                "partitions": list(each.partitions),
                "last_seen_s": _rounded(each.last_seen_s),
                "note": each.note,
            }
            for each in view.flows
        ],
        "coordinator": {"leader": view.leader, "age_s": _rounded(view.leader_age_s)},
        "notes": list(view.notes),
    }


def _partition(view: PartitionView) -> dict[str, Json]:
    handoff = view.handoff
    return {
        "partition": view.partition,
        "status": str(view.status),
        "flow": view.flow,
        "epoch": view.epoch,
        "acknowledged": view.acknowledged,
        "delivered": view.delivered,
        "end": view.end,
        "lag": view.lag,
        "handoff": None
        if handoff is None
        else {
            "to": handoff.to,
            "remaining_s": _rounded(handoff.remaining_s),
            "waiting_for": handoff.waiting_for,
        },
        "reason": view.reason,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


# --- for people -------------------------------------------------------------------------------------------------------


def print_group(view: GroupView) -> None:
    """Facts, then one row per flow, then one per partition."""
    status = str(view.rebalance_status)
    if view.rebalance_deadline_s is not None:
        status += f", {view.rebalance_deadline_s:.1f} s left"
    leader = "none"
    if view.leader is not None:
        leader = view.leader if view.leader_age_s is None else f"{view.leader}, renewed {view.leader_age_s:.1f} s ago"
    lag = sum(each.lag for each in view.partitions)
    counts = {status: sum(each.status is status for each in view.partitions) for status in PartitionStatus}
    states = ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)
    output.facts(
        [
            ("queue", f"{view.key.queue} (namespace {view.key.namespace})"),
            ("group", view.key.group),
            ("rebalancing", status),
            ("scaling", view.scale_status),
            ("partitions", states),
            ("lag", output.plural(lag, "message")),
            ("coordinator", leader),
        ]
    )
    for note in view.notes:
        output.say(f"! {note}")
    if view.flows:
        output.say()
        _print_flows(view.flows)
    output.say()
    _print_partitions(view.partitions)


def _print_flows(flows: Sequence[FlowView]) -> None:
    from rich.text import Text

    rows: list[list[Text]] = []
    for each in flows[:MOST_SHOWN]:
        word = ("active" if each.active else "inactive") if each.bound else "not bound"
        seen = "" if each.last_seen_s is None else f"{each.last_seen_s:.1f} s ago"
        rows.append(
            [
                Text(each.flow),
                Text(word, style="green" if each.active else "yellow" if each.bound else "red"),
                Text(ranges(each.partitions)),
                Text(seen),
            ]
        )
    output.print_table((("flow", "<"), ("state", "<"), ("partitions", "*"), ("last seen", ">")), rows)
    if len(flows) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(flows) - MOST_SHOWN, 'more flow')}: --json shows all")
    notes = [f"flow {each.flow}: {each.note}" for each in flows if each.note]
    if notes:
        output.say()
    for note in notes[:MOST_SHOWN]:
        output.say(note)


def _print_partitions(partitions: Sequence[PartitionView]) -> None:
    from rich.text import Text

    columns = [("partition", ">"), ("status", "<"), ("flow", "<"), ("epoch", ">")]
    columns += [("acknowledged", ">"), ("delivered", ">"), ("end", ">"), ("lag", ">")]
    # What does not flow comes first where not everything can be shown.
    shown = sorted(partitions, key=lambda each: not each.reason)[:MOST_SHOWN]
    rows: list[list[Text]] = []
    for each in sorted(shown, key=lambda each: each.partition):
        delivered = "" if each.delivered is None else f"{each.delivered:,}"
        rows.append(
            [
                Text(str(each.partition)),
                Text(str(each.status), style=_COLOURS[each.status]),
                Text(each.flow or ""),
                Text(str(each.epoch)),
                Text(f"{each.acknowledged:,}"),
                Text(delivered),
                Text(f"{each.end:,}"),
                Text(f"{each.lag:,}"),
            ]
        )
    output.print_table(columns, rows)
    if len(partitions) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(partitions) - MOST_SHOWN, 'more partition')}: --json shows all")
    _print_reasons(partitions)


def _print_reasons(partitions: Sequence[PartitionView]) -> None:
    """Why something does not flow, whole: a sentence does not fit beside eight columns."""
    reasons: dict[str, list[int]] = {}
    for each in partitions:
        if each.reason:
            reasons.setdefault(each.reason, []).append(each.partition)
    if reasons:
        output.say()
    for reason, numbers in list(reasons.items())[:MOST_SHOWN]:
        output.say(f"partition{'' if len(numbers) == 1 else 's'} {ranges(numbers)}: {reason}")


def ranges(partitions: Sequence[int]) -> str:
    """`0-3, 7`."""
    runs: list[list[int]] = []
    for number in partitions:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
