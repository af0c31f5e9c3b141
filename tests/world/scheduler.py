"""True time and order of a simulated world: strands of simulated processes run one at a time, in an order that a seed
decides.

Nothing here knows stores, faults or what the processes do. A strand gives way only where it sleeps or waits; whatever
it does in between happens at one instant of true time, which no process can see.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from heapq import heappop, heappush

import greenlet

SECOND_US = 1_000_000


class Crash(BaseException):
    """The end of a process where it sleeps or calls; not an `Exception`, so that no code under test handles it."""


class Process:
    """One simulated operating system process: its own clock, and strands that live, freeze and die together.

    `origin_s` and `rate` make its clock: no two processes agree on the time, nor quite on how long a second is.
    """

    __slots__ = ("alive", "frozen_until_us", "name", "on_killed", "origin_s", "rate", "scheduler", "strands")

    def __init__(self, scheduler: Scheduler, name: str, *, origin_s: float = 0.0, rate: float = 1.0) -> None:
        self.scheduler = scheduler
        self.name = name
        self.origin_s = origin_s
        self.rate = rate
        self.alive = True
        self.frozen_until_us = 0
        self.strands: list[Strand] = []
        self.on_killed: Callable[[], None] = lambda: None  # not when the world ends

    def now_s(self) -> float:
        """This process' own clock. It runs on while the process is frozen."""
        return self.origin_s + self.scheduler.now_us * self.rate / SECOND_US

    def sleep(self, duration_s: float) -> None:
        """Let others go on for so long, by this process' clock."""
        self.scheduler.sleep_us(max(0, round(duration_s / self.rate * SECOND_US)))

    def freeze(self, duration_us: int) -> None:
        """None of its strands goes on before the time is over, wherever it is; nothing is told to it."""
        self.frozen_until_us = max(self.frozen_until_us, self.scheduler.now_us + duration_us)

    def spawn(self, name: str, run: Callable[[], None]) -> Strand:
        """Begin `run` beside the other strands, as a thread would."""
        strand = Strand(self, f"{self.name}/{name}", run)
        self.strands.append(strand)
        self.scheduler.push(strand, 0)
        return strand


class Strand:
    """One line of execution. `ticket` tells a wake-up that is due from one that has been overtaken. `signal`: what is
    to be raised in it where it sleeps or waits, unless `is_deaf`.
    """

    __slots__ = ("greenlet", "is_deaf", "name", "process", "signal", "ticket")

    def __init__(self, process: Process, name: str, run: Callable[[], None]) -> None:
        self.process = process
        self.name = name
        self.ticket = 0
        self.signal: BaseException | None = None
        self.is_deaf = False
        self.greenlet = greenlet.greenlet(run)


class Scheduler:
    """Runs strands and timers by true time. What a strand raises comes out of `run`; `Crash` ends its process."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_us = 0
        self.steps = 0
        self.current: Strand | None = None
        self._hub: greenlet.greenlet | None = None
        self._heap: list[tuple[int, int, Strand | Callable[[], None], int]] = []
        self._count = 0
        self.processes: list[Process] = []
        self._history = hashlib.blake2b(digest_size=16)

    # --- what processes and the world ask for -------------------------------------------------------------------------

    def process(self, name: str, *, origin_s: float = 0.0, rate: float = 1.0) -> Process:
        """A new process, without strands yet."""
        process = Process(self, name, origin_s=origin_s, rate=rate)
        self.processes.append(process)
        return process

    def push(self, target: Strand | Callable[[], None], delay_us: int) -> None:
        """Let a strand go on, or call something, after `delay_us`. What is called may neither sleep nor wait."""
        self._count += 1
        ticket = target.ticket if isinstance(target, Strand) else 0
        heappush(self._heap, (self.now_us + delay_us, self._count, target, ticket))

    def sleep_us(self, duration_us: int) -> None:
        """Let others go on for at least so long. A process that has died meanwhile ends here. While nothing runs, only
        the clock moves.
        """
        strand = self.current
        if strand is not None and not strand.process.alive:
            raise Crash
        if self._hub is None:
            self.now_us += duration_us
            return
        if strand is None:
            raise RuntimeError("only a strand sleeps: use a timer")
        self.push(strand, duration_us)
        self._hub.switch()
        if not strand.process.alive:
            raise Crash
        if strand.signal is not None and not strand.is_deaf:
            signal, strand.signal = strand.signal, None
            raise signal

    def wake(self, strand: Strand, delay_us: int = 0) -> None:
        """End a strand's sleep, unless it has ended."""
        if strand.process.alive:
            self.push(strand, delay_us)

    def interrupt(self, strand: Strand, signal: BaseException) -> None:
        """A signal's handler raises this in the strand, where it sleeps or waits, now or the next time."""
        if not strand.greenlet.dead:
            strand.signal = signal
            self.wake(strand)

    def kill(self, process: Process) -> None:
        """SIGKILL, from a timer or by a strand of that process that raises `Crash` right after."""
        if process.alive:
            process.alive = False
            if self.current is None:
                self._bury(process)
                process.on_killed()

    def note(self, *what: object) -> None:
        """Add to the history, which tells one run from another."""
        self._history.update(repr((self.now_us, self.current.name if self.current else "", *what)).encode())

    @property
    def history(self) -> str:
        """A digest of all that was noted: equal for equal runs."""
        return self._history.hexdigest()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run(self, until_us: int, most_steps: int) -> None:
        """Until true time `until_us`. Raises `RuntimeError` beyond `most_steps`."""
        self._hub = greenlet.getcurrent()
        try:
            self._run(until_us, most_steps)
        finally:
            self._hub = None
        self.now_us = max(self.now_us, until_us)

    def _run(self, until_us: int, most_steps: int) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until_us:
            at_us, _, target, ticket = heappop(heap)
            if not isinstance(target, Strand):
                self.now_us = at_us
                target()
                continue
            process = target.process
            if ticket != target.ticket or not process.alive:
                continue
            if process.frozen_until_us > at_us:
                self._count += 1
                heappush(heap, (process.frozen_until_us, self._count, target, ticket))
                continue
            self.now_us = at_us
            self.steps += 1
            if self.steps > most_steps:
                raise RuntimeError(
                    f"{most_steps} steps, and at {at_us / SECOND_US:.1f} s there is no end: {target.name}"
                )
            self._switch(target)

    def _switch(self, strand: Strand) -> None:
        strand.ticket += 1
        self.current = strand
        process = strand.process
        strand.greenlet.parent = self._hub  # not the strand that began it: what it raises is not for that one
        try:
            strand.greenlet.switch()
        except Crash:
            process.alive = False
        finally:
            self.current = None
        if strand.greenlet.dead and process.alive:
            process.strands.remove(strand)
        if not process.alive:
            self._bury(process)
            process.on_killed()

    def _bury(self, process: Process) -> None:
        """End what is left of a dead process: its strands are somewhere in a call, and no call answers any more."""
        strands, process.strands = process.strands, []
        for strand in strands:
            if strand.greenlet and not strand.greenlet.dead:
                self.current = strand
                strand.greenlet.parent = greenlet.getcurrent()
                try:
                    strand.greenlet.throw(Crash)
                except Crash:
                    pass
                finally:
                    self.current = None
                if not strand.greenlet.dead:
                    raise RuntimeError(f"{strand.name} goes on after its process was killed")

    def end(self) -> None:
        """A power cut: nothing goes on."""
        self._heap.clear()
        for process in self.processes:
            process.alive = False
            self._bury(process)
