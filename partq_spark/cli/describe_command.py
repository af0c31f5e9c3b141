"""`partq queue describe`: the facts of a queue below each other, then its columns and its partitions; and what groups
hold back.
"""

from __future__ import annotations

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, json_option, queue_argument, where_options
from partq_spark.cli.output import TableColumn
from partq_spark.client import words as sayings

_BAR = 16  # characters of the longest bar


@click.command("describe")
@queue_argument
@click.option("--bytes", "count_bytes", is_flag=True, help="Count the stored bytes of each partition: reads the log.")
@json_option
@where_options
def describe(where: Where, name: str, count_bytes: bool, as_json: bool) -> None:
    """Show what a queue is and what it holds, how old, and what holds it back.

    Bytes are stored (compressed) ones. All of the queue's are known at once; with --bytes those of each partition are
    counted by reading the log, but not the messages.
    """
    found = where.queue(name).describe(count_bytes=count_bytes)
    if as_json:
        output.print_json(output.document(found))
        return
    output.facts(sayings.queue_in_words(found))
    if found.schema is not None:
        _print_columns(found.schema)
    most = max(each.messages for each in found.partitions)
    columns = [
        TableColumn("partition", lambda each: each.partition, ">"),
        TableColumn("earliest", lambda each: each.earliest, ">"),
        TableColumn("next", lambda each: each.next, ">"),
        TableColumn("messages", lambda each: each.messages, ">"),
    ]
    if count_bytes:
        columns.append(TableColumn("stored", lambda each: "" if each.bytes is None else words.size(each.bytes), ">"))
    columns.append(TableColumn("", lambda each: output.bar(each.messages, most, _BAR), style=lambda _: "cyan"))
    output.say()
    output.print_values(found.partitions, columns, noun="partition")


def _print_columns(schema: client.SchemaDescription) -> None:
    columns = [
        TableColumn("column", lambda each: each.name, "*"),
        TableColumn("type", lambda each: each.type, "*"),
        TableColumn("null", lambda each: "" if each.nullable else "NOT NULL"),
    ]
    if schema.version > 1:
        columns.append(TableColumn("since version", lambda each: each.since, ">"))
        columns.append(TableColumn("before", lambda each: " → ".join(each.former)))
    output.say()
    output.print_values(schema.columns, columns, noun="column")
