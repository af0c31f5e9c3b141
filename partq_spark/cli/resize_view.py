"""What a change of the partition count does, or would do, as JSON and for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from partq_spark.cli import output
from partq_spark.cli.output import Json
from partq_spark.cli.status_view import ranges

if TYPE_CHECKING:
    from rich.text import Text

    from partq_spark.client.resize_plan import GroupPlan, ResizePlan

MOST_SHOWN = 16  # partitions of a group in a table, and lines of what waits


def settings_document(changes: Mapping[str, tuple[object, object]]) -> list[Json]:
    """Settings, by their names in the head, with what they were and are to be."""
    return [{"setting": name, "from": _plain(old), "to": _plain(new)} for name, (old, new) in changes.items()]


def document(queue: str, plan: ResizePlan | None, changes: Mapping[str, tuple[object, object]]) -> dict[str, Json]:
    """What would be done; `partitions` is null where the count stays out of it."""
    return {
        "queue": queue,
        "dry_run": True,
        "settings": settings_document(changes),
        "partitions": None if plan is None else _partitions(plan),
        "sample": None if plan is None else _sample(plan),
        "groups": [] if plan is None else groups_document(plan.groups),
    }


def _partitions(plan: ResizePlan) -> dict[str, Json]:
    return {"from": plan.before, "to": plan.after, "new": list(plan.come), "removed": list(plan.go)}


def _sample(plan: ResizePlan) -> dict[str, Json]:
    found = plan.sample
    return {
        "messages": found.messages,
        "without_key": found.without_key,
        "keys": found.keys,
        "keys_that_move": found.moving,
    }


def groups_document(groups: Sequence[GroupPlan]) -> list[Json]:
    """What each group has to acknowledge first, and what waits for what until then."""
    return [
        {
            "group": each.group,
            "messages": each.messages,
            "first": [
                {
                    "partition": drain.partition,
                    "acknowledged": drain.acknowledged,
                    "end": drain.end,
                    "messages": drain.messages,
                }
                for drain in each.drains
            ],
            "waits": [{"partition": p, "waits_for": list(others)} for p, others in each.waits.items()],
            "unreadable_checkpoints": list(each.unread),
        }
        for each in groups
    ]


def _plain(value: object) -> Json:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)


# --- for people -------------------------------------------------------------------------------------------------------


def print_setting(name: str, old: object, new: object) -> None:
    """One setting: old → new."""
    old, new = ("none" if value is None else value for value in (old, new))
    old, new = ("none" if value is None else value for value in (old, new))
    label = name.removesuffix("_s").replace("_", "-")
    output.say(f"{label}: {old} → {new}" if old != new else f"{label}: {new}, as it was")


def print_plan(plan: ResizePlan) -> None:
    """What would come and go, and what moves."""
    print_setting("partitions", plan.before, plan.after)
    if plan.before == plan.after:
        return
    if plan.come:
        output.say(f"New: {_named(plan.come)}.")
    if plan.go:
        output.say(f"Removed: {_named(plan.go)}. What lies there is delivered to its end first.")
    found = plan.sample
    if found.keys:
        share = round(100 * found.moving / found.keys)
        output.say(
            f"Of {output.plural(found.keys, 'key')} in a sample (the newest of every partition, "
            f"{output.plural(found.messages, 'message')}) {found.moving:,} would change partition, {share} %."
        )
    else:
        output.say("There are no keys to look at.")
    print_groups(plan.groups, done=False)


def print_groups(groups: Sequence[GroupPlan], *, done: bool) -> None:
    """What each group has to acknowledge first. `done`: the count has changed."""
    for each in groups:
        if not each.drains:
            output.say(f"Group {each.group!r} has nothing left from before: nothing {_waits(done)}.")
            continue
        _print_group(each, done=done)
    if not groups:
        output.say("The queue has no group that could wait for anything.")


def _print_group(plan: GroupPlan, *, done: bool) -> None:
    from rich.text import Text

    output.say(
        f"Group {plan.group!r} has {output.plural(plan.messages, 'message')} from before the change to acknowledge in "
        f"{output.plural(len(plan.drains), 'partition')}:"
    )
    columns = [("partition", ">"), ("acknowledged", ">"), ("end", ">"), ("left", ">")]
    # Where not everything can be shown, what takes longest.
    first = sorted(plan.drains, key=lambda each: -each.messages)[:MOST_SHOWN]
    lines = [
        [Text(str(each.partition)), Text(f"{each.acknowledged:,}"), Text(f"{each.end:,}"), Text(f"{each.messages:,}")]
        for each in sorted(first, key=lambda each: each.partition)
    ]
    _print_table(columns, lines, len(plan.drains))
    together: dict[tuple[int, ...], list[int]] = {}
    for partition, others in plan.waits.items():
        together.setdefault(others, []).append(partition)
    for others, partitions in list(together.items())[:MOST_SHOWN]:
        one = len(partitions) == 1
        verb = ("waits" if one else "wait") if done else "would wait"
        output.say(f"What comes to {_named(partitions)} {verb} for {_named(others)}.")
    if len(together) > MOST_SHOWN:
        output.say(f"… and {output.plural(len(together) - MOST_SHOWN, 'more line')}: --json shows all")
    if plan.unread:
        output.say(f"! The checkpoint of {_named(plan.unread)} cannot be read: counted from where the group begins.")


def _print_table(columns: Sequence[tuple[str, str]], lines: Sequence[Sequence[Text]], of: int) -> None:
    output.print_table(columns, lines)
    if of > len(lines):
        output.say(f"… and {output.plural(of - len(lines), 'more partition')}: --json shows all")


def _waits(done: bool) -> str:
    return "waits" if done else "would wait"


def _named(partitions: Sequence[int]) -> str:
    return f"partition{'' if len(partitions) == 1 else 's'} {ranges(partitions)}"
