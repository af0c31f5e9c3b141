"""`partq queue alter`: settings and the partition count, in one swap; or what that would mean, without it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import click

from partq_spark.base.errors import Unavailable
from partq_spark.cli import output
from partq_spark.cli.arguments import Target, json_option, queue_argument, target_options, wrong_use
from partq_spark.cli.queue_commands import PARTITIONS, configured, settings_options

if TYPE_CHECKING:
    from partq_spark.group.stores.api import OwnershipStore
    from partq_spark.log.model import Head
    from partq_spark.log.queue import Queue

Changes = dict[str, tuple[object, object]]


@click.command("alter")
@queue_argument
@click.option("--partitions", type=PARTITIONS, metavar="M", help="The new number of partitions: 1 to 1000.")
@settings_options
@click.option("--dry-run", is_flag=True, help="Say what would change and what would wait for what; change nothing.")
@json_option
@target_options
def alter(
    target: Target,
    name: str,
    partitions: int | None,
    given: dict[str, Any],
    schema: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change a queue's number of partitions and its settings: those that are given, and no others.

    Publishers and consumers may go on meanwhile. Under another number of partitions a key lies in another one: what is
    published after the change is delivered when what shares its keys is acknowledged, group by group.
    """
    if not given and schema is None and partitions is None:
        wrong_use("nothing to alter: give --partitions or at least one setting.")
    from partq_spark.log.model import QueueConfig

    configured(QueueConfig(), given, schema)  # each setting has a range of its own, so this needs no queue
    with target.queue(name) as queue, target.group_ownership(queue.store) as ownership:
        before = queue.refresh()
        if dry_run:
            _print_dry_run(queue, partitions, _changes(before, given), as_json=as_json)
            return
        from partq_spark.log.admin import alter_queue

        head = alter_queue(queue, partitions=partitions, **given)
        if ownership is not None:
            _announce(queue, ownership)
        _print_done(queue, before, head, partitions, given, as_json=as_json)


def _changes(head: Head, given: dict[str, Any]) -> Changes:
    return {name: (getattr(head.config, name), value) for name, value in given.items()}


def _print_dry_run(queue: Queue, partitions: int | None, changes: Changes, *, as_json: bool) -> None:
    from partq_spark.cli import resize_view
    from partq_spark.client import resize_plan

    plan = None if partitions is None else resize_plan.plan(queue, partitions)
    if as_json:
        output.print_json(resize_view.document(queue.name, plan, changes))
        return
    for setting, (old, new) in changes.items():
        resize_view.print_setting(setting, old, new)
    if plan is not None:
        resize_view.print_plan(plan)
    output.say("Nothing was changed.")


def _print_done(
    queue: Queue, before: Head, head: Head, partitions: int | None, given: dict[str, Any], *, as_json: bool
) -> None:
    from partq_spark.cli import queue_view, resize_view
    from partq_spark.client import resize_plan

    resized = partitions is not None and before.partitions != head.partitions
    groups: tuple[resize_plan.GroupPlan, ...] | None = ()
    if resized:
        try:
            groups = resize_plan.group_plans(queue, head)
        except Unavailable as error:  # the queue has been altered, which is what counts
            groups = None
            output.say(f"The queue was altered; what its groups have left cannot be read now: {error}", err=True)
    if as_json:
        document = queue_view.description(head, None)
        waiting = None if groups is None else resize_view.groups_document(groups)
        output.print_json({**document, "groups_first": waiting} if resized else document)
        return
    if partitions is not None:
        resize_view.print_setting("partitions", before.partitions, head.partitions)
    for setting in given:
        resize_view.print_setting(setting, getattr(before.config, setting), getattr(head.config, setting))
    if resized and groups is not None:
        resize_view.print_groups(groups, done=True)


def _announce(queue: Queue, ownership: OwnershipStore) -> None:
    """Tell coordinators to look at the queue's head."""
    from partq_spark.group.model import GroupKey
    from partq_spark.group.stores.api import HEAD

    with contextlib.suppress(Unavailable):  # they look by themselves, too
        ownership.announce(GroupKey(queue.namespace, queue.name, HEAD))
