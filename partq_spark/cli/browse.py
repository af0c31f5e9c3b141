"""`partq browse`: looks at messages where they lie. Nothing is taken, marked or held back by it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.base.words import printable
from partq_spark.cli.arguments import command
from partq_spark.cli.output import Answer, Table, TableColumn, View, document


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
def browse(queue: client.Queue, partition: int | None, start: int | None, limit: int) -> Iterator[Answer]:
    """Look at messages without taking them, oldest first.

    A value that is not UTF-8 is shown in hexadecimal; long keys and values are cut. --json prints one message per line,
    whole, in the form that `partq publish` reads; a value that is not UTF-8 is in base64 there, and value_encoding says
    so. Of a typed queue it prints the columns, with numbers and texts as JSON has them, decimals, dates and times as
    text, and bytes in base64.
    """
    messages = queue.browse(partition=partition, start=start or 0, limit=limit)
    yield Answer(map(_document, messages), _table(messages, queue, partition))


def _document(message: client.Message) -> dict[str, Any]:
    return _row(message) if isinstance(message.value, dict) else _key_and_value(message)


def _key_and_value(message: client.Message) -> dict[str, Any]:
    return {**_place(message), "key": message.key, **_encoded(message.value), "headers": _headers(message)}


def _row(message: client.Message) -> dict[str, Any]:
    """The columns, then what is known of the message, as Spark's source has them."""
    from partq_spark.client.json_values import json_of

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
        return ", ".join(f"{_text(key) if key else ''}={_text(value)}" for key, value in message.headers or ())

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
            TableColumn("key", lambda each: _text(each.key), "*", lambda each: "" if each.key else "dim"),
            TableColumn("value", lambda each: _text(each.value), "*", lambda each: "" if each.value else "dim"),
        ]
    if any(message.headers for message in messages):
        columns.append(TableColumn("headers", headers, "*"))
    yield Table(values=messages, columns=columns, noun="message", most=None, may_leave_out=is_typed)


def _column(name: str) -> TableColumn:
    """A column of a typed queue."""

    return TableColumn(
        printable(name),
        lambda each: _cell(each.value[name]),
        "*",
        lambda each: "dim" if each.value[name] is None else "",
    )


def _cell(value: Any) -> str:
    if value is None or isinstance(value, bytes | str):
        return _text(value)
    from partq_spark.client.json_values import json_of

    found = json_of(value)
    return found if isinstance(found, str) else words.readable(json.dumps(found, ensure_ascii=False).encode())


def _text(value: bytes | str | None) -> str:
    if value is None:
        return "null"
    data = value.encode() if isinstance(value, str) else value
    return words.readable(data) if data else '""'
