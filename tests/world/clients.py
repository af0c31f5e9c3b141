"""An application that uses its consumer in every way that there is: loops left and begun again, polls by several
threads, cancelled waits, signals, acknowledgements and releases that come late. At last it behaves, as `Flow` does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

import partq
from tests.world.callers import AGAIN_S, Asker, Caller, Held
from tests.world.event_loop import Loop
from tests.world.facts import demand
from tests.world.machine import Host
from tests.world.threads import Thread

if TYPE_CHECKING:
    from tests.world.world import World

_LONG_S: Final = 60.0  # longer than a consumer waits that has nothing to give, or no store


class Application(Caller):
    """What it does in which order is its seed's."""

    def __init__(self, world: World, name: str, queue: str, group: str) -> None:
        super().__init__(world, name, queue, group)
        self._left = world.plan.operations

    def live(self, host: Host) -> None:
        self.begin()
        self._loop_of_tasks = Loop(self.world.machine)
        try:
            while self._left and not host.stopping:
                try:
                    self._open(host)
                    self._operate(host)
                except partq.PartqError:
                    self.sleep(AGAIN_S)
        finally:
            self._loop_of_tasks.close()
        self._befell("behaves", is_accident=True)
        super().live(host)

    def _operate(self, host: Host) -> None:
        while self._left and not host.stopping:
            self._left -= 1
            name = self.rng.choice(self._habits.operations)
            self.world.counts[name] += 1
            self._befell(name, is_accident=name in ("three", "abandon"))
            for held in self._given:
                if held.is_dropped and self.rng.random() < 0.5:
                    held.batch = None  # what nobody used is collected some time
            getattr(self, f"_{name}")()
        self._close()

    # --- operations ---------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        pause_s = self.rng.choice((0.05, 0.6, 1.5, 8.0))
        if pause_s > self.world.plan.max_handoff_time_s - 1.0:
            self._befell("a long pause", is_accident=True)  # what it holds meanwhile may be given to another flow
        self.sleep(pause_s)

    def _reopen(self) -> None:
        self._close()
        self._open(self.host)

    def _stop(self) -> None:
        self._consumer.stop()
        held, _ = self._ask(None, partial(self._consumer.poll, 1.0))
        demand(held is None, "a batch was given after stop()")
        self._reopen()

    def _poll(self) -> None:
        held, _ = self._polled(self.rng.choice((0.0, 0.1, 0.6)))
        if held is not None:
            self._handle(held)

    def _polled(self, timeout_s: float) -> tuple[Held | None, BaseException | None]:
        return self._ask(None, partial(self._consumer.poll, timeout_s))

    def _loop(self) -> None:
        iterator, error = self._call("iter", lambda: iter(self._consumer))
        if error is None:
            self._askers.append(Asker(iterator))
            self._loop_over(self._askers[-1])

    def _go_on(self) -> None:
        """With an iterator from before."""
        if self._askers:
            asker = self.rng.choice(self._askers[-2:])
            demand(iter(asker.iterator) is asker.iterator, "iter(it) is not it")
            self._loop_over(asker)

    def _loop_over(self, asker: Asker) -> None:
        for _ in range(self.rng.randint(1, 4)):
            held, error = self._ask(asker, partial(next, asker.iterator))
            if held is None or error is not None:
                return
            self._handle(held)
            if held.is_dropped:
                self._askers.remove(asker)  # by going on with it one would say that it was handled
            if held.is_dropped or self.rng.random() < 0.25:
                return
            if not held.is_seen:
                self._look(held)

    def _acknowledge(self) -> None:
        """A batch of this session, or of one before."""
        held = [each for each in self._given if not each.is_dropped]
        if held:
            self._acknowledge_batch(self.rng.choice(held[self.rng.choice((0, -6)) :]))

    def _give_back(self) -> None:
        held = [each for each in self._given if not each.is_dropped and each.session == self._session]
        if held:
            self._release(self.rng.choice(held))

    # --- threads ------------------------------------------------------------------------------------------------------

    def _worker(self) -> None:
        """A thread acknowledges or releases while this one polls."""
        thread = self.world.machine.spawn("worker", self.rng.choice((self._acknowledge, self._give_back)))
        self._poll()
        thread.join()

    def _beside(self) -> None:
        """A second thread polls while the first one waits."""
        machine = self.world.machine
        found: list[Held | None] = []
        thread = machine.spawn("first", lambda: found.append(self._polled(1.0)[0]))
        self.sleep(self.rng.uniform(0.0, 0.5))
        if machine.is_waiting(thread.strand):
            self._refused()
        thread.join()
        for held in found:
            if held is not None:
                self._befell("its poller ends", is_accident=True)  # a pause of this one is too long for the flow then
                self._handle(held)

    def _refused(self) -> None:
        self.world.interrupter.disarm(self.world.machine.strand)  # it asks at once
        batch, error = self._call("second poll", partial(self._consumer.poll, 0.1), switches=False)
        refused = isinstance(error, partq.Invalid) or error in self._signals
        demand(refused, "a second poll meanwhile is not refused:", batch, error)

    def _three(self) -> None:
        """Three threads poll, each as soon as it may."""

        def work() -> None:
            for _ in range(self.rng.randint(1, 4)):
                held, _ = self._polled(0.2)
                if held is not None:
                    self.sleep(self.rng.choice((0.0, 0.05)))
                    self._look(held)
                self.sleep(self.rng.choice((0.0, 0.1)))

        for thread in [self.world.machine.spawn(f"poller {number}", work) for number in range(3)]:
            thread.join()

    def _abandon(self) -> None:
        """`wait_for(to_thread(poll))`: who waited gives up, the thread polls on."""
        machine = self.world.machine
        threads: list[Thread] = []
        is_given_up = False

        def poll() -> Held | None:
            threads.append(machine.current())
            held, error = self._polled(self.rng.choice((0.1, 0.5, 1.0)))
            if error is not None:
                raise error
            if held is not None and is_given_up:
                self._drop(held)
            return held

        limit_s = self.rng.choice((0.001, 0.05, 0.3))
        try:
            held = self._loop_of_tasks.run_until_complete(asyncio.wait_for(asyncio.to_thread(poll), limit_s))
            if held is not None:
                self._handle(held)
        except partq.PartqError:
            pass
        except TimeoutError:
            is_given_up = True
            for thread in threads:
                if self.rng.random() < 0.5 and machine.is_waiting(thread.strand):
                    self._refused()
                thread.join()

    def _cancel(self) -> None:
        """`anext` under a time limit, once or several times."""
        if self._waiter is None or self.rng.random() < 0.5:
            self._waiter = Asker(aiter(self._consumer))
        waiter = self._waiter
        for _ in range(self.rng.randint(1, 5)):
            self._word(waiter)
            self.sleep(0.0)
            asked_us, limit_s = self.world.now_us, self.rng.choice((0.0001, 0.01, 0.1, 0.3, 2.0, _LONG_S))
            try:
                batch = self._loop_of_tasks.run_until_complete(asyncio.wait_for(anext(waiter.iterator), limit_s))
            except TimeoutError:
                demand(limit_s < _LONG_S, "anext() has no end")
                self.world.counts["cancelled"] += 1
                if self.rng.random() < 0.3:
                    return
                continue
            except (StopAsyncIteration, partq.PartqError):
                return
            held = self._got(waiter, asked_us, batch)
            assert held is not None
            self._handle(held)
            if held.is_dropped:
                self._waiter = None
            if held.is_dropped or self.rng.random() < 0.2:
                return
            if not held.is_seen:
                self._look(held)
