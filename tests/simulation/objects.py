"""The simulated object store: one true store, and each process' own faulty way to it.

Facts are taken down at the store's side, at the instant at which a change takes effect, also when it lands after its
caller was told that nobody knows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import islice

from partq_spark.group.model import Owner
from partq_spark.group.ownership.encoding import decode_version
from partq_spark.objects.api import Document, ObjectInfo, Unchanged
from partq_spark.objects.memory import MemoryStore, MemoryWriter
from tests.simulation import history as h
from tests.simulation.links import Link
from tests.simulation.stores import KEY, Witness
from tests.support.scheduler import SECOND_US, Scheduler

PAGE = 4  # of a listing: one call to the store
CHECKPOINTS = f"{KEY}/checkpoint/"
OWNERSHIP = f"{KEY}/ownership/"


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
        conditional: bool = True,
    ) -> None:
        super().__init__(clock=lambda: scheduler.now_us / SECOND_US, rng=tokens, page_size=PAGE)
        self._scheduler = scheduler
        self._history = history
        self._conditional = conditional
        self._witness = Witness(scheduler, history)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        return self.swap_for("", self._scheduler.now_us, name, content, expected=expected)

    def swap_for(
        self, lease: str, sent_us: int, name: str, content: bytes | Mapping[str, str], *, expected: str | None
    ) -> str:
        """A swap by a process that had `lease` when it sent it, at `sent_us`."""
        before = self._stored(name)
        etag = super().swap(name, content, expected=expected)
        if name.startswith(CHECKPOINTS) and not isinstance(content, bytes):
            self._checkpoint(int(name[len(CHECKPOINTS) :]), content)
        elif name.startswith(OWNERSHIP):
            self._witness.swapped(name[len(OWNERSHIP) :], content, before, lease, sent_us)
        return etag

    def _stored(self, name: str) -> bytes | Mapping[str, str] | None:
        found = self.load(name) if name.startswith(OWNERSHIP) else None
        return (found.metadata or found.body) if isinstance(found, Document) else None

    def state_body(self) -> bytes | None:
        """The state as it is stored."""
        found = self._stored(f"{OWNERSHIP}state")
        return decode_version(found, "state")[1] if found is not None else None

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

    def remove(self, name: str, *, expected: str) -> None:
        before = self._stored(name)
        super().remove(name, expected=expected)
        if name.startswith(OWNERSHIP):
            self._witness.removed(name[len(OWNERSHIP) :], before)

    def _compare(self, name: str, expected: str | None) -> None:
        if self._conditional or not name.startswith(CHECKPOINTS):
            super()._compare(name, expected)


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
