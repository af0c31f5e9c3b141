"""A simulated process' way to a store: every call takes time, and may be lost, answered late or never, take effect
after it was given up, or be the last thing that the process does.

Nothing here knows what the calls mean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from partq_spark.base.errors import PartqError, Unavailable
from tests.support.scheduler import SECOND_US, Crash, Process

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Probabilities per call, all for the time until the faults stop; and how long things take.

    `late` is of a call that is given up and takes effect afterwards all the same. `slow` calls take up to twice the
    time-out. `freeze` stops the whole process in the middle of a call, `outage` cuts it off from all stores.
    """

    request_lost: float = 0.0
    answer_lost: float = 0.0
    late: float = 0.0
    slow: float = 0.0
    crash: float = 0.0
    freeze: float = 0.0
    outage: float = 0.0
    freeze_us: tuple[int, int] = (SECOND_US, 20 * SECOND_US)
    outage_us: tuple[int, int] = (SECOND_US, 15 * SECOND_US)
    way_us: int = 1000  # about so long for one way
    timeout_us: int = 2 * SECOND_US  # after which a call is given up


@dataclass(slots=True)
class Weather:
    """What concerns all processes of a world: whether faults strike, and what struck so far.

    `lives` counts the restarts of the ownership store: what was on its way then never arrives.
    """

    rates: Rates
    counts: Counter[str]
    note: Callable[[str], None]
    calm: bool = False
    lives: int = 0


class Link:
    """One process' calls to all stores. Draws are few, because there are many calls."""

    def __init__(self, process: Process, weather: Weather) -> None:
        self._process = process
        self._scheduler = process.scheduler
        self._rng = process.scheduler.rng
        self._weather = weather
        self._cut_off_until_us = 0
        rates = weather.rates
        chances = {
            "request lost": rates.request_lost,
            "answer lost": rates.answer_lost,
            "effect late": rates.late,
            "slow": rates.slow,
            "crash before": rates.crash / 2,
            "crash after": rates.crash / 2,
            "freeze before": rates.freeze / 2,
            "freeze after": rates.freeze / 2,
            "outage": rates.outage,
        }
        self._faults = [(fault, chance) for fault, chance in chances.items() if chance]
        self._any = sum(chances.values())

    @property
    def now_us(self) -> int:
        """True time: for those who judge, never for those who are judged."""
        return self._scheduler.now_us

    def call(self, verb: str, effect: Callable[[], T], *, write: bool, mortal: bool = False) -> T:
        """What `effect` returns or raises, or `Unavailable`. `mortal`: a restart of the ownership store ends it."""
        if not self._process.alive:
            raise Crash
        rng = self._rng
        draw = rng.random()
        fault = self._draw(draw) if draw < self._any and not self._weather.calm else None
        way_us = self._weather.rates.way_us
        if fault is None and (self._weather.calm or self._scheduler.now_us >= self._cut_off_until_us):
            self._scheduler.sleep_us(int(way_us * (0.3 + rng.random())))
            try:
                result = effect()
            except PartqError:
                self._scheduler.sleep_us(int(way_us * (0.3 + rng.random())))
                raise
            self._scheduler.sleep_us(int(way_us * (0.3 + rng.random())))
            return result
        return self._faulty(verb, effect, fault, write, mortal)

    def _draw(self, draw: float) -> str | None:
        for fault, chance in self._faults:
            if draw < chance:
                return fault
            draw -= chance
        return None

    def _faulty(self, verb: str, effect: Callable[[], T], fault: str | None, write: bool, mortal: bool) -> T:
        scheduler, rng, rates = self._scheduler, self._rng, self._weather.rates
        if fault == "outage":
            self._cut_off_until_us = scheduler.now_us + rng.randint(*rates.outage_us)
        if scheduler.now_us < self._cut_off_until_us:
            self._count("outage", verb)
            scheduler.sleep_us(rng.choice((rates.way_us, rates.timeout_us)))
            raise Unavailable(f"{verb}: cut off (simulated)")
        self._count(fault or "", verb)
        if fault == "crash before":
            if write and rng.random() < 0.5:
                self._later(verb, effect, rng.randint(0, 3 * rates.way_us), mortal)
            raise self._dead()
        if fault in ("request lost", "effect late"):
            if write and fault == "effect late":
                spread = rng.choice((0.01, 0.5, 3.0))  # long before, about when, or after the caller gives up
                self._later(verb, effect, int(rates.timeout_us * spread * (0.5 + rng.random())), mortal)
            scheduler.sleep_us(rates.timeout_us)
            raise Unavailable(f"{verb}: no answer in time (simulated)")
        if fault == "freeze before":
            self._process.freeze(rng.randint(*rates.freeze_us))
        return self._answered(verb, effect, fault)

    def _answered(self, verb: str, effect: Callable[[], T], fault: str | None) -> T:
        """The request arrives; what becomes of the answer."""
        scheduler, rng, rates = self._scheduler, self._rng, self._weather.rates
        begun_us = scheduler.now_us
        scheduler.sleep_us(self._way_us(fault))
        failed: PartqError | None = None
        result: T | None = None
        try:
            result = effect()
        except PartqError as error:  # this answer, too, may be lost
            failed = error
        if fault == "crash after":
            raise self._dead()
        if fault == "freeze after":
            self._process.freeze(rng.randint(*rates.freeze_us))
        back_us = self._way_us(fault)
        left_us = begun_us + rates.timeout_us - scheduler.now_us
        if fault == "answer lost" or back_us > left_us:
            scheduler.sleep_us(max(0, left_us))
            raise Unavailable(f"{verb}: answer lost (simulated)")
        scheduler.sleep_us(back_us)
        if failed is not None:
            raise failed
        return result  # type: ignore[return-value]  # None only where T allows it

    def _dead(self) -> Crash:
        """From this instant on no strand of the process does anything, not even on its way out."""
        self._process.alive = False
        return Crash()

    def _way_us(self, fault: str | None) -> int:
        rates = self._weather.rates
        return int(
            rates.timeout_us * self._rng.random() if fault == "slow" else rates.way_us * (0.3 + self._rng.random())
        )

    def _count(self, fault: str, verb: str) -> None:
        self._weather.counts[fault] += 1
        self._weather.note(f"{self._scheduler.now_us} {self._process.name} {verb}: {fault}")

    def _later(self, verb: str, effect: Callable[[], object], delay_us: int, mortal: bool) -> None:
        """The request is on its way, and nobody waits for it any more."""
        lives = self._weather.lives

        def land() -> None:
            if mortal and self._weather.lives != lives:
                return
            try:
                effect()
            except PartqError:
                return
            self._weather.counts["landed late"] += 1
            self._weather.note(f"{self._scheduler.now_us} {self._process.name} {verb}: landed late")

        self._scheduler.push(land, delay_us)
