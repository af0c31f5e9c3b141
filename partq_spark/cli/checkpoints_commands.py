"""`partq checkpoints`: how far a group is by its checkpoints, and taking it back to an earlier place."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    TIME,
    Checked,
    Refused,
    Target,
    group_option,
    json_option,
    queue_argument,
    target_options,
    wrong_use,
)
from partq_spark.cli.lazy import Lazy, LazyGroup

if TYPE_CHECKING:
    from partq_spark.group.checkpoints import CheckpointStore
    from partq_spark.group.rewinding import Goal, Outcome, Step
    from partq_spark.group.stores.api import OwnershipStore
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

EARLIEST = "earliest"


def _place(text: str) -> int | str:
    if text == EARLIEST:
        return text
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise Invalid(f"{text!r} is not allowed: give an offset (a whole number from 0) or {EARLIEST!r}")
    return int(text)


class Checkpoints(LazyGroup):
    """`partq checkpoints NAME` shows; a first word that is a command is that command. A queue that has such a name is
    shown by `partq checkpoints show NAME`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.lazy and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


COMMANDS = {
    "show": Lazy("partq_spark.cli.checkpoints_commands:show", "Show the checkpoint of every partition."),
    "rewind": Lazy("partq_spark.cli.checkpoints_commands:rewind", "Take a group back: messages are delivered again."),
}


@click.group("checkpoints", cls=Checkpoints, lazy=COMMANDS)
def checkpoints() -> None:
    """Show how far a consumer group is, and take it back.

    \b
    partq checkpoints NAME --group G
    partq checkpoints rewind NAME --group G --to earliest --yes
    """


@click.command("show")
@queue_argument
@group_option
@json_option
@target_options
def show(target: Target, name: str, group: str, as_json: bool) -> None:
    """Show the checkpoint of every partition.

    `acknowledged` is the next message to deliver: everything before it is dealt with. Messages below `redelivered
    below` may have been delivered before. `flow` has the partition, or had it last.
    """
    from partq_spark.cli import checkpoints_view

    with target.queue(name) as queue:
        head = queue.refresh()
        found, damaged = _checkpoints(queue, head, group).list_readable()
        shown = checkpoints_view.rows(head, group, found, damaged)
        if as_json:
            output.print_json(checkpoints_view.document(queue, group, shown))
        else:
            checkpoints_view.print_rows(shown, now_us=queue.effects.time_us())
        for problem in damaged.values():
            raise problem


@click.command("rewind")
@queue_argument
@group_option
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
    type=Checked("offset", _place),
    metavar="OFFSET",
    help="To this offset of each partition, or `earliest`: to the first message that is kept.",
)
@click.option(
    "--to-timestamp",
    "time_us",
    type=TIME,
    metavar="RFC3339",
    help="To the first message published then or later; a partition that is not as far stays.",
)
@click.option("--by", type=click.IntRange(min=1), metavar="N", help="By so many messages of each partition.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Really do it.")
@json_option
@target_options
def rewind(
    target: Target,
    name: str,
    group: str,
    partitions: tuple[int, ...],
    to: int | str | None,
    time_us: int | None,
    by: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Take a group back: messages are delivered again.

    They are marked as redelivered. Without --yes it only says what would come again; all is checked before anything is
    changed. A flow that has a partition loses it, and gets it again from the earlier place, by the coordinator, which
    hears of it at once with --ownership. If the command was cut off, the same command finishes it (with --by: for the
    partitions that are left).
    """
    from partq_spark.cli import checkpoints_view

    goal = _goal(to, time_us, by)
    with (
        target.queue(name) as queue,
        target.for_group(queue.refresh(), group).group_ownership(queue.store) as ownership,
    ):
        head = queue.refresh()
        store = _checkpoints(queue, head, group)
        steps = _plan(queue, head, group, store, partitions, goal)
        notes = _notes(queue, group, steps, ownership)
        if dry_run or not yes:
            _print_plan(queue, group, steps, notes, as_json=as_json, dry_run=dry_run)
            return
        from partq_spark.group.rewinding import carry_out

        outcome = carry_out(queue, store, group, steps)
        notes += [
            f"offsets {each.start} to {each.end} of partition {each.partition} were trimmed while this went on and do "
            "not come again: flows of the group go past them with failOnDataLoss=false"
            for each in outcome.gone
        ]
        if ownership is not None:
            _announce(queue, ownership)
        if as_json:
            output.print_json(checkpoints_view.rewound_document(queue, group, steps, outcome, notes))
        else:
            checkpoints_view.print_rewound(queue, group, steps, outcome, notes)
        if outcome.error is not None:
            raise _unfinished(steps, outcome)


def _checkpoints(queue: Queue, head: Head, group: str) -> CheckpointStore:
    from partq_spark.group.lifecycle import checkpoints_of
    from partq_spark.log.admin import group_of

    group_of(queue, head, group)
    return checkpoints_of(queue, group)


def _goal(to: int | str | None, time_us: int | None, by: int | None) -> Goal:
    from partq_spark.group.rewinding import Goal

    if sum(each is not None for each in (to, time_us, by)) != 1:
        wrong_use("say where to go back to: give exactly one of --to, --to-timestamp and --by.")
    if to == EARLIEST:
        return Goal(earliest=True)
    return Goal(offset=None if to is None else int(to), time_us=time_us, by=by)


def _plan(
    queue: Queue, head: Head, group: str, store: CheckpointStore, partitions: tuple[int, ...], goal: Goal
) -> tuple[Step, ...]:
    from partq_spark.group.rewinding import plan
    from partq_spark.log.admin import group_of

    group_of(queue, head, group)
    return plan(str(queue), head, store.list_readable(), partitions, goal, queue.offsets_at)


def _notes(queue: Queue, group: str, steps: tuple[Step, ...], ownership: OwnershipStore | None) -> list[str]:
    """What a person should know of those who have the partitions. Raises `Invalid` for an ownership that can never be
    used as it is given.
    """
    from partq_spark.group.model import GroupKey

    owners = sorted({step.owner.flow for step in steps if step.owner is not None and step.is_needed})
    flows = " and ".join([*owners[:1], *([output.plural(len(owners) - 1, "other flow")] if owners[1:] else [])])
    if ownership is None:
        note = (
            f"partitions belong to {flows}: without --ownership a coordinator notices when it looks at the queue the "
            "next time (looks.heads_s: 1 s on file:, 5 s on azure:), a query with ownership=none within its "
            "checkpointInterval"
        )
        return [note] if owners else []
    try:
        lease = ownership.read_lease(GroupKey(queue.namespace, queue.name, group))
    except Unavailable as error:
        return [f"coordinators cannot be told, they notice by themselves within seconds: {error}"]
    if owners and (lease is None or not lease.lease.token):
        return [f"partitions belong to {flows}, no coordinator leads the group: start one with `partq coordinator run`"]
    return []


def _print_plan(
    queue: Queue, group: str, steps: tuple[Step, ...], notes: list[str], *, as_json: bool, dry_run: bool
) -> None:
    from partq_spark.cli import checkpoints_view

    if as_json:
        output.print_json(checkpoints_view.rewound_document(queue, group, steps, None, notes))
    else:
        checkpoints_view.print_plan(steps, notes)
    messages = output.plural(sum(step.messages for step in steps), "message")
    if not dry_run:
        raise Refused(f"this would deliver {messages} of {queue} to group {group!r} again. Add --yes to do so.")
    if not as_json:
        output.say(f"Would deliver {messages} of {queue} to group {group!r} again. Nothing was changed.")


def _announce(queue: Queue, ownership: OwnershipStore) -> None:
    """Tell coordinators to look at the queue's head."""
    from partq_spark.group.model import GroupKey
    from partq_spark.group.stores.api import HEAD

    with contextlib.suppress(Unavailable):  # they look by themselves, too
        ownership.announce(GroupKey(queue.namespace, queue.name, HEAD))


def _unfinished(steps: tuple[Step, ...], outcome: Outcome) -> PartqError:
    from partq_spark.cli.status_view import ranges

    done = [each.after for each in outcome.done]
    numbers = [each.partition for each in done]
    left = [step.partition for step in steps if step.is_needed and step.partition not in numbers]
    so_far = f"{ranges(numbers)} {'is' if len(done) == 1 else 'are'} rewound" if done else "nothing was changed"
    if left:
        which = " ".join(f"--partition {number}" for number in left)
        text = f"partition {left[0]} was not rewound, {so_far}: {outcome.error}; repeat the command with {which}"
    else:
        again = f"--partition {done[0].partition} --to {done[0].offset}" if done else "the same options"
        text = (
            f"{so_far}, but the queue's head could not be told, so that flows may not notice: {outcome.error}; repeat "
            f"the command with {again}"
        )
    return PartqError(text)
