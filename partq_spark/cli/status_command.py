"""`partq status`: who has which partition of a group, shown once or, with `--watch`, again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from partq_spark import client
from partq_spark.base.errors import Unavailable
from partq_spark.base.words import ranges
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, group_option, json_option, queue_argument, where_options
from partq_spark.cli.output import TableColumn
from partq_spark.client import words as sayings

WATCH_S = 1.0
_COLOURS = {"Unassigned": "red", "Ready": "green", "Paused": "yellow", "Unbound": "red"}

PARTITIONS = (
    TableColumn("partition", lambda each: each.partition, ">"),
    TableColumn("status", lambda each: each.status, style=lambda each: _COLOURS[each.status]),
    TableColumn("flow", lambda each: each.flow),
    TableColumn("epoch", lambda each: str(each.epoch), ">"),
    TableColumn("acknowledged", lambda each: each.acknowledged, ">"),
    TableColumn("delivered", lambda each: each.delivered, ">"),
    TableColumn("end", lambda each: each.end, ">"),
    TableColumn("lag", lambda each: each.lag, ">"),
    TableColumn("lag_s", sayings.lag_s, ">"),
)

FLOWS = (
    TableColumn("flow", lambda each: each.flow),
    TableColumn(
        "state",
        sayings.flow_state,
        style=lambda each: "green" if each.active else "yellow" if each.bound else "red",
    ),
    TableColumn("partitions", lambda each: ranges(each.partitions), "*"),
    TableColumn("last seen", sayings.last_seen, ">"),
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
    _print_lines(sayings.reasons_in_words(view.partitions))


def _print_facts(view: client.GroupView) -> None:
    output.facts(sayings.group_in_words(view))
    for note in view.notes:
        output.say(f"! {note}")


def _print_flows(flows: Sequence[client.FlowView]) -> None:
    output.print_values(flows, FLOWS, noun="flow")
    _print_lines(sayings.flow_notes(flows))


def _print_lines(lines: Sequence[str]) -> None:
    """Sentences, which do not fit beside the columns of a table."""
    if lines:
        output.say()
    for line in lines[: output.MOST_ROWS]:
        output.say(line)
