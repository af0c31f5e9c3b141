"""`partq group` and `partq status`: the consumer groups of a queue, how one is shared, and removing one; and who has
which partition of a group, shown once or, with `--watch`, again and again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import Unavailable, WrongUse
from partq_spark.base.words import ranges
from partq_spark.cli import output
from partq_spark.cli.arguments import OWNERSHIP, command, group_option, require_yes, yes_option
from partq_spark.cli.output import Answer, Facts, Table, TableColumn, View
from partq_spark.client import words as sayings

WATCH_S = 1.0
GROUPS = (
    TableColumn("group", lambda each: each.group, "*"),
    TableColumn("since", lambda each: each.since_sequence, ">"),
    TableColumn("ownership", lambda each: each.ownership),
    TableColumn("unacknowledged", lambda each: each.unacknowledged, ">"),
    TableColumn("oldest of them", lambda each: None if each.oldest is None else f"{words.when(each.oldest)} UTC"),
    TableColumn("changed", lambda each: "never" if each.changed_s is None else f"{each.changed_s:.0f} s ago", ">"),
)
THEIR_FLOWS = TableColumn("flows", lambda each: ", ".join(each.flows or ()), "*")
COLOURS = {"Unassigned": "red", "Ready": "green", "Paused": "yellow", "Unbound": "red"}
PARTITIONS = (
    TableColumn("partition", lambda each: each.partition, ">"),
    TableColumn("status", lambda each: each.status, style=lambda each: COLOURS[each.status]),
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


@command("list")
def list_all(queue: client.Queue, ownership: str | None) -> Iterator[Answer]:
    """List the consumer groups of a queue.

    `unacknowledged` messages are those that each group still has to deal with, `oldest` is when the first of them was
    published. `changed` is how long ago a checkpoint was written. `ownership` is how the group is shared. With
    --ownership also the flows that are bound.
    """
    found = queue.groups(ownership=ownership)
    yield Answer(found, _listed(found, queue))


def _listed(found: Sequence[client.GroupSummary], queue: client.Queue) -> View:
    if not found:
        yield f"No groups in {queue}. A group is made by the first query that names it (option group)."
        return
    known = any(each.flows is not None for each in found)
    yield Table(values=found, columns=(*GROUPS, THEIR_FLOWS) if known else GROUPS, noun="group")
    for each in found:
        for problem in each.problems:
            yield f"! group {each.group}: {problem}"


@command("alter")
@group_option
@click.option(
    "--from",
    "former",
    type=OWNERSHIP,
    metavar="URL",
    help="Where the group has been sharing so far: the Redis that knows whether a flow lives.  [default: "
    "$PARTQ_OWNERSHIP if that is one; store needs no address]",
)
@click.option("--force", is_flag=True, help="Also where nobody can know whether a flow lives.")
def alter(queue: client.Queue, ownership: str | None, group: str, former: str | None, force: bool) -> Iterator[Answer]:
    """Change how a consumer group is shared: by the --ownership that is given, which its flows must have from then on.

    Checkpoints stay. Refused while one of its flows lives: a moving heartbeat says so where the group was shared, else
    a checkpoint that was changed within the last minute. A flow that lives all the same ends when it looks at the
    queue the next time, before it delivers.
    """
    if ownership is None:
        raise WrongUse("say how the group is to be shared: --ownership redis://host:port/db, store or none.")
    done = queue.alter_group(group, ownership=ownership, former=former, force=force)
    yield Answer(done, _altered(done, queue, group))


def _altered(done: client.GroupAlteration, queue: client.Queue, group: str) -> View:
    if not done.changed:
        which = " Which Redis that is, is not written down." if done.ownership == "redis" else ""
        yield f"Group {group!r} of {queue} has ownership={done.ownership} already.{which}"
        return
    before = "no flow had joined it yet" if done.was is None else f"it had ownership={done.was}"
    yield f"Group {group!r} of {queue} has ownership={done.ownership} from now on; {before}."


@command("remove")
@group_option
@yes_option("remove it")
@click.option(
    "--force",
    is_flag=True,
    help="Also where a checkpoint was changed within the last minute and no ownership says who lives.",
)
def remove(queue: client.Queue, ownership: str | None, group: str, yes: bool, force: bool) -> Iterator[Answer]:
    """Remove a consumer group for good: how far it was is forgotten, and nothing is held back for it any more.

    Without --yes it only says what would be removed. Refused while one of its flows lives: with --ownership a moving
    heartbeat says so, without it a checkpoint that was changed within the last minute. If a removal was cut off, the
    same command finishes it. A group that is made again under this name begins anew.
    """
    done = queue.remove_group(group, ownership=ownership, force=force, dry_run=not yes)
    checkpoints = words.plural(done.checkpoints, "checkpoint")
    what = f"group {group!r}" if done.removed else f"what is left of group {group!r}"
    require_yes(yes, f"remove {what}, with {checkpoints} of {queue} for good")
    if done.removed:
        line = f"Removed group {group!r} of {queue}, with {checkpoints}."
    else:
        line = f"Removed what was left of group {group!r} of {queue}."
    yield Answer(done, iter([line]))


# --- status -----------------------------------------------------------------------------------------------------------


@command("status")
@group_option
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def status(queue: client.Queue, ownership: str | None, group: str, watch: bool) -> Iterator[Answer]:
    """Show which flow has which partition, and why one does not flow.

    Offsets are exclusive ends: the next message to come. `delivered` is what was handed to the flow's micro-batches,
    `acknowledged` what its checkpoint has. Without --ownership only the checkpoints are shown. --json with --watch
    prints one document per line.
    """
    with queue.watching(group, ownership=ownership) as look:
        while True:
            try:
                found = look()
                yield Answer(found, _state(found, watched=watch))
            except Unavailable as error:
                if not watch:
                    raise
                output.say(f"partq: {error}", err=True)
            if not watch:
                return
            time.sleep(WATCH_S)


def _state(view: client.GroupView, *, watched: bool) -> View:
    on_terminal = sys.stdout.isatty()
    if watched and on_terminal:
        click.clear()
    yield Facts(sayings.group_in_words(view))
    for note in view.notes:
        yield f"! {note}"
    if view.flows:
        yield ""
        yield Table(values=view.flows, columns=FLOWS, noun="flow")
        yield from _sentences(sayings.flow_notes(view.flows))
    yield ""
    # What does not flow comes first where not everything can be shown.
    yield Table(values=view.partitions, columns=PARTITIONS, noun="partition", first=lambda each: not each.reason)
    yield from _sentences(sayings.reasons_in_words(view.partitions))
    if watched and not on_terminal:
        yield ""


def _sentences(lines: Sequence[str]) -> View:
    """What does not fit beside the columns of a table."""
    if lines:
        yield ""
    yield from lines[: output.MOST_ROWS]
