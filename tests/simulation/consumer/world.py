"""An application with a `partq.Consumer`, which does by a seed whatever applications do: loops left and begun again,
polls, threads, cancelled waits, signals, acknowledgements that come late. The consumer, queue and log are real.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

import partq
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.client import consumer as _consumer  # noqa: F401 - loaded before its threads are replaced
from partq_spark.client import publication as _publication  # noqa: F401 - as above
from partq_spark.query import consumer_process as _process  # noqa: F401 - as above
from tests.simulation.consumer.judge import Given, Judge, Violation, spans_of
from tests.simulation.consumer.machine import Machine, Thread
from tests.simulation.consumer.surroundings import Loop, Store
from tests.simulation.plan import Outcome
from tests.simulation.world import quiet
from tests.support.scheduler import SECOND_US, Scheduler

GROUP = "billing"
MOST_STEPS = 60_000
MOST_S = 1800.0

KINDS = ("loops", "threads", "rounds", "signals", "everything")
OPERATIONS = {
    "loops": ("publish", "publish", "loop", "loop", "loop", "go_on", "poll", "pause", "reopen"),
    "threads": ("publish", "publish", "poll", "beside", "three", "abandon", "abandon", "cancel", "cancel", "pause"),
    "rounds": ("publish", "publish", "poll", "poll", "acknowledge", "acknowledge", "give_back", "worker", "pause"),
    "signals": ("publish", "publish", "poll", "poll", "poll", "loop", "acknowledge", "pause"),
}
OPERATIONS["everything"] = (
    *OPERATIONS["loops"], *OPERATIONS["threads"], *OPERATIONS["rounds"], "later", "outage", "stop"
)  # fmt: skip


class Interrupt(BaseException):
    """A signal's handler raises, as for Ctrl-C."""


class Alarm(Exception):
    """The same, as for a time limit."""


class _Finished(BaseException):
    """The application has ended."""


def kind_of(seed: int) -> str:
    """What the application does most."""
    return KINDS[seed % len(KINDS)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed draws before anything runs."""

    seed: int
    kind: str
    manual: bool
    partitions: int
    max_messages: int
    way_us: int
    signals: float  # that a call meets one
    switches: float  # that a call lets other threads in, somewhere
    operations: int

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """The kind by the seed's number, the rest at random."""
        rng = random.Random(f"consumer {seed}")
        kind = kind_of(seed)
        return cls(
            seed=seed,
            kind=kind,
            manual=kind == "rounds" or (kind not in ("loops", "threads") and rng.random() < 0.5),
            partitions=rng.choice((1, 1, 2, 3)),
            max_messages=rng.choice((2, 4, 10)),
            way_us=rng.choice((0, 0, 1000, 20_000)),
            signals={"signals": 0.5, "everything": 0.15}.get(kind, 0.0),
            switches=0.0 if kind in ("loops", "signals") else rng.choice((0.0, 0.3, 0.6)),
            operations=rng.randint(6, 30),
        )


class Asker:
    """One iterator of the consumer."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.has_asked = False


class World:
    """One application from beginning to end."""

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
        self.askers: list[Asker] = []
        self.asking: list[Given | None] = []  # what was given last, of each question on its way
        self.polling: Thread | None = None  # the thread that `_abandon` has begun
        self.signals: list[BaseException] = []

    def note(self, what: str) -> None:
        """A fact, for the history."""
        self.noted += 1
        self.scheduler.note(what)
        self.facts.append(f"{self.scheduler.now_us / SECOND_US:9.4f} {what}")

    def play(self) -> Outcome:
        """Raises `Violation`, or whatever the consumer should not have raised."""
        with self.machine.in_place(self.store, random.Random(f"consumer effects {self.plan.seed}")):
            self.loop = Loop(self.machine)
            hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
            gc.disable()  # what it would end at some moment is not a matter of the seed
            try:
                self.machine.run_main(self._main)
                self.scheduler.run(None, MOST_STEPS)
            except _Finished:
                pass
            finally:
                for strand in list(self.machine.interrupter._armed):
                    self.machine.interrupter.disarm(strand)
                self.scheduler.end()
                self.loop.close()
                sys.unraisablehook = hook
                gc.enable()
        self._require_living()
        return Outcome(
            self.plan.seed, self.scheduler.steps, self.scheduler.now_us, self.scheduler.history, self.noted, self.counts
        )

    # --- the application ----------------------------------------------------------------------------------------------

    def _main(self) -> None:
        plan = self.plan
        self.queue = partq.create_queue("orders", partitions=plan.partitions, store=self.store.url, retry_timeout_s=2)
        self.queue.create_group(GROUP, starting="earliest")
        self._open()
        self._publish()
        names = OPERATIONS[plan.kind]
        for _ in range(plan.operations):
            name = self.rng.choice(names)
            self.counts[name] += 1
            self.note(f"-- {name}")
            getattr(self, f"_{name}")()
            self._require_living()
            if self.rng.random() < 0.3 and self.scheduler.now_us >= self.store.down_until_us:
                self._check()
        self._await_store()
        self._close()
        self._drain()
        raise _Finished

    def _unraisable(self, about: Any) -> None:
        if about.exc_value not in self.signals:  # else Python itself has nobody to raise it to
            self.machine.deaths.append(Violation(f"{about.exc_value!r} was ignored in {about.object!r}"))

    def _require_living(self) -> None:
        """A thread of the application found a rule broken, or one of the consumer's died."""
        for error in self.machine.deaths:
            raise error

    def _drain(self) -> None:
        """A consumer that comes after it receives all that is not acknowledged."""
        self.last, self.askers = None, []
        with self._consumer("drain") as consumer:
            while (batch := self._plain(partial(consumer.poll, 0.3))) is not None:
                given = self.judge.gave(batch, None, self.judge.tick())
                self._look(given)
                self.judge.dealt_with(given)
                if self.plan.manual:
                    batch.acknowledge()
        ends = {each.partition: each.end for each in self.queue.checkpoints(GROUP).partitions}
        if sum(ends.values()) != self.published:
            raise Violation(f"{self.published} were published, and the queue has {ends}")
        self.judge.complete(ends)
        self._check()

    def _plain(self, ask: Callable[[], Any]) -> Any:
        """A call in which nothing happens."""
        return ask()

    def _consumer(self, flow: str | None) -> partq.Consumer:
        return self.queue.consumer(
            GROUP,
            flow=flow,
            acknowledge="manual" if self.plan.manual else "next",
            starting="earliest",
            max_messages=self.plan.max_messages,
            idle_timeout_s=self.rng.choice((0.2, 1.0)),
        )

    def _open(self) -> None:
        self.consumer = self._consumer(self.rng.choice((None, "one", "one", "two")))
        self.last, self.askers = None, []
        self.first_given = len(self.judge.given)

    def _close(self) -> None:
        if self._call("close", self.consumer.close)[1] is not None:
            self.judge.is_unsure = True
            self.consumer.close()
        self.judge.closed(self._acknowledged())

    def _check(self) -> None:
        self.judge.checkpoints(self._acknowledged())

    def _acknowledged(self) -> dict[int, int]:
        found = {each.partition: each.acknowledged for each in self.queue.checkpoints(GROUP).partitions}
        self.note(f"checkpoints {found}")
        return found

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, name: str, ask: Callable[[], Any]) -> tuple[Any, BaseException | None]:
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
        if rng.random() < self.plan.switches:
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
        if error is not None and not isinstance(error, (StopIteration, StopAsyncIteration)):
            self.note(f"{name} raised {type(error).__name__}: {str(error)[:100]}")
            self.counts["signals" if error in self.signals else "refused"] += 1
        return result, error

    def _raise(self, signal: BaseException) -> None:
        self.note("a signal")
        raise signal

    def _tell(self, was_waiting: bool) -> None:
        if was_waiting:
            self.note("a signal in a wait")

    def _switch(self, pause_s: float) -> None:
        self.note("a switch")
        self.counts["switches"] += 1
        self.scheduler.sleep_us(round(pause_s * SECOND_US))

    def _ask(self, asker: Asker | None, ask: Callable[[], Any]) -> tuple[Given | None, BaseException | None]:
        """One question for a batch: the application's word that the last one is dealt with, where it is that."""
        name = "poll" if asker is None else "next"
        last, was_settled = self.last, self.last is not None and self.last.is_settled
        asked = self._word(asker)
        self.asking.append(last)
        batch, error = self._call(name, ask)
        self.asking.remove(last)
        if isinstance(error, (Interrupt, Alarm)):
            self.judge.cut_off()
        elif isinstance(error, Invalid) and last is not None:
            last.is_settled = was_settled  # it was refused
        return self._got(name, asker, asked, batch), error

    def _word(self, asker: Asker | None) -> int:
        last = self.last
        if last is not None and not self.plan.manual:
            if last.spans is None and last.asker is asker is not None:
                self._look(last)  # a loop's word goes for it anyway
            if last.spans is not None and not last.is_settled and (None in (asker, last.asker) or last.asker is asker):
                self.judge.dealt_with(last)  # where one asks by poll and then by a loop it may as well be given back
            if last.spans is None or last.asker is not asker:
                self.judge.is_calm = False
            last.is_settled = True
        if asker is not None:
            asker.has_asked = True
        return self.judge.tick()

    def _got(self, name: str, asker: Asker | None, asked: int, batch: Any) -> Given | None:
        if batch is None:
            self.note(f"{name}: nothing")
            return None
        given = self.judge.gave(batch, asker, asked)
        self.last = given
        self.counts["batches"] += 1
        self.note(f"{name}: batch {given.number}")
        return given

    def _look(self, given: Given) -> None:
        how = self.rng.random()
        if how < 0.2:
            len(given.batch)
        elif how < 0.4:
            pa.table(given.batch)
        messages = list(given.batch)
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
            given.is_dropped = True
            self.judge.is_calm = False
            return
        if self.plan.kind == "signals" or rng.random() < 0.75:
            self._look(given)
        chance = rng.random()
        if chance < 0.1:
            self._release(given)
        elif chance < 0.25:
            self._acknowledge_batch(given)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        self._await_store()
        number = self.rng.randint(1, 12)
        values = [str(self.published + each) for each in range(number)]
        keys = [f"k{self.rng.randrange(5)}" for _ in values]
        with self.queue.publication() as publication:
            publication.add(pa.table({"key": keys, "value": values}))
            publication.commit()
        self.published += number
        self.note(f"published {number}")

    def _later(self) -> None:
        """Another thread publishes, perhaps while something waits for it."""
        pause_s = self.rng.uniform(0.0, 1.0)
        self.machine.spawn("publisher", lambda: (self.machine.sleep(pause_s), self._publish()))

    def _pause(self) -> None:
        self.machine.sleep(self.rng.choice((0.05, 0.6, 1.5)))

    def _outage(self) -> None:
        self.judge.is_unsure = True
        self.store.down_until_us = self.scheduler.now_us + round(self.rng.choice((0.5, 4.0)) * SECOND_US)

    def _await_store(self) -> None:
        while (left_us := self.store.down_until_us - self.scheduler.now_us) > 0:
            self.machine.sleep(left_us / SECOND_US)

    def _reopen(self) -> None:
        self._await_store()
        self._close()
        self._open()

    def _stop(self) -> None:
        self.consumer.stop()
        given, _ = self._ask(None, partial(self.consumer.poll, 1.0))
        if given is not None:
            raise Violation("a batch was given after stop()")
        self._reopen()

    def _poll(self) -> None:
        given, _ = self._ask(None, partial(self.consumer.poll, self.rng.choice((0.0, 0.1, 0.6))))
        if given is not None:
            self._handle(given)

    def _loop(self) -> None:
        iterator, error = self._call("iter", lambda: iter(self.consumer))
        if error is None:
            self.askers.append(Asker(iterator))
            self._loop_over(self.askers[-1])

    def _go_on(self) -> None:
        """With an iterator from before."""
        if self.askers:
            asker = self.rng.choice(self.askers[-2:])
            if iter(asker.iterator) is not asker.iterator:
                raise Violation("iter(it) is not it")
            self._loop_over(asker)

    def _loop_over(self, asker: Asker) -> None:
        for _ in range(self.rng.randint(1, 4)):
            given, error = self._ask(asker, partial(next, asker.iterator))
            if given is None or error is not None:
                return
            self._handle(given)
            if given.is_dropped:
                self.askers.remove(asker)  # by going on with it one would say that it was handled
                return
            if self.rng.random() < 0.25:
                self.note("the loop is left")
                return
            if given.spans is None:
                self._look(given)

    def _acknowledge(self) -> None:
        """A batch of this session, or of one before."""
        if self.judge.given:
            number = self.rng.choice((*range(len(self.judge.given)), *range(self.first_given, len(self.judge.given))))
            given = self.judge.given[number]
            if not given.is_dropped:
                self._acknowledge_batch(given)

    def _acknowledge_batch(self, given: Given) -> None:
        message: partq.Message | None = None
        if given.spans is None or self.rng.random() < 0.9:
            self._look(given)
        messages = list(given.batch)
        if self.rng.random() < 0.4:
            message = self.rng.choice(messages)
        ends = spans_of(messages) if message is None else {message.partition: message.offset + 1}
        begun = self.judge.tick()
        lost, error = self._call("acknowledge", partial(given.batch.acknowledge, message))
        if error is None:
            self.note(f"batch {given.number} acknowledged to {ends}, lost {sorted(lost)}")
            self.judge.acknowledged(given, ends, lost, begun)
        elif given.session == self.judge.session:
            self.judge.is_unsure = True  # whether it counts
            if not any(self.judge.must_lose(given, partition, begun) for partition in ends):
                for partition, end in ends.items():
                    self.judge.handled[partition].update(range(end))

    def _give_back(self) -> None:
        held = [each for each in self.judge.given[self.first_given :] if not each.is_dropped]
        if held:
            self._release(self.rng.choice(held))

    def _release(self, given: Given) -> None:
        if given.spans is None:
            self._look(given)
        begun = self.judge.tick()
        self.judge.is_calm = False
        error: BaseException | None = Alarm()
        while error is not None:
            _, error = self._call("release", given.batch.release)
            self._await_store()
        self.note(f"batch {given.number} released")
        self.judge.released(given, begun)
        given.is_released = True

    # --- threads ------------------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        """A thread acknowledges or releases while this one polls."""
        thread = self.machine.spawn("worker", self.rng.choice((self._acknowledge, self._give_back)))
        self._poll()
        thread.join()

    def _polled(self, timeout_s: float) -> tuple[Given | None, BaseException | None]:
        return self._ask(None, partial(self.consumer.poll, timeout_s))

    def _beside(self) -> None:
        """A second thread polls while the first one waits."""
        found: list[Given | None] = []
        thread = self.machine.spawn("first", lambda: found.append(self._polled(1.0)[0]))
        self.machine.sleep(self.rng.uniform(0.0, 0.5))
        if self.machine.is_waiting(thread.strand):
            self._refused()
        thread.join()
        for given in found:
            if given is not None:
                self._handle(given)

    def _refused(self) -> None:
        batch, error = self._call("second poll", partial(self.consumer.poll, 0.1))
        if not isinstance(error, PartqError):
            raise Violation(f"a second poll meanwhile is not refused: {batch} {error!r}")

    def _three(self) -> None:
        """Three threads poll, each as soon as it may."""
        self.judge.is_calm = False

        def work() -> None:
            for _ in range(self.rng.randint(1, 4)):
                given, _ = self._polled(0.2)
                if given is not None:
                    self.machine.sleep(self.rng.choice((0.0, 0.05)))
                    self._look(given)
                self.machine.sleep(self.rng.choice((0.0, 0.1)))

        for thread in [self.machine.spawn(f"poller {number}", work) for number in range(3)]:
            thread.join()

    def _abandon(self) -> None:
        """`wait_for(to_thread(poll))`: who waited gives up, the thread polls on."""
        self.judge.is_calm = False
        is_given_up = False
        self.polling = None

        def poll() -> Given | None:
            self.polling = self.machine.current()
            given, error = self._polled(self.rng.choice((0.1, 0.5, 1.0)))
            if error is not None:
                raise error
            if given is not None and is_given_up:
                given.is_dropped = True
                self.note(f"nobody has batch {given.number}")
            return given

        try:
            given = self.loop.run_until_complete(
                asyncio.wait_for(asyncio.to_thread(poll), self.rng.choice((0.001, 0.05, 0.3)))
            )
        except TimeoutError:
            is_given_up = True
            self.note("given up")
        except PartqError:
            return
        else:
            if given is not None:
                self._handle(given)
            return
        if self.polling is not None:
            if self.rng.random() < 0.5 and self.machine.is_waiting(self.polling.strand):
                self._refused()
            self.polling.join()

    def _cancel(self) -> None:
        """`anext` under a time limit, once or several times."""
        if not hasattr(self.consumer, "__aiter__"):
            return
        asker = Asker(aiter(self.consumer))
        for _ in range(self.rng.randint(1, 5)):
            asked = self._word(asker)
            limit_s = self.rng.choice((0.0001, 0.01, 0.1, 0.3, 2.0))
            try:
                batch = self.loop.run_until_complete(asyncio.wait_for(anext(asker.iterator), limit_s))
            except TimeoutError:
                self.note("anext is cancelled")
                self.counts["cancelled"] += 1
                if self.rng.random() < 0.3:
                    self.machine.sleep(self.rng.choice((0.01, 0.5)))
                continue
            except (StopAsyncIteration, PartqError) as error:
                self.note(f"anext raised {error!r}"[:120])
                return
            given = self._got("anext", asker, asked, batch)
            if given is not None:
                self._handle(given)
                if given.is_dropped or self.rng.random() < 0.2:
                    return
                if given.spans is None:
                    self._look(given)


def run_seed(seed: int, *, keep: int = 0) -> Outcome:
    """One world from beginning to end. Raises `Violation`."""
    with quiet():
        return World(Plan.draw(seed), keep=keep).play()


def story(seed: int, keep: int) -> Iterator[str]:
    """The last facts of a seed that fails."""
    world = World(Plan.draw(seed), keep=keep)
    yield f"{world.plan}"
    with quiet():
        try:
            world.play()
        except BaseException as error:  # noqa: BLE001 - it was told already
            yield from world.facts
            yield f"{type(error).__name__}: {error}"
