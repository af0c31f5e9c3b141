"""What must be true of queries behind Spark: what their batches delivered, handled and acknowledged, group by group.

Knows messages, batches, checkpoints and acknowledgements, in true time; nothing of consumers, sessions or offsets'
meaning. The rules that hold of every delivery are those of `tests.support.judge`; here is what Spark's batches add.
Raises `Violation` at the first thing that must never happen; its own tests feed it bad histories.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from partq_spark.group.model import Owner
from partq_spark.group.solo import CONFIRMED_S
from tests.simulation import history as h
from tests.support.judge import (
    Delivery,
    Leases,
    Message,
    Ownership,
    Publications,
    before_its_key,
    demand,
    forbid,
    unmarked_in_time,
)
from tests.support.scheduler import SECOND_US


class Row(NamedTuple):
    """One message as a batch delivers it. `epoch`: of the ownership in whose name it does."""

    partition: int
    offset: int
    redelivered: bool
    epoch: int

    @property
    def message(self) -> Message:
        """Which message it is."""
        return Message(self.partition, self.offset)


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a batch of one source the same batch: the query, and the text of its end. Not its number: with
    asyncProgressTracking Spark repeats under one number what it had under others.
    """

    query: str
    source: int
    end: str
    batch: int = field(compare=False)

    def __str__(self) -> str:
        return f"batch {self.batch} of {self.query}/{self.source}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A batch of one source was planned: `made_us` is when Spark asked for its end, `asked_us` when it asked for its
    partitions, `planned_us` when it had them, in the name of `instance`. `alone`: by a flow that takes the group to be
    its own. `repeated`: Spark did not ask for its end, but had it in its log. Of a query without a group, whose `group`
    is empty, all that counts is judged when it is planned (`exact`).
    """

    identity: Identity
    group: str
    flow: str
    made_us: int
    asked_us: int
    planned_us: int
    rows: tuple[Row, ...]
    instance: str | None = None
    alone: bool = False
    repeated: bool = False


class _Fence(NamedTuple):
    at_us: int
    epoch: int
    flow: str | None
    rewound: bool = False  # its owner does not know it yet, and what it delivers meanwhile comes again, marked


@dataclass(slots=True)
class _First:
    """What a batch said of a message when it was planned first."""

    asked_us: int
    planned_us: int
    redelivered: bool
    epoch: int
    read: bool = False

    def delivery(self, identity: Identity, message: Message) -> Delivery:
        """By that batch."""
        by = Ownership(self.epoch, str(identity), "")
        return Delivery.of_one(by, message.offset, self.redelivered, self.asked_us, self.planned_us)


@dataclass(slots=True)
class _Batch:
    """What is known of a batch: what it may have, since Spark asked for its end, and all that it ever had."""

    may_have: frozenset[Message] = frozenset()
    only_repeated: bool = True  # nobody who asked for its end has planned it
    firsts: dict[Message, _First] = field(default_factory=dict)
    planned_us: int = 0  # the last time


@dataclass(slots=True)
class Group:
    """What is known of one consumer group. `by_hand`: nothing is dealt with but by the application's word."""

    name: str
    keeps: bool
    plain: bool = False  # nothing befalls its queries after which somebody may not know what was delivered
    since: int = 0  # as the head has it
    start: dict[int, int] = field(default_factory=dict)
    fences: dict[int, list[_Fence]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[int, int] = field(default_factory=dict)  # of the checkpoints
    batches: dict[Identity, _Batch] = field(default_factory=dict)
    made: dict[Identity, int] = field(default_factory=dict)  # when Spark asked for the end, the last time
    deliveries: dict[Message, dict[Identity, _First]] = field(default_factory=lambda: defaultdict(dict))
    reached: dict[int, int] = field(default_factory=dict)  # handled for the first time up to here
    done: Counter[Message] = field(default_factory=Counter)  # how often somebody said so: Spark, or the application
    again: list[tuple[int, int, int]] = field(default_factory=list)  # rewound: when, partition, to

    def begins(self, partition: int) -> int:
        """The group's first message of a partition."""
        return self.start.get(partition, 0)

    def handled_to(self, partition: int) -> int:
        """Everything before it was handled."""
        return self.reached.get(partition, self.begins(partition))


class Judge:
    """Of one world."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.former: list[Group] = []  # that were removed, and whose queries are still to go on
        self.queue = Publications()
        self._leases = Leases()
        self.repeated = 0
        self.marked = 0

    # --- the queue ----------------------------------------------------------------------------------------------------

    @property
    def ends(self) -> list[int]:
        """Where the queue's partitions end."""
        return self.queue.ends

    def made(self, name: str, start: Sequence[int], since: int = 0) -> None:
        """The group is in the head, beginning there; `since`: the head's sequence number then."""
        self.groups[name].start = dict(enumerate(start))
        self.groups[name].since = since

    def removed(self, name: str) -> None:
        """Somebody has removed the group. What its queries had not done they still have to do: it may not be skipped
        in silence, unless `begun_anew`.
        """
        group = self.groups[name]
        self.former.append(group)
        self.groups[name] = Group(name, group.keeps, group.plain)

    def begun_anew(self, name: str) -> None:
        """The user was told, and lets the queries begin anew."""
        self.former = [group for group in self.former if group.name != name]

    def rewinding(self, at_us: int, name: str, partition: int, to: int) -> None:
        """Somebody takes a partition back: what is dealt with from there on is to be dealt with again."""
        group = self.groups[name]
        group.again.append((at_us, partition, to))
        group.reached.setdefault(partition, group.begins(partition))  # what lies before was somebody else's to handle
        group.start[partition] = min(to, group.begins(partition))
        group.offsets[partition] = min(to, group.offsets.get(partition, to))
        for message in [each for each in group.done if each.partition == partition and each.offset >= to]:
            del group.done[message]

    # --- leases -------------------------------------------------------------------------------------------------------

    def lease(self, fact: h.Fact) -> None:
        """Until when each instance may deliver, by what it heard of its own heartbeats. No other fact is looked at."""
        if isinstance(fact, h.Bound):
            self._leases.bound(fact.owner, round(fact.session_timeout_s * SECOND_US))
        elif isinstance(fact, h.Renewed):
            self._leases.renewed(fact.owner, fact.sent_us)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def checkpoint(
        self, at_us: int, name: str, partition: int, epoch: int, flow: str | None, offset: int | None, since: int = 0
    ) -> None:
        """A checkpoint took effect, of the group that was made `since` then."""
        group = self.groups[name]
        if since != group.since:
            return  # a flow writes that has not noticed yet that its group was removed
        fences = group.fences[partition]
        if not fences or (fences[-1].epoch, fences[-1].flow) != (epoch, flow):
            rewound = flow is None and (at_us, partition) in {(when, number) for when, number, _ in group.again}
            fences.append(_Fence(at_us, epoch, flow, rewound))
        if offset is None:
            group.offsets.pop(partition, None)  # a flow that keeps none: the next that does begins where the group does
            return
        known = group.offsets.get(partition, group.begins(partition))
        demand(offset >= known, f"the checkpoint of partition {partition} of {name} went back from {known} to {offset}")
        missing = [each for each in range(known, offset) if Message(partition, each) not in group.done]
        demand(
            not missing,
            f"the checkpoint of partition {partition} of {name} passes from {known} to {offset}, and nobody is done "
            f"with {missing[:8]}",
        )
        group.offsets[partition] = offset

    # --- batches ------------------------------------------------------------------------------------------------------

    def given(self, name: str, identity: Identity, made_us: int) -> None:
        """Spark has asked for an end and was given this one."""
        self.groups[name].made[identity] = made_us

    def planned(self, plan: Planned) -> None:
        """Spark has the partitions of a batch. Nothing was read yet."""
        group = self.groups[plan.group]
        messages = [row.message for row in plan.rows]
        if messages and not plan.alone:
            forbid(self._leases.over(Owner(plan.flow, plan.instance or ""), plan.planned_us), plan.identity)
        demand(len(set(messages)) == len(messages), f"{plan.identity} has a message twice:", messages)
        found = group.batches.get(plan.identity)
        is_new = found is None or self._is_made_anew(found, plan)
        known = found if found is not None else _Batch()
        for row in plan.rows:
            end = self.ends[row.partition] if row.partition < len(self.ends) else 0
            demand(group.begins(row.partition) <= row.offset < end, f"{plan.identity} has what is not there:", row)
            self._owned(group, plan, row)
            first = known.firsts.get(row.message)
            demand(
                is_new or row.message in known.may_have,
                f"{plan.identity} has {row.message}, which it did not have at first",
            )
            demand(
                first is None or first.redelivered == row.redelivered,
                f"{plan.identity} has {row.message} with another mark than at first: {row.redelivered}",
            )
        if is_new:
            self._unmarked(group, plan)
            known.may_have = frozenset(messages)
            # A repetition has the marks of its end, made before: whether that was ever delivered, no run can know.
            asked_us = group.made.get(plan.identity, plan.asked_us) if plan.repeated else plan.asked_us
            for row in plan.rows:
                first = _First(asked_us, plan.planned_us, row.redelivered, row.epoch)
                known.firsts.setdefault(row.message, first)
        known.planned_us = plan.planned_us
        known.only_repeated = known.only_repeated and plan.repeated
        group.batches[plan.identity] = known

    def _is_made_anew(self, known: _Batch, plan: Planned) -> bool:
        """Spark forgot the batch, and asked for its end again after it was planned: with asyncProgressTracking, or on
        an older Spark checkpoint. That it has the same text is chance: what a reader left out of the former one,
        because another had announced it, is in this one. What any batch had before is marked as in every other.
        """
        return not plan.repeated and (plan.made_us > known.planned_us or self._stood_still(known, plan))

    def _stood_still(self, known: _Batch, plan: Planned) -> bool:
        """Alone in the group, the run that asked for the end reads what was announced to it although another run
        repeated the batch meanwhile, which found nothing of it: a look at the group is good for a while.
        """
        waited_us = plan.planned_us - plan.asked_us
        return plan.alone and known.only_repeated and waited_us <= CONFIRMED_S * SECOND_US

    def _unmarked(self, group: Group, plan: Planned) -> None:
        """A query that goes on at its epoch, after nothing but stops, does not mark what nobody had."""
        if not group.plain:
            return
        firsts = [(each, first) for batch in group.batches.values() for each, first in batch.firsts.items()]
        had = {message for message, _ in firsts}
        new = {(message.partition, first.epoch) for message, first in firsts if not first.redelivered}
        for row in plan.rows:
            unknown = row.message not in had and (row.partition, row.epoch) in new
            demand(not (unknown and row.redelivered), f"{plan.identity} marks {row.message}, which nobody had before")

    def _owned(self, group: Group, plan: Planned, row: Row) -> None:
        """HAN-05: the flow had the partition when the batch was planned; alone in its group, when it was made."""
        fences = group.fences[row.partition]
        since_us = plan.made_us if plan.alone else plan.asked_us
        for number, fence in enumerate(fences):
            until_us = next((each.at_us for each in fences[number + 1 :] if not each.rewound), None)
            mine = fence.epoch == row.epoch and fence.flow == plan.flow
            if mine and fence.at_us <= plan.planned_us and (until_us is None or until_us >= since_us):
                return
        demand(
            False,
            f"{plan.identity} has partition {row.partition} at epoch {row.epoch} for {plan.flow}, asked for at "
            f"{since_us}, and had it not:",
            fences[-3:],
        )

    def read(self, plan: Planned) -> None:
        """The application has the rows of a planned batch in its hands."""
        if not plan.group:
            return
        group = self.groups[plan.group]
        batch = group.batches[plan.identity].firsts
        for row in plan.rows:
            message = row.message
            mine = batch[message]
            others = group.deliveries[message]
            if mine.read:
                continue
            mine.read = True
            for identity, other in others.items():
                self.repeated += 1
                self.marked += mine.redelivered or other.redelivered
                copies = (mine.delivery(plan.identity, message), other.delivery(identity, message))
                forbid(unmarked_in_time(*copies), message, "of", group.name)
            others[plan.identity] = mine

    def handled(self, plan: Planned, rows: Sequence[Row]) -> None:
        """The application has dealt with these rows, in this order, perhaps for nothing."""
        if not plan.group:
            return
        group = self.groups[plan.group]
        for row in rows:
            reached = group.handled_to(row.partition)
            demand(
                row.offset <= reached,
                f"{plan.identity} goes on at {row.message} of {group.name}, and nobody has handled {reached}",
            )
            if row.offset == reached:
                earlier = self.queue.earlier(row.message) if group.keeps else ()
                forbid(before_its_key(row.message, earlier, group.handled_to), group.name)
                group.reached[row.partition] = row.offset + 1

    def completed(self, plan: Planned) -> None:
        """The batch is complete, and its rows were handled: by the word of Spark."""
        self._done(self.groups[plan.group], {row.message: plan.asked_us for row in plan.rows})

    def acknowledging(self, name: str, messages: Mapping[Message, int]) -> frozenset[Message]:
        """The application says that it is done with these, each with when its batch was planned; which ones count."""
        return self._done(self.groups[name], messages)

    def refused(self, name: str, messages: Collection[Message]) -> None:
        """It was told that this counts for nothing."""
        done = self.groups[name].done
        for message in messages:
            done[message] -= 1
            if done[message] <= 0:
                del done[message]

    def _done(self, group: Group, messages: Mapping[Message, int]) -> frozenset[Message]:
        counts = {
            message
            for message, at_us in messages.items()
            if all(
                at_us > rewound_us or message.partition != partition or message.offset < to
                for rewound_us, partition, to in group.again
            )
        }
        group.done.update(counts)
        return frozenset(counts)

    # --- the end ------------------------------------------------------------------------------------------------------

    def amount(self) -> int:
        """How much is left to do, to see whether it becomes less."""
        return sum(
            sum(end - group.begins(p) for p, end in enumerate(self.ends)) - len(group.done)
            + sum(end - group.offsets.get(p, group.begins(p)) for p, end in enumerate(self.ends) if group.keeps)
            for group in self.groups.values()
        )  # fmt: skip

    def backlog(self) -> str:
        """What is left to do; empty: nothing."""
        for group in self.groups.values():
            done = set(group.done)
            for partition, end in enumerate(self.ends):
                begin = group.begins(partition)
                for former in self.former:
                    if former.name == group.name:
                        done |= former.done.keys()
                        begin = min(begin, former.begins(partition))
                left = [each for each in range(begin, end) if Message(partition, each) not in done]
                if left:
                    return (
                        f"nobody is done with {left[:8]} of partition {partition} of {group.name}, which ends at {end}"
                    )
                if group.keeps and group.offsets.get(partition, group.begins(partition)) != end:
                    return (
                        f"the checkpoint of partition {partition} of {group.name}, which ends at {end}, is at "
                        f"{group.offsets.get(partition)}"
                    )
        return ""
