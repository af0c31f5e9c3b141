"""An application with a `partq.Consumer`, which does by a seed whatever applications do: loops left and begun again,
polls, threads, cancelled waits, signals, acknowledgements that come late. The consumer, queue and log are real.
"""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa

import partq
from partq_spark.base.errors import Invalid, PartqError
from partq_spark.client import PartitionCheckpoint
from partq_spark.client import consumer as _consumer  # noqa: F401 - loaded before its threads are replaced
from partq_spark.client import publication as _publication  # noqa: F401 - as above
from partq_spark.query import consumer_process as _process  # noqa: F401 - as above
from tests.simulation.consumer.caller import Caller
from tests.simulation.consumer.judge import Given, Violation
from tests.simulation.consumer.plan import OPERATIONS, Plan
from tests.simulation.consumer.surroundings import Loop
from tests.support.scheduler import SECOND_US
from tests.world.outcome import Outcome, quiet
from tests.world.threads import Thread

GROUP = "billing"
MOST_STEPS = 60_000


class Asker:
    """One iterator of the consumer."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator


class _Finished(BaseException):
    """The application has ended."""


class World(Caller):
    """One application from beginning to end."""

    askers: list[Asker]
    waiter: Asker | None  # an iterator of asyncio's

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
        self._await_publishers()
        self._close()
        self._drain()
        raise _Finished

    def _unraisable(self, about: Any) -> None:
        if about.exc_value is self.raised:  # Python itself has nobody to raise it to
            self.raised = None
        else:
            self.machine.deaths.append(Violation(f"{about.exc_value!r} was ignored in {about.object!r}"))

    def _require_living(self) -> None:
        """A thread of the application found a rule broken, or one of the consumer's died."""
        for error in self.machine.deaths:
            raise error

    def _drain(self) -> None:
        """A consumer that comes after it receives all that is not acknowledged."""
        self.last, self.askers, self.waiter = None, [], None
        with self._consumer("drain") as consumer:
            while (batch := consumer.poll(0.3)) is not None:
                given = self.judge.gave(batch, None, self.judge.tick())
                self._look(given)
                self.judge.dealt_with(given)
                if self.plan.manual:
                    batch.acknowledge()
        ends = {each.partition: each.end for each in self._checkpoints()}
        if sum(ends.values()) != self.published:
            raise Violation(f"{self.published} were published, and the queue has {ends}")
        self.judge.complete(ends)
        self._check()

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
        self.last, self.askers, self.waiter = None, [], None
        self.first_given = len(self.judge.given)

    def _close(self) -> None:
        if self._call("close", self.consumer.close)[1] is not None:
            self.judge.is_unsure = True
            self.consumer.close()
        self.judge.closed(self._acknowledged())

    def _check(self) -> None:
        self.judge.checkpoints(self._acknowledged())

    def _acknowledged(self) -> dict[int, int]:
        found = {each.partition: each.acknowledged for each in self._checkpoints()}
        self.note(f"checkpoints {found}")
        return found

    def _checkpoints(self) -> list[PartitionCheckpoint]:
        found = self.queue.checkpoints(GROUP).partitions
        return [each for each in found if isinstance(each, PartitionCheckpoint)]

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

        def publish() -> None:
            self.machine.sleep(pause_s)
            self._publish()

        self.publishers.append(self.machine.spawn("publisher", publish))

    def _await_publishers(self) -> None:
        while self.publishers:
            self.publishers.pop().join()

    def _pause(self) -> None:
        self.machine.sleep(self.rng.choice((0.05, 0.6, 1.5)))

    def _outage(self) -> None:
        self._await_publishers()
        self.judge.is_unsure, self.judge.is_calm = True, False
        self.store.down_until_us = self.scheduler.now_us + round(self.rng.choice((0.5, 4.0)) * SECOND_US)

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

    def _give_back(self) -> None:
        held = [each for each in self.judge.given[self.first_given :] if not each.is_dropped]
        if held:
            self._release(self.rng.choice(held))

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
        self.machine.interrupter.disarm(self.machine.strand)  # it asks at once
        batch, error = self._call("second poll", partial(self.consumer.poll, 0.1), switches=False)
        if not isinstance(error, Invalid) and error not in self.signals:
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
        threads: list[Thread] = []
        is_given_up = False

        def poll() -> Given | None:
            threads.append(self.machine.current())
            given, error = self._polled(self.rng.choice((0.1, 0.5, 1.0)))
            if error is not None:
                raise error
            if given is not None and is_given_up:
                self.note(f"nobody has batch {given.number}")
                self._drop(given)
            return given

        limit_s = self.rng.choice((0.001, 0.05, 0.3))
        try:
            given = self.loop.run_until_complete(asyncio.wait_for(asyncio.to_thread(poll), limit_s))
            if given is not None:
                self._handle(given)
        except PartqError:
            pass
        except TimeoutError:
            is_given_up = True
            self.note("given up")
            for thread in threads:
                if self.rng.random() < 0.5 and self.machine.is_waiting(thread.strand):
                    self._refused()
                thread.join()

    def _cancel(self) -> None:
        """`anext` under a time limit, once or several times."""
        if self.waiter is None or self.rng.random() < 0.5:
            self.waiter = Asker(aiter(self.consumer))
        waiter = self.waiter
        for _ in range(self.rng.randint(1, 5)):
            asked = self._word(waiter)
            limit_s = self.rng.choice((0.0001, 0.01, 0.1, 0.3, 2.0))
            try:
                batch = self.loop.run_until_complete(asyncio.wait_for(anext(waiter.iterator), limit_s))
            except TimeoutError:
                self.note("anext is cancelled")
                self.counts["cancelled"] += 1
                if self.rng.random() < 0.3:
                    return
                continue
            except (StopAsyncIteration, PartqError) as error:
                self.note(f"anext raised {error!r}"[:120])
                return
            given = self._got("anext", waiter, asked, batch)
            if given is not None:
                self._handle(given)
                if given.is_dropped:
                    self.waiter = None
                    return
                if self.rng.random() < 0.2:
                    self.note("the loop is left")
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
