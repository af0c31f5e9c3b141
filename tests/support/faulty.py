"""A store that fails simulated processes: what a seed draws, it draws again.

Every call to the store is a point where another process may go on, where the clock may move by days, and where a fault
may strike. Nothing here knows what the processes do or what is right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Self, TypeVar

from partq_spark.base.errors import Conflict, ObjectMissing, Unavailable
from partq_spark.objects.api import Document, ObjectStore, Unchanged
from tests.support.scheduler import SECOND_US, Crash, Scheduler
from tests.support.way import WRITES, Way

T = TypeVar("T")
PAGE = 3  # of a listing: one call to the store
HOUR_US = 3600 * SECOND_US
NAPS_US = (SECOND_US // 20, SECOND_US, 60 * SECOND_US, 600 * SECOND_US, 3 * HOUR_US, 26 * HOUR_US, 60 * HOUR_US)


@dataclass(frozen=True, kw_only=True, slots=True)
class FaultRates:
    """Probability per call. `damage` strikes what is read, `late` what is written. `contradicted` swaps and removals
    take effect and are answered with a conflict: something in between has sent them again.

    Lost, late and contradicted calls are `swap_factor` times as likely for a swap or removal, whose outcome must be
    settled.
    """

    crash: float = 0.0
    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    contradicted: float = 0.0
    damage: float = 0.0
    nap: float = 0.0
    outage: float = 0.0  # of a nap after a lost answer: its caller could not reach the store for long
    swap_factor: float = 1.0
    naps_us: tuple[int, ...] = NAPS_US


class FaultyStore(Way):
    """One process's way to the store: every call may be delayed, lost, answered late or never, or be the last.

    A write that is `late` takes effect at any later time, if its condition still holds then, although the caller was
    told `Unavailable`. `napping` is told of every long sleep, so that somebody may take the process for dead.
    """

    def __init__(
        self,
        store: ObjectStore,
        scheduler: Scheduler,
        rates: FaultRates,
        counts: Counter[str],
        napping: Callable[[int], None] = lambda _: None,
    ) -> None:
        super().__init__(store)
        self._scheduler = scheduler
        self._rng = scheduler.rng
        self._rates = rates
        self._counts = counts
        self._napping = napping
        self.damaged = 0  # answers that were given with a flipped bit
        self._cut_off = False

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        return memoryview(self._perhaps_damaged(bytes(super().read(name, start=start, length=length))))

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        document = super().load(name, known=known)
        if isinstance(document, Document):
            return replace(document, body=self._perhaps_damaged(document.body))
        return document

    def writer(self, name: str) -> WholeWriter:
        return WholeWriter(self, name)

    def listing(self, prefix: str, items: Callable[[], Iterator[T]]) -> Iterator[T]:
        left = items()
        while page := self.call("list", prefix, lambda: list(islice(left, PAGE))):
            yield from page

    # --- faults -------------------------------------------------------------------------------------------------------

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self._pause()
        self._perhaps_crash()
        rates, draw = self._rates, self._rng.random()
        factor = rates.swap_factor if kind in ("swap", "remove") else 1.0
        if draw < rates.request_lost * factor:
            raise self._unavailable("request lost", kind, name)
        if kind in WRITES - {"delete"} and draw < (rates.request_lost + rates.late) * factor:
            self._later(kind, name, effect)
            raise self._unavailable("effect late", kind, name)
        try:
            result = effect()
        except (Conflict, ObjectMissing) as error:
            self._scheduler.note(kind, name, type(error).__name__)
            raise
        self._scheduler.note(kind, name)
        self._perhaps_crash()
        if draw > 1.0 - rates.answer_lost * factor:
            raise self._unavailable("answer lost", kind, name)
        if kind in ("swap", "remove") and draw > 1.0 - (rates.answer_lost + rates.contradicted) * factor:
            self._counts["contradicted"] += 1
            raise Conflict(f"{kind} {name}: a repetition of it met its success (simulated)")
        if self._rng.random() < 0.3:
            self._pause()  # the answer takes its time, and what it says grows old
        return result

    def _pause(self) -> None:
        rate, self._cut_off = self._rates.outage if self._cut_off else self._rates.nap, False
        if self._rng.random() >= rate:
            self._scheduler.sleep_us(self._rng.randrange(0, 3000))
            return
        nap_us = int(self._rng.choice(self._rates.naps_us) * self._rng.uniform(0.5, 1.5))
        self._counts["nap"] += 1
        self._napping(nap_us)
        self._scheduler.sleep_us(nap_us)

    def _perhaps_crash(self) -> None:
        if self._rng.random() < self._rates.crash:
            self._counts["crash"] += 1
            self._scheduler.note("crash")
            if self._scheduler.current is not None:
                self._scheduler.kill(self._scheduler.current.process)  # it does nothing more, not even on its way out
            raise Crash

    def _perhaps_damaged(self, data: bytes) -> bytes:
        if not data or self._rng.random() >= self._rates.damage:
            return data
        self._counts["damage"] += 1
        self.damaged += 1
        changed = bytearray(data)
        changed[self._rng.randrange(len(changed))] ^= 1 << self._rng.randrange(8)
        return bytes(changed)

    def _unavailable(self, fault: str, kind: str, name: str) -> Unavailable:
        self._counts[fault] += 1
        self._cut_off = True
        self._scheduler.note(fault, kind, name)
        return Unavailable(f"{kind} {name}: {fault} (simulated)")

    def _later(self, kind: str, name: str, effect: Callable[[], object]) -> None:
        def land() -> None:
            try:
                effect()
            except Conflict:
                self._scheduler.note("late", kind, name, "Conflict")
                return
            self._counts["landed late"] += 1
            self._scheduler.note("late", kind, name)

        delay_us = int(self._rng.choice(NAPS_US[:5]) * self._rng.uniform(0.0, 1.5))
        self._scheduler.push(land, delay_us)


class WholeWriter:
    """An immutable object in the making: only its end is a call to the store."""

    def __init__(self, store: FaultyStore, name: str) -> None:
        self._store = store
        self._name = name
        self._data = bytearray()

    def __enter__(self) -> Self:
        return self

    def write(self, data: bytes | memoryview) -> int:
        before = len(self._data)
        self._data += data
        return len(self._data) - before

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._store.create(self._name, bytes(self._data))
