"""`partq queue alter`: settings and the partition count, in one swap; or what that would mean, without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from partq_spark import client
from partq_spark.base.terminal import ranges
from partq_spark.cli import output
from partq_spark.cli.arguments import Where, json_option, queue_argument, where_options, wrong_use
from partq_spark.cli.output import Column
from partq_spark.cli.queue_commands import PARTITIONS, settings_options

MOST_SHOWN = 16  # lines of what waits for what

DRAINS = (
    Column("partition", lambda each: each.partition, ">"),
    Column("acknowledged", lambda each: each.acknowledged, ">"),
    Column("end", lambda each: each.end, ">"),
    Column("left", lambda each: each.messages, ">"),
)


@click.command("alter")
@queue_argument
@click.option("--partitions", type=PARTITIONS, metavar="M", help="The new number of partitions: 1 to 1000.")
@settings_options
@click.option("--dry-run", is_flag=True, help="Say what would change and what would wait for what; change nothing.")
@json_option
@where_options
def alter(where: Where, name: str, partitions: int | None, given: dict[str, Any], dry_run: bool, as_json: bool) -> None:
    """Change a queue's number of partitions and its settings: those that are given, and no others.

    Publishers and consumers may go on meanwhile. Under another number of partitions a key lies in another one: what is
    published after the change is delivered when what shares its keys is acknowledged, group by group.
    """
    if not given and partitions is None:
        wrong_use("nothing to alter: give --partitions or at least one setting.")
    done = where.queue(name).alter(partitions=partitions, dry_run=dry_run, ownership=where.ownership, **given)
    if done.groups is None:
        output.say("The queue was altered; what its groups have left cannot be read now.", err=True)
    if as_json:
        output.print_json(_document(done))
        return
    if not dry_run:
        _print_count(done)
    for change in done.settings:
        _print_setting(change.setting, change.from_, change.to)
    if dry_run:
        _print_count(done)
        _print_moves(done)
    if done.partitions is not None and done.partitions.from_ != done.partitions.to and done.groups is not None:
        _print_groups(done.groups, done=not dry_run)
    if dry_run:
        output.say("Nothing was changed.")


def _document(done: client.Alteration) -> dict[str, output.Json]:
    """What would be done; or the queue as it is now, with what its groups have to acknowledge first."""
    if done.dry_run:
        return {name: value for name, value in output.documents(done).items() if name != "description"}
    described = output.documents(done.description)
    if done.partitions is None or done.partitions.from_ == done.partitions.to:
        return described
    return {**described, "groups_first": output.document(done.groups)}


def _print_count(done: client.Alteration) -> None:
    if done.partitions is not None:
        _print_setting("partitions", done.partitions.from_, done.partitions.to)


def _print_setting(name: str, old: object, new: object) -> None:
    """One setting: old → new."""
    old, new = ("none" if value is None else value for value in (old, new))
    label = name.removesuffix("_s").replace("_", "-")
    output.say(f"{label}: {old} → {new}" if old != new else f"{label}: {new}, as it was")


def _print_moves(done: client.Alteration) -> None:
    """What would come and go, and what moves."""
    change, sample = done.partitions, done.sample
    if change is None or sample is None or change.from_ == change.to:
        return
    if change.new:
        output.say(f"New: {_named(change.new)}.")
    if change.removed:
        output.say(f"Removed: {_named(change.removed)}. What lies there is delivered to its end first.")
    if not sample.keys:
        output.say("There are no keys to look at.")
        return
    share = round(100 * sample.keys_that_move / sample.keys)
    output.say(
        f"Of {output.plural(sample.keys, 'key')} in a sample (the newest of every partition, "
        f"{output.plural(sample.messages, 'message')}) {sample.keys_that_move:,} would change partition, {share} %."
    )


def _print_groups(groups: Sequence[client.GroupPlan], *, done: bool) -> None:
    """What each group has to acknowledge first. `done`: the count has changed."""
    for each in groups:
        if not each.first:
            waits = "waits" if done else "would wait"
            output.say(f"Group {each.group!r} has nothing left from before: nothing {waits}.")
            continue
        _print_group(each, done=done)
    if not groups:
        output.say("The queue has no group that could wait for anything.")


def _print_group(plan: client.GroupPlan, *, done: bool) -> None:
    output.say(
        f"Group {plan.group!r} has {output.plural(plan.messages, 'message')} from before the change to acknowledge in "
        f"{output.plural(len(plan.first), 'partition')}:"
    )
    # Where not everything can be shown, what takes longest.
    output.print_values(plan.first, DRAINS, noun="partition", first=lambda each: -each.messages)
    together: dict[tuple[int, ...], list[int]] = {}
    for wait in plan.waits:
        together.setdefault(wait.waits_for, []).append(wait.partition)
    for others, partitions in list(together.items())[:MOST_SHOWN]:
        one = len(partitions) == 1
        verb = ("waits" if one else "wait") if done else "would wait"
        output.say(f"What comes to {_named(partitions)} {verb} for {_named(others)}.")
    if len(together) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(together) - MOST_SHOWN, 'more line')}: --json shows all")
    if plan.unreadable_checkpoints:
        named = _named(plan.unreadable_checkpoints)
        output.say(f"! The checkpoint of {named} cannot be read: counted from where the group begins.")


def _named(partitions: Sequence[int]) -> str:
    return f"partition{'' if len(partitions) == 1 else 's'} {ranges(partitions)}"
