"""`partq browse`: looks at messages where they lie. Nothing is taken, marked or held back by it."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from partq_spark.base.errors import Invalid
from partq_spark.cli import output
from partq_spark.cli.arguments import Target, json_option, queue_argument, target_options

if TYPE_CHECKING:
    from rich.text import Text

    from partq_spark.log.queue import Queue


class Message(NamedTuple):
    """One message as it is browsed. `headers` is None where it was published without. Keys are bytes, theirs too: in a
    queue from before they were checked they need not be UTF-8.
    """

    partition: int
    offset: int
    time_us: int
    key: bytes | None
    value: bytes
    headers: list[dict[str, Any]] | None


@click.command("browse")
@queue_argument
@click.option("--partition", type=click.IntRange(min=0), metavar="P", help="Only this one.  [default: all, by time]")
@click.option(
    "--from",
    "from_offset",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Begin at this offset of the partition, or of each.  [default: the earliest]",
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", default=20, show_default=True, help="At most so many messages."
)
@json_option
@target_options
def browse(
    target: Target, name: str, partition: int | None, from_offset: int | None, limit: int, as_json: bool
) -> None:
    """Look at messages without taking them, oldest first.

    A value that is not UTF-8 is shown in hexadecimal; long keys and values are cut. --json prints one message per line,
    whole, in the form that `partq publish` reads; a value that is not UTF-8 is in base64 there, and value_encoding says
    so (key_encoding, of a key that was published before keys were checked).
    """
    with target.queue(name) as queue:
        messages = _messages(queue, partition, from_offset or 0, limit)
        if as_json:
            _print_json(messages)
        else:
            _print_table(list(messages), queue, partition)


def _messages(queue: Queue, partition: int | None, from_offset: int, limit: int) -> Iterator[Message]:
    """At most `limit` messages, in publish order; one slice of the log is in memory at a time."""
    import pyarrow as pa

    from partq_spark.log import tree
    from partq_spark.log.reading import RangeReader
    from partq_spark.log.segment import HEADERS_AS_BYTES

    head = queue.refresh()
    if partition is not None and partition >= len(head.next):
        raise Invalid(f"{queue} has partitions 0 to {len(head.next) - 1}, there is no {partition}: name one of them")
    numbers = range(len(head.next)) if partition is None else [partition]
    wanted = {number: (max(from_offset, head.earliest[number]), head.next[number]) for number in numbers}
    left = limit
    for piece in RangeReader(queue, head.queue_id, tree.view(head, wanted)).pieces():
        batch = piece.batch.slice(0, left)
        left -= batch.num_rows
        headers = [None] * batch.num_rows
        if "headers" in batch.schema.names:
            headers = batch.column("headers").cast(HEADERS_AS_BYTES).to_pylist()
        times_us = piece._replace(batch=batch).times_us()
        keys = batch.column("key").cast(pa.binary()).to_pylist()
        rows = zip(times_us, keys, batch.column("value").to_pylist(), headers, strict=True)
        for index, (time_us, key, value, row_headers) in enumerate(rows):
            yield Message(piece.partition, piece.offset + index, time_us, key, value, row_headers)
        if left == 0:
            return


# --- printing ---------------------------------------------------------------------------------------------------------


def _print_json(messages: Iterator[Message]) -> None:
    from partq_spark.base.timestamps import format_rfc3339

    held: list[output.Json] = []
    for message in messages:
        held.append(
            {
                "partition": message.partition,
                "offset": message.offset,
                "timestamp": format_rfc3339(message.time_us),
                **_encoded("key", message.key),
                **_encoded("value", message.value),
                "headers": None if message.headers is None else [_header(each) for each in message.headers],
            }
        )
        if len(held) == 500:
            output.print_json(*held)
            held = []
    if held:
        output.print_json(*held)


def _header(header: dict[str, Any] | None) -> output.Json:
    return None if header is None else {**_encoded("key", header["key"]), **_encoded("value", header["value"])}


def _encoded(name: str, data: bytes | None) -> dict[str, output.Json]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def _print_table(messages: list[Message], queue: Queue, partition: int | None) -> None:
    if not messages:
        where = "" if partition is None else f" in partition {partition}"
        head = queue.head
        held = head.messages if partition is None else head.next[partition] - head.earliest[partition]
        output.say(
            f"No messages{where} of {queue} from there on; {held:,} before."
            if held
            else f"No messages{where} of {queue}."
        )
        return
    from rich.text import Text

    with_headers = any(message.headers for message in messages)
    columns = [("partition", ">"), ("offset", ">"), ("published (UTC)", "<"), ("key", "*"), ("value", "*")]
    rows: list[list[Text]] = []
    for message in messages:
        cells = [Text(str(message.partition)), Text(str(message.offset)), Text(output.when(message.time_us))]
        cells += [_text(message.key), _text(message.value)]
        if with_headers:
            shown = [f"{output.readable(h['key'] or b'')}={_text(h['value'])}" for h in message.headers or () if h]
            cells.append(Text(", ".join(shown)))
        rows.append(cells)
    output.print_table([*columns, ("headers", "*")] if with_headers else columns, rows)


def _text(data: bytes | None) -> Text:
    from rich.text import Text

    if data is None:
        return Text("null", style="dim")
    return Text(output.readable(data)) if data else Text('""', style="dim")
