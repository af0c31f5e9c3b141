"""`partq checkpoints`: how far a group is by its checkpoints, and taking it back to an earlier place."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.base.timestamps import parse_rfc3339, unix_us
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    TIME,
    Checked,
    Refused,
    Where,
    group_option,
    json_option,
    queue_argument,
    where_options,
    wrong_use,
)
from partq_spark.cli.lazy import Lazy, LazyGroup
from partq_spark.cli.output import TableColumn
from partq_spark.client import words as sayings


def _place(text: str) -> int | str:
    from partq_spark.client.groups import checked_place

    return checked_place(text)


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
REWINDS = (
    TableColumn("partition", lambda each: each.partition, ">"),
    TableColumn("from", lambda each: each.from_, ">"),
    TableColumn("to", lambda each: each.to, ">"),
    TableColumn("come again", lambda each: each.messages, ">"),
    TableColumn("flow", lambda each: each.flow or "nobody"),
)


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
@where_options
def show(where: Where, name: str, group: str, as_json: bool) -> None:
    """Show the checkpoint of every partition.

    `acknowledged` is the next message to deliver: everything before it is dealt with. Messages below `redelivered
    below` may have been delivered before. `flow` has the partition, or had it last.
    """
    found = where.queue(name).checkpoints(group)
    if as_json:
        output.print_json(output.document(found))
    else:
        # Where not everything can be shown, what is damaged and what is furthest behind.
        output.print_values(
            found.partitions,
            _columns(),
            noun="partition",
            first=lambda each: (not isinstance(each, client.DamagedCheckpoint), -getattr(each, "lag", 0)),
        )
        output.say()
        lag = words.plural(found.lag, "message")
        output.say(f"Total: {words.plural(len(found.partitions), 'partition')}, {lag} to be acknowledged.")
    for each in found.partitions:
        if isinstance(each, client.DamagedCheckpoint):
            raise PartqError(each.error)


def _columns() -> tuple[TableColumn, ...]:
    now_us = unix_us(datetime.now(UTC))

    def flow(each: client.PartitionCheckpoint | client.DamagedCheckpoint) -> str:
        if isinstance(each, client.DamagedCheckpoint):
            return "damaged"
        return "none yet" if each.updated is None else each.flow or "nobody"

    def of(name: str) -> TableColumn:
        return TableColumn(name, lambda each: getattr(each, name, None), ">")

    def below(each: client.PartitionCheckpoint) -> int | None:
        mark = getattr(each, "redelivered_below", 0)
        return mark if mark > getattr(each, "acknowledged", 0) else None

    def updated(each: client.PartitionCheckpoint) -> str | None:
        text = getattr(each, "updated", None)
        return None if text is None else _age(text, now_us)

    columns = (
        of("partition"),
        TableColumn("epoch", lambda each: getattr(each, "epoch", 0) or None, ">"),
        TableColumn("flow", flow),
        *(of(name) for name in ("acknowledged", "end", "lag")),
        TableColumn("redelivered below", below, ">"),
        TableColumn("updated", updated, ">"),
    )
    return tuple(
        each._replace(style=lambda row: "red" if isinstance(row, client.DamagedCheckpoint) else "") for each in columns
    )


def _age(updated: str, now_us: int) -> str:
    """How long ago a writer's clock said that it was, in words; the text as it is where that is no time."""
    try:
        return words.age((now_us - parse_rfc3339(updated)) / 1e6)
    except Invalid:
        return updated


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
    type=TIME,
    metavar="RFC3339",
    help="To the first message published then or later; a partition that is not as far stays.",
)
@click.option("--by", type=click.IntRange(min=1), metavar="N", help="By so many messages of each partition.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--yes", is_flag=True, help="Really do it.")
@json_option
@where_options
def rewind(
    where: Where,
    name: str,
    group: str,
    partitions: tuple[int, ...],
    to: int | str | None,
    to_timestamp: str | None,
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
    if sum(each is not None for each in (to, to_timestamp, by)) != 1:
        wrong_use("say where to go back to: give exactly one of --to, --to-timestamp and --by.")
    queue = where.queue(name)
    only_say = dry_run or not yes
    try:
        done = queue.rewind(
            group,
            to=to,
            to_timestamp=to_timestamp,
            by=by,
            partitions=partitions,
            dry_run=only_say,
            ownership=where.ownership,
        )
    except client.RewindUnfinished as error:
        _print(queue, error.rewind, as_json=as_json, finished=False)
        raise
    if not only_say:
        _print(queue, done, as_json=as_json, finished=True)
        return
    if as_json:
        output.print_json(output.document(done))
    else:
        _print_steps(done.partitions)
        _print_notes(done)
    if not dry_run:
        raise Refused(f"this would deliver {sayings.comes_again(done, queue)}. Add --yes to do so.")
    if not as_json:
        output.say(f"Would deliver {sayings.comes_again(done, queue)}. Nothing was changed.")


def _print(queue: client.Queue, rewind: client.Rewind, *, as_json: bool, finished: bool) -> None:
    """What was done."""
    if as_json:
        output.print_json(output.document(rewind))
        return
    done = [each for each in rewind.partitions if each.rewound]
    if done:
        _print_steps(done)
    if told := sayings.rewound(rewind, queue, finished=finished):
        output.say(told)
    _print_notes(rewind)


def _print_steps(steps: tuple[client.PartitionRewind, ...] | list[client.PartitionRewind]) -> None:
    # Where not everything can be shown, what moves furthest.
    output.print_values(steps, REWINDS, noun="partition", first=lambda each: each.to - each.from_)


def _print_notes(rewind: client.Rewind) -> None:
    for note in rewind.notes:
        output.say(f"! {note}")
