"""What must be true of a world, judged by its facts alone: nothing is lost, nothing comes twice without a mark, the
order of each key stays, who lost a partition plans and acknowledges nothing in it, and nothing waits for too long.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from tests.world.batches import Batches, Results, origin
from tests.world.bounds import Bounds
from tests.world.coordination import Coordination
from tests.world.facts import (
    DROPPED,
    Acknowledged,
    Beaten,
    Befell,
    Checkpointed,
    Decided,
    Durable,
    Fact,
    Given,
    Handled,
    Led,
    Lying,
    Place,
    Refused,
    Removed,
    Resolved,
    Row,
    Sent,
    Writing,
    Wrote,
    demand,
    told,
)

FORGETS: Final = ("flush", "empty", "rollback", DROPPED)


@dataclass(slots=True)
class _Group:
    """What is known of one group."""

    first_us: dict[Place, int] = field(default_factory=dict)  # when a message was given
    batches: dict[Place, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))  # in which
    ends: dict[int, int] = field(default_factory=dict)  # of what was given
    handled_us: dict[Place, int] = field(default_factory=dict)
    done: Counter[Place] = field(default_factory=Counter)  # how often somebody said so, and it counts
    checkpoints: dict[int, list[Checkpointed]] = field(default_factory=lambda: defaultdict(list))
    rewound: dict[Place, int] = field(default_factory=dict)  # when a person took it back
    marked: int = 0
    needless: int = 0  # marks, though nobody had it
    again: int = 0


class Judge:
    """`within_s`: how long a message may wait for a flow when nothing befell anybody. `most`: messages of a batch.
    `grouped`: groups, as long as no more is said of them all; others are queries without a group. `kept`: those whose
    checkpoints say how far they are. `is_shared`: whether flows live by leases. `is_witness`: whether it sees each
    checkpoint when it is written; else it hears now and then how one is found.
    """

    def __init__(
        self,
        *,
        within_s: float,
        session_timeout_s: float = 5.0,
        most: int = 10,
        slack_s: float = 0.0,
        kept: Collection[str] | None = None,
        grouped: Collection[str] | None = None,
        is_shared: bool = True,
        is_witness: bool = True,
    ) -> None:
        self.bounds = Bounds(round(within_s * 1e6))
        self.most = most
        self.coordination: dict[str, Coordination] = defaultdict(
            lambda: Coordination(session_timeout_s, round(slack_s * 1e6), keeps=kept == grouped)
        )
        self._kept, self._grouped, self._is_witness = kept, grouped, is_witness
        self.batches = Batches(session_timeout_s if is_shared else None, slack_s)
        self.results = Results()
        self.sent: dict[str, Sent] = {}
        self.durable: dict[str, Durable] = {}
        self.groups: dict[str, _Group] = defaultdict(_Group)
        self.befell_us: list[int] = [0]
        self.removed_us: dict[str, int] = {}
        self.keeps_order = True  # also of what queries write
        self.had_accident = False

    def take(self, fact: Fact) -> None:
        """A fact, in their order. Raises `Violation`."""
        if isinstance(fact, Given) and fact.asked_us < self.removed_us.get(fact.group, 0):
            return  # it was asked for in a group that is gone
        match fact:
            case Removed():
                self._removed(fact)
            case Sent():
                self.sent[fact.value] = fact
            case Durable():
                self.durable[fact.value] = fact
            case Given():
                self._given(fact)
            case Handled():
                group = self.groups[fact.group]
                for row in fact.rows:
                    group.handled_us.setdefault((row.partition, row.offset), fact.at_us)
                    group.done[row.partition, row.offset] += 1
            case Refused():
                self.groups[fact.group].done.subtract((row.partition, row.offset) for row in fact.rows)
            case Acknowledged():
                demand(self.had_accident or not fact.lost, "it does not count, and nothing had happened:", told(fact))
            case Checkpointed():
                self._checkpointed(fact)
            case Befell():
                self.befell_us.append(fact.at_us)
                self.had_accident |= fact.is_accident
        self._beside(fact)
        self.bounds.take(fact)

    def _beside(self, fact: Fact) -> None:
        if isinstance(fact, Writing | Wrote | Resolved):
            self.results.take(fact)
        elif isinstance(fact, Beaten | Led | Decided | Checkpointed | Given):
            self.coordination[fact.group].take(fact)
            if isinstance(fact, Beaten):
                self.batches.beaten(fact)
        elif isinstance(fact, Befell) and fact.what in FORGETS:
            for each in self.coordination.values():
                each.forget()
        elif isinstance(fact, Befell) and fact.what == "freeze":
            for each in self.coordination.values():
                each.stands_still(fact)

    def _removed(self, fact: Removed) -> None:
        self.removed_us[fact.group] = fact.at_us
        self.groups.pop(fact.group, None)
        self.coordination[fact.group].begin_anew()

    # --- as it happens ------------------------------------------------------------------------------------------------

    def _given(self, fact: Given) -> None:
        group = self.groups[fact.group]
        demand(bool(fact.rows or fact.batch), "an empty batch:", told(fact))
        is_alone = self._grouped is not None and fact.group not in self._grouped
        if fact.batch:
            self.batches.given(fact, is_alone=is_alone)
        ends: dict[int, int] = {}
        for row in fact.rows:
            demand(ends.get(row.partition, row.offset) == row.offset, "a gap within a batch:", told(fact))
            if row.partition not in ends:
                self._begins(group, fact, row, is_alone=is_alone)
            ends[row.partition] = row.offset + 1
            place = row.partition, row.offset
            first_us = group.first_us.setdefault(place, fact.at_us)
            known = self.sent.get(origin(row.value))
            demand(known is not None and known.key == row.key, "nobody sent", row, told(fact))
            same = fact.batch or None  # its repetition has the marks of the first time
            again = [at for at, batch in group.batches[place] if at < fact.asked_us and batch != same]
            if again and not is_alone:
                group.again += 1
                demand(row.marked, "twice and not marked:", row, "was given at", again[0] / 1e6, told(fact))
            group.batches[place].append((fact.at_us, fact.batch))
            group.marked += row.marked
            if row.marked and not self.had_accident:
                # A handoff in the middle of a batch may mark what was announced and not given. Where offsets are not
                # kept nobody knows how far an instance was that ended in the middle of one.
                moved = group.checkpoints[row.partition][-1].epoch > 1 and (first_us == fact.at_us or bool(fact.batch))
                moved |= self._kept is not None and fact.group not in self._kept
                demand(moved, "marked, and nothing had happened:", row, told(fact))
                group.needless += 1
        for partition, end in ends.items():
            group.ends[partition] = max(group.ends.get(partition, 0), end)

    def _begins(self, group: _Group, fact: Given, row: Row, *, is_alone: bool) -> None:
        """A partition's part of a batch: nothing is left out before it, and its flow had the partition."""
        reached = group.ends.get(row.partition, 0)
        demand(row.offset <= reached, "skipped:", f"{row.partition}/{reached} to {row.offset}", told(fact))
        if is_alone or not self._is_witness:
            return
        history = group.checkpoints[row.partition]
        if history and fact.group in (self._kept or (fact.group,)):
            now = history[-1]
            known = max(now.offset, now.redelivered_below, now.may_reach)
            demand(row.offset < known, "given, and no checkpoint says that it may be:", row, told(now), told(fact))
        since = bisect_right([each.at_us for each in history], fact.since_us or fact.asked_us)
        while since > 1 and not history[since - 1].flow:  # a rewind: who had it may go on until the leader has acted
            since -= 1
        owners = {(each.flow, each.instance) for each in history[max(0, since - 1) :]}
        instances = self.coordination[fact.group].instances[fact.process] or {each for _, each in owners}
        is_owner = any((fact.flow, each) in owners for each in instances)
        demand(is_owner, "not its partition:", row.partition, "which had", owners, told(fact))

    def _checkpointed(self, fact: Checkpointed) -> None:
        group = self.groups[fact.group]
        history = group.checkpoints[fact.partition]
        if self._kept is not None and fact.group not in self._kept:  # it says whose the partition is, no more
            history.append(fact)
            return
        if history:
            before = history[-1]
            if fact.flow or fact.offset >= before.offset:
                for name in ("epoch", "offset"):
                    was, now = getattr(before, name), getattr(fact, name)
                    back = f"the checkpoint's {name} went from {was} back to {now}:"
                    demand(was <= now, back, told(before), told(fact))
            else:
                self._rewound(group, before, fact)
            reached = max(before.redelivered_below, before.offset, before.may_reach)
            may_be = fact.redelivered_below <= reached or not self._is_witness  # who saw each write
            demand(may_be, "marked, and nobody can have had it:", told(before), told(fact))
            if fact.offset > before.offset and self._is_witness:
                same = (before.epoch, before.flow, before.instance) == (fact.epoch, fact.flow, fact.instance)
                demand(same, "acknowledged by a fence:", told(before), told(fact))
                demand(bool(fact.flow), "acknowledged for nobody:", told(before), told(fact))
            if before.epoch == fact.epoch:
                demand(before.flow == fact.flow, "two flows at one epoch:", told(before), told(fact))
        if self._is_witness:
            given = group.ends.get(fact.partition, 0)
            known = max(fact.offset, fact.redelivered_below, fact.may_reach)
            demand(given <= known, "was given up to", given, "and the checkpoint forgets it:", told(fact))
        for offset in range(history[-1].offset if history else 0, fact.offset):
            done = group.done[fact.partition, offset] > 0
            demand(done, "acknowledged and not handled:", f"{fact.partition}/{offset}", told(fact))
        history.append(fact)

    def _rewound(self, group: _Group, before: Checkpointed, fact: Checkpointed) -> None:
        """A person takes a partition back, and from its owner: what was acknowledged is to come again."""
        demand(fact.epoch > before.epoch, "taken back at the same epoch:", told(before), told(fact))
        marked = fact.redelivered_below >= max(before.redelivered_below, before.offset)
        demand(marked, "taken back without a mark:", told(before), told(fact))
        for offset in range(fact.offset, before.offset):
            group.rewound[fact.partition, offset] = fact.at_us

    # --- in the end ---------------------------------------------------------------------------------------------------

    def have_done(self, groups: Iterable[str], log: Iterable[Place]) -> bool:
        """Whether each of them is done with all of it."""
        return all(self.groups[group].done[place] > 0 for group in groups for place in log)

    def complete(self, logs: Mapping[str, Mapping[Place, Lying]], groups: Mapping[str, str], *, source: str) -> None:
        """All publishers and queries have ended, and all flows had time. `logs`: what lies in each queue; `groups`: the
        queue of each; `source`: that of the publishers.
        """
        self._published(logs[source])
        results = {queue: log for queue, log in logs.items() if queue != source}
        self.results.complete({queue: log.values() for queue, log in results.items()})
        for log in results.values() if self.keeps_order else ():
            self._in_order(log)
        for name, queue in groups.items():
            log, group = logs[queue], self.groups[name]
            missing = sorted(log.keys() - group.first_us.keys())
            demand(not missing, name, "never got", missing[:10])
            if self._kept is None or name in self._kept:
                self._acknowledged(name, group, log)
            if queue == source:
                self._ordered(name, group, log)
            self.bounds.complete(name, log)

    def _acknowledged(self, name: str, group: _Group, log: Iterable[Place]) -> None:
        ends: dict[int, int] = {}
        for partition, offset in log:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        for partition, end in ends.items():
            history = group.checkpoints[partition]
            at = history[-1].offset if history else 0
            demand(at == end, name, "has acknowledged", partition, "up to", at, "of", end)
        again = [place for place, at_us in group.rewound.items() if group.batches[place][-1][0] < at_us]
        demand(not again, name, "was taken back, and never got again", again[:10])

    def _published(self, log: Mapping[Place, Lying]) -> None:
        """What publishers have sent: each message once, in the order of its key, where they were told that it lies."""
        places: dict[str, Place] = {}
        numbers: dict[tuple[str | None, int], int] = {}
        for place, (key, value, _) in sorted(log.items()):
            demand(value in self.sent and self.sent[value].key == key, "nobody sent", key, value)
            demand(value not in places, value, "is in the queue twice:", places.get(value), place)
            places[value] = place
            number = self.sent[value].number
            demand(numbers.get((key, place[0]), -1) < number, key, "is out of order in", place[0], "at", value)
            numbers[key, place[0]] = number
        for value, fact in self.durable.items():
            where = fact.partition, fact.offset
            demand(places.get(value) == where, value, "was told to lie at", where, "and lies at", places.get(value))

    def _in_order(self, log: Mapping[Place, Lying]) -> None:
        """A result of a key comes after those before it, for the first time: also where a resize has moved its key."""
        numbers: dict[str | None, int] = {}
        seen = self.results.said_to_be_there()
        for place, (key, value, _) in sorted(log.items(), key=lambda each: (each[1].at_us, each[0])):
            if origin(value) not in seen:
                seen.add(origin(value))
                number, last = self.sent[origin(value)].number, numbers.get(key, -1)
                demand(number > last, "a result is out of order:", key, number, "after", last, *place)
                numbers[key] = number

    def _ordered(self, name: str, group: _Group, log: Mapping[Place, Lying]) -> None:
        """A message of a key comes when those before it, in other partitions, are acknowledged; to a query without a
        group when it has handled them. A group that keeps no offsets cannot know.
        """
        is_alone = self._grouped is not None and name not in self._grouped
        if not is_alone and self._kept is not None and name not in self._kept:
            return
        keys: dict[str | None, list[tuple[int, Place]]] = defaultdict(list)
        for place, (key, value, _) in log.items():
            keys[key].append((self.sent[value].number, place))
        for key, found in keys.items():
            found.sort()
            for (_, earlier), (_, later) in pairwise(found):
                if earlier[0] != later[0]:
                    until_us = _acknowledged_us(group.checkpoints[earlier[0]], earlier[1])
                    if is_alone or not self._is_witness:
                        until_us = group.handled_us.get(earlier, 0)
                    in_time = 0 < until_us <= group.first_us[later]
                    demand(in_time, name, "was given", later, "of key", key, "before", earlier, "was acknowledged")


def _acknowledged_us(history: Iterable[Checkpointed], offset: int) -> int:
    return next((each.at_us for each in history if each.offset > offset), 0)
