"""`partq queue …`: create, list, describe and delete. Altering is in `alter_command`; trimming, compaction and
collection are in `housekeeping_commands`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    SECONDS,
    Checked,
    Refused,
    Target,
    checked,
    json_option,
    queue_argument,
    target_options,
    wrong_use,
)
from partq_spark.cli.lazy import Lazy, LazyGroup

if TYPE_CHECKING:
    from partq_spark.log.model import Head, QueueConfig

T = TypeVar("T")

COMMANDS = {
    "create": Lazy("partq_spark.cli.queue_commands:create", "Create a queue."),
    "list": Lazy("partq_spark.cli.queue_commands:list_all", "List the queues of a namespace."),
    "describe": Lazy("partq_spark.cli.queue_commands:describe", "Show what a queue is and what it holds."),
    "alter": Lazy("partq_spark.cli.alter_command:alter", "Change a queue's number of partitions and its settings."),
    "delete": Lazy(
        "partq_spark.cli.queue_commands:delete", "Delete a queue, its messages and how far its groups were, for good."
    ),
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


def _partitions(text: str) -> int:
    from partq_spark.log.admin import checked_partitions

    return checked_partitions(text)


PARTITIONS = Checked("partitions", _partitions)


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
    `QueueConfig`.
    """

    @functools.wraps(command)
    def run(*args: Any, **own: Any) -> None:
        names = ("rebalance_delay_s", "max_handoff_time_s", "access_type", "max_message_bytes")
        given = {name: value for name in names if (value := own.pop(name)) is not None}
        for name in ("retention_s", "quota_bytes"):
            setting: _Given | None = own.pop(name)
            if setting is not None:
                given[name] = setting.value
        command(*args, given=given, **own)

    for option in (
        click.option("--schema", metavar="DDL", help="Comes with a later version."),
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
            help="Largest message: key, value and headers.  [default: 10000000]",
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


def configured(config: QueueConfig, given: dict[str, Any], schema: str | None) -> QueueConfig:
    """`config` with the given settings. What is out of range or not there yet is wrong use."""
    from partq_spark.log.admin import checked_config

    if schema is not None:
        wrong_use("--schema (typed payload columns) comes with a later version of partq: leave it out.")
    return checked(lambda: checked_config(replace(config, **given)))


@click.command("create")
@queue_argument
@click.option("--partitions", type=PARTITIONS, metavar="N", required=True, help="How many partitions: 1 to 1000.")
@settings_options
@json_option
@target_options
def create(
    target: Target, name: str, partitions: int, given: dict[str, Any], schema: str | None, as_json: bool
) -> None:
    """Create a queue.

    NAME is 1 to 63 of a-z, 0-9, '.', '_' and '-'. A message's key decides its partition; the order within a partition
    is kept, and at most that many consumers of one group work at the same time.
    """
    from partq_spark.log.admin import create_queue
    from partq_spark.log.model import QueueConfig
    from partq_spark.log.queue import Effects

    config = configured(QueueConfig(), given, schema)
    with target.store() as store:
        made = create_queue(
            store, target.namespace, name, partitions, config, Effects(retry_timeout_s=target.retry_timeout_s)
        )
        if as_json:
            _print_description(made.head)
        else:
            output.say(f"Created {made} with {output.plural(partitions, 'partition')}.")


@click.command("list")
@json_option
@target_options
def list_all(target: Target, as_json: bool) -> None:
    """List the queues of a namespace.

    One whose head cannot be read is shown as damaged; the others are shown all the same, and the exit code is 1.
    """
    from partq_spark.cli import queue_view
    from partq_spark.log.admin import list_queues

    with target.store() as store:
        found = list_queues(store, target.namespace)
        where = f"namespace {target.namespace!r} of {store.url}"
    if as_json:
        output.print_json(queue_view.list_document(target.namespace, found))
    elif found.readable or found.problems:
        queue_view.print_list(found)
    else:
        output.say(f"No queues in {where}. Create one: partq queue create NAME --partitions N")
    for problem in found.problems.values():
        raise problem


@click.command("describe")
@queue_argument
@click.option("--bytes", "count_bytes", is_flag=True, help="Count the stored bytes of each partition: reads the log.")
@json_option
@target_options
def describe(target: Target, name: str, count_bytes: bool, as_json: bool) -> None:
    """Show what a queue is and what it holds, how old, and what holds it back.

    Bytes are stored (compressed) ones. All of the queue's are known at once; with --bytes those of each partition are
    counted by reading the log, but not the messages.
    """
    from partq_spark.cli import queue_view

    with target.queue(name) as queue:
        queue.refresh()
        found = queue_view.find_out(queue, count_bytes=count_bytes)
        head, url = queue.head, queue.store.url
    if as_json:
        output.print_json(queue_view.description(head, found))
    else:
        queue_view.print_description(head, found, url)


@click.command("delete")
@queue_argument
@click.option("--yes", is_flag=True, help="Really delete it.")
@json_option
@target_options
def delete(target: Target, name: str, yes: bool, as_json: bool) -> None:
    """Delete a queue, its messages and how far its groups were, for good.

    Without --yes it only says what would be deleted. If a deletion was cut off, the same command finishes it.
    """
    from partq_spark.cli import queue_view
    from partq_spark.group.deleting import delete_queue, remove_remains

    with target.queue(name) as found:
        head = found.look()
        if head is None:
            # The head goes first, so what a deletion that was cut off left behind has none.
            objects = remove_remains(found) if yes else 0
            if not objects:
                found.refresh()  # says that there is no such queue
        elif not yes:
            raise Refused(f"this would delete {found} for good, with {queue_view.contents(head)}. Add --yes to do so.")
        else:
            objects = delete_queue(found)
    if as_json:
        output.print_json({"queue": name, "deleted": head is not None, "objects": objects})
    elif head is None:
        output.say(f"Removed what was left of {found}: {output.plural(objects, 'object')}.")
    else:
        output.say(f"Deleted {found}: {queue_view.contents(head)}, {output.plural(objects, 'object')}.")


def _print_description(head: Head) -> None:
    from partq_spark.cli import queue_view

    output.print_json(queue_view.description(head))
