"""`partq queue describe`: the facts of a queue below each other, then its partitions; and what groups hold back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import click

from partq_spark import client
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, json_option, queue_argument, where_options
from partq_spark.cli.output import Column

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
    output.facts(_facts(found))
    most = max(each.messages for each in found.partitions)
    columns = [
        Column("partition", lambda each: each.partition, ">"),
        Column("earliest", lambda each: each.earliest, ">"),
        Column("next", lambda each: each.next, ">"),
        Column("messages", lambda each: each.messages, ">"),
    ]
    if count_bytes:
        columns.append(Column("stored", lambda each: output.size(each.bytes), ">"))
    columns.append(Column("", lambda each: output.bar(each.messages, most, _BAR), style=lambda _: "cyan"))
    output.say()
    output.print_values(found.partitions, columns, noun="partition")


def _facts(found: client.QueueDescription) -> Sequence[tuple[str, str]]:
    config = found.config
    pairs = [
        ("queue", found.queue),
        ("namespace", found.namespace),
        ("store", found.store),
        ("id", found.queue_id),
        ("created", output.when(found.created) + " UTC"),
        ("last published", "never" if found.last_published is None else output.when(found.last_published) + " UTC"),
        ("messages", f"{found.messages:,} in {output.plural(found.layout.partitions, 'partition')}"),
        ("oldest message", _oldest(found)),
        ("stored", output.size(found.bytes)),
        ("quota", "none" if config.quota_bytes is None else _quota(config.quota_bytes, found.quota_used)),
        ("retention", "none" if config.retention_s is None else output.seconds(config.retention_s)),
        ("access type", config.access_type),
        ("rebalance delay", output.seconds(config.rebalance_delay_s)),
        ("max handoff time", output.seconds(config.max_handoff_time_s)),
        ("max message", f"{config.max_message_bytes:,} bytes"),
        ("groups", ", ".join(each.group for each in found.groups) or "none"),
        ("held back", held_back_words(found.held_back or ()) or "nothing"),
        ("writers", f"{found.writers:,} remembered"),
        ("head", f"{output.size(found.head.bytes)}, change {found.head.sequence:,}"),
        ("log", _log(found.log)),
    ]
    if len(found.layouts) > 1:
        counts = " → ".join(str(each.partitions) for each in found.layouts)
        pairs.insert(7, ("layouts", f"{counts} partitions; messages of all of them are still there"))
    if found.subscriptions:
        pairs.append(("topics", ", ".join(found.subscriptions)))
    return pairs


def _oldest(found: client.QueueDescription) -> str:
    if found.oldest is None:
        return "none"
    return f"{output.when(found.oldest)} UTC, {output.age(found.oldest_age_s or 0.0)}"


def _quota(quota_bytes: int, used: float | None) -> str:
    return f"{output.size(quota_bytes)}, {used or 0.0:.0%} used"


def _log(log: client.LogDescription) -> str:
    words = f"{output.plural(log.entries, 'publish')} in the head, {output.plural(log.chunks, 'chunk')} below it"
    if log.chunks:
        words += f" in {output.plural(log.depth, 'level')}"
    return f"{words}, {output.plural(log.slices, 'slice')}"


def held_back_words(found: Sequence[client.HeldBack]) -> str:
    """What groups keep, in words: for each group how much, and where most of it lies."""
    of_group: dict[str, list[client.HeldBack]] = defaultdict(list)
    for each in found:
        of_group[each.group].append(each)
    words = []
    for group, mine in of_group.items():
        most = max(mine, key=lambda each: each.messages)
        text = f"group {group} needs {output.plural(sum(each.messages for each in mine), 'message')}"
        where = f"{most.messages:,} of them in partition {most.partition}, from offset {most.offset:,}"
        alone = f"in partition {most.partition}, from offset {most.offset:,}"
        for_ever = ", for ever: checkpoints=none writes no acknowledgement down" if most.for_ever else ""
        words.append((f"{text} ({where})" if len(mine) > 1 else f"{text} {alone}") + for_ever)
    return "; ".join(words)
