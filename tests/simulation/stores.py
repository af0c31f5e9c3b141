"""The simulated ownership server, with Redis' semantics, and each process' own faulty way to it.

Facts are taken down at the stores' side, at the instant at which a change takes effect, also when it lands after its
caller was told that nobody knows. What the values mean is the checker's business.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from coordinator.core.invariants import violations
from partq_spark.group.codec import decode_state
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.stores.api import Beat, LeaseDocument, Pulse, StateDocument
from partq_spark.group.stores.memory import MemoryOwnership, MemoryServer
from partq_spark.objects.api import Unchanged
from tests.simulation import history as h
from tests.simulation.checker import demand
from tests.simulation.links import Link
from tests.simulation.scheduler import Scheduler, Strand
from tests.support.faulty import SECOND_US

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
        """News travel too, and are now and then late: whoever waits looks again after its time-out."""
        waiting, self._waiting = self._waiting, []
        for strand in waiting:
            if self._scheduler.rng.random() < 0.95:
                self._scheduler.wake(strand, self._scheduler.rng.randrange(2000))

    def wait_us(self, duration_us: int) -> None:
        """Until something is announced, at most so long."""
        if self._scheduler.current is not None:
            self._waiting.append(self._scheduler.current)
        self._scheduler.wait_us(duration_us)


def written(history: h.History, at_us: int, sent_us: int, lease: str, token: str, body: bytes) -> None:
    """A state took effect: it is one that may be."""
    state = decode_state(body, 0.0, "state")
    history.add(h.StateWritten(at_us, sent_us, lease, token, state))
    broken = violations(state)
    demand(not broken, "a state against the invariants was written:", *broken, h.outline(state))


class Ownership:
    """One process' way to the ownership server, with Redis' semantics."""

    def __init__(self, inner: MemoryOwnership, board: Board, link: Link, history: h.History) -> None:
        self._inner = inner
        self._board = board
        self._link = link
        self._history = history
        self._lease = ""  # the one this process renewed last

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def look_interval_s(self) -> float:
        return self._inner.look_interval_s

    def close(self) -> None:
        """Nothing is kept open."""

    def _call(self, verb: str, effect: Any, *, write: bool = False) -> Any:
        return self._link.call(verb, effect, write=write, mortal=True)

    def incarnation(self) -> str:
        found: str = self._call("incarnation", lambda: self._inner._server.incarnation)
        self._inner._known = found  # not before it was heard
        return found

    # --- the state ----------------------------------------------------------------------------------------------------

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        found: StateDocument | Unchanged | None = self._call(
            "read_state", lambda: self._inner.read_state(key, known=known)
        )
        return found

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        lease, sent_us = self._lease, self._link.now_us

        def swap() -> None:
            self._inner.swap_state(key, body, token=token, expected=expected)
            written(self._history, self._link.now_us, sent_us, lease, token, body)

        self._call("swap_state", swap, write=True)

    # --- flow records -------------------------------------------------------------------------------------------------

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        found: Mapping[str, FlowRecord] = self._call("read_flows", lambda: self._inner.read_flows(key))
        return found

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        found: tuple[FlowRecord, Beat] | None = self._call("read_flow", lambda: self._inner.read_flow(key, flow))
        return found

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        found: Mapping[str, Beat] = self._call("read_beats", lambda: self._inner.read_beats(key))
        return found

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        owner = Owner(record.flow, record.instance)

        def bind() -> None:
            self._inner.bind(key, record, replaces=replaces)
            self._history.add(h.Bound(self._link.now_us, owner, record.session_timeout_s))
            self._reported(owner, record.deliveries)

        sent_us = self._link.now_us
        self._call("bind", bind, write=True)
        self._history.add(h.Renewed(self._link.now_us, owner, sent_us))

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        owner = Owner(flow, instance)

        def beat() -> str | None:
            token = self._inner.beat(key, flow, instance)
            self._history.add(h.Beaten(self._link.now_us, owner))
            return token

        sent_us = self._link.now_us
        token: str | None = self._call("beat", beat, write=True)
        self._history.add(h.Renewed(self._link.now_us, owner, sent_us))
        return token

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        owner = Owner(flow, instance)

        def deliver() -> bool:
            done = self._inner.deliver(key, flow, instance, deliveries, state_token=state_token)
            self._history.add(h.Beaten(self._link.now_us, owner))
            if done:
                self._reported(owner, deliveries)
            return done

        sent_us = self._link.now_us
        done: bool = self._call("deliver", deliver, write=True)
        self._history.add(h.Renewed(self._link.now_us, owner, sent_us))
        return done

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        owner = Owner(flow, instance)

        def report() -> None:
            self._inner.report(key, flow, instance, deliveries)
            self._history.add(h.Beaten(self._link.now_us, owner))
            self._reported(owner, deliveries)

        sent_us = self._link.now_us
        self._call("report", report, write=True)
        self._history.add(h.Renewed(self._link.now_us, owner, sent_us))

    def _reported(self, owner: Owner, deliveries: Mapping[int, Delivery]) -> None:
        for partition, entry in deliveries.items():
            self._history.add(h.Reported(self._link.now_us, owner, partition, entry.epoch, entry.delivered))

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        self._call("note", lambda: self._inner.note(key, flow, instance, text), write=True)

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        def unbind() -> None:
            self._inner.unbind(key, flow, instance)
            self._history.add(h.Unbound(self._link.now_us, Owner(flow, instance)))

        self._call("unbind", unbind, write=True)

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        def forget() -> bool:
            before = self._inner._server.groups[key].records.get(flow) if key in self._inner._server.groups else None
            done = self._inner.forget_flow(key, flow, instance, state_token=state_token)
            if done and before is not None and before.instance == instance:
                self._history.add(h.Forgotten(self._link.now_us, Owner(flow, instance)))
            return done

        done: bool = self._call("forget_flow", forget, write=True)
        return done

    # --- the lease ----------------------------------------------------------------------------------------------------

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        found: LeaseDocument | None = self._call("read_lease", lambda: self._inner.read_lease(key))
        return found

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        def take() -> None:
            self._inner.take_lease(key, lease, expected=expected)
            self._history.add(h.LeaseTaken(self._link.now_us, lease.token))

        self._call("take_lease", take, write=True)

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        self._lease = lease.token
        pulse: Pulse = self._call("renew_lease", lambda: self._inner.renew_lease(key, lease), write=True)
        return pulse

    def release_lease(self, key: GroupKey, token: str) -> None:
        self._call("release_lease", lambda: self._inner.release_lease(key, token), write=True)

    # --- the rest -----------------------------------------------------------------------------------------------------

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        found: Mapping[int, OwnershipRecord] = self._call("list_ownership", lambda: self._inner.list_ownership(key))
        return found

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        wanted = tuple(records)
        claimed: Mapping[int, OwnershipRecord] = self._call(
            "claim_ownership", lambda: self._inner.claim_ownership(wanted), write=True
        )
        return claimed

    def announce(self, key: GroupKey) -> None:
        self._call("announce", lambda: self._inner.announce(key))

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        until_us = self._link.now_us + max(0, int(timeout_s * SECOND_US))
        while True:
            news = self._inner.take_news()
            left_us = until_us - self._link.now_us
            if news is None or news or left_us <= 0:
                return news
            self._board.wait_us(left_us)

    def drop_group(self, key: GroupKey) -> None:
        self._call("drop_group", lambda: self._inner.drop_group(key), write=True)


def ownership_server(scheduler: Scheduler, tokens: random.Random) -> tuple[MemoryServer, Board]:
    """A server whose waiters are strands and whose tokens come from a seed."""
    server = MemoryServer(now_s=lambda: scheduler.now_us / SECOND_US, token=lambda: f"{tokens.getrandbits(64):016x}")
    board = Board(scheduler)
    server.changed = board
    return server, board
