"""`partq queue alter`: settings, columns and the partition count, in one swap; or what that would mean, without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from partq_spark import client
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    Checked,
    Where,
    checked,
    checked_by,
    json_option,
    queue_argument,
    where_options,
    wrong_use,
)
from partq_spark.cli.output import TableColumn
from partq_spark.cli.queue_commands import PARTITIONS, settings_options
from partq_spark.client import words as sayings

DRAINS = (
    TableColumn("partition", lambda each: each.partition, ">"),
    TableColumn("acknowledged", lambda each: each.acknowledged, ">"),
    TableColumn("end", lambda each: each.end, ">"),
    TableColumn("left", lambda each: each.messages, ">"),
)

COLUMNS = Checked[str]("ddl", checked_by("checked_ddl"))


@click.command("alter")
@queue_argument
@click.option("--partitions", type=PARTITIONS, metavar="M", help="The new number of partitions: 1 to 1000.")
@click.option(
    "--add-column",
    "add_columns",
    type=COLUMNS,
    metavar="DDL",
    multiple=True,
    help="A new column of a typed queue, null in the messages that are there: 'coupon STRING'.  May be repeated.",
)
@click.option(
    "--widen",
    type=COLUMNS,
    metavar="DDL",
    multiple=True,
    help="A column with a wider type, which holds every value of its own: 'count BIGINT'.  May be repeated.",
)
@click.option("--schema", metavar="DDL", help="All columns: refused unless the queue has them, with what to do.")
@settings_options
@click.option("--dry-run", is_flag=True, help="Say what would change and what would wait for what; change nothing.")
@json_option
@where_options
def alter(
    where: Where,
    name: str,
    partitions: int | None,
    add_columns: tuple[str, ...],
    widen: tuple[str, ...],
    schema: str | None,
    given: dict[str, Any],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change a queue's partitions, columns and settings.

    Those that are given change, and no others. Publishers and consumers may go on meanwhile. Under another number of
    partitions a key lies in another one: what is published after the change is delivered when what shares its keys is
    acknowledged, group by group.

    Columns of a typed queue are added, or get a wider type: TINYINT, SMALLINT, INT, BIGINT in this order, FLOAT to
    DOUBLE, a DECIMAL more digits. Nothing else is possible, because messages that are there must keep their values.
    """
    if not given and partitions is None and not add_columns and not widen and schema is None:
        wrong_use("nothing to alter: give --partitions, --add-column, --widen or at least one setting.")
    if schema is not None:
        from partq_spark.client import checks

        checked(lambda: checks.columns_from(schema, None))
    done = where.queue(name).alter(
        partitions=partitions,
        add_column=", ".join(add_columns) or None,
        widen=", ".join(widen) or None,
        schema=schema,
        dry_run=dry_run,
        ownership=where.ownership,
        **given,
    )
    if done.groups is None:
        output.say("The queue was altered; what its groups have left cannot be read now.", err=True)
    if as_json:
        output.print_json(_document(done))
        return
    for line in sayings.settings(done):
        output.say(line)
    for line in sayings.columns(done):
        output.say(line)
    for line in sayings.moves(done):
        output.say(line)
    if done.partitions is not None and done.partitions.from_ != done.partitions.to and done.groups is not None:
        _print_groups(done.groups, done=not dry_run)
    if dry_run:
        output.say("Nothing was changed.")


def _document(done: client.Alteration) -> dict[str, output.Json]:
    """What would be done; or the queue as it is now, with what its groups have to acknowledge first."""
    if done.dry_run:
        return {name: value for name, value in output.documents(done).items() if name != "description"}
    described = output.documents(done.description)
    if done.partitions is None or done.partitions.from_ == done.partitions.to:
        return described
    return {**described, "groups_first": output.document(done.groups)}


def _print_groups(groups: Sequence[client.GroupPlan], *, done: bool) -> None:
    """What each group has to acknowledge first. `done`: the count has changed."""
    for each in groups:
        output.say(sayings.first(each, done=done))
        if each.first:
            # Where not everything can be shown, what takes longest.
            output.print_values(each.first, DRAINS, noun="partition", first=lambda drain: -drain.messages)
            for line in sayings.waits_in_words(each, done=done):
                output.say(line)
    if not groups:
        output.say("The queue has no group that could wait for anything.")
