"""The simulated object store: one true store, and each process' own faulty way to it.

Facts are taken down at the store's side, at the instant at which a change takes effect, also when it lands after its
caller was told that nobody knows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

from partq_spark.group.model import Owner
from partq_spark.group.ownership.encoding import decode_version
from partq_spark.objects.api import Document
from partq_spark.objects.memory import MemoryStore
from tests.simulation import history as h
from tests.simulation.links import Link
from tests.simulation.stores import KEY, Witness
from tests.support.scheduler import SECOND_US, Scheduler
from tests.support.way import WRITES, Way

T = TypeVar("T")
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


class Objects(Way):
    """One process' way to the object store. `lease`: the one that this process renewed last."""

    def __init__(self, inner: TrueObjects, link: Link) -> None:
        super().__init__(inner)
        self.inner = inner
        self._link = link
        self.lease = ""

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        return self._link.call(f"{kind} {name}", effect, write=kind in WRITES)

    def swap(self, name: str, content: bytes | Mapping[str, str], *, expected: str | None) -> str:
        lease, sent_us = self.lease, self._link.now_us
        return self.call("swap", name, lambda: self.inner.swap_for(lease, sent_us, name, content, expected=expected))

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        left = items()
        while page := self.call("list", prefix, lambda: tuple(islice(left, PAGE))):
            yield from page
            if len(page) < PAGE:
                return
