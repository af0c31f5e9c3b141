"""`partq queue create`, `list`, `describe`, `alter` and `delete`: what a queue is; and `subscribe`, `unsubscribe` and
`subscriptions`: which topics it attracts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import PartqError, WrongUse
from partq_spark.cli.commands import (
    NAME,
    PARTITIONS,
    TOPIC,
    Answer,
    Checked,
    Facts,
    View,
    command,
    require_yes,
    say,
    settings_options,
)
from partq_spark.cli.tables import Table, TableColumn, numbers
from partq_spark.client import arguments
from partq_spark.client import words as sayings
from partq_spark.client.arguments import NamespaceAddress

COLUMNS = Checked("ddl", arguments.checked_ddl)
SUBSCRIPTION = Checked("subscription", arguments.checked_subscription)
subscriptions_argument = click.argument("wanted", metavar="SUBSCRIPTION...", type=SUBSCRIPTION, nargs=-1, required=True)
ANYTHING = "anything by its topic"
LET_ONE = "Let one: partq queue subscribe NAME SUBSCRIPTION"
DAMAGED = "damaged"
DRAINS = (*numbers("partition", "acknowledged", "end"), TableColumn("left", lambda each: each.messages, ">"))
_BAR = 16  # characters of the longest bar


# --- create -----------------------------------------------------------------------------------------------------------


@command("create")
@click.argument("name", type=NAME)
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
def create(
    where: NamespaceAddress, name: str, partitions: int, schema: str | None, key: str | None, given: dict[str, Any]
) -> View:
    """Create a queue.

    NAME is 1 to 63 of a-z, 0-9, '.', '_' and '-'. A message's key decides its partition; the order within a partition
    is kept, and at most that many consumers of one group work at the same time.

    A message is a key and a value of bytes. With --schema it is a row: its columns are named and typed as in Spark's
    DDL. Columns can be added and widened later; the key stays.
    """
    made = client.create_queue(name, partitions=partitions, schema=schema, key=key, **asdict(where), **given)
    found = made.describe()
    yield Answer(found)
    what = words.plural(found.layout.partitions, "partition")
    if found.schema is not None:
        keys = "messages have no key" if found.schema.key is None else f"key {found.schema.key!r}"
        what += f" and {words.plural(len(found.schema.columns), 'column')}; {keys}"
    yield f"Created {made} with {what}."


# --- list -------------------------------------------------------------------------------------------------------------


@command("list")
def list_all(where: NamespaceAddress) -> View:
    """List the queues of a namespace.

    One whose head cannot be read is shown as damaged; the others are shown all the same, and the exit code is 1.
    """
    found = client.list_queues(**asdict(where))
    yield Answer(found)
    if not found:
        yield (
            f"No queues in namespace {where.namespace!r} of {where.store}. "
            "Create one: partq queue create NAME --partitions N"
        )
        return
    yield Table(values=found, columns=QUEUES, noun="queue")
    for each in found:
        if isinstance(each, client.DamagedQueue):
            raise PartqError(each.error)


def _day(each: client.QueueSummary | client.DamagedQueue) -> str:
    if isinstance(each, client.DamagedQueue):
        return DAMAGED
    return "never" if each.last_published is None else words.when(each.last_published)[:19]


QUEUES = (
    TableColumn("queue", lambda each: each.queue),
    *numbers("partitions", "messages"),
    TableColumn("last published (UTC)", _day, style=lambda each: "red" if _day(each) == DAMAGED else ""),
)


# --- describe ---------------------------------------------------------------------------------------------------------


@command("describe")
@click.option("--bytes", "count_bytes", is_flag=True, help="Count the stored bytes of each partition: reads the log.")
def describe(queue: client.Queue, count_bytes: bool) -> View:
    """Show what a queue is and what it holds, how old, and what holds it back.

    Bytes are stored (compressed) ones. All of the queue's are known at once; with --bytes those of each partition are
    counted by reading the log, but not the messages.
    """
    found = queue.describe(count_bytes=count_bytes)
    yield Answer(found)
    yield Facts(sayings.queue_in_words(found))
    yield _columns(found)
    most = max(each.messages for each in found.partitions)
    columns = [*numbers("partition", "earliest", "next", "messages")]
    if count_bytes:
        columns.append(TableColumn("stored", lambda each: "" if each.bytes is None else words.size(each.bytes), ">"))
    columns.append(TableColumn("", lambda each: _bar(each.messages, most), style=lambda _: "cyan"))
    yield ""
    yield Table(values=found.partitions, columns=columns, noun="partition")


def _bar(count: int, most: int) -> str:
    """Something is never shown as nothing."""
    return "█" * max(round(_BAR * count / most), 1) if count else ""


def _columns(found: client.QueueDescription) -> View:
    schema = found.schema
    if schema is None:
        return
    columns = [
        TableColumn("column", lambda each: each.name, "*"),
        TableColumn("type", lambda each: each.type, "*"),
        TableColumn("null", lambda each: "" if each.nullable else "NOT NULL"),
    ]
    if schema.version > 1:
        columns.append(TableColumn("since version", lambda each: each.since, ">"))
        columns.append(TableColumn("before", lambda each: " → ".join(former.type for former in each.former)))
    yield ""
    yield Table(values=schema.columns, columns=columns, noun="column")


# --- alter ------------------------------------------------------------------------------------------------------------


@command("alter")
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
def alter(
    queue: client.Queue,
    ownership: str | None,
    partitions: int | None,
    add_columns: tuple[str, ...],
    widen: tuple[str, ...],
    schema: str | None,
    given: dict[str, Any],
    dry_run: bool,
) -> View:
    """Change a queue's partitions, columns and settings.

    Those that are given change, and no others. Publishers and consumers may go on meanwhile. Under another number of
    partitions a key lies in another one: what is published after the change is delivered when what shares its keys is
    acknowledged, group by group.

    Columns of a typed queue are added, or get a wider type: TINYINT, SMALLINT, INT, BIGINT in this order, FLOAT to
    DOUBLE, a DECIMAL more digits. Nothing else is possible, because messages that are there must keep their values.
    """
    done = queue.alter(
        partitions=partitions,
        add_column=", ".join(add_columns) or None,
        widen=", ".join(widen) or None,
        schema=schema,
        dry_run=dry_run,
        ownership=ownership,
        **given,
    )
    if done.groups is None:
        say("The queue was altered; what its groups have left cannot be read now.", err=True)
    yield Answer(done)
    yield from sayings.settings(done)
    yield from sayings.columns(done)
    yield from sayings.moves(done)
    if done.partitions is not None and done.partitions.from_ != done.partitions.to and done.groups is not None:
        yield _first(done.groups, done=not done.dry_run)
    if done.dry_run:
        yield "Nothing was changed."


def _first(groups: Sequence[client.GroupPlan], *, done: bool) -> View:
    """What each group has to acknowledge first. `done`: the count has changed."""
    for each in groups:
        yield sayings.first(each, done=done)
        if each.first:
            # Where not everything can be shown, what takes longest.
            yield Table(values=each.first, columns=DRAINS, noun="partition", first=lambda drain: -drain.messages)
            yield from sayings.waits_in_words(each, done=done)
    if not groups:
        yield "The queue has no group that could wait for anything."


# --- delete -----------------------------------------------------------------------------------------------------------


@command("delete")
def delete(queue: client.Queue, yes: bool) -> View:
    """Delete a queue, its messages and how far its groups were, for good.

    Without --yes it only says what would be deleted. If a deletion was cut off, the same command finishes it.
    """
    held = None
    try:
        held = queue.summary()
    except client.Corrupt as damage:
        if not yes:
            raise WrongUse(
                f"this would delete {queue} for good; what is in it cannot be read: {damage}. Or add --yes to delete "
                "it."
            ) from damage
    if held is not None:
        require_yes(yes, f"delete {queue} for good, with {_contents(held)}")
    elif not yes:
        queue.describe()  # says that there is no such queue
    done = queue.delete()
    yield Answer(done)
    objects = words.plural(done.objects, "object")
    if held is None or not done.deleted:
        yield f"{'Deleted' if done.deleted else 'Removed what was left of'} {queue}: {objects}."
    else:
        yield f"Deleted {queue}: {_contents(held)}, {objects}."


def _contents(held: client.QueueSummary) -> str:
    """What would be lost with the queue, in words."""
    text = f"{words.plural(held.messages, 'message')} in {words.plural(held.partitions, 'partition')}"
    if held.groups:
        text += f", {words.plural(len(held.groups), 'group')} ({', '.join(held.groups)})"
    return text + (f", last published {words.when(held.last_published)} UTC" if held.last_published else "")


# --- which queues attract what ----------------------------------------------------------------------------------------


@command("subscribe")
@subscriptions_argument
def subscribe(queue: client.Queue, wanted: tuple[str, ...]) -> View:
    """Let a queue attract messages by their topics.

    A topic has levels, separated by '/'. In a SUBSCRIPTION '*' stands for any characters within a level, and '>' as the
    last level for all further levels: orders/*/eu/>. Quote them, the shell has plans of its own for both. What was
    published before is not fetched.
    """
    done = queue.subscribe(*wanted)
    yield Answer({"queue": queue.name, "subscribed": done.changed, "subscriptions": done.subscriptions})
    yield _changed(queue, wanted, done.changed, "attracts {} now", "attracted {} already")


@command("unsubscribe")
@subscriptions_argument
def unsubscribe(queue: client.Queue, wanted: tuple[str, ...]) -> View:
    """Take subscriptions back, each written as it was made.

    What the queue has stays. The next batch of every publisher goes by what is left.
    """
    done = queue.unsubscribe(*wanted)
    yield Answer({"queue": queue.name, "unsubscribed": done.changed, "subscriptions": done.subscriptions})
    yield _changed(queue, wanted, done.changed, "attracts {} no more", "had no subscription {}")


def _changed(queue: client.Queue, wanted: tuple[str, ...], changed: tuple[str, ...], done: str, nothing: str) -> View:
    for each in dict.fromkeys(wanted):
        yield f"Q{str(queue)[1:]} {done.format(each) if each in changed else f'{nothing.format(each)}: nothing to do'}."


@command("subscriptions")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only what attracts this topic.")
def subscriptions(where: NamespaceAddress, name: str | None, topic: str | None) -> View:
    """List subscriptions: those of a queue, or without NAME of all queues of the namespace.

    With --topic only those that attract it: where a message with this topic goes.
    """
    if name is not None:
        own = client.Queue(name, **asdict(where)).subscriptions(topic=topic)
        yield Answer(client.QueueSubscriptions(queue=name, subscriptions=own))
        yield from own or [f"Queue {name!r} does not attract {topic or ANYTHING}. {LET_ONE}"]
        return
    every = client.list_subscriptions(topic=topic, **asdict(where))
    found = [each for each in every if isinstance(each, client.QueueSubscriptions)]
    damaged = [each for each in every if isinstance(each, client.DamagedQueue)]
    yield Answer([*found, *damaged])
    width = max((len(each.queue) for each in found), default=0)
    for each in found:
        for subscription in each.subscriptions:
            yield f"{each.queue.ljust(width)}  {subscription}"
    if not found:
        yield f"No queue of namespace {where.namespace!r} attracts {topic or ANYTHING}. {LET_ONE}"
    if damaged:
        raise PartqError(f"queue {damaged[0].queue!r} attracts nothing until it is restored: {damaged[0].error}")
