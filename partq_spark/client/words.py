"""What is said to people of queues and groups, from the client's values: once, for the command line and the page. Pure.

A fact is a name and a text. Why a partition does not flow stands in the values themselves (`group.status`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from partq_spark.base import words
from partq_spark.base.words import partitions, plural, size, when

if TYPE_CHECKING:
    from partq_spark.client.altering import Alteration, GroupPlan
    from partq_spark.client.describing import LogDescription, QueueDescription, WriterResolution
    from partq_spark.client.groups import Rewind
    from partq_spark.group.retention import HeldBack
    from partq_spark.group.status import FlowView, GroupView, PartitionView
    from partq_spark.log.settings import Setting

STATUSES = ("Unassigned", "Ready", "Paused", "Unbound")
MOST_WAITS = 16  # lines of what waits for what

Facts = tuple[tuple[str, str], ...]


# --- one queue --------------------------------------------------------------------------------------------------------


def queue_in_words(found: QueueDescription) -> Facts:
    """What a queue is and what it holds."""
    facts = [
        ("queue", found.queue),
        ("namespace", found.namespace),
        ("store", found.store),
        ("id", found.queue_id),
        ("created", when(found.created) + " UTC"),
        ("last published", "never" if found.last_published is None else when(found.last_published) + " UTC"),
        ("messages", f"{found.messages:,} in {plural(found.layout.partitions, 'partition')}"),
        ("oldest message", _oldest(found)),
        ("stored", size(found.bytes)),
        *(_setting(found, name, each) for name, each in found.config.settings().items()),
        ("groups", ", ".join(found.groups) or "none"),
        ("held back", held_back_in_words(found.held_back or ()) or "nothing"),
        ("writers", f"{found.writers:,} remembered"),
        ("head", f"{size(found.log.head_bytes)}, change {found.log.sequence:,}"),
        ("log", _log(found.log)),
    ]
    if len(found.layouts) > 1:
        counts = " → ".join(str(each.partitions) for each in found.layouts)
        facts.insert(7, ("layouts", f"{counts} partitions; messages of all of them are still there"))
    if found.schema is not None:
        facts[7:7] = [
            ("columns", f"{len(found.schema.columns):,}, version {found.schema.version}"),
            ("key", found.schema.key or "none: messages go to random partitions"),
        ]
    facts += [("damaged", problem) for problem in found.problems]
    facts += [("resolved", resolution(each)) for each in found.resolutions]
    if found.subscriptions:
        facts.append(("topics", ", ".join(found.subscriptions)))
    return tuple(facts)


def resolution(said: WriterResolution) -> str:
    """What a person said of a writer's batches."""
    what = "published already" if said.published else "new"
    return f"writer {said.writer}: batch {said.batch} and later are {what}; {said.by}, {when(said.at)} UTC"


def _setting(found: QueueDescription, name: str, setting: Setting) -> tuple[str, str]:
    value = getattr(found.config, name)
    return label(setting), quota(value, found.quota_used) if name == "quota_bytes" else _value(setting, value)


def label(setting: Setting) -> str:
    """What a setting is called, without the unit, which stands with its value."""
    return setting.name.removesuffix("-bytes").replace("-", " ")


def _value(setting: Setting, value: Any) -> str:
    if value is None or setting.choices:
        return value or "none"
    return words.seconds(value) if setting.unit == "seconds" else f"{value:,} {setting.unit}".rstrip()


def quota(quota_bytes: int | None, used: float | None) -> str:
    """A quota, and how full the queue is."""
    return "none" if quota_bytes is None else f"{size(quota_bytes)}, {used or 0.0:.0%} used"


def _oldest(found: QueueDescription) -> str:
    if found.oldest is None:
        return "not known" if found.problems else "none"
    return f"{when(found.oldest)} UTC, {words.age(found.oldest_age_s or 0.0)}"


def _log(log: LogDescription) -> str:
    text = f"{plural(log.entries, 'publish')} in the head, {plural(log.chunks, 'chunk')} below it"
    if log.chunks:
        text += f" in {plural(log.depth, 'level')}"
    return f"{text}, {plural(log.slices, 'slice')}"


def held_back_in_words(found: Sequence[HeldBack]) -> str:
    """What groups keep, in words: for each group how much, and where most of it lies."""
    of_group: dict[str, list[HeldBack]] = defaultdict(list)
    for each in found:
        of_group[each.group].append(each)
    made = []
    for group, mine in of_group.items():
        most = max(mine, key=lambda each: each.messages)
        text = f"group {group} needs {plural(sum(each.messages for each in mine), 'message')}"
        where = f"{most.messages:,} of them in partition {most.partition}, from offset {most.offset:,}"
        alone = f"in partition {most.partition}, from offset {most.offset:,}"
        for_ever = ", for ever: checkpoints=none writes no acknowledgement down" if most.for_ever else ""
        made.append((f"{text} ({where})" if len(mine) > 1 else f"{text} {alone}") + for_ever)
    return "; ".join(made)


# --- one message ------------------------------------------------------------------------------------------------------


def shown(value: bytes | str | None, most: int = words.SHOWN_BYTES) -> str:
    """A key, value or header on one line, cut after so many bytes."""
    if value is None:
        return "null"
    data = value.encode() if isinstance(value, str) else value
    return words.readable(data, most) if data else '""'


# --- one group --------------------------------------------------------------------------------------------------------


def group_in_words(view: GroupView) -> Facts:
    """How a group is as a whole."""
    rebalancing = str(view.rebalance_status)
    if view.rebalance_deadline_s is not None:
        rebalancing += f", {view.rebalance_deadline_s:.1f} s left"
    leader, age_s = view.coordinator.leader or "none", view.coordinator.age_s
    if view.coordinator.leader is not None and age_s is not None:
        leader += f", renewed {age_s:.1f} s ago"
    counts = {status: sum(each.status == status for each in view.partitions) for status in STATUSES}
    return (
        ("queue", f"{view.queue} (namespace {view.namespace})"),
        ("group", view.group),
        ("rebalancing", rebalancing),
        ("scaling", view.scale_status),
        ("partitions", ", ".join(f"{count:,} {status}" for status, count in counts.items() if count)),
        ("lag", lag(view)),
        ("coordinator", leader),
    )


def lag(view: GroupView) -> str:
    """How far the group is behind, in messages and in seconds."""
    messages = plural(sum(each.lag for each in view.partitions), "message")
    oldest_s = max((each.lag_s or 0.0 for each in view.partitions), default=0.0)
    return f"{messages}, the oldest of them {oldest_s:,.1f} s old" if oldest_s else messages


def lag_s(partition: PartitionView) -> str:
    """The age of a partition's oldest message that is not acknowledged; empty where it is not known."""
    return "" if partition.lag_s is None else f"{partition.lag_s:,.1f}"


def flow_state(flow: FlowView) -> str:
    """Whether a flow is there, is heard of, and takes part."""
    if not flow.bound:
        return "not bound"
    return "silent" if flow.silent else "active" if flow.active else "inactive"


def standing_still(view: GroupView) -> frozenset[int]:
    """The partitions of which something is wrong that is no step of a rebalancing."""
    waiting = (each for each in view.partitions if each.status != "Ready" and each.handoff is None)
    still = (each.partition for each in waiting if each.lag or each.epoch)  # else there was nothing to take yet
    return frozenset((*still, *view.damaged))


def health(view: GroupView) -> str:
    """What is wrong with a group, in a few words; empty: nothing."""
    damaged = len(view.damaged)
    still = len(standing_still(view)) - damaged
    states = [flow_state(each) for each in view.flows]
    counts = [("partition", "damaged", damaged), ("partition", "not flowing", still)]
    counts += [("flow", state, states.count(state)) for state in ("silent", "not bound")]
    said = [f"{plural(count, noun)} {what}" for noun, what, count in counts if count]
    if view.flows and view.coordinator.leader is None:
        said.append("no coordinator")
    return ", ".join(said)


def last_seen(flow: FlowView) -> str:
    """How long ago its last heartbeat was; empty where there is none."""
    return "" if flow.last_seen_s is None else f"{flow.last_seen_s:.1f} s ago"


def flow_notes(flows: Sequence[FlowView]) -> tuple[str, ...]:
    """What flows say of themselves."""
    return tuple(f"flow {each.flow}: {each.note}" for each in flows if each.note)


def reasons_in_words(found: Sequence[PartitionView]) -> tuple[str, ...]:
    """Why something does not flow: a line for each reason, with the partitions that it holds for."""
    numbers: dict[str, list[int]] = {}
    for each in found:
        if each.reason:
            numbers.setdefault(each.reason, []).append(each.partition)
    return tuple(f"{partitions(those)}: {reason}" for reason, those in numbers.items())


# --- changes, before and after they are made --------------------------------------------------------------------------


def _change(name: str, old: object, new: object) -> str:
    return f"{name}: {old} → {new}" if old != new else f"{name}: {new}, as it was"


def settings(done: Alteration) -> Iterator[str]:
    """The settings of an alteration: the partition count first where it was changed, last where it would be."""
    count, known = done.partitions, done.description.config.settings()
    counts = [] if count is None else [_change("partitions", count.from_, count.to)]
    changed = [(known[each.name], each) for each in done.settings]
    others = [_change(label(it), _value(it, each.from_), _value(it, each.to)) for it, each in changed]
    yield from (*others, *counts) if done.dry_run else (*counts, *others)


def columns(done: Alteration) -> Iterator[str]:
    """The columns that come or get wider, and what streaming queries must do about it."""
    change = done.schema
    if change is None:
        return
    if not change.added and not change.widened:
        yield "schema: as it was"
        return
    for column in change.added:
        yield f"new column: {column}, null in the messages that are there"
    for wider in change.widened:
        yield f"column {wider.name}: {wider.from_} → {wider.to}"
    yield (
        f"Publishers and queries {'would go' if done.dry_run else 'go'} on with the columns that they have loaded. A "
        "streaming query that keeps whole rows or a widened column in Spark's state (dropDuplicates, joins, "
        "aggregations) must pin its columns with .schema() before it is started again, or Spark refuses its "
        "checkpoint. The columns before this change, to which _metadata belongs if the query keeps it:"
    )
    yield f"  .schema({json.dumps(change.from_, ensure_ascii=False)})"


def moves(done: Alteration) -> Iterator[str]:
    """What would come and go, and what would move."""
    change, sample = done.partitions, done.sample
    if change is None or sample is None or change.from_ == change.to:
        return
    if change.to > change.from_:
        yield f"New: {partitions(range(change.from_, change.to))}."
    else:
        yield f"Removed: {partitions(range(change.to, change.from_))}. What lies there is delivered to its end first."
    if not sample.keys:
        yield "There are no keys to look at."
        return
    share = round(100 * sample.keys_that_move / sample.keys)
    yield (
        f"Of {plural(sample.keys, 'key')} in a sample (the newest of every partition, "
        f"{plural(sample.messages, 'message')}) {sample.keys_that_move:,} would change partition, {share} %."
    )


def first(plan: GroupPlan, *, done: bool) -> str:
    """What a group has to acknowledge first. `done`: the count has changed."""
    if not plan.first:
        return f"Group {plan.group!r} has nothing left from before: nothing {'waits' if done else 'would wait'}."
    return (
        f"Group {plan.group!r} has {plural(plan.messages, 'message')} from before the change to acknowledge in "
        f"{plural(len(plan.first), 'partition')}:"
    )


def waits_in_words(plan: GroupPlan, *, done: bool) -> Iterator[str]:
    """What waits for what, and what is not known; the lines behind `first`."""
    together: dict[tuple[int, ...], list[int]] = {}
    for partition, others in plan.waits.items():
        together.setdefault(others, []).append(partition)
    for others, those in list(together.items())[:MOST_WAITS]:
        yield f"What comes to {partitions(those)} {'waits' if done else 'would wait'} for {partitions(others)}."
    if len(together) > MOST_WAITS:
        yield f"… and {plural(len(together) - MOST_WAITS, 'more line')}: --json shows all"
    if plan.unreadable_checkpoints:
        named = partitions(plan.unreadable_checkpoints)
        yield f"! The checkpoint of {named} cannot be read: counted from where the group begins."


def comes_again(planned: Rewind, queue: object) -> str:
    """What a rewind delivers again: `12 messages of queue … to group … again`."""
    messages = plural(sum(each.messages for each in planned.partitions), "message")
    return f"{messages} of {queue} to group {planned.group!r} again"


def rewound(done: Rewind, queue: object, *, finished: bool = True) -> str:
    """What a rewind did; empty where it did nothing because it was cut off."""
    moved = [each for each in done.partitions if each.rewound]
    group = f"group {done.group!r}"
    if moved:
        messages = plural(sum(each.messages for each in moved), "message")
        many = plural(len(moved), "partition")
        return f"Rewound {many} of {queue} for {group}: {messages} will be delivered again, marked."
    return f"Nothing to rewind: {group} of {queue} is not past that place." if finished else ""
