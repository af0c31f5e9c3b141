"""A simulated flow: the real `Session`, its heartbeat beside it, and a consumer that plans, works and acknowledges.

Some consumers keep what they had over a restart, as Spark's checkpoint does, and then plan their last batch again;
others begin with nothing. What they were handed and what they are done with is told to the history.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Claim, Position, View
from partq_spark.group.key_order import KeyOrder, Milestones
from partq_spark.group.model import Owner
from partq_spark.group.ownership import Ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.log import model
from partq_spark.log.model import at
from tests.simulation import history as h
from tests.simulation.coordinators import wait
from tests.simulation.links import Link, Weather
from tests.simulation.objects import Objects
from tests.simulation.plan import FlowPlan, Plan
from tests.simulation.queue import Head
from tests.simulation.stores import KEY, QUEUE_ID, SINCE
from tests.support.scheduler import SECOND_US, Process

IDLE_S = 0.5
RETRY_S = 0.2


class Planned(NamedTuple):
    """A partition's part of a batch, as Spark writes it down before it runs."""

    epoch: int
    start: int
    end: int
    redelivered_below: int


@dataclass(slots=True)
class Actor:
    """A flow identity over all of its processes. `mapping`, `batch` and `done` are what survives, if anything does;
    only the process that was bound last changes them.
    """

    plan: FlowPlan
    begun: int = 0
    processes: list[Process] = field(default_factory=list)
    bound: Process | None = None
    stopped: bool = False
    mapping: dict[int, int] = field(default_factory=dict)
    batch: dict[int, Planned] = field(default_factory=dict)  # planned, not known to be done
    done: dict[int, Position] = field(default_factory=dict)


@dataclass(slots=True)
class Consumer:
    """One process of an actor."""

    plan: Plan
    actor: Actor
    process: Process
    link: Link
    store: Ownership
    objects: Objects
    head: Head
    effects: Effects
    history: h.History
    weather: Weather
    session: Session = field(init=False)
    order: KeyOrder = field(init=False)
    seen: model.Head = field(init=False)  # the queue's head, as this process read it last
    instance: str = ""
    done: dict[int, Position] = field(default_factory=dict)
    held: dict[int, Position] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checkpoints = CheckpointStore(self.objects, KEY, QUEUE_ID, since=SINCE, effects=self.effects)
        settings = SessionSettings(
            session_timeout_s=self.plan.session_timeout_s,
            beat_interval_s=self.plan.beat_s,
            checkpoint_interval_s=self.plan.checkpoint_s,
        )
        self.seen = self.head.now
        self.order = KeyOrder(KEY.group, look_s=self.objects.look_interval_s, now_s=self.effects.now_s)
        self.session = Session(
            self.store,
            checkpoints,
            KEY,
            QUEUE_ID,
            self.actor.plan.name,
            settings=settings,
            effects=self.effects,
            milestones=Milestones(lambda: self.seen),
        )

    # --- a process' life ----------------------------------------------------------------------------------------------

    def run(self, left: Callable[[], None]) -> None:
        """Until it is killed, refused, or stops in good order; then `left` is called."""
        self.process.spawn("beats", self._beat)
        until_us = self.link.now_us + self.actor.plan.life_us if self.actor.plan.life_us else None
        try:
            self._bind()
            while until_us is None or self.link.now_us < until_us or self.weather.calm:
                self._round()
            self.weather.counts["flow stops"] += 1
            self.session.unbind()
        except Invalid as error:
            self.weather.counts["flow refused"] += 1
            self.history.note(f"{self.link.now_us} {self.process.name}: {error}")
        except Unavailable:
            pass  # of the unbind: the group will notice
        self.process.on_killed = left
        self.process.alive = False  # its heartbeat ends too

    def _bind(self) -> None:
        while True:
            try:
                self.session.bind(self.actor.mapping if self.actor.plan.keeps else {}, wait_s=1.0)
            except Unavailable:
                self.effects.sleep(self.effects.uniform(0.0, RETRY_S))
                if self.session.is_bound:
                    break
            else:
                break
        self.actor.bound = self.process
        if self.actor.plan.keeps:
            self.done = dict(self.actor.done)
            self._replay()

    def _beat(self) -> None:
        """The heartbeat's thread."""
        while True:
            self.effects.sleep(self.plan.beat_s)
            try:
                self.session.beat()
            except Unavailable:
                continue

    # --- batches ------------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        """What a query does between two batches, and then the batch."""
        if self.held and self.weather.calm:
            self.done, self.held = {**self.done, **self.held}, {}
        try:
            self.session.acknowledge(self.done)
            view = self._observe()
            ends = self._ends(view)
            batch = {
                partition: Planned(claim.epoch, claim.position, self._end(claim, ends), claim.redelivered_below)
                for partition, claim in view.deliverable.items()
                if claim.position < ends[partition]
            }
            if batch:
                self._deliver(batch)
            else:
                wait(self.store, self.effects, IDLE_S)
        except Unavailable:
            self.effects.sleep(self.effects.uniform(0.0, RETRY_S))

    def _observe(self) -> View:
        view = self.session.observe()
        if self._is_bound_last():
            self.actor.mapping = {partition: claim.epoch for partition, claim in view.claims.items()}
        self.instance = view.instance
        return view

    def _is_bound_last(self) -> bool:
        return self.actor.bound is self.process

    def _ends(self, view: View) -> dict[int, int]:
        """Up to where the partitions may be delivered."""
        head = self.seen = self.link.call("head", lambda: self.head.now, write=False)
        reached = {partition: claim.position for partition, claim in view.deliverable.items()}
        waits = self.order.waits(head, self.session, view.claims, reached)
        return {p: min(at(head.next, p), waits[p].until) if p in waits else at(head.next, p) for p in reached}

    def _end(self, claim: Claim, ends: dict[int, int]) -> int:
        most = claim.position + self.actor.plan.batch
        return ends[claim.partition] if self.weather.calm else min(most, ends[claim.partition])

    def _deliver(self, batch: dict[int, Planned], *, replayed: bool = False) -> bool:
        sent_us = self.link.now_us
        if not self.session.deliver({partition: part.end for partition, part in batch.items()}):
            return False
        owner = Owner(self.actor.plan.name, self.instance)
        for partition, part in batch.items():
            self.history.add(
                h.Delivered(
                    self.link.now_us,
                    sent_us,
                    owner,
                    partition,
                    part.epoch,
                    part.start,
                    part.end,
                    part.redelivered_below,
                    replayed,
                )
            )
        if self._is_bound_last():
            self.actor.batch = dict(batch)
        work_us = SECOND_US // 100 if self.weather.calm else self.actor.plan.work_us
        self.effects.sleep(work_us / SECOND_US * self.effects.uniform(0.5, 1.5))
        for partition, part in batch.items():
            self.history.add(h.Processed(self.link.now_us, owner, partition, part.epoch, part.end))
        self.done = {partition: Position(part.epoch, part.end) for partition, part in batch.items()}
        if self.actor.plan.holds:
            self.done, self.held = self.held, self.done
        if self._is_bound_last():
            self.actor.done, self.actor.batch = dict(self.done), {}
        return True

    def _replay(self) -> None:
        """After a restart, what was done before it is acknowledged, and the batch that was not done is planned again:
        of partitions that are still held at the same epoch.
        """
        planned = dict(self.actor.batch)
        while planned:
            try:
                # Everything before the batch was done, or there would be no such batch.
                before = {number: Position(part.epoch, part.start) for number, part in planned.items()}
                view = self._observe()
                self.session.acknowledge({**self.done, **before})
                batch = {
                    number: part
                    for number, part in planned.items()
                    if number in view.claims and view.claims[number].epoch == part.epoch
                }
                if any(view.claims[number].paused for number in batch):
                    wait(self.store, self.effects, IDLE_S)
                elif not batch or self._deliver(batch, replayed=True):
                    planned = {}
            except Unavailable:
                self.effects.sleep(self.effects.uniform(0.0, RETRY_S))
