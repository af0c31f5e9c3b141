"""The simulated object store, and ownership kept in it: one true store, and each process' own faulty way to it.

Facts are taken down at the store's side, at the instant at which a change takes effect, also when it lands after its
caller was told that nobody knows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import cast

from partq_spark.group.codec import decode_lease, decode_record
from partq_spark.group.effects import Effects
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, Owner
from partq_spark.group.stores.api import Beat, Pulse
from partq_spark.group.stores.objects import _STATE_BEGIN, _STATE_MIDDLE, ObjectsOwnership
from partq_spark.group.stores.objects_flows import FlowDocuments, _Flow
from partq_spark.objects.api import Document, ObjectInfo, Unchanged
from partq_spark.objects.memory import MemoryStore, MemoryWriter
from tests.simulation import history as h
from tests.simulation.links import Link
from tests.simulation.scheduler import Scheduler, Strand
from tests.simulation.stores import KEY, written
from tests.support.faulty import SECOND_US

PAGE = 4  # of a listing: one call to the store
CHECKPOINTS = f"{KEY}/checkpoint/"
OWNERSHIP = f"{KEY}/ownership/"
BEATS = f"{OWNERSHIP}beats/"


class TrueObjects(MemoryStore):
    """The one object store: takes down what happens to checkpoints and ownership. `conditional` False: checkpoints are
    swapped without comparing ETags.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        tokens: random.Random,
        history: h.History,
        *,
        session_timeout_s: float,
        conditional: bool = True,
    ) -> None:
        super().__init__(clock=lambda: scheduler.now_us / SECOND_US, rng=tokens, page_size=PAGE)
        self._scheduler = scheduler
        self._history = history
        self._session_timeout_s = session_timeout_s
        self._conditional = conditional
        self._beats: dict[str, Mapping[str, str]] = {}
        self._records: dict[Owner, FlowRecord] = {}
        self._lease = ""

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        return self.swap_for("", self._scheduler.now_us, name, content, expected=expected)

    def swap_for(
        self, lease: str, sent_us: int, name: str, content: bytes | Mapping[str, str], *, expected: str | None
    ) -> str:
        """A swap by a process that had `lease` when it sent it, at `sent_us`."""
        etag = super().swap(name, content, expected=expected)
        if name.startswith(CHECKPOINTS) and not isinstance(content, bytes):
            self._checkpoint(int(name[len(CHECKPOINTS) :]), content)
        elif name.startswith(OWNERSHIP):
            kind, _, flow = name[len(OWNERSHIP) :].partition("/")
            if not isinstance(content, bytes):
                if kind == "beats":
                    self._beat(flow, content)
            elif kind == "state":
                token, body = _parts(content)
                written(self._history, self._scheduler.now_us, sent_us, lease, token, body)
            elif kind == "leader":
                token_now = decode_lease(content, name).token
                if token_now != self._lease:
                    self._lease = token_now
                    self._history.add(h.LeaseTaken(self._scheduler.now_us, token_now))
            elif kind == "flows":
                record = decode_record(content, name)
                owner = Owner(record.flow, record.instance)
                self._records[owner] = record
                self._report(owner, told=False)
        return etag

    def state_body(self) -> bytes | None:
        """The state as it is stored."""
        found = self.load(f"{OWNERSHIP}state")
        return _parts(found.body)[1] if isinstance(found, Document) else None

    def _checkpoint(self, partition: int, metadata: Mapping[str, str]) -> None:
        flow, offset = metadata.get("flow"), metadata.get("offset")
        self._history.add(
            h.CheckpointWritten(
                self._scheduler.now_us,
                partition,
                int(metadata["epoch"]),
                None if flow is None else Owner(flow, metadata["instance"]),
                None if offset is None else int(offset),
                int(metadata["redelivered_below"]),
            )
        )

    def _beat(self, flow: str, metadata: Mapping[str, str]) -> None:
        now_us, owner = self._scheduler.now_us, Owner(flow, metadata["instance"])
        before, self._beats[flow] = self._beats.get(flow), metadata
        if metadata["bound"] == "0":
            self._history.add(h.Unbound(now_us, owner))
        elif before is None or before["instance"] != owner.instance:
            self._history.add(h.Bound(now_us, owner, self._session_timeout_s))
        elif before["count"] != metadata["count"]:
            self._history.add(h.Beaten(now_us, owner))
        if before is None or before["record"] != metadata["record"]:
            self._report(owner, told=True)

    def _report(self, owner: Owner, *, told: bool) -> None:
        """A record counts once the heartbeat tells of it."""
        record = self._records.get(owner)
        for partition, entry in record.deliveries.items() if record is not None else ():
            fact = h.Reported(self._scheduler.now_us, owner, partition, entry.epoch, entry.delivered, told)
            self._history.add(fact)

    def remove(self, name: str, *, expected: str) -> None:
        super().remove(name, expected=expected)
        if name.startswith(BEATS):
            flow = name[len(BEATS) :]
            owner = Owner(flow, self._beats.pop(flow)["instance"])
            self._history.add(h.Forgotten(self._scheduler.now_us, owner))

    def _compare(self, name: str, expected: str | None) -> None:
        if self._conditional or not name.startswith(CHECKPOINTS):
            super()._compare(name, expected)


def _parts(content: bytes) -> tuple[str, bytes]:
    token, _, body = content.removeprefix(_STATE_BEGIN).partition(_STATE_MIDDLE)
    return token.decode(), body[:-1]


class Objects:
    """One process' way to the object store. `lease`: the one that this process renewed last."""

    def __init__(self, inner: TrueObjects, link: Link) -> None:
        self._inner = inner
        self._link = link
        self.lease = ""

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def look_interval_s(self) -> float:
        return self._inner.look_interval_s

    def close(self) -> None:
        """Nothing is kept open."""

    def create(self, name: str, data: bytes | memoryview) -> None:
        self._link.call(f"create {name}", lambda: self._inner.create(name, data), write=True)

    def writer(self, name: str) -> MemoryWriter:
        raise NotImplementedError("nobody here writes large objects")

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        return self._link.call(f"read {name}", lambda: self._inner.read(name, start=start, length=length), write=False)

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        return self._link.call(f"load {name}", lambda: self._inner.load(name, known=known), write=False)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        lease, sent_us = self.lease, self._link.now_us
        return self._link.call(
            f"swap {name}", lambda: self._inner.swap_for(lease, sent_us, name, content, expected=expected), write=True
        )

    def remove(self, name: str, *, expected: str) -> None:
        self._link.call(f"remove {name}", lambda: self._inner.remove(name, expected=expected), write=True)

    def delete(self, name: str) -> bool:
        return self._link.call(f"delete {name}", lambda: self._inner.delete(name), write=True)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        items = self._inner.list(prefix)
        while page := self._link.call(f"list {prefix}", lambda: tuple(islice(items, PAGE)), write=False):
            yield from page
            if len(page) < PAGE:
                return

    def list_folders(self, prefix: str) -> Iterator[str]:
        yield from self._link.call(
            f"list folders {prefix}", lambda: tuple(self._inner.list_folders(prefix)), write=False
        )

    def sweep_temporary(self, older_than_s: float) -> int:
        return 0


# --- ownership in objects ---------------------------------------------------------------------------------------------


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


class _Flows(FlowDocuments):
    """The real thing, with locks for strands."""

    scheduler: Scheduler

    def _flow(self, key: GroupKey, flow: str) -> _Flow:
        found = self._flows.get((key, flow))
        if found is None:
            locks = cast(threading.Lock, Mutex(self.scheduler)), cast(threading.Lock, Mutex(self.scheduler))
            found = self._flows[key, flow] = _Flow(*locks)
        return found


class OwnershipInObjects(ObjectsOwnership):
    """The real thing over a simulated process' way to the objects."""

    def __init__(self, store: Objects, link: Link, history: h.History, effects: Effects, scheduler: Scheduler) -> None:
        super().__init__(store, token=effects.token, now_s=effects.now_s, sleep=effects.sleep)
        self._flows = flows = _Flows(store, effects.token, self._ages)
        flows.scheduler = scheduler
        self._objects = store
        self._link = link
        self._history = history

    def _renewed(self, flow: str, instance: str, sent_us: int) -> None:
        self._history.add(h.Renewed(self._link.now_us, Owner(flow, instance), sent_us))

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        sent_us = self._link.now_us
        super().bind(key, record, replaces=replaces)
        self._renewed(record.flow, record.instance, sent_us)

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        sent_us = self._link.now_us
        token = super().beat(key, flow, instance)
        self._renewed(flow, instance, sent_us)
        return token

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        sent_us = self._link.now_us
        done = super().deliver(key, flow, instance, deliveries, state_token=state_token)
        self._renewed(flow, instance, sent_us)
        return done

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        sent_us = self._link.now_us
        super().report(key, flow, instance, deliveries)
        self._renewed(flow, instance, sent_us)

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        self._objects.lease = lease.token
        return super().renew_lease(key, lease)
