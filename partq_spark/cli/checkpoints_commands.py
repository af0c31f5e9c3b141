"""`partq checkpoints`: how far a group is by its checkpoints, and taking it back to an earlier place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import Invalid, PartqError, WrongUse
from partq_spark.base.timestamps import parse_rfc3339, unix_us
from partq_spark.cli.arguments import TIME, Checked, command, group_option, require_yes, yes_option
from partq_spark.cli.output import Answer, Table, TableColumn, View
from partq_spark.client import words as sayings


def _place(text: str) -> int | str:
    from partq_spark.client.groups import checked_place

    return checked_place(text)


REWINDS = (
    TableColumn("partition", lambda each: each.partition, ">"),
    TableColumn("from", lambda each: each.from_, ">"),
    TableColumn("to", lambda each: each.to, ">"),
    TableColumn("come again", lambda each: each.messages, ">"),
    TableColumn("flow", lambda each: each.flow or "nobody"),
)


@command("show")
@group_option
def show(queue: client.Queue, group: str) -> Iterator[Answer]:
    """Show the checkpoint of every partition.

    `acknowledged` is the next message to deliver: everything before it is dealt with. Messages below `redelivered
    below` may have been delivered before. `flow` has the partition, or had it last.
    """
    found = queue.checkpoints(group)
    yield Answer(found, _shown(found))
    for each in found.partitions:
        if isinstance(each, client.DamagedCheckpoint):
            raise PartqError(each.error)


def _shown(found: client.GroupCheckpoints) -> View:
    # Where not everything can be shown, what is damaged and what is furthest behind.
    yield Table(
        values=found.partitions,
        columns=_columns(),
        noun="partition",
        first=lambda each: (not isinstance(each, client.DamagedCheckpoint), -getattr(each, "lag", 0)),
    )
    yield ""
    lag = words.plural(found.lag, "message")
    yield f"Total: {words.plural(len(found.partitions), 'partition')}, {lag} to be acknowledged."


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


@command("rewind")
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
@yes_option("do it")
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
) -> Iterator[Answer]:
    """Take a group back: messages are delivered again.

    They are marked as redelivered. Without --yes it only says what would come again; all is checked before anything is
    changed. A flow that has a partition loses it, and gets it again from the earlier place, by the coordinator, which
    hears of it at once with --ownership. If the command was cut off, the same command finishes it (with --by: for the
    partitions that are left).
    """
    if sum(each is not None for each in (to, to_timestamp, by)) != 1:
        raise WrongUse("say where to go back to: give exactly one of --to, --to-timestamp and --by.")
    only_say = dry_run or not yes
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
        yield Answer(error.rewind, _rewound(error.rewind, queue, finished=False))
        raise
    if only_say:
        yield Answer(done, _planned(done, queue, dry_run=dry_run))
        require_yes(dry_run, f"deliver {sayings.comes_again(done, queue)}")
    else:
        yield Answer(done, _rewound(done, queue, finished=True))


def _planned(planned: client.Rewind, queue: client.Queue, *, dry_run: bool) -> View:
    yield _steps(planned.partitions)
    yield from _notes(planned)
    if dry_run:
        yield f"Would deliver {sayings.comes_again(planned, queue)}. Nothing was changed."


def _rewound(rewind: client.Rewind, queue: client.Queue, *, finished: bool) -> View:
    """What was done."""
    done = [each for each in rewind.partitions if each.rewound]
    if done:
        yield _steps(done)
    if told := sayings.rewound(rewind, queue, finished=finished):
        yield told
    yield from _notes(rewind)


def _steps(steps: Sequence[client.PartitionRewind]) -> Table:
    # Where not everything can be shown, what moves furthest.
    return Table(values=steps, columns=REWINDS, noun="partition", first=lambda each: each.to - each.from_)


def _notes(rewind: client.Rewind) -> View:
    yield from (f"! {note}" for note in rewind.notes)
