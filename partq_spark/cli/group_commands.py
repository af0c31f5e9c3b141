"""`partq group`: the consumer groups of a queue, how one is shared, and removing one."""

from __future__ import annotations

import click

from partq_spark.base import words
from partq_spark.cli import output
from partq_spark.cli.arguments import (
    OWNERSHIP,
    Refused,
    Where,
    group_option,
    json_option,
    queue_argument,
    where_options,
    wrong_use,
)
from partq_spark.cli.lazy import Lazy, LazyGroup
from partq_spark.cli.output import TableColumn

COMMANDS = {
    "alter": Lazy("partq_spark.cli.group_commands:alter", "Change how a consumer group is shared."),
    "list": Lazy("partq_spark.cli.group_commands:list_all", "List the consumer groups of a queue."),
    "remove": Lazy("partq_spark.cli.group_commands:remove", "Remove a consumer group for good."),
}
GROUPS = (
    TableColumn("group", lambda each: each.group, "*"),
    TableColumn("since", lambda each: each.since_sequence, ">"),
    TableColumn("ownership", lambda each: each.ownership),
    TableColumn("unacknowledged", lambda each: each.unacknowledged, ">"),
    TableColumn("oldest of them", lambda each: None if each.oldest is None else f"{words.when(each.oldest)} UTC"),
    TableColumn("changed", lambda each: "never" if each.changed_s is None else f"{each.changed_s:.0f} s ago", ">"),
)
FLOWS = TableColumn("flows", lambda each: ", ".join(each.flows or ()), "*")


@click.group(cls=LazyGroup, lazy=COMMANDS)
def group() -> None:
    """List a queue's consumer groups, change how one is shared, and remove one."""


@click.command("list")
@queue_argument
@json_option
@where_options
def list_all(where: Where, name: str, as_json: bool) -> None:
    """List the consumer groups of a queue.

    `unacknowledged` messages are those that each group still has to deal with, `oldest` is when the first of them was
    published. `changed` is how long ago a checkpoint was written. `ownership` is how the group is shared. With
    --ownership also the flows that are bound.
    """
    queue = where.queue(name)
    found = queue.groups(ownership=where.ownership)
    if as_json:
        output.print_json(output.document(found))
    elif found:
        known = any(each.flows is not None for each in found)
        output.print_values(found, (*GROUPS, FLOWS) if known else GROUPS, noun="group")
        for each in found:
            for problem in each.problems:
                output.say(f"! group {each.group}: {problem}")
    else:
        output.say(f"No groups in {queue}. A group is made by the first query that names it (option group).")


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
@where_options
def alter(where: Where, name: str, group: str, former: str | None, force: bool, as_json: bool) -> None:
    """Change how a consumer group is shared: by the --ownership that is given, which its flows must have from then on.

    Checkpoints stay. Refused while one of its flows lives: a moving heartbeat says so where the group was shared, else
    a checkpoint that was changed within the last minute. A flow that lives all the same ends when it looks at the
    queue the next time, before it delivers.
    """
    if where.ownership is None:
        wrong_use("say how the group is to be shared: --ownership redis://host:port/db, store or none.")
    queue = where.queue(name)
    done = queue.alter_group(group, ownership=where.ownership, former=former, force=force)
    if as_json:
        output.print_json(output.document(done))
    elif not done.changed:
        which = " Which Redis that is, is not written down." if done.ownership == "redis" else ""
        output.say(f"Group {group!r} of {queue} has ownership={done.ownership} already.{which}")
    else:
        before = "no flow had joined it yet" if done.was is None else f"it had ownership={done.was}"
        output.say(f"Group {group!r} of {queue} has ownership={done.ownership} from now on; {before}.")


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
@where_options
def remove(where: Where, name: str, group: str, yes: bool, force: bool, as_json: bool) -> None:
    """Remove a consumer group for good: how far it was is forgotten, and nothing is held back for it any more.

    Without --yes it only says what would be removed. Refused while one of its flows lives: with --ownership a moving
    heartbeat says so, without it a checkpoint that was changed within the last minute. If a removal was cut off, the
    same command finishes it. A group that is made again under this name begins anew.
    """
    queue = where.queue(name)
    done = queue.remove_group(group, ownership=where.ownership, force=force, dry_run=not yes)
    checkpoints = words.plural(done.checkpoints, "checkpoint")
    if not yes:
        what = f"group {group!r}" if done.removed else f"what is left of group {group!r}"
        raise Refused(f"this would remove {what}, with {checkpoints} of {queue} for good. Add --yes to do so.")
    if as_json:
        output.print_json(output.document(done))
    elif done.removed:
        output.say(f"Removed group {group!r} of {queue}, with {checkpoints}.")
    else:
        output.say(f"Removed what was left of group {group!r} of {queue}.")
