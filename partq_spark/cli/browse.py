"""`partq browse`: looks at messages where they lie. Nothing is taken, marked or held back by it."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, json_option, queue_argument, where_options
from partq_spark.cli.output import Column

AT_A_TIME = 500  # documents that are printed together


@click.command("browse")
@queue_argument
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
@json_option
@where_options
def browse(where: Where, name: str, partition: int | None, start: int | None, limit: int, as_json: bool) -> None:
    """Look at messages without taking them, oldest first.

    A value that is not UTF-8 is shown in hexadecimal; long keys and values are cut. --json prints one message per line,
    whole, in the form that `partq publish` reads; a value that is not UTF-8 is in base64 there, and value_encoding says
    so.
    """
    queue = where.queue(name)
    messages = queue.browse(partition=partition, start=start or 0, limit=limit)
    if as_json:
        _print_json(messages)
    else:
        _print_table(list(messages), queue, partition)


def _print_json(messages: Iterator[client.Message]) -> None:
    held: list[output.Json] = []
    for message in messages:
        held.append(
            {
                "partition": message.partition,
                "offset": message.offset,
                "timestamp": output.document(message.timestamp),
                "key": message.key,
                **_encoded(message.value),
                "headers": None
                if message.headers is None
                else [{"key": key, **_encoded(value)} for key, value in message.headers],
            }
        )
        if len(held) == AT_A_TIME:
            output.print_json(*held)
            held = []
    if held:
        output.print_json(*held)


def _encoded(value: bytes | None) -> dict[str, output.Json]:
    if value is None:
        return {"value": None}
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value": base64.b64encode(value).decode(), "value_encoding": "base64"}


def _print_table(messages: list[client.Message], queue: client.Queue, partition: int | None) -> None:
    if not messages:
        where = "" if partition is None else f" in partition {partition}"
        found = queue.describe()
        held = found.messages if partition is None else found.partitions[partition].messages
        output.say(
            f"No messages{where} of {queue} from there on; {held:,} before."
            if held
            else f"No messages{where} of {queue}."
        )
        return

    def headers(message: client.Message) -> str:
        return ", ".join(f"{_text(key) if key else ''}={_text(value)}" for key, value in message.headers or ())

    columns = [
        Column("partition", lambda each: str(each.partition), ">"),
        Column("offset", lambda each: str(each.offset), ">"),
        Column("published (UTC)", lambda each: each.timestamp),
        Column(
            "key",
            lambda each: _text(each.key),
            "*",
            lambda each: "" if each.key else "dim",
        ),
        Column("value", lambda each: _text(each.value), "*", lambda each: "" if each.value else "dim"),
    ]
    if any(message.headers for message in messages):
        columns.append(Column("headers", headers, "*"))
    output.print_values(messages, columns, most=None)


def _text(value: bytes | str | None) -> str:
    if value is None:
        return "null"
    data = value.encode() if isinstance(value, str) else value
    return words.readable(data) if data else '""'
