"""`partq publish`: everything in a file, or on standard input, becomes one publish to a queue, or to each queue that
attracts its topic. For each of them it is all or nothing. And `partq queue subscribe`, `unsubscribe` and
`subscriptions`: which topics a queue attracts.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.errors import PartqError, WrongUse
from partq_spark.cli import output
from partq_spark.cli.arguments import NAME, TOPIC, Checked, checked_by, command
from partq_spark.cli.output import Answer, ProgressBar, View
from partq_spark.client.files.sources import STANDARD_INPUT

if TYPE_CHECKING:
    from partq_spark.client.checks import NamespaceAddress

SUBSCRIPTION = Checked[str]("subscription", checked_by("checked_subscription"))
subscriptions_argument = click.argument("wanted", metavar="SUBSCRIPTION...", type=SUBSCRIPTION, nargs=-1, required=True)
ANYTHING = "anything by its topic"
LET_ONE = "Let one: partq queue subscribe NAME SUBSCRIPTION"
PUBLISH_ID = Checked[str]("id", checked_by("checked_publish_id"))


@command("publish")
@click.argument("name", type=NAME, required=False)
@click.option("--topic", type=TOPIC, metavar="TOPIC", help="Publish to every queue that attracts it, instead of NAME.")
@click.option("--fail-unattracted", is_flag=True, help="With --topic: an error if no queue attracts it.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    metavar="FILE",
    default=STANDARD_INPUT,
    help=".csv, .jsonl, .ndjson or .json (each also with .gz), or .parquet.  [default: standard input, JSON lines]",
)
@click.option("--key-column", metavar="COLUMN", help="The column that holds the key.  [default: key, if there is one]")
@click.option("--whole-rows", is_flag=True, help="Publish each row as a JSON object, also if it has a column 'value'.")
@click.option(
    "--publish-id",
    type=PUBLISH_ID,
    metavar="ID",
    help="Publish at most once under this name, however often it is repeated.",
)
def publish(
    where: NamespaceAddress,
    name: str | None,
    topic: str | None,
    fail_unattracted: bool,
    path: str,
    key_column: str | None,
    whole_rows: bool,
    publish_id: str | None,
) -> Iterator[Answer]:
    """Publish messages from a file or standard input, all at once or not at all.

    Standard input is JSON lines: {"key": "a", "value": "text"}. A value is a string, or any other JSON, which is
    published as compact text. Without a key, or with null, a message goes to a random partition.

    A table with a column 'value' holds messages: key, value, headers. In any other table each row is published as a
    JSON object, and --key-column says which column is the key. Numbers as keys become their text.

    A typed queue takes its own columns by name, in any order; those that may be null may be missing. Fields of CSV are
    read by the type of their column, and JSON as `partq browse --json` prints it.

    With --topic they go to every queue that attracts it (partq queue subscribe), all or nothing for each: with a
    --publish-id a repetition completes what was cut off.
    """
    _check_use(name, topic, fail_unattracted)
    if path != STANDARD_INPUT:
        checked_by("checked_file_kind")(path)
    begun_s = time.monotonic()
    with ExitStack() as stack:
        try:
            made = stack.enter_context(_begun(where, name, topic, publish_id, fail_unattracted))
            read = None
            if made.is_done:
                _drain(path)
            else:
                if path == STANDARD_INPUT and sys.stdin is not None and sys.stdin.isatty():
                    _invite(made)
                with ProgressBar(
                    f"publishing {'standard input' if path == STANDARD_INPUT else Path(path).name}"
                ) as bar:
                    read = made.add_file(path, key_column=key_column, whole_rows=whole_rows, watch=bar.update)
        except KeyboardInterrupt:
            raise click.ClickException("interrupted: nothing was published") from None
        with _uninterrupted(publish_id):
            report = made.commit()
            yield Answer(_document(report), _published(report, where, publish_id, read, time.monotonic() - begun_s))


def _begun(
    where: NamespaceAddress, name: str | None, topic: str | None, publish_id: str | None, fail_unattracted: bool
) -> client.Publication:
    if topic is None:
        return client.Queue(name or "", **asdict(where)).publication(publish_id=publish_id)
    return client.topic_publication(topic, publish_id=publish_id, fail_unattracted=fail_unattracted, **asdict(where))


def _check_use(name: str | None, topic: str | None, fail_unattracted: bool) -> None:
    if name is not None and topic is not None:
        raise WrongUse("NAME and --topic exclude each other: the topic says which queues get the messages.")
    if topic is None and fail_unattracted:
        raise WrongUse("--fail-unattracted is for --topic: leave it out.")
    if name is None and topic is None:
        raise WrongUse("nothing says where to: give the queue's NAME, or --topic.")


def _invite(made: client.Publication) -> None:
    """Tell a person at a terminal what is expected."""
    example = '{"key": "a", "value": "text"}' if made.ddl is None else f"objects of {made.ddl:.200}"
    output.say(f"Reading JSON lines, {example}; Ctrl-D ends.", err=True)


def _drain(path: str) -> None:
    """Read standard input to its end and forget it, so that its writer does not die of a broken pipe."""
    while path == STANDARD_INPUT and sys.stdin is not None and sys.stdin.buffer.read(1 << 20):
        pass


# --- how it ended -----------------------------------------------------------------------------------------------------


def _document(report: client.PublishReport) -> dict[str, Any]:
    added = any(each.published for each in report.queues)
    without_key = report.without_key if added else 0
    if report.topic is not None:
        return {
            **output.document(report),
            "messages": report.messages if added else 0,
            "without_key": without_key,
        }
    done = output.document(report.queues[0]) if report.queues else {}
    return {
        "published": done.get("published", False),
        "already_published": done.get("already_published", False),
        "messages": done.get("messages", 0),
        "without_key": without_key,
        "partitions": done.get("partitions", []),
        "sequence": done.get("sequence"),
        "timestamp": done.get("timestamp"),
    }


def _published(
    report: client.PublishReport,
    where: NamespaceAddress,
    publish_id: str | None,
    read: tuple[str, str] | None,
    took_s: float,
) -> View:
    """`read`: where the messages came from, and how rows became messages; None if nothing was read."""
    source, meaning = read or ("", "")
    if read is not None and not report.messages:
        yield f"No messages in {source}: nothing was published."
        return
    messages = words.plural(report.messages, "message")
    if report.unattracted:
        yield (
            f"No queue of namespace {where.namespace!r} attracts {report.topic}: {messages} "
            f"went nowhere. Let one: partq queue subscribe NAME {report.topic}"
        )
    added = [each for each in report.queues if each.published]
    if added:
        to = f"to {client.Queue(added[0].queue, **asdict(where))}"
        if report.topic is not None:
            to = f"with topic {report.topic} to {words.plural(len(added), 'queue')}"
        how = f": {meaning}" if meaning else ""
        yield f"Published {messages} from {source} {to} in {took_s:.1f} s{how}."
    if report.topic is not None:
        width = max((len(each.queue) for each in added), default=0)
        for each in added:
            yield f"  {each.queue.ljust(width)}  {words.plural(each.messages, 'message')}"
    for each in report.queues:
        queue = client.Queue(each.queue, **asdict(where))
        if each.already_published and each.timestamp is not None:
            yield (
                f"Already published: {publish_id!r} came to {queue} at {words.when(each.timestamp)} UTC. "
                "Nothing was added."
            )
        elif not each.published:
            yield f"{queue} was deleted meanwhile: nothing went there."
    if added and report.without_key:
        yield f"{words.plural(report.without_key, 'message')} without a key went to random partitions."


@contextmanager
def _uninterrupted(publish_id: str | None) -> Iterator[None]:
    """Let Ctrl-C wait until the swap is done and reported: the outcome is known then, and never before. A second Ctrl-C
    ends the waiting, for a store that does not answer.
    """

    def note(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.default_int_handler)
        output.say("Publishing is about to end; interrupt again to give up waiting.", err=True)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        again = "repeat it with the same --publish-id" if publish_id else "look with `partq browse` before repeating it"
        raise click.ClickException(f"interrupted while publishing: it may be done or not; {again}") from None
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# --- which queues attract what ----------------------------------------------------------------------------------------


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
