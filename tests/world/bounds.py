"""How long things may take, judged from the last thing that befell anybody: a message is given within the bound from
when it could be, altogether within a few bounds and the time that flows work; then it is acknowledged within one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from tests.world.facts import Befell, Checkpointed, Fact, Given, Handled, Lying, Place, Removed, demand


@dataclass(slots=True)
class _Group:
    """Of one group, all times in microseconds."""

    given: dict[Place, int] = field(default_factory=dict)  # first
    handled: dict[Place, int] = field(default_factory=dict)  # first
    checkpoints: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))  # offset, when
    began: dict[str, int] = field(default_factory=dict)  # when a flow was given something last
    works: list[tuple[int, int]] = field(default_factory=list)  # until when, and for how long

    def acknowledged(self, place: Place) -> int:
        """When it was, 0: never."""
        return next((at_us for offset, at_us in self.checkpoints[place[0]] if offset > place[1]), 0)


class Bounds:
    """`within_us`: the sum of the configured timers that may run one after the other."""

    def __init__(self, within_us: int) -> None:
        self._within_us = within_us
        self._groups: dict[str, _Group] = defaultdict(_Group)
        self._befell_us: list[int] = [0]
        self._resizes = 0
        self.longest_us = 0

    def take(self, fact: Fact) -> None:
        match fact:
            case Removed():
                self._groups.pop(fact.group, None)
            case Given():
                group = self._groups[fact.group]
                group.began[fact.flow] = fact.at_us
                for row in fact.rows:
                    group.given.setdefault((row.partition, row.offset), fact.at_us)
            case Handled():
                group = self._groups[fact.group]
                group.works.append((fact.at_us, fact.at_us - group.began.pop(fact.flow, fact.at_us)))
                for row in fact.rows:
                    group.handled.setdefault((row.partition, row.offset), fact.at_us)
            case Checkpointed():
                self._groups[fact.group].checkpoints[fact.partition].append((fact.offset, fact.at_us))
            case Befell():
                self._befell_us.append(fact.at_us)
                self._resizes += fact.what == "alter"

    def complete(self, name: str, log: Mapping[Place, Lying]) -> None:
        """In the end, of a group and its queue."""
        group = self._groups[name]
        total_us = list(accumulate((each for _, each in group.works), initial=0))
        ends_us = [each for each, _ in group.works]

        def worked_us(since_us: int, until_us: int) -> int:
            """By all flows, on batches that ended between the two."""
            return total_us[bisect_right(ends_us, until_us)] - total_us[bisect_right(ends_us, since_us)]

        earlier_us = 0
        for place in sorted(log, key=lambda place: (log[place].at_us, place)):
            given_us = group.given[place]
            there_us = max(log[place].at_us, self._befell_us[bisect_right(self._befell_us, given_us) - 1])
            since_us = max(there_us, group.given.get((place[0], place[1] - 1), 0))
            if self._resizes:  # it may have to wait until all that was published earlier is acknowledged
                since_us = max(since_us, min(earlier_us, given_us))
                earlier_us = max(earlier_us, group.acknowledged(place))
            self._demand(name, place, "waited", since_us, given_us, self._within_us)
            most_us = self._within_us * (2 + self._resizes) + worked_us(there_us, given_us)
            self._demand(name, place, "waited in all", there_us, given_us, most_us)
            if done_us := group.acknowledged(place):
                befell_us = self._befell_us[bisect_right(self._befell_us, done_us) - 1]
                handled_us = max(group.handled.get(place, done_us), befell_us)
                most_us = self._within_us + worked_us(handled_us, done_us)  # it may have come again, in a long batch
                self._demand(name, place, "was handled, and not acknowledged,", handled_us, done_us, most_us)

    def _demand(self, name: str, place: Place, what: str, since_us: int, at_us: int, most_us: int) -> None:
        self.longest_us = max(self.longest_us, at_us - since_us)
        for_s = f"for {(at_us - since_us) / 1e6:.1f} s from {since_us / 1e6:.1f} s on"
        demand(at_us - since_us <= most_us, f"{name}: {place[0]}/{place[1]} {what} {for_s}")
