"""The picture of a coordinator that metrics are made of, taken when somebody asks and not before.

Nearly all of it is there already: states, flows' heartbeats, heads as they were seen last. Looked up in the object
store are only two things, each once, in bounded time, and left out where the store does not answer: how far a group is
where no flow's heartbeat says it, and when a message was published that is older than what its queue's head tells.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from coordinator.heads import GroupFacts, Seen
from coordinator.health import Status
from coordinator.measuring import Tally
from coordinator.metrics import GroupFigures, Picture
from coordinator.runtime import GroupRuntime
from partq_spark.base.effects import Effects, store_effects
from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey, GroupState, Partition, acknowledged_to
from partq_spark.group.status import said_by_owner
from partq_spark.log.codec import HEAD
from partq_spark.log.model import at
from partq_spark.log.queue import QueueLog, published_us
from partq_spark.objects.api import ObjectStore

LISTED_S: Final = 10.0
"""Between two listings of a group's checkpoints, which cost a request."""

LOOKS_MOST_S: Final = 2.0
"""For looks into the store, at one picture; what was not reached is told by a later one."""


@dataclass(kw_only=True, slots=True)
class _Known:
    """What was looked up for one group, by partition: how far it is acknowledged, and when the message at an offset was
    published. `listed`: for which epochs, and up to which ends, checkpoints were listed last.
    """

    offsets: dict[int, int] = field(default_factory=dict)
    published: dict[int, tuple[int, int]] = field(default_factory=dict)
    listed: tuple[list[int], tuple[int, ...]] | None = None
    listed_s: float = 0.0


class Figures:
    """Of one service. `store` is one that does not try again for long, and `looks_most_s` how long one picture may look
    into it. Any thread may ask.
    """

    def __init__(
        self,
        *,
        name: str,
        namespace: str,
        store: ObjectStore,
        tally: Tally,
        effects: Effects | None = None,
        looks_most_s: float = LOOKS_MOST_S,
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._store = store
        self._tally = tally
        self._effects = effects if effects is not None else store_effects()
        self._looks_most_s = looks_most_s
        self._lock = threading.Lock()
        self._may_look_until_s = 0.0  # for this picture
        self._known: dict[tuple[GroupKey, str, int], _Known] = {}  # for as long as a group is the same, and not rewound

    def picture(
        self, status: Status, queues: Mapping[str, Seen], groups: Sequence[tuple[GroupRuntime, GroupFacts]]
    ) -> Picture:
        """Everything, now: what the process says of itself, all queues, and all groups that it sees."""
        with self._lock:
            self._may_look_until_s = self._effects.now_s() + self._looks_most_s
            led = [each for each in groups if each[0].leading and each[0].key.queue in queues]
            lives = [(runtime.key, facts.queue_id, facts.rewinds) for runtime, facts in led]
            self._known = {life: self._known.get(life) or _Known() for life in lives}
            keys = {key for key, *_ in lives}
            return Picture(
                name=self._name,
                namespace=self._namespace,
                status=status,
                queues={queue: each.samples for queue, each in queues.items()},
                groups=[self._group(runtime, facts, queues[runtime.key.queue]) for runtime, facts in led],
                followed=[runtime.key for runtime, _ in groups if runtime.key not in keys],
                tally=self._tally,
            )

    def _group(self, runtime: GroupRuntime, facts: GroupFacts, queue: Seen) -> GroupFigures:
        state = runtime.state or GroupState(
            queue_id=facts.queue_id,
            settings=facts.settings,
            partitions={number: Partition(partition=number) for number in facts.partitions},
        )
        known = self._known[runtime.key, facts.queue_id, facts.rewinds]
        reached = self._acknowledged(runtime, facts, state.partitions, known, queue.next)
        lags = {number: max(at(queue.next, number) - offset, 0) for number, offset in reached.items()}
        behind = {n: max(reached[n], at(queue.earliest, n)) for n, lag in lags.items() if lag}
        ages_s = self._ages_s(runtime.key, queue, behind, known)
        ages_s |= {number: 0.0 for number, lag in lags.items() if not lag}
        return GroupFigures(key=runtime.key, state=state, lags=lags, ages_s=ages_s, handoffs=runtime.handoffs)

    def _acknowledged(
        self,
        runtime: GroupRuntime,
        facts: GroupFacts,
        partitions: Mapping[int, Partition],
        known: _Known,
        ends: tuple[int, ...],
    ) -> dict[int, int]:
        """How far each partition is acknowledged: by its owner's heartbeat, else by its checkpoint. These are listed
        where somebody has a partition anew, or something was published since, or somebody may acknowledge what is left,
        and not more often than every `LISTED_S`.
        """
        unknown, records = [], runtime.flows
        for number, partition in partitions.items():
            said = said_by_owner(partition, records)
            if said is not None:
                known.offsets[number] = said.acknowledged
            else:
                unknown.append(number)
        case = [partitions[number].epoch for number in unknown], ends
        is_due = known.listed is None or self._effects.now_s() - known.listed_s >= LISTED_S
        may_get_on = any(partitions[n].owner and known.offsets.get(n, 0) < at(ends, n) for n in unknown)
        if unknown and self._may_look and is_due and (case != known.listed or may_get_on):
            store = CheckpointStore(self._store, runtime.key, facts.queue_id, since=facts.since, effects=self._effects)
            try:
                found, damaged = store.list_readable()
            except PartqError as error:
                self._failed(error)
            else:
                known.listed, known.listed_s = case, self._effects.now_s()
                for number in unknown:
                    if number not in damaged:
                        known.offsets[number] = acknowledged_to(found.get(number), facts.starts.get(number, 0))
        return {number: known.offsets[number] for number in partitions if number in known.offsets}

    def _ages_s(self, key: GroupKey, queue: Seen, behind: Mapping[int, int], known: _Known) -> dict[int, float]:
        """By partition, how old the message at its offset in `behind` is; without those that are not known."""
        known.published = {n: each for n, each in known.published.items() if behind.get(n) == each[0]}
        unknown = {number: offset for number, offset in behind.items() if number not in known.published}
        if not behind:
            return {}
        log = QueueLog(self._store, key.namespace, key.queue, self._effects)
        if unknown and self._may_look:
            log.remember(HEAD.open(queue.document.body, log.head_name), queue.document.etag)
            try:
                found = published_us(log, log.head, unknown)
            except PartqError as error:  # what was collected meanwhile, or is damaged, is of this group alone
                self._failed(error)
            else:
                known.published |= {number: (unknown[number], at_us) for number, at_us in found.items()}
        now_us = log.now_us()
        return {number: max(now_us - at_us, 0) / 1e6 for number, (_, at_us) in known.published.items()}

    @property
    def _may_look(self) -> bool:
        return self._effects.now_s() < self._may_look_until_s

    def _failed(self, error: PartqError) -> None:
        """One outage is met once in a picture."""
        if isinstance(error, Unavailable):
            self._may_look_until_s = 0.0
