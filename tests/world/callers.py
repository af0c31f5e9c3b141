"""How an application calls its consumer: each call may meet a signal or let other threads in. It says it has handled
what the contract (API-05) takes its word for, and nothing else. What it does in which order is in `clients`.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import partq
from tests.world.facts import Acknowledged, Befell, Given, Handled, Row, Violation, demand
from tests.world.machine import Host
from tests.world.plan import HABITS
from tests.world.processes import Flow, Interrupt, row_of
from tests.world.scheduler import SECOND_US, Crash

if TYPE_CHECKING:
    from tests.world.world import World

AGAIN_S: Final = 1.0


class Alarm(Exception):
    """A signal's handler raises, as `Interrupt`, but for a time limit."""


class Asker:
    """One iterator of the consumer."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator


@dataclass(slots=True, eq=False)
class Held:
    """A batch that the consumer returned. `batch` None: no reference is left. `asker`: the iterator that asked, None:
    `poll`. `is_dropped`: the application never got hold of it.
    """

    batch: partq.Batch | None
    asker: Asker | None
    rows: tuple[Row, ...]
    session: int
    ref: Callable[[], Any]  # to the batch; None once nothing refers to it
    is_seen: bool = False
    is_dropped: bool = False
    is_released: bool = False
    is_acknowledged: bool = False  # or tried to be
    is_settled: bool = False  # its fate is said


class Caller(Flow):
    """How it calls its consumer, and what it does with a batch."""

    def __init__(self, world: World, name: str, queue: str, group: str) -> None:
        super().__init__(world, name, queue, group)
        self._habits = HABITS[world.plan.habits]

    def begin(self) -> None:
        """A process knows nothing of the one before it."""
        self._signals: list[BaseException] = []
        self._raised: BaseException | None = None
        self._session = self._asking = 0
        self._given: list[Held] = []
        sys.unraisablehook = self._unraisable

    def _befell(self, what: str, *, is_accident: bool = False) -> None:
        self.world.take(Befell(self.world.now_us, what, self.name, is_accident))

    def _unraisable(self, about: Any) -> None:
        if about.exc_value is self._raised:  # Python itself has nobody to raise it to
            self._raised = None
        elif not isinstance(about.exc_value, Crash):  # a kill in a finalizer: the process ends where it waits next
            self.world.machine.deaths.append(Violation(f"{about.exc_value!r} was ignored in {about.object!r}"))

    def _open(self, host: Host) -> None:
        self._last: Held | None = None
        self._askers: list[Asker] = []
        self._waiter: Asker | None = None
        self._session += 1
        self._consumer = self.consumer(idle_timeout_s=self.rng.choice((0.2, 1.0)))
        host.on_term = self._consumer.stop

    def _close(self) -> None:
        self._befell("close", is_accident=True)
        if self._call("close", self._consumer.close)[1] is not None:
            self._consumer.close()

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, name: str, ask: Callable[[], Any], *, switches: bool = True) -> tuple[Any, BaseException | None]:
        """Ask the consumer something, while a signal may come, or other threads. What it returned, and what it raised:
        a signal's exception or one of partq's kinds.
        """
        world, machine, rng = self.world, self.world.machine, self.rng
        strand, interrupter = machine.strand, world.interrupter
        signal: BaseException | None = None
        is_over = False
        if rng.random() < self._habits.signals and machine.current() is self.host.main:
            signal = rng.choice((Interrupt, Alarm))(name)
            self._signals.append(signal)
            self._befell("signal", is_accident=True)
            if rng.random() < 0.75:
                interrupter.arm(strand, rng.randint(1, rng.choice((20, 200, 1200))), partial(self._raise, signal))
            else:
                late = partial(machine.signal, strand, signal)
                world.scheduler.push(lambda: None if is_over else late(), rng.randint(0, 400_000))
        if switches and rng.random() < world.plan.switches:
            switched = rng.choice(strand.process.strands)  # the consumer's own threads too
            at, pause_s = rng.randint(1, rng.choice((20, 200, 1200))), rng.choice((0.0, 0.0, 0.02, 0.3))
            if switched is not strand or signal is None:
                interrupter.arm(switched, at, partial(self._switch, pause_s))
        result, error = None, None
        try:
            result = ask()
        except (Interrupt, Alarm, partq.PartqError, StopIteration, StopAsyncIteration) as raised:
            error = raised
        except Exception as raised:
            raise Violation(f"{name} raised {raised!r} (signals {self._signals})") from raised
        finally:
            is_over = True
            interrupter.disarm(strand)
        if isinstance(error, (Interrupt, Alarm)):
            demand(error in self._signals, name, "raised what no handler raised:", error)
        if signal is not None and self._raised is signal:
            demand(error is signal, name, "swallowed", signal, "and raised", error)
        if error is not None and not isinstance(error, (StopIteration, StopAsyncIteration)):
            world.counts["signals" if error in self._signals else "refused"] += 1
        return result, error

    def _raise(self, signal: BaseException) -> None:
        self._raised = signal
        raise signal

    def _switch(self, pause_s: float) -> None:
        self.world.counts["switches"] += 1
        self.world.scheduler.sleep_us(round(pause_s * SECOND_US))

    def _ask(self, asker: Asker | None, ask: Callable[[], Any]) -> tuple[Held | None, BaseException | None]:
        """One question for a batch: the application's word that the last one is dealt with, where it is that."""
        last, was_settled = self._last, self._last is not None and self._last.is_settled
        self._asking += 1
        try:
            self._word(asker)
            self.sleep(0.0)
            asked_us = self.world.now_us
            batch, error = self._call("poll" if asker is None else "next", ask)
        finally:
            self._asking -= 1
        if isinstance(error, partq.Invalid) and last is not None:
            last.is_settled = was_settled  # it was refused
        return self._got(asker, asked_us, batch), error

    def _word(self, asker: Asker | None) -> None:
        last = self._last
        if last is None or self.world.plan.manual:
            return
        if not last.is_seen and last.asker is asker is not None:
            self._look(last)  # a loop's word goes for it anyway
        if not last.is_seen or last.asker is not asker:
            self._befell("left", is_accident=True)
        if last.is_seen and not last.is_settled and (None in (asker, last.asker) or last.asker is asker):
            self._handled(last.rows)  # where one asks by poll and then by a loop it may as well be given back
        last.is_settled = True

    def _got(self, asker: Asker | None, asked_us: int, batch: Any) -> Held | None:
        if batch is None:
            return None
        world = self.world
        rows = tuple(map(row_of, batch._messages(batch._delivery.pieces)))  # without looking into it
        held = Held(batch, asker, rows, self._session, weakref.ref(batch))
        self._given.append(held)
        self._last = held
        world.take(Given(world.now_us, asked_us, self._group, self._flow, self.host.process.name, rows))
        return held

    def _handled(self, rows: Iterable[Row]) -> None:
        self.world.take(Handled(self.world.now_us, self._group, self._flow, tuple(rows)))

    # --- what it does with a batch ------------------------------------------------------------------------------------

    def _look(self, held: Held) -> None:
        how, batch = self.rng.random(), held.batch
        assert batch is not None
        held.is_seen = True
        if self._asking and not self.world.plan.manual:  # another thread, whose word goes for it
            self._handled(held.rows)
        if how < 0.2:
            demand(len(batch) == len(held.rows), "a batch is not as long as it was")
        elif how < 0.4:
            demand(pa.table(batch).num_rows == len(held.rows), "a table is not as long as its batch")
        demand(tuple(map(row_of, batch)) == held.rows, "a batch has other messages than it had:", held)

    def _handle(self, held: Held) -> None:
        """A batch that it holds, before it asks for the next one."""
        rng, signals = self.rng, self._habits.signals
        if rng.random() < (signals / 4 or 0.2 * (self.world.plan.habits == "rounds")):  # before the assignment
            self._drop(held)
            return
        if signals == 0.5 or rng.random() < 0.75:
            self._look(held)
        chance = rng.random()
        if chance < 0.1:
            self._release(held)
        elif chance < 0.25:
            self._acknowledge_batch(held)

    def _drop(self, held: Held) -> None:
        """Nobody has it, or a reference that nobody uses is left."""
        self._befell("dropped", is_accident=True)
        held.is_dropped = True
        if self.rng.random() < 0.5:
            held.batch = None

    def _acknowledge_batch(self, held: Held) -> None:
        if not held.is_seen or self.rng.random() < 0.9:
            self._look(held)
        batch = held.batch
        assert batch is not None
        message: partq.Message | None = None
        if self.rng.random() < 0.4:
            message = self.rng.choice(list(batch))
        ends = {row.partition: row.offset + 1 for row in held.rows}
        if message is not None:
            ends = {message.partition: message.offset + 1}
        if held.session == self._session and not held.is_released:
            before = self._given[: self._given.index(held) + 1]
            meant = [each for each in before if each.session == held.session and not each.is_released]
            meant = [each for each in meant if each.ref() is not None]  # others were given back
            self._handled(row for each in meant for row in each.rows if row.offset < ends.get(row.partition, 0))
        if held.session != self._session or held.is_released or held.is_acknowledged:
            self._befell("late", is_accident=True)  # a partition may have moved on since
        held.is_acknowledged = True
        lost, error = self._call("acknowledge", partial(batch.acknowledge, message))
        if error is None:
            self.world.take(Acknowledged(self.world.now_us, self._group, self._flow, held.rows, lost))

    def _release(self, held: Held) -> None:
        if not held.is_seen:
            self._look(held)
        self._befell("release", is_accident=True)
        batch, held.is_released, held.is_settled = held.batch, True, True
        assert batch is not None
        while (error := self._call("release", batch.release)[1]) is not None and not self.host.stopping:
            if error not in self._signals:
                self.sleep(AGAIN_S)
