"""The simulated ownership server, with Redis' semantics, and each process' own faulty way to it; and what both it and
the simulated objects take down of a group's documents.

Facts are taken down at the stores' side, at the instant at which a change takes effect, also when it lands after its
caller was told that nobody knows. What the values mean is the checker's business.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from coordinator.core.invariants import violations
from partq_spark.base.effects import Effects
from partq_spark.group.codec import decode_state
from partq_spark.group.documents.api import Announce, DocumentOperation, Documents, Remove, Swap, Value
from partq_spark.group.documents.memory import MemoryDocuments, MemoryServer
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, Owner
from partq_spark.group.ownership import Beat, Ownership, Pulse
from partq_spark.group.ownership.encoding import (
    LEADER,
    STATE,
    decode_flow,
    decode_heartbeat,
    decode_leader,
    decode_version,
)
from tests.simulation import history as h
from tests.simulation.links import Link
from tests.support.judge import demand
from tests.support.scheduler import SECOND_US, Scheduler, Strand

KEY = GroupKey("sim", "orders", "billing")
QUEUE_ID = "q1"
SINCE = 1  # the sequence number of the head that the group was made with


class Board(threading.Condition):
    """Stands in for the server's condition: strands wait here instead of threads. Nothing to lock: one runs at a
    time.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._waiting: list[Strand] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def notify_all(self) -> None:
        """News travel too, and are now and then late: a process that waits looks again after its time-out."""
        waiting, self._waiting = self._waiting, []
        for strand in waiting:
            if self._scheduler.rng.random() < 0.95:
                self._scheduler.wake(strand, self._scheduler.rng.randrange(2000))

    def wait_us(self, duration_us: int) -> None:
        """Until something is announced, at most so long."""
        if self._scheduler.current is not None:
            self._waiting.append(self._scheduler.current)
        self._scheduler.wait_us(duration_us)


class Mutex:
    """A lock for strands: a thread's lock would stop them all."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiting: list[Strand] = []

    def __enter__(self) -> bool:
        while self._held:
            if self._scheduler.current is not None:
                self._waiting.append(self._scheduler.current)
            self._scheduler.wait_us(60 * SECOND_US)
        self._held = True
        return True

    def __exit__(self, *_: object) -> None:
        self._held = False
        waiting, self._waiting = self._waiting, []
        for strand in waiting:
            self._scheduler.wake(strand)


# --- what is taken down -----------------------------------------------------------------------------------------------


class Witness:
    """Takes down what happens to a group's documents. `name` is a document's, `before` what was there."""

    def __init__(self, scheduler: Scheduler, history: h.History) -> None:
        self._scheduler = scheduler
        self._history = history
        self._records: dict[Owner, FlowRecord] = {}

    def swapped(self, name: str, value: Value, before: Value | None, lease: str, sent_us: int) -> None:
        """By a process that had `lease` when it sent it, at `sent_us`."""
        kind, _, flow = name.partition("/")
        if kind == STATE:
            token, body = decode_version(value, name)
            state = decode_state(body, 0.0, name)
            self._history.add(h.StateWritten(self._scheduler.now_us, sent_us, lease, token, state))
            broken = violations(state)
            demand(not broken, "a state against the invariants was written:", *broken, h.outline(state))
        elif kind == LEADER:
            taken = decode_leader(value, name).token
            if before is None or decode_leader(before, name).token != taken:
                self._history.add(h.LeaseTaken(self._scheduler.now_us, taken))
        elif kind == "beats":
            self._beat(flow, value, before)
        elif kind == "flows":
            record = decode_flow(value, name)
            owner = Owner(record.flow, record.instance)
            self._records[owner] = record
            self._report(owner, told=False)

    def _beat(self, flow: str, value: Value, before: Value | None) -> None:
        now_us, heart = self._scheduler.now_us, decode_heartbeat(value, flow)
        former = decode_heartbeat(before, flow) if before is not None else None
        owner = Owner(flow, heart.instance)
        if not heart.bound:
            self._history.add(h.Unbound(now_us, owner))
        elif former is None or former.instance != owner.instance:
            self._history.add(h.Bound(now_us, owner, self._records[owner].session_timeout_s))
        else:
            self._history.add(h.Beaten(now_us, owner))
        if former is None or former.record != heart.record:
            self._report(owner, told=True)

    def _report(self, owner: Owner, *, told: bool) -> None:
        """A record counts once the heartbeat tells of it."""
        record = self._records.get(owner)
        for partition, entry in record.deliveries.items() if record is not None else ():
            fact = h.Reported(self._scheduler.now_us, owner, partition, entry.epoch, entry.delivered, told)
            self._history.add(fact)

    def removed(self, name: str, before: Value | None) -> None:
        kind, _, flow = name.partition("/")
        if kind == "beats" and before is not None:
            owner = Owner(flow, decode_heartbeat(before, flow).instance)
            self._history.add(h.Forgotten(self._scheduler.now_us, owner))


# --- a process' way ---------------------------------------------------------------------------------------------------


class ServerDocuments(MemoryDocuments):
    """One process' way to the ownership server. `lease`: the one that this process renewed last."""

    def __init__(
        self,
        server: MemoryServer,
        board: Board,
        link: Link,
        witness: Witness,
        *,
        group: GroupKey | None,
        look_interval_s: float = 0.01,
    ) -> None:
        super().__init__(server, group=group)
        self._board = board
        self._link = link
        self._witness = witness
        self._look_interval_s = look_interval_s
        self.lease = ""

    @property
    def look_interval_s(self) -> float:
        return self._look_interval_s

    def incarnation(self) -> str:
        found = self._link.call("incarnation", lambda: self._server.incarnation, write=False, mortal=True)
        self._known = found  # not before it was heard
        return found

    def carry_out(self, group: GroupKey, operations: Sequence[DocumentOperation[Any]]) -> Sequence[Any]:
        lease, sent_us = self.lease, self._link.now_us
        changed = [each.name for each in operations if isinstance(each, Swap | Remove)]

        def effect() -> Sequence[Any]:
            stored = self._server.groups.get(group, {})
            before = {name: stored[name].value for name in changed if name in stored}
            answers = MemoryDocuments.carry_out(self, group, operations)
            if not changed:
                return answers
            for operation, answer in zip(operations, answers, strict=False):
                if isinstance(operation, Swap) and answer is not None:
                    self._witness.swapped(operation.name, operation.value, before.get(operation.name), lease, sent_us)
                elif isinstance(operation, Remove) and answer:
                    self._witness.removed(operation.name, before.get(operation.name))
            return answers

        writes = bool(changed) or any(isinstance(operation, Announce) for operation in operations)
        return self._link.call(_called(operations), effect, write=writes, mortal=True)

    def drop(self, group: GroupKey) -> None:
        self._link.call("drop", lambda: MemoryDocuments.drop(self, group), write=True, mortal=True)

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        until_us = self._link.now_us + max(0, int(timeout_s * SECOND_US))
        while True:
            news = self.take_news()
            left_us = until_us - self._link.now_us
            if news is None or news or left_us <= 0:
                return news
            self._board.wait_us(left_us)


def _called(operations: Sequence[DocumentOperation[Any]]) -> str:
    """What is done, for counts of faults."""
    words = ((type(each).__name__.lower(), getattr(each, "name", "").partition("/")[0]) for each in operations[:3])
    return " ".join(f"{kind} {folder}" for kind, folder in words)


class Carrier(Protocol):
    """What knows which lease this process renewed last."""

    lease: str


class SimulatedOwnership(Ownership):
    """The real thing over a simulated process' way to a store; tells when a flow's lease was renewed, as its process
    knows it.
    """

    def __init__(
        self,
        documents: Documents,
        carrier: Carrier,
        link: Link,
        history: h.History,
        effects: Effects,
        scheduler: Scheduler,
    ) -> None:
        super().__init__(documents, effects, lock=lambda: Mutex(scheduler))
        self._carrier = carrier
        self._link = link
        self._history = history

    def _tell_renewed(self, flow: str, instance: str, sent_us: int) -> None:
        self._history.add(h.Renewed(self._link.now_us, Owner(flow, instance), sent_us))

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        sent_us = self._link.now_us
        super().bind(key, record, replaces=replaces)
        self._tell_renewed(record.flow, record.instance, sent_us)

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        sent_us = self._link.now_us
        token = super().beat(key, flow, instance)
        self._tell_renewed(flow, instance, sent_us)
        return token

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        sent_us = self._link.now_us
        done = super().deliver(key, flow, instance, deliveries, state_token=state_token)
        self._tell_renewed(flow, instance, sent_us)
        return done

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        sent_us = self._link.now_us
        super().report(key, flow, instance, deliveries)
        self._tell_renewed(flow, instance, sent_us)

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        self._carrier.lease = lease.token
        return super().renew_lease(key, lease)


class OwnershipServer:
    """A world's ownership server, whose waiters are strands and whose tokens come from a seed. `memory` has what is
    stored.
    """

    def __init__(self, scheduler: Scheduler, tokens: random.Random, history: h.History) -> None:
        self.memory = MemoryServer(
            now_s=lambda: scheduler.now_us / SECOND_US, token=lambda: f"{tokens.getrandbits(64):016x}"
        )
        self._board = Board(scheduler)
        self.memory.changed = self._board
        self._witness = Witness(scheduler, history)
        self._scheduler = scheduler
        self._history = history

    def open(
        self, link: Link, effects: Effects, *, group: GroupKey | None = None, look_interval_s: float = 0.01
    ) -> SimulatedOwnership:
        """One process'; with `group`, a flow's."""
        documents = ServerDocuments(
            self.memory, self._board, link, self._witness, group=group, look_interval_s=look_interval_s
        )
        return SimulatedOwnership(documents, documents, link, self._history, effects, self._scheduler)
