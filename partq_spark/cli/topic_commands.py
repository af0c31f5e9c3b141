"""`partq queue subscribe`, `unsubscribe` and `subscriptions`: which topics a queue attracts."""

from __future__ import annotations

import click

from partq_spark.cli import output
from partq_spark.cli.arguments import NAME, Checked, Target, json_option, queue_argument, target_options


def _subscription(text: str) -> str:
    from partq_spark.log.topics import checked_subscription

    return checked_subscription(text)


def _topic(text: str) -> str:
    from partq_spark.log.topics import checked_topic

    return checked_topic(text)


TOPIC = Checked("topic", _topic)
SUBSCRIPTION = Checked("subscription", _subscription)
subscriptions_argument = click.argument("wanted", metavar="SUBSCRIPTION...", type=SUBSCRIPTION, nargs=-1, required=True)


@click.command("subscribe")
@queue_argument
@subscriptions_argument
@json_option
@target_options
def subscribe(target: Target, name: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """Let a queue attract messages by their topics.

    A topic has levels, separated by '/'. In a SUBSCRIPTION '*' stands for any characters within a level, and '>' as the
    last level for all further levels: orders/*/eu/>. Quote them, the shell has plans of its own for both. What was
    published before is not fetched.
    """
    from partq_spark.log import subscriptions

    with target.queue(name) as queue:
        changed = subscriptions.subscribe(queue, *wanted)
        now = queue.head.subscriptions
    if as_json:
        output.print_json({"queue": name, "subscribed": changed, "subscriptions": now})
        return
    _say(queue, wanted, changed, "attracts {} now", "attracted {} already")


@click.command("unsubscribe")
@queue_argument
@subscriptions_argument
@json_option
@target_options
def unsubscribe(target: Target, name: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """Take subscriptions back, each written as it was made.

    What the queue has stays. The next batch of every publisher goes by what is left.
    """
    from partq_spark.log import subscriptions

    with target.queue(name) as queue:
        changed = subscriptions.unsubscribe(queue, *wanted)
        now = queue.head.subscriptions
    if as_json:
        output.print_json({"queue": name, "unsubscribed": changed, "subscriptions": now})
        return
    _say(queue, wanted, changed, "attracts {} no more", "had no subscription {}")


def _say(queue: object, wanted: tuple[str, ...], changed: tuple[str, ...], done: str, nothing: str) -> None:
    for each in dict.fromkeys(wanted):
        output.say(
            f"Q{str(queue)[1:]} {done.format(each) if each in changed else f'{nothing.format(each)}: nothing to do'}."
        )


@click.command("subscriptions")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Only what attracts this topic.")
@json_option
@target_options
def subscriptions(target: Target, name: str | None, topic: str | None, as_json: bool) -> None:
    """List subscriptions: those of a queue, or without NAME of all queues of the namespace.

    With --topic only those that attract it: where a message with this topic goes.
    """
    found = _subscriptions(target, name)
    if topic is not None:
        found = _attracting(found, topic)
    if as_json:
        documents: list[output.Json] = [{"queue": each, "subscriptions": found[each]} for each in found]
        output.print_json(documents if name is None else {"queue": name, "subscriptions": found.get(name, ())})
        return
    width = max(map(len, found), default=0)
    for each in found:
        for subscription in found[each]:
            output.say(f"{each.ljust(width)}  {subscription}" if name is None else subscription)
    if not any(found.values()):
        who = f"queue {name!r}" if name is not None else f"no queue of namespace {target.namespace!r}"
        what = "anything by its topic" if topic is None else topic
        says = f"{who} does not attract {what}" if name is not None else f"{who} attracts {what}"
        output.say(f"{says[0].upper()}{says[1:]}. Let one: partq queue subscribe NAME SUBSCRIPTION")


def _subscriptions(target: Target, name: str | None) -> dict[str, tuple[str, ...]]:
    """By queue: those of the queue, or of all that have some."""
    from partq_spark.log.queue import Effects
    from partq_spark.log.subscriptions import Namespace

    if name is not None:
        with target.queue(name) as queue:
            return {name: queue.refresh().subscriptions}
    with target.store() as store:
        every = Namespace(store, target.namespace, Effects(retry_timeout_s=target.retry_timeout_s)).queues()
        return {queue.name: queue.head.subscriptions for queue in every if queue.head.subscriptions}


def _attracting(found: dict[str, tuple[str, ...]], topic: str) -> dict[str, tuple[str, ...]]:
    """Of the subscriptions, those that attract the topic, and the queues that have some."""
    from partq_spark.log.topics import matches

    kept = {name: tuple(each for each in theirs if matches(each, topic)) for name, theirs in found.items()}
    return {name: theirs for name, theirs in kept.items() if theirs}
