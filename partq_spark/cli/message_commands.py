"""`partq publish`: everything in a file, or on standard input, becomes one publish to a queue, or to each queue that
attracts its topic. For each of them it is all or nothing. And `partq browse`: looks at messages where they lie. Nothing
is taken, marked or held back by it.
"""

from __future__ import annotations

import base64
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.words import printable
from partq_spark.cli.commands import NAME, TOPIC, Answer, Checked, View, command, document, say
from partq_spark.cli.tables import Table, TableColumn
from partq_spark.client import arguments
from partq_spark.client import words as sayings
from partq_spark.client.arguments import STANDARD_INPUT, NamespaceAddress

_SHOWN_AFTER_S = 0.5  # of the progress bar
PUBLISH_ID = Checked("id", arguments.checked_publish_id)


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
) -> View:
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
    begun_s = time.monotonic()
    with ExitStack() as stack:
        try:
            made = stack.enter_context(
                client.Publication(
                    where, queue=name, topic=topic, publish_id=publish_id, fail_unattracted=fail_unattracted
                )
            )
            read = None
            if made.is_done:
                _drain(path)
            else:
                if path == STANDARD_INPUT and sys.stdin is not None and sys.stdin.isatty():
                    _invite(made)
                with progress(f"publishing {'standard input' if path == STANDARD_INPUT else Path(path).name}") as watch:
                    read = made.add_file(path, key_column=key_column, whole_rows=whole_rows, watch=watch)
        except KeyboardInterrupt:
            raise click.ClickException("interrupted: nothing was published") from None
        with _uninterrupted(publish_id):
            report = made.commit()
            click.get_current_context().meta["partq.done"] = "published, do not repeat it; then came "
            yield Answer(_document(report))
            yield _published(report, where, publish_id, read, time.monotonic() - begun_s)


def _invite(made: client.Publication) -> None:
    """Tell a person at a terminal what is expected."""
    example = '{"key": "a", "value": "text"}' if made.ddl is None else f"objects of {made.ddl:.200}"
    say(f"Reading JSON lines, {example}; Ctrl-D ends.", err=True)


def _drain(path: str) -> None:
    """Read standard input to its end and forget it, so that its writer does not die of a broken pipe."""
    while path == STANDARD_INPUT and sys.stdin is not None and sys.stdin.buffer.read(1 << 20):
        pass


@contextmanager
def progress(doing: str) -> Iterator[Callable[[int, int, int | None], None] | None]:
    """A bar on standard error: none where no terminal is, none for what is quick. Shows the share done where it is
    known, the number of messages, and the rate. It is told of messages so far, and how much is read of how much (None:
    nobody knows).
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[messages]:,} messages"),
        TextColumn("{task.fields[rate]:,.0f}/s", style="dim"),
        TimeRemainingColumn(compact=True),
        console=Console(stderr=True),
        transient=True,
    )
    task, begun_s = bar.add_task(printable(doing), total=None, messages=0, rate=0.0), time.monotonic()

    def update(messages: int, done: int, total: int | None) -> None:
        elapsed_s = time.monotonic() - begun_s
        bar.update(task, completed=done, total=total, messages=messages, rate=messages / max(elapsed_s, 1e-6))
        if elapsed_s >= _SHOWN_AFTER_S:
            bar.start()

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


# --- how it ended -----------------------------------------------------------------------------------------------------


def _document(report: client.PublishReport) -> object:
    """With a topic all of it, else how it ended for the queue; where nothing was added, of no messages."""
    if not any(each.published for each in report.queues):
        report = replace(report, messages=0, without_key=0)
    if report.topic is not None:
        return document(report)
    told: dict[str, Any] = {"published": False, "already_published": False, "messages": 0}
    told |= {"without_key": report.without_key, "partitions": [], "sequence": None, "timestamp": None}
    done = document(report.queues[0]) if report.queues else {}
    return {name: done.get(name, value) for name, value in told.items()}


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
        to = f"to {where.target(added[0].queue)}"
        if report.topic is not None:
            to = f"with topic {report.topic} to {words.plural(len(added), 'queue')}"
        how = f": {meaning}" if meaning else ""
        yield f"Published {messages} from {source} {to} in {took_s:.1f} s{how}."
    if report.topic is not None:
        width = max((len(each.queue) for each in added), default=0)
        for each in added:
            yield f"  {each.queue.ljust(width)}  {words.plural(each.messages, 'message')}"
    for each in report.queues:
        queue = where.target(each.queue)
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
        say("Publishing is about to end; interrupt again to give up waiting.", err=True)

    former = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        again = "repeat it with the same --publish-id" if publish_id else "look with `partq browse` before repeating it"
        raise click.ClickException(f"interrupted while publishing: it may be done or not; {again}") from None
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


# --- browse -----------------------------------------------------------------------------------------------------------


@command("browse")
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Only this one.  [default: all, by time]")
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Begin at this offset of the partition, or of each.  [default: the earliest]",
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="At most so many messages."
)
def browse(queue: client.Queue, partition: int | None, start: int | None, limit: int) -> View:
    """Look at messages without taking them, oldest first.

    A value that is not UTF-8 is shown in hexadecimal; long keys and values are cut. --json prints one message per line,
    whole, in the form that `partq publish` reads; a value that is not UTF-8 is in base64 there, and value_encoding says
    so. Of a typed queue it prints the columns, with numbers and texts as JSON has them, decimals, dates and times as
    text, and bytes in base64.
    """
    messages = queue.browse(partition=partition, start=start or 0, limit=limit)
    yield Answer(map(_told, messages))
    yield _table(messages, queue, partition)


def _told(message: client.Message) -> dict[str, Any]:
    """Of an untyped queue as `publish` reads it; of a typed one the columns, then what is known of the message, as
    Spark's source has them.
    """
    if not isinstance(message.value, dict):
        return {**_place(message), "key": message.key, **_encoded(message.value), "headers": _headers(message)}
    from partq_spark.client.messages import json_of

    headers = {} if message.headers is None else {"_headers": _headers(message)}
    return {**json_of(message.value), **headers, "_metadata": _place(message)}


def _place(message: client.Message) -> dict[str, Any]:
    return {
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": document(message.timestamp),
    }


def _headers(message: client.Message) -> list[dict[str, Any]] | None:
    if message.headers is None:
        return None
    return [{"key": key, **_encoded(value)} for key, value in message.headers]


def _encoded(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "value_encoding": "base64"}


def _table(found: Iterator[client.Message], queue: client.Queue, partition: int | None) -> View:
    messages = list(found)
    if not messages:
        where = "" if partition is None else f" in partition {partition}"
        described = queue.describe()
        held = described.messages if partition is None else described.partitions[partition].messages
        yield f"No messages{where} of {queue}{f' from there on; {held:,} before' if held else ''}."
        return

    def headers(message: client.Message) -> str:
        return ", ".join(
            f"{sayings.shown(key) if key else ''}={sayings.shown(value)}" for key, value in message.headers or ()
        )

    columns = [
        TableColumn("partition", lambda each: str(each.partition), ">"),
        TableColumn("offset", lambda each: str(each.offset), ">"),
        TableColumn("published (UTC)", lambda each: each.timestamp),
    ]
    is_typed = isinstance(messages[0].value, dict)
    if is_typed:
        columns += [_column(name) for name in messages[0].value]
    else:
        columns += [
            TableColumn("key", lambda each: sayings.shown(each.key), "*", lambda each: "" if each.key else "dim"),
            TableColumn("value", lambda each: sayings.shown(each.value), "*", lambda each: "" if each.value else "dim"),
        ]
    if any(message.headers for message in messages):
        columns.append(TableColumn("headers", headers, "*"))
    yield Table(values=messages, columns=columns, noun="message", most=None, may_leave_out=is_typed)


def _column(name: str) -> TableColumn:
    """A column of a typed queue."""

    return TableColumn(
        words.printable(name),
        lambda each: _cell(each.value[name]),
        "*",
        lambda each: "dim" if each.value[name] is None else "",
    )


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bytes | str):
        return sayings.shown(value)
    from partq_spark.client.messages import json_of

    found = json_of(value)
    return found if isinstance(found, str) else words.readable(json.dumps(found, ensure_ascii=False).encode())
