"""`partq group`: the consumer groups of a queue, how one is shared, and removing one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from partq_spark.cli import output
from partq_spark.cli.arguments import (
    OWNERSHIP,
    Refused,
    Target,
    group_option,
    json_option,
    queue_argument,
    target_options,
    wrong_use,
)
from partq_spark.cli.lazy import Lazy, LazyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from partq_spark.group.lifecycle import GroupSummary, Remains
    from partq_spark.group.stores.api import OwnershipStore
    from partq_spark.log.model import Group
    from partq_spark.log.queue import Queue

COMMANDS = {
    "alter": Lazy("partq_spark.cli.group_commands:alter", "Change how a consumer group is shared."),
    "list": Lazy("partq_spark.cli.group_commands:list_all", "List the consumer groups of a queue."),
    "remove": Lazy("partq_spark.cli.group_commands:remove", "Remove a consumer group for good."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def group() -> None:
    """List a queue's consumer groups, change how one is shared, and remove one."""


@click.command("list")
@queue_argument
@json_option
@target_options
def list_all(target: Target, name: str, as_json: bool) -> None:
    """List the consumer groups of a queue.

    `unacknowledged` messages are those that each group still has to deal with, `oldest` is when the first of them was
    published. `changed` is how long ago a checkpoint was written. `ownership` is how the group is shared. With
    --ownership also the flows that are bound.
    """
    from partq_spark.group.lifecycle import summaries

    with target.queue(name) as queue, target.group_ownership(queue.store) as ownership:
        queue.refresh()
        found = queue.settled(lambda head: summaries(queue, head, ownership))
        where = str(queue)
    if as_json:
        output.print_json([_document(each) for each in found])
    elif found:
        _print(found, known=any(each.flows is not None for each in found))
    else:
        output.say(f"No groups in {where}. A group is made by the first query that names it (option group).")


def _document(found: GroupSummary) -> dict[str, output.Json]:
    from partq_spark.base.timestamps import format_rfc3339

    return {
        "group": found.name,
        "since_sequence": found.since_sequence,
        "ownership": found.ownership,
        "unacknowledged": found.unacknowledged,
        "oldest": None if found.oldest_us is None else format_rfc3339(found.oldest_us),
        "changed_s": None if found.changed_s is None else round(found.changed_s, 3),
        "flows": None if found.flows is None else list(found.flows),
    }


def _print(found: Sequence[GroupSummary], *, known: bool) -> None:
    from rich.text import Text

    columns = [
        ("group", "*"),
        ("since", ">"),
        ("ownership", "<"),
        ("unacknowledged", ">"),
        ("oldest of them", "<"),
        ("changed", ">"),
    ]
    rows = []
    for each in found:
        cells = [
            each.name,
            f"{each.since_sequence:,}",
            each.ownership or "",
            f"{each.unacknowledged:,}",
            "" if each.oldest_us is None else f"{output.when(each.oldest_us)} UTC",
            "never" if each.changed_s is None else f"{each.changed_s:.0f} s ago",
        ]
        rows.append([Text(cell) for cell in [*cells, *([", ".join(each.flows or ())] if known else [])]])
    output.print_table([*columns, *([("flows", "*")] if known else [])], rows)


@click.command("alter")
@queue_argument
@group_option
@click.option(
    "--from",
    "former",
    type=OWNERSHIP,
    metavar="URL",
    help="Where the group has been sharing so far: the Redis that knows whether a flow lives.  [default: "
    "$PARTQ_OWNERSHIP if that is one; store needs no address]",
)
@click.option("--force", is_flag=True, help="Also where nobody can know whether a flow lives.")
@json_option
@target_options
def alter(target: Target, name: str, group: str, former: str | None, force: bool, as_json: bool) -> None:
    """Change how a consumer group is shared: by the --ownership that is given, which its flows must have from then on.

    Checkpoints stay. Refused while one of its flows lives: a moving heartbeat says so where the group was shared, else
    a checkpoint that was changed within the last minute. A flow that lives all the same ends when it looks at the
    queue the next time, before it delivers.
    """
    from partq_spark.group import lifecycle
    from partq_spark.log.admin import group_of
    from partq_spark.log.groups import kind_of

    if not target.says_ownership:
        wrong_use("say how the group is to be shared: --ownership redis://host:port/db, store or none.")
    with target.queue(name) as queue:
        found = group_of(queue, queue.refresh(), group)
        was, wanted = found.ownership, kind_of(target.ownership)
        if was != wanted:
            place = _former(target, former, found, force=force).for_group(queue.head, group)
            with place.group_ownership(queue.store) as ownership:
                left = lifecycle.remains(queue, group, ownership)
                _require_nobody(queue, left, left.group or found, ownership, force=force, option="--from")
                lifecycle.share(queue, left, target.ownership, ownership)
        where = str(queue)
    if as_json:
        output.print_json({"queue": name, "group": group, "ownership": wanted, "was": was, "changed": was != wanted})
    elif was == wanted:
        which = " Which Redis that is, is not written down." if wanted == "redis" else ""
        output.say(f"Group {group!r} of {where} has ownership={wanted} already.{which}")
    else:
        before = "no flow had joined it yet" if was is None else f"it had ownership={was}"
        output.say(f"Group {group!r} of {where} has ownership={wanted} from now on; {before}.")


def _former(target: Target, former: str | None, found: Group, *, force: bool) -> Target:
    """Where the group was shared so far: as given, else by the environment if a Redis is needed that may be it."""
    if former is not None:
        return replace(target, ownership=former)
    from partq_spark.cli.arguments import default_ownership

    known = default_ownership() if found.ownership == "redis" and not force else "none"
    return replace(target, ownership=known, says_ownership=False)


@click.command("remove")
@queue_argument
@group_option
@click.option("--yes", is_flag=True, help="Really remove it.")
@click.option(
    "--force",
    is_flag=True,
    help="Also where a checkpoint was changed within the last minute and no ownership says who lives.",
)
@json_option
@target_options
def remove(target: Target, name: str, group: str, yes: bool, force: bool, as_json: bool) -> None:
    """Remove a consumer group for good: how far it was is forgotten, and nothing is held back for it any more.

    Without --yes it only says what would be removed. Refused while one of its flows lives: with --ownership a moving
    heartbeat says so, without it a checkpoint that was changed within the last minute. If a removal was cut off, the
    same command finishes it. A group that is made again under this name begins anew.
    """
    from partq_spark.group import lifecycle

    with (
        target.queue(name) as queue,
        target.for_group(queue.refresh(), group).group_ownership(queue.store) as ownership,
    ):
        left = lifecycle.remains(queue, group, ownership)
        where = str(queue)
        if left.group is not None:
            _require_nobody(queue, left, left.group, ownership, force=force, option="--ownership")
        if not yes:
            raise Refused(f"this would remove {_contents(left)} of {where} for good. Add --yes to do so.")
        lifecycle.remove(queue, left, ownership)
        known = len(left.checkpoints)
    if as_json:
        output.print_json({"queue": name, "group": group, "removed": left.group is not None, "checkpoints": known})
    elif left.group is None:
        output.say(f"Removed what was left of group {group!r} of {where}.")
    else:
        output.say(f"Removed group {group!r} of {where}, with {output.plural(known, 'checkpoint')}.")


def _require_nobody(
    queue: Queue, left: Remains, found: Group, ownership: OwnershipStore | None, *, force: bool, option: str
) -> None:
    """Raises `Invalid` if a flow of the group lives, or if that cannot be known (unless `force`). `option` names the
    ownership.
    """
    from partq_spark.base.errors import Invalid
    from partq_spark.group import lifecycle

    if ownership is not None and left.records is not None:
        lifecycle.require_no_flow(ownership, left)
    elif force:
        return
    elif ownership is None and found.ownership == "redis":
        raise Invalid(
            f"group {left.key.group!r} of {queue} is shared by a Redis (ownership=redis://…), which alone knows "
            f"whether one of its flows lives: name it ({option} redis://host:port/db), or add --force if you "
            "know that nobody is at work"
        )
    else:
        lifecycle.require_quiet(queue, left)


def _contents(left: Remains) -> str:
    """What would be lost with the group, in words."""
    words = f"group {left.key.group!r}" if left.group is not None else f"what is left of group {left.key.group!r}"
    return f"{words}, with {output.plural(len(left.checkpoints), 'checkpoint')}"
