"""`partq queue subscribe`, `unsubscribe` and `subscriptions`: which topics a queue attracts."""

from __future__ import annotations

from collections.abc import Sequence

import click

from partq_spark import client
from partq_spark.base.errors import PartqError
from partq_spark.cli import output
from partq_spark.cli.arguments import NAME, Checked, Where, checked_by, json_option, queue_argument, where_options

TOPIC = Checked[str]("topic", checked_by("checked_topic"))
SUBSCRIPTION = Checked[str]("subscription", checked_by("checked_subscription"))
subscriptions_argument = click.argument("wanted", metavar="SUBSCRIPTION...", type=SUBSCRIPTION, nargs=-1, required=True)


@click.command("subscribe")
@queue_argument
@subscriptions_argument
@json_option
@where_options
def subscribe(where: Where, name: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """Let a queue attract messages by their topics.

    A topic has levels, separated by '/'. In a SUBSCRIPTION '*' stands for any characters within a level, and '>' as the
    last level for all further levels: orders/*/eu/>. Quote them, the shell has plans of its own for both. What was
    published before is not fetched.
    """
    queue = where.queue(name)
    done = queue.subscribe(*wanted)
    if as_json:
        output.print_json({"queue": name, "subscribed": done.changed, "subscriptions": done.subscriptions})
        return
    _say(queue, wanted, done.changed, "attracts {} now", "attracted {} already")


@click.command("unsubscribe")
@queue_argument
@subscriptions_argument
@json_option
@where_options
def unsubscribe(where: Where, name: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """Take subscriptions back, each written as it was made.

    What the queue has stays. The next batch of every publisher goes by what is left.
    """
    queue = where.queue(name)
    done = queue.unsubscribe(*wanted)
    if as_json:
        output.print_json({"queue": name, "unsubscribed": done.changed, "subscriptions": done.subscriptions})
        return
    _say(queue, wanted, done.changed, "attracts {} no more", "had no subscription {}")


def _say(queue: client.Queue, wanted: tuple[str, ...], changed: tuple[str, ...], done: str, nothing: str) -> None:
    for each in dict.fromkeys(wanted):
        output.say(
            f"Q{str(queue)[1:]} {done.format(each) if each in changed else f'{nothing.format(each)}: nothing to do'}."
        )


@click.command("subscriptions")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only what attracts this topic.")
@json_option
@where_options
def subscriptions(where: Where, name: str | None, topic: str | None, as_json: bool) -> None:
    """List subscriptions: those of a queue, or without NAME of all queues of the namespace.

    With --topic only those that attract it: where a message with this topic goes.
    """
    damaged: list[client.DamagedQueue] = []
    if name is not None:
        found = {name: where.queue(name).subscriptions(topic=topic)}
    else:
        every = client.list_subscriptions(topic=topic, **where.keywords)
        damaged = [each for each in every if isinstance(each, client.DamagedQueue)]
        found = {each.queue: each.subscriptions for each in every if isinstance(each, client.QueueSubscriptions)}
    if as_json:
        documents: list[output.Json] = [{"queue": each, "subscriptions": found[each]} for each in found]
        documents += [output.document(each) for each in damaged]
        output.print_json(documents if name is None else documents[0])
        _say_damaged(damaged)
        return
    width = max(map(len, found), default=0)
    for each in found:
        for subscription in found[each]:
            output.say(f"{each.ljust(width)}  {subscription}" if name is None else subscription)
    if not any(found.values()):
        who = f"queue {name!r}" if name is not None else f"no queue of namespace {where.namespace!r}"
        what = "anything by its topic" if topic is None else topic
        says = f"{who} does not attract {what}" if name is not None else f"{who} attracts {what}"
        output.say(f"{says[0].upper()}{says[1:]}. Let one: partq queue subscribe NAME SUBSCRIPTION")
    _say_damaged(damaged)


def _say_damaged(damaged: Sequence[client.DamagedQueue]) -> None:
    for each in damaged:
        raise PartqError(f"queue {each.queue!r} attracts nothing until it is restored: {each.error}")
