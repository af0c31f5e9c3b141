"""How an application uses its consumer: each call may meet a signal or let other threads in, and the judge hears of it.
What it does in which order is in `world`.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

import partq
from partq_spark.base.errors import Invalid, PartqError
from tests.simulation.consumer.judge import Given, Judge, Violation, spans_of
from tests.simulation.consumer.machine import Machine
from tests.simulation.consumer.plan import Plan
from tests.simulation.consumer.surroundings import Store
from tests.support.scheduler import SECOND_US, Scheduler
from tests.world.threads import Thread


class Interrupt(BaseException):
    """A signal's handler raises, as for Ctrl-C."""


class Alarm(Exception):
    """The same, as for a time limit."""


class Caller:
    """One application, and what is kept of what it does."""

    def __init__(self, plan: Plan, *, keep: int = 0) -> None:
        self.plan = plan
        self.rng = random.Random(f"consumer world {plan.seed}")
        self.scheduler = Scheduler(random.Random(f"consumer order {plan.seed}"))
        self.machine = machine = Machine(self.scheduler)
        url = f"file:///simulated/{plan.seed}"
        self.store = Store(machine, random.Random(f"consumer store {plan.seed}"), url=url, way_us=plan.way_us)
        self.judge = Judge(manual=plan.manual)
        self.counts: Counter[str] = Counter()
        self.facts: deque[str] = deque(maxlen=keep)
        self.noted = 0
        self.published = 0
        self.last: Given | None = None  # with acknowledge="next": what asking for the next one acknowledges
        self.asking: list[Given | None] = []  # what was given last, of each question on its way
        self.publishers: list[Thread] = []
        self.signals: list[BaseException] = []
        self.raised: BaseException | None = None  # by a handler, the last one

    def note(self, what: str) -> None:
        """A fact, for the history."""
        self.noted += 1
        self.scheduler.note(what)
        self.facts.append(f"{self.scheduler.now_us / SECOND_US:9.4f} {what}")

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, name: str, ask: Callable[[], Any], *, switches: bool = True) -> tuple[Any, BaseException | None]:
        """Ask the consumer something, while a signal may come, or other threads. What it returned, and what it raised:
        a signal's exception or one of partq's kinds.
        """
        machine, strand, rng = self.machine, self.machine.strand, self.rng
        signal: BaseException | None = None
        is_over = False
        if rng.random() < self.plan.signals and machine.current() is machine.main:
            signal = rng.choice((Interrupt, Alarm))(name)
            self.signals.append(signal)
            self.judge.is_calm = False
            if rng.random() < 0.75:
                machine.interrupter.arm(
                    strand, rng.randint(1, rng.choice((20, 200, 1200))), partial(self._raise, signal)
                )
            else:
                late = signal
                self.scheduler.push(
                    lambda: None if is_over else self._tell(machine.signal(strand, late)), rng.randint(0, 400_000)
                )
        if switches and rng.random() < self.plan.switches:
            switched = rng.choice([strand, *machine.process.strands])  # the consumer's own threads too
            at, pause_s = rng.randint(1, rng.choice((20, 200, 1200))), rng.choice((0.0, 0.0, 0.02, 0.3))
            if switched is not strand or signal is None:
                machine.interrupter.arm(switched, at, partial(self._switch, pause_s))
        try:
            result, error = ask(), None
        except (Interrupt, Alarm, PartqError, StopIteration, StopAsyncIteration) as raised:
            result, error = None, raised
        except Exception as raised:
            raise Violation(f"{name} raised {raised!r} (signals {self.signals})") from raised
        finally:
            is_over = True
            machine.interrupter.disarm(strand)
        if isinstance(error, (Interrupt, Alarm)) and error not in self.signals:
            raise Violation(f"{name} raised {error!r}, which no handler raised")
        if signal is not None and self.raised is signal and error is not signal:
            raise Violation(f"{name} swallowed {signal!r} and raised {error!r}")
        if error is not None and not isinstance(error, (StopIteration, StopAsyncIteration)):
            self.note(f"{name} raised {type(error).__name__}: {str(error)[:100]}")
            self.counts["signals" if error in self.signals else "refused"] += 1
        return result, error

    def _raise(self, signal: BaseException) -> None:
        self.note("a signal")
        self.raised = signal
        raise signal

    def _tell(self, was_waiting: bool) -> None:
        if was_waiting:
            self.note("a signal in a wait")

    def _switch(self, pause_s: float) -> None:
        self.note("a switch")
        self.counts["switches"] += 1
        self.scheduler.sleep_us(round(pause_s * SECOND_US))

    def _ask(self, asker: object | None, ask: Callable[[], Any]) -> tuple[Given | None, BaseException | None]:
        """One question for a batch: the application's word that the last one is dealt with, where it is that."""
        name = "poll" if asker is None else "next"
        before = len(self.judge.given)
        last, was_settled = self.last, self.last is not None and self.last.is_settled
        asked = self._word(asker)
        self.asking.append(last)
        batch, error = self._call(name, ask)
        self.asking.remove(last)
        if isinstance(error, (Interrupt, Alarm)):
            self.judge.cut_off()
        elif isinstance(error, Invalid) and last is not None:
            last.is_settled = was_settled  # it was refused
        else:
            for given in self.judge.given[before:] if not self.plan.manual else ():
                if given.spans is not None:  # another thread was given it and looked into it, before this one asked
                    self.judge.dealt_with(given)
        return self._got(name, asker, asked, batch), error

    def _word(self, asker: object | None) -> int:
        last = self.last
        if last is not None and not self.plan.manual:
            if last.spans is None and last.asker is asker is not None:
                self._look(last)  # a loop's word goes for it anyway
            if last.spans is not None and not last.is_settled and (None in (asker, last.asker) or last.asker is asker):
                self.judge.dealt_with(last)  # where one asks by poll and then by a loop it may as well be given back
            if last.spans is None or last.asker is not asker:
                self.judge.is_calm = False
            last.is_settled = True
        return self.judge.tick()

    def _got(self, name: str, asker: object | None, asked: int, batch: Any) -> Given | None:
        if batch is None:
            self.note(f"{name}: nothing")
            return None
        given = self.judge.gave(batch, asker, asked)
        self.last = given
        self.counts["batches"] += 1
        self.note(f"{name}: batch {given.number}")
        return given

    def _look(self, given: Given) -> None:
        how, batch = self.rng.random(), given.batch
        assert batch is not None
        if how < 0.2:
            len(batch)
        elif how < 0.4:
            pa.table(batch)
        messages = list(batch)
        self.judge.looked(given, messages)
        if given in self.asking:  # by another thread
            self.judge.dealt_with(given)
        self.counts["messages"] += len(messages)
        marked = sum(message.redelivered for message in messages)
        self.note(f"batch {given.number} is {given.spans}, {marked} marked")

    def _handle(self, given: Given) -> None:
        """What an application does with a batch that it holds, before it asks for the next one."""
        rng = self.rng
        if rng.random() < self.plan.signals / 4:
            self.note(f"batch {given.number} is dropped: a signal before the assignment")
            self._drop(given)
            return
        if self.plan.kind == "signals" or rng.random() < 0.75:
            self._look(given)
        chance = rng.random()
        if chance < 0.1:
            self._release(given)
        elif chance < 0.25:
            self._acknowledge_batch(given)

    def _drop(self, given: Given) -> None:
        """Nobody has it, or a reference that nobody uses is left."""
        given.is_dropped = True
        self.judge.cut_off()
        if self.rng.random() < 0.5:
            given.batch = None

    # --- what is given back or acknowledged ---

    def _acknowledge_batch(self, given: Given) -> None:
        message: partq.Message | None = None
        if given.spans is None or self.rng.random() < 0.9:
            self._look(given)
        batch = given.batch
        assert batch is not None
        messages = list(batch)
        if self.rng.random() < 0.4:
            message = self.rng.choice(messages)
        ends = spans_of(messages) if message is None else {message.partition: message.offset + 1}
        begun = self.judge.tick()
        lost, error = self._call("acknowledge", partial(batch.acknowledge, message))
        if error is None:
            self.note(f"batch {given.number} acknowledged to {ends}, lost {sorted(lost)}")
            self.judge.acknowledged(given, ends, lost, begun)
        elif given.session == self.judge.session:
            self.judge.is_unsure = True  # whether it counts
            if not any(self.judge.must_lose(given, partition, begun) for partition in ends):
                for partition, end in ends.items():
                    self.judge.handled[partition].update(range(end))

    def _release(self, given: Given) -> None:
        if given.spans is None:
            self._look(given)
        batch = given.batch
        assert batch is not None
        begun = self.judge.tick()
        self.judge.is_calm = False
        error: BaseException | None = Alarm()
        while error is not None:
            _, error = self._call("release", batch.release)
            self._await_store()
        self.note(f"batch {given.number} released")
        self.judge.released(given, begun)
        given.is_released = True

    def _await_store(self) -> None:
        while (left_us := self.store.down_until_us - self.scheduler.now_us) > 0:
            self.machine.sleep(left_us / SECOND_US)
