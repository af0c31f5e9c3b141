"""`partq group`, `partq status` and `partq checkpoints`: the consumer groups of a queue, how one is shared, and how it
is removed; who has which partition, and why; how far a group is, and taking it back to an earlier place.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.effects import parse_rfc3339
from partq_spark.base.errors import Invalid, PartqError, Unavailable, WrongUse
from partq_spark.cli.commands import (
    OWNERSHIP,
    TIME,
    Answer,
    Checked,
    Facts,
    View,
    command,
    require_yes,
    say,
)
from partq_spark.cli.tables import MOST_ROWS, Table, TableColumn, numbers
from partq_spark.client import arguments
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
    *numbers("partition"),
    TableColumn("status", lambda each: each.status, style=lambda each: COLOURS[each.status]),
    TableColumn("flow", lambda each: each.flow),
    TableColumn("epoch", lambda each: str(each.epoch), ">"),
    *numbers("acknowledged", "delivered", "end", "lag"),
    TableColumn("lag_s", sayings.lag_s, ">"),
)
FLOWS = (
    TableColumn("flow", lambda each: each.flow),
    TableColumn(
        "state",
        sayings.flow_state,
        style=lambda each: "green" if each.active else "yellow" if each.bound else "red",
    ),
    TableColumn("partitions", lambda each: words.ranges(each.partitions), "*"),
    TableColumn("last seen", sayings.last_seen, ">"),
)
REWINDS = (
    *numbers("partition"),
    TableColumn("from", lambda each: each.from_, ">"),
    *numbers("to"),
    TableColumn("come again", lambda each: each.messages, ">"),
    TableColumn("flow", lambda each: each.flow or "nobody"),
)


@command("list")
def list_all(queue: client.Queue, ownership: str | None) -> View:
    """List the consumer groups of a queue.

    `unacknowledged` messages are those that each group still has to deal with, `oldest` is when the first of them was
    published. `changed` is how long ago a checkpoint was written. `ownership` is how the group is shared. With
    --ownership also the flows that are bound.
    """
    found = queue.groups(ownership=ownership)
    yield Answer(found)
    if not found:
        yield f"No groups in {queue}. A group is made by the first query or consumer that names it."
        return
    known = any(each.flows is not None for each in found)
    yield Table(values=found, columns=(*GROUPS, THEIR_FLOWS) if known else GROUPS, noun="group")
    for each in found:
        for problem in each.problems:
            yield f"! group {each.group}: {problem}"


@command("alter")
@click.option(
    "--from",
    "former",
    type=OWNERSHIP,
    metavar="URL",
    help="Where the group has been sharing so far: the Redis that knows whether a flow lives.  [default: "
    "$PARTQ_OWNERSHIP if that is one; store needs no address]",
)
@click.option("--force", is_flag=True, help="Also where nobody can know whether a flow lives.")
def alter(queue: client.Queue, ownership: str | None, group: str, former: str | None, force: bool) -> View:
    """Change how a consumer group is shared: by --ownership, to be given here, which its flows must have from then on.

    Checkpoints stay. Refused while one of its flows lives: a moving heartbeat says so where the group was shared, else
    a checkpoint that was changed within the last minute. A flow that lives all the same ends when it looks at the
    queue the next time, before it delivers.
    """
    if ownership is None:
        raise WrongUse("say how the group is to be shared: --ownership redis://host:port/db, store or none.")
    done = queue.alter_group(group, ownership=ownership, former=former, force=force)
    yield Answer(done)
    if not done.changed:
        which = " Which Redis that is, is not written down." if done.ownership == "redis" else ""
        yield f"Group {group!r} of {queue} has ownership={done.ownership} already.{which}"
        return
    before = "no flow had joined it yet" if done.was is None else f"it had ownership={done.was}"
    yield f"Group {group!r} of {queue} has ownership={done.ownership} from now on; {before}."


@command("remove")
@click.option(
    "--force",
    is_flag=True,
    help="Also where a checkpoint was changed within the last minute and no ownership says who lives.",
)
def remove(queue: client.Queue, ownership: str | None, group: str, yes: bool, force: bool) -> View:
    """Remove a consumer group for good: how far it was is forgotten, and nothing is held back for it any more.

    Without --yes it only says what would be removed. Refused while one of its flows lives: with --ownership a moving
    heartbeat says so, without it a checkpoint that was changed within the last minute. If a removal was cut off, the
    same command finishes it. A group that is made again under this name begins anew.
    """
    done = queue.remove_group(group, ownership=ownership, force=force, dry_run=not yes)
    checkpoints = words.plural(done.checkpoints, "checkpoint")
    what = f"group {group!r}" if done.removed else f"what is left of group {group!r}"
    require_yes(yes, f"remove {what}, with {checkpoints} of {queue} for good")
    yield Answer(done)
    if done.removed:
        yield f"Removed group {group!r} of {queue}, with {checkpoints}."
    else:
        yield f"Removed what was left of group {group!r} of {queue}."


# --- status -----------------------------------------------------------------------------------------------------------


@command("status")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def status(queue: client.Queue, ownership: str | None, group: str, watch: bool) -> View:
    """Show which flow has which partition, and why one does not flow.

    Offsets are exclusive ends: the next message to come. `delivered` is what was handed to the flow's micro-batches,
    `acknowledged` what its checkpoint has. Of a group that a Redis shares only the checkpoints are shown without
    --ownership. --json with --watch prints one document per line.
    """
    with queue.watching(group, ownership=ownership) as look:
        while True:
            try:
                found = look()
                yield Answer(found)
                yield _state(found, watched=watch)
            except Unavailable as error:
                if not watch:
                    raise
                say(f"partq: {error}", err=True)
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
        yield _sentences(sayings.flow_notes(view.flows))
    yield ""
    # What does not flow comes first where not everything can be shown.
    yield Table(values=view.partitions, columns=PARTITIONS, noun="partition", first=lambda each: not each.reason)
    yield _sentences(sayings.reasons_in_words(view.partitions))
    if watched and not on_terminal:
        yield ""


def _sentences(lines: Sequence[str]) -> View:
    """What does not fit beside the columns of a table."""
    if lines:
        yield ""
    yield from lines[:MOST_ROWS]


# --- checkpoints ------------------------------------------------------------------------------------------------------


@command("show")
def checkpoints(queue: client.Queue, group: str) -> View:
    """Show the checkpoint of every partition.

    `acknowledged` is the next message to deliver: everything before it is dealt with. Messages below `redelivered
    below` may have been delivered before. `flow` has the partition, or had it last.
    """
    found = queue.checkpoints(group)
    yield Answer(found)
    # Where not everything can be shown, what is damaged and what is furthest behind.
    yield Table(
        values=found.partitions,
        columns=CHECKPOINTS,
        noun="partition",
        first=lambda each: (not isinstance(each, client.DamagedCheckpoint), -getattr(each, "lag", 0)),
    )
    yield ""
    lag = words.plural(found.lag, "message")
    yield f"Total: {words.plural(len(found.partitions), 'partition')}, {lag} to be acknowledged."
    for each in found.partitions:
        if isinstance(each, client.DamagedCheckpoint):
            raise PartqError(each.error)


def _has(each: client.PartitionCheckpoint | client.DamagedCheckpoint) -> str:
    """Which flow has the partition, or had it last."""
    if isinstance(each, client.DamagedCheckpoint):
        return "damaged"
    return "none yet" if each.updated is None else each.flow or "nobody"


def _below(each: client.PartitionCheckpoint | client.DamagedCheckpoint) -> int | None:
    mark = getattr(each, "redelivered_below", 0)
    return mark if mark > getattr(each, "acknowledged", 0) else None


def _updated(each: client.PartitionCheckpoint | client.DamagedCheckpoint) -> str | None:
    """How long ago a writer's clock said that it was, in words; the text as it is where that is no time."""
    text = getattr(each, "updated", None)
    try:
        return None if text is None else words.age(time.time() - parse_rfc3339(text) / 1e6)
    except Invalid:
        return text


CHECKPOINTS = tuple(
    each._replace(style=lambda row: "red" if isinstance(row, client.DamagedCheckpoint) else "")
    for each in (
        *numbers("partition"),
        TableColumn("epoch", lambda each: getattr(each, "epoch", 0) or None, ">"),
        TableColumn("flow", _has),
        *numbers("acknowledged", "end", "lag"),
        TableColumn("redelivered below", _below, ">"),
        TableColumn("updated", _updated, ">"),
    )
)


@command("rewind")
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="P",
    help="Only this one; may be given several times.  [default: all]",
)
@click.option(
    "--to",
    type=Checked("offset", arguments.checked_place),
    metavar="OFFSET",
    help="To this offset of each partition, or `earliest`: to the first message that is kept.",
)
@click.option(
    "--to-timestamp",
    type=TIME,
    metavar="RFC3339",
    help="To the first message published then or later; a partition that is not as far stays.",
)
@click.option("--by", type=click.IntRange(min=1), metavar="N", help="By so many messages of each partition.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
def rewind(
    queue: client.Queue,
    ownership: str | None,
    group: str,
    partitions: tuple[int, ...],
    to: int | str | None,
    to_timestamp: str | None,
    by: int | None,
    dry_run: bool,
    yes: bool,
) -> View:
    """Take a group back: messages are delivered again.

    They are marked as redelivered. Without --yes it only says what would come again; all is checked before anything is
    changed. A flow that has a partition loses it, and gets it again from the earlier place, by the coordinator, which
    a Redis as --ownership tells at once. If the command was cut off, the same command finishes it (with --by: for the
    partitions that are left).
    """
    only_say = dry_run or not yes
    unfinished: client.RewindUnfinished | None = None
    try:
        done = queue.rewind(
            group,
            to=to,
            to_timestamp=to_timestamp,
            by=by,
            partitions=partitions,
            dry_run=only_say,
            ownership=ownership,
        )
    except client.RewindUnfinished as error:
        done, unfinished = error.rewind, error
    yield Answer(done)
    steps = [each for each in done.partitions if only_say or each.rewound]
    if steps:
        # Where not everything can be shown, what moves furthest.
        yield Table(values=steps, columns=REWINDS, noun="partition", first=lambda each: each.to - each.from_)
    if not only_say and (told := sayings.rewound(done, queue, finished=unfinished is None)):
        yield told
    yield from (f"! {note}" for note in done.notes)
    if unfinished is not None:
        raise unfinished
    if only_say:
        require_yes(dry_run, f"deliver {sayings.comes_again(done, queue)}")
        yield f"Would deliver {sayings.comes_again(done, queue)}. Nothing was changed."
