"""`partq status`: who has which partition of a group, shown once or, with `--watch`, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from partq_spark import client
from partq_spark.base.errors import Unavailable
from partq_spark.base.terminal import ranges
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, group_option, json_option, queue_argument, where_options
from partq_spark.cli.output import Column

WATCH_S = 1.0
_COLOURS = {"Unassigned": "red", "Ready": "green", "Paused": "yellow", "Unbound": "red"}

PARTITIONS = (
    Column("partition", lambda each: each.partition, ">"),
    Column("status", lambda each: each.status, style=lambda each: _COLOURS[each.status]),
    Column("flow", lambda each: each.flow),
    Column("epoch", lambda each: str(each.epoch), ">"),
    Column("acknowledged", lambda each: each.acknowledged, ">"),
    Column("delivered", lambda each: each.delivered, ">"),
    Column("end", lambda each: each.end, ">"),
    Column("lag", lambda each: each.lag, ">"),
    Column("lag_s", lambda each: None if each.lag_s is None else f"{each.lag_s:,.1f}", ">"),
)
FLOWS = (
    Column("flow", lambda each: each.flow),
    Column(
        "state",
        lambda each: ("active" if each.active else "inactive") if each.bound else "not bound",
        style=lambda each: "green" if each.active else "yellow" if each.bound else "red",
    ),
    Column("partitions", lambda each: ranges(each.partitions), "*"),
    Column("last seen", lambda each: None if each.last_seen_s is None else f"{each.last_seen_s:.1f} s ago", ">"),
)


@click.command("status")
@queue_argument
@group_option
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
@json_option
@where_options
def status(where: Where, name: str, group: str, watch: bool, as_json: bool) -> None:
    """Show which flow has which partition, and why one does not flow.

    Offsets are exclusive ends: the next message to come. `delivered` is what was handed to the flow's micro-batches,
    `acknowledged` what its checkpoint has. Without --ownership only the checkpoints are shown. --json with --watch
    prints one document per line.
    """
    with where.queue(name).watching(group, ownership=where.ownership) as look:
        while True:
            try:
                _show(look(), as_json=as_json, clear=watch and sys.stdout.isatty())
            except Unavailable as error:
                if not watch:
                    raise
                output.say(f"partq: {error}", err=True)
            if not watch:
                return
            time.sleep(WATCH_S)
            if not as_json and not sys.stdout.isatty():
                output.say()


def _show(view: client.GroupView, *, as_json: bool, clear: bool) -> None:
    if as_json:
        output.print_json(output.document(view))
        return
    if clear:
        click.clear()
    _print_facts(view)
    if view.flows:
        output.say()
        _print_flows(view.flows)
    output.say()
    # What does not flow comes first where not everything can be shown.
    output.print_values(view.partitions, PARTITIONS, noun="partition", first=lambda each: not each.reason)
    _print_reasons(view.partitions)


def _print_facts(view: client.GroupView) -> None:
    rebalancing = str(view.rebalance_status)
    if view.rebalance_deadline_s is not None:
        rebalancing += f", {view.rebalance_deadline_s:.1f} s left"
    leader, age_s = view.coordinator.leader or "none", view.coordinator.age_s
    if view.coordinator.leader is not None and age_s is not None:
        leader += f", renewed {age_s:.1f} s ago"
    counts = {status: sum(each.status == status for each in view.partitions) for status in _COLOURS}
    output.facts(
        [
            ("queue", f"{view.queue} (namespace {view.namespace})"),
            ("group", view.group),
            ("rebalancing", rebalancing),
            ("scaling", view.scale_status),
            ("partitions", ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)),
            ("lag", _lag(view)),
            ("coordinator", leader),
        ]
    )
    for note in view.notes:
        output.say(f"! {note}")


def _lag(view: client.GroupView) -> str:
    messages = output.plural(sum(each.lag for each in view.partitions), "message")
    oldest_s = max((each.lag_s or 0.0 for each in view.partitions), default=0.0)
    return f"{messages}, the oldest of them {oldest_s:,.1f} s old" if oldest_s else messages


def _print_flows(flows: Sequence[client.FlowView]) -> None:
    output.print_values(flows, FLOWS, noun="flow")
    notes = [f"flow {each.flow}: {each.note}" for each in flows if each.note]
    if notes:
        output.say()
    for note in notes[: output.MOST_ROWS]:
        output.say(note)


def _print_reasons(partitions: Sequence[client.PartitionView]) -> None:
    """Why something does not flow, whole: a sentence does not fit beside eight columns."""
    reasons: dict[str, list[int]] = {}
    for each in partitions:
        if each.reason:
            reasons.setdefault(each.reason, []).append(each.partition)
    if reasons:
        output.say()
    for reason, numbers in list(reasons.items())[: output.MOST_ROWS]:
        output.say(f"partition{'' if len(numbers) == 1 else 's'} {ranges(numbers)}: {reason}")
