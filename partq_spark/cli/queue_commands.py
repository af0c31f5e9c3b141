"""`partq queue …`: create, list and delete, and the options that hold a queue's settings. Other commands of the group
are in modules of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    SECONDS,
    Checked,
    Refused,
    Where,
    checked,
    checked_by,
    json_option,
    queue_argument,
    where_options,
)
from partq_spark.cli.lazy import Lazy, LazyGroup
from partq_spark.cli.output import TableColumn

T = TypeVar("T")

COMMANDS = {
    "create": Lazy("partq_spark.cli.queue_commands:create", "Create a queue."),
    "list": Lazy("partq_spark.cli.queue_commands:list_all", "List the queues of a namespace."),
    "describe": Lazy("partq_spark.cli.describe_command:describe", "Show what a queue is and what it holds."),
    "alter": Lazy("partq_spark.cli.alter_command:alter", "Change a queue's partitions, columns and settings."),
    "delete": Lazy(
        "partq_spark.cli.queue_commands:delete", "Delete a queue, its messages and how far its groups were, for good."
    ),
    "resolve": Lazy("partq_spark.cli.housekeeping_commands:resolve", "Say what batches are that were refused."),
    "subscribe": Lazy("partq_spark.cli.topic_commands:subscribe", "Let a queue attract messages by their topics."),
    "unsubscribe": Lazy("partq_spark.cli.topic_commands:unsubscribe", "Take subscriptions back."),
    "subscriptions": Lazy("partq_spark.cli.topic_commands:subscriptions", "List subscriptions."),
    "trim": Lazy("partq_spark.cli.housekeeping_commands:trim", "Make old messages unreadable."),
    "compact": Lazy("partq_spark.cli.housekeeping_commands:compact", "Join small stored pieces into large ones."),
    "collect": Lazy("partq_spark.cli.housekeeping_commands:collect", "Delete stored objects that nothing needs."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def queue() -> None:
    """Create, show, change and clean up queues."""


PARTITIONS = Checked[int]("partitions", checked_by("checked_partitions"))


class _Given(NamedTuple):
    """A setting that may be `none`, which is a value and not the lack of one."""

    value: float | int | None


def _retention(text: str) -> _Given:
    return _Given(_or_none(text, float, "retention", "seconds, as in 86400"))


def _quota(text: str) -> _Given:
    return _Given(_or_none(text, int, "quota-bytes", "a whole number of bytes"))


def _or_none(text: str, number: Callable[[str], T], name: str, what: str) -> T | None:
    if text.lower() == "none":
        return None
    try:
        return number(text)
    except ValueError:
        raise Invalid(f"{name}={text!r} is not allowed: give {what}, or none") from None


def settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the settings of a queue, as one dictionary of those that were given, by their names in
    `QueueConfig`. What is out of range is wrong use.
    """

    @functools.wraps(command)
    def run(*args: Any, **own: Any) -> None:
        from partq_spark.client.altering import checked_settings

        names = ("rebalance_delay_s", "max_handoff_time_s", "access_type", "max_message_bytes")
        given = {name: value for name in names if (value := own.pop(name)) is not None}
        for name in ("retention_s", "quota_bytes"):
            setting: _Given | None = own.pop(name)
            if setting is not None:
                given[name] = setting.value
        command(*args, given=checked(lambda: checked_settings(given)), **own)

    for option in (
        click.option(
            "--quota-bytes",
            type=Checked("bytes", _quota),
            metavar="N|none",
            help="Stored bytes of messages at which publishing is refused.  [default: none]",
        ),
        click.option(
            "--retention",
            "retention_s",
            type=Checked("seconds", _retention),
            metavar="S|none",
            help="Seconds after which messages go that every group has acknowledged.  [default: none, they stay]",
        ),
        click.option(
            "--max-message-bytes",
            type=int,
            metavar="N",
            help="Largest message: key, value and headers, or all columns.  [default: 10000000]",
        ),
        click.option(
            "--access-type",
            type=click.Choice(["exclusive", "non-exclusive"], case_sensitive=False),
            help="Whether one flow has all partitions, or flows share them.  [default: non-exclusive]",
        ),
        click.option(
            "--max-handoff-time",
            "max_handoff_time_s",
            type=SECONDS,
            metavar="S",
            help="Seconds that a handoff may wait for acknowledgements; 0 allowed.  [default: 3]",
        ),
        click.option(
            "--rebalance-delay",
            "rebalance_delay_s",
            type=SECONDS,
            metavar="S",
            help="Seconds that changes may settle before rebalancing; 0 allowed.  [default: 5]",
        ),
    ):
        run = option(run)
    return run


@click.command("create")
@queue_argument
@click.option("--partitions", type=PARTITIONS, metavar="N", required=True, help="How many partitions: 1 to 1000.")
@click.option(
    "--schema",
    metavar="DDL",
    help="Make a typed queue, whose messages are rows with these columns: 'id BIGINT NOT NULL, name STRING'.",
)
@click.option(
    "--key", metavar="COLUMN", help="The column of --schema that decides the partition.  [default: none does]"
)
@settings_options
@json_option
@where_options
def create(
    where: Where,
    name: str,
    partitions: int,
    schema: str | None,
    key: str | None,
    given: dict[str, Any],
    as_json: bool,
) -> None:
    """Create a queue.

    NAME is 1 to 63 of a-z, 0-9, '.', '_' and '-'. A message's key decides its partition; the order within a partition
    is kept, and at most that many consumers of one group work at the same time.

    A message is a key and a value of bytes. With --schema it is a row: its columns are named and typed as in Spark's
    DDL. Columns can be added and widened later; the key stays.
    """
    from partq_spark.client import checks

    columns = checked(lambda: checks.columns_from(schema, key))
    made = client.create_queue(name, partitions=partitions, schema=schema, key=key, **where.keywords, **given)
    if as_json:
        output.print_json(output.document(made.describe()))
        return
    what = words.plural(partitions, "partition")
    if columns is not None:
        keys = "messages have no key" if columns.key is None else f"key {columns.key!r}"
        what += f" and {words.plural(len(columns.columns), 'column')}; {keys}"
    output.say(f"Created {made} with {what}.")


@click.command("list")
@json_option
@where_options
def list_all(where: Where, as_json: bool) -> None:
    """List the queues of a namespace.

    One whose head cannot be read is shown as damaged; the others are shown all the same, and the exit code is 1.
    """
    found = client.list_queues(**where.keywords)
    if as_json:
        output.print_json([output.document(each) for each in found])
    elif found:
        output.print_values(
            found,
            (
                TableColumn("queue", lambda each: each.queue),
                TableColumn("partitions", lambda each: getattr(each, "partitions", None), ">"),
                TableColumn("messages", lambda each: getattr(each, "messages", None), ">"),
                TableColumn("last published (UTC)", _day, style=lambda each: "red" if _is_damaged(each) else ""),
            ),
            noun="queue",
        )
    else:
        output.say(
            f"No queues in namespace {where.namespace!r} of {where.store}. "
            "Create one: partq queue create NAME --partitions N"
        )
    for each in found:
        if isinstance(each, client.DamagedQueue):
            raise PartqError(each.error)


def _is_damaged(each: client.QueueSummary | client.DamagedQueue) -> bool:
    return isinstance(each, client.DamagedQueue)


def _day(each: client.QueueSummary | client.DamagedQueue) -> str:
    if isinstance(each, client.DamagedQueue):
        return "damaged"
    return "never" if each.last_published is None else words.when(each.last_published)[:19]


@click.command("delete")
@queue_argument
@click.option("--yes", is_flag=True, help="Really delete it.")
@json_option
@where_options
def delete(where: Where, name: str, yes: bool, as_json: bool) -> None:
    """Delete a queue, its messages and how far its groups were, for good.

    Without --yes it only says what would be deleted. If a deletion was cut off, the same command finishes it.
    """
    found = where.queue(name)
    held, damage = None, ""
    try:
        held = found.summary()
    except client.Corrupt as error:
        damage = str(error)
    if damage and not yes:
        raise Refused(
            f"this would delete {found} for good; what is in it cannot be read: {damage}. Or add --yes to delete it."
        )
    if held is not None and not yes:
        raise Refused(f"this would delete {found} for good, with {_contents(held)}. Add --yes to do so.")
    if not yes:
        found.describe()  # says that there is no such queue
    done = found.delete()
    if as_json:
        output.print_json(output.document(done))
    elif held is None or not done.deleted:
        what = "Deleted" if done.deleted else "Removed what was left of"
        output.say(f"{what} {found}: {words.plural(done.objects, 'object')}.")
    else:
        output.say(f"Deleted {found}: {_contents(held)}, {words.plural(done.objects, 'object')}.")


def _contents(held: client.QueueSummary) -> str:
    """What would be lost with the queue, in words."""
    text = f"{words.plural(held.messages, 'message')} in {words.plural(held.partitions, 'partition')}"
    if held.groups:
        text += f", {words.plural(len(held.groups), 'group')} ({', '.join(held.groups)})"
    return text + (f", last published {words.when(held.last_published)} UTC" if held.last_published else "")
