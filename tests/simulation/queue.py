"""The simulated queue: a real head without segments, in which every message has a key that is its own hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from msgspec import structs

from coordinator.heads import GroupFacts, group_facts
from partq_spark.group.model import GroupSettings
from partq_spark.log import layouts, model
from partq_spark.log.model import Group, QueueConfig
from tests.simulation.stores import KEY, QUEUE_ID, SINCE

KEYS: Final = 24  # a key lies in partition `key % count`


def config_of(settings: GroupSettings) -> QueueConfig:
    """The queue's settings that give a group these."""
    return QueueConfig(
        rebalance_delay_s=settings.rebalance_delay_s,
        max_handoff_time_s=settings.max_handoff_time_s,
        access_type=settings.access_type.value,
    )


class Head:
    """What the queue's head says. `now` is the document, as its readers get it."""

    def __init__(self, settings: GroupSettings, partitions: int) -> None:
        self._facts: tuple[model.Head, GroupFacts] | None = None
        begun = model.Head.created(KEY.namespace, KEY.queue, QUEUE_ID, partitions, config=config_of(settings), now_us=0)
        self.now = replace(begun, groups={KEY.group: Group(since_sequence=SINCE, start=begun.next)})

    @property
    def partitions(self) -> int:
        """How many there are now."""
        return self.now.partitions

    @property
    def ends(self) -> tuple[int, ...]:
        """How far each partition that there ever was has been published."""
        return self.now.next

    def alter(self, settings: GroupSettings) -> None:
        """Other settings."""
        self.now = replace(self.now, config=config_of(settings))

    def resize(self, partitions: int) -> None:
        """Another partition count, as the command line changes it."""
        self.now = replace(layouts.resized(self.now, partitions), sequence=self.now.sequence + 1)

    def publish(self, keys: Sequence[int]) -> None:
        """One message for each of these keys."""
        following, partitions = list(self.now.next), self.partitions
        for key in keys:
            following[key % partitions] += 1
        self.now = replace(self.now, next=tuple(following), sequence=self.now.sequence + 1)

    def count_rewind(self) -> None:
        """Somebody has rewound checkpoints of the group."""
        group = self.now.groups[KEY.group]
        self.now = replace(self.now, groups={KEY.group: structs.replace(group, rewinds=group.rewinds + 1)})

    def facts(self) -> GroupFacts:
        """As a coordinator takes them out of a head."""
        if self._facts is None or self._facts[0] is not self.now:
            self._facts = self.now, group_facts(self.now, self.now.groups[KEY.group])
        return self._facts[1]
