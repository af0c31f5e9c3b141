"""`partq queue describe`: the facts of a queue below each other, then its columns and its partitions; and what groups
hold back.
"""

from __future__ import annotations

import click

from partq_spark import client
from partq_spark.base import words
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, json_option, queue_argument, where_options
from partq_spark.cli.output import Column
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
    output.facts(sayings.queue_facts(found))
    if found.schema is not None:
        _print_columns(found.schema)
    most = max(each.messages for each in found.partitions)
    columns = [
        Column("partition", lambda each: each.partition, ">"),
        Column("earliest", lambda each: each.earliest, ">"),
        Column("next", lambda each: each.next, ">"),
        Column("messages", lambda each: each.messages, ">"),
    ]
    if count_bytes:
        columns.append(Column("stored", lambda each: words.size(each.bytes), ">"))
    columns.append(Column("", lambda each: output.bar(each.messages, most, _BAR), style=lambda _: "cyan"))
    output.say()
    output.print_values(found.partitions, columns, noun="partition")


def _print_columns(schema: client.SchemaDescription) -> None:
    columns = [
        Column("column", lambda each: each.name, "*"),
        Column("type", lambda each: each.type, "*"),
        Column("null", lambda each: "" if each.nullable else "NOT NULL"),
    ]
    if schema.version > 1:
        columns.append(Column("since version", lambda each: each.since, ">"))
        columns.append(Column("before", lambda each: " → ".join(each.former)))
    output.say()
    output.print_values(schema.columns, columns, noun="column")
