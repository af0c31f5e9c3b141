"""`partq queue subscribe`, `unsubscribe` and `subscriptions`: which topics a queue attracts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from partq_spark import client
from partq_spark.base.errors import PartqError
from partq_spark.cli.arguments import NAME, TOPIC, Checked, checked_by, command
from partq_spark.cli.output import Answer, View

if TYPE_CHECKING:
    from partq_spark.client.checks import NamespaceAddress

SUBSCRIPTION = Checked[str]("subscription", checked_by("checked_subscription"))
subscriptions_argument = click.argument("wanted", metavar="SUBSCRIPTION...", type=SUBSCRIPTION, nargs=-1, required=True)
ANYTHING = "anything by its topic"
LET_ONE = "Let one: partq queue subscribe NAME SUBSCRIPTION"


@command("subscribe")
@subscriptions_argument
def subscribe(queue: client.Queue, wanted: tuple[str, ...]) -> Iterator[Answer]:
    """Let a queue attract messages by their topics.

    A topic has levels, separated by '/'. In a SUBSCRIPTION '*' stands for any characters within a level, and '>' as the
    last level for all further levels: orders/*/eu/>. Quote them, the shell has plans of its own for both. What was
    published before is not fetched.
    """
    done = queue.subscribe(*wanted)
    value = {"queue": queue.name, "subscribed": done.changed, "subscriptions": done.subscriptions}
    yield Answer(value, _changed(queue, wanted, done.changed, "attracts {} now", "attracted {} already"))


@command("unsubscribe")
@subscriptions_argument
def unsubscribe(queue: client.Queue, wanted: tuple[str, ...]) -> Iterator[Answer]:
    """Take subscriptions back, each written as it was made.

    What the queue has stays. The next batch of every publisher goes by what is left.
    """
    done = queue.unsubscribe(*wanted)
    value = {"queue": queue.name, "unsubscribed": done.changed, "subscriptions": done.subscriptions}
    yield Answer(value, _changed(queue, wanted, done.changed, "attracts {} no more", "had no subscription {}"))


def _changed(queue: client.Queue, wanted: tuple[str, ...], changed: tuple[str, ...], done: str, nothing: str) -> View:
    for each in dict.fromkeys(wanted):
        yield f"Q{str(queue)[1:]} {done.format(each) if each in changed else f'{nothing.format(each)}: nothing to do'}."


@command("subscriptions")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only what attracts this topic.")
def subscriptions(where: NamespaceAddress, name: str | None, topic: str | None) -> Iterator[Answer]:
    """List subscriptions: those of a queue, or without NAME of all queues of the namespace.

    With --topic only those that attract it: where a message with this topic goes.
    """
    if name is not None:
        own = client.QueueSubscriptions(
            queue=name, subscriptions=client.Queue(name, **asdict(where)).subscriptions(topic=topic)
        )
        yield Answer(own, _of_one(own, topic))
        return
    every = client.list_subscriptions(topic=topic, **asdict(where))
    found = [each for each in every if isinstance(each, client.QueueSubscriptions)]
    damaged = [each for each in every if isinstance(each, client.DamagedQueue)]
    yield Answer([*found, *damaged], _of_all(found, where.namespace, topic))
    if damaged:
        raise PartqError(f"queue {damaged[0].queue!r} attracts nothing until it is restored: {damaged[0].error}")


def _of_one(own: client.QueueSubscriptions, topic: str | None) -> View:
    yield from own.subscriptions
    if not own.subscriptions:
        yield f"Queue {own.queue!r} does not attract {topic or ANYTHING}. {LET_ONE}"


def _of_all(found: Sequence[client.QueueSubscriptions], namespace: str, topic: str | None) -> View:
    width = max((len(each.queue) for each in found), default=0)
    for each in found:
        for subscription in each.subscriptions:
            yield f"{each.queue.ljust(width)}  {subscription}"
    if not found:
        yield f"No queue of namespace {namespace!r} attracts {topic or ANYTHING}. {LET_ONE}"
