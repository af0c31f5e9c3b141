"""The processes of a world and what they do with what users hold in their hands: `partq.Publisher`, `partq.Consumer`, a
queue. Each lives several lives; what it knows dies with each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import partq
from tests.world.facts import Acknowledged, Durable, Given, Handled, Row, Sent, demand
from tests.world.machine import Host
from tests.world.payloads import text_of
from tests.world.plan import Event
from tests.world.scheduler import SECOND_US, Crash, Process

if TYPE_CHECKING:
    from tests.world.world import World

T = TypeVar("T")
RETRY_S: Final = 10.0  # how long a process waits for its store
_AGAIN_S: Final = 1.0
_KEYS: Final = 6  # of each publisher


class Interrupt(BaseException):
    """A signal's handler raised it, as `KeyboardInterrupt`."""


class Actor:
    """One process after the other under one name. `is_done`: it has nothing to do any more, and is not started."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.rng = random.Random(f"{world.plan.seed} {name}")
        self.lives = 0
        self.process: Process | None = None
        self.host: Host
        self.is_done = False

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """From a timer. If the one before it has not ended yet, later."""
        if self.is_done:
            return
        world = self.world
        if self.is_alive:
            world.scheduler.push(self.start, round(world.plan.look_s * SECOND_US))
            return
        self.lives += 1
        drift = world.plan.drift
        self.process = process = world.scheduler.process(
            f"{self.name}/{self.lives}",
            origin_s=self.rng.uniform(100.0, 100_000.0),
            rate=1.0 + self.rng.uniform(-drift, drift),
        )
        self.host = world.machine.host_of(process)
        self.host.skew_s = self.rng.choice((-world.plan.skew_s, 0.0, world.plan.skew_s)) if drift else 0.0
        world.machine.begin(self.host, partial(self._main, process))

    def _main(self, process: Process) -> None:
        try:
            self.live(self.host)
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - the world ends with it
            error.add_note(f"in {process.name}")
            self.world.machine.deaths.append(error)
        self.world.scheduler.kill(process)

    def live(self, host: Host) -> None:
        """What it does until it ends in good order."""
        raise NotImplementedError

    def leave(self) -> None:
        """In good order, and for ever."""
        self.is_done = True
        self.stop()

    def kill(self) -> None:
        if self.process is not None:
            self.world.scheduler.kill(self.process)

    def stop(self) -> None:
        """SIGTERM."""
        if self.is_alive:
            self.host.stopping = True
            self.host.on_term()

    def sleep(self, seconds: float) -> None:
        self.world.machine.sleep(seconds)


class Publisher(Actor):
    """Sends messages one by one, in the order of their keys, until all of its plan are sent. What it did not hear of it
    does not send again. Signals come in between, whose handler raises.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.left = world.plan.messages
        keys = [f"{name}-{self.rng.getrandbits(16):x}" for _ in range(_KEYS)]
        self._numbers = dict.fromkeys(keys, 0)
        self._has_failed = False

    def live(self, host: Host) -> None:
        while not host.stopping and self.left:
            try:
                with self.world.queue().publisher(linger_s=self.rng.choice((0.0, 0.05, 0.5))) as publisher:
                    self._publish(host, publisher)
            except partq.PartqError:
                self.sleep(_AGAIN_S)
        self.is_done = not self.left

    def _publish(self, host: Host, publisher: partq.Publisher) -> None:
        self._has_failed = False
        self._futures: list[Any] = []
        while not (host.stopping or self._has_failed) and self.left:
            self._send(publisher)
            if host.rng.random() < 0.2 and self._call(publisher.flush):
                demand(all(each.done() for each in self._futures), self.name, "flush returned before all was done")
            self.sleep(host.rng.uniform(0.0, 2 * self.world.plan.pause_s))

    def _send(self, publisher: partq.Publisher) -> None:
        for _ in range(min(self.left, self.rng.choice((1, 1, 2, 5)))):
            self.left -= 1
            key = self.rng.choice(list(self._numbers))
            number = self._numbers[key]
            self._numbers[key] += 1
            value = f"{key}:{number}"
            self.world.take(Sent(self.world.now_us, self.name, key, number, value))
            for future in self._call(partial(publisher.send, value, key=key)):
                self._futures.append(future)
                future.add_done_callback(partial(self._sent, value))

    def _call(self, ask: Callable[[], T]) -> list[T]:
        """What it returned; nothing: a signal's handler raised. Then the publisher goes on as if nothing had been."""
        strand, interrupter = self.world.machine.strand, self.world.interrupter
        if self.rng.random() < 0.2:
            interrupter.arm(strand, self.rng.randint(1, 60), self._raise)
        try:
            return [ask()]
        except Interrupt:
            self.world.counts["signals to publishers"] += 1
            return []
        finally:
            interrupter.disarm(strand)

    def _raise(self) -> None:
        raise Interrupt

    def _sent(self, value: str, future: Any) -> None:
        if future.cancelled() or future.exception() is not None:
            self._has_failed = True  # and so will all that comes after it
        else:
            published = future.result()
            if published.partition is not None:
                self.world.take(Durable(self.world.now_us, value, published.partition, published.offset))


class Flow(Actor):
    """An application that takes messages from a group that it shares."""

    ends_by: tuple[type[Exception], ...] = ()

    def __init__(self, world: World, name: str, queue: str, group: str, flow: str = "") -> None:
        super().__init__(world, name)
        self._queue, self._group, self._flow = queue, group, flow or name

    def live(self, host: Host) -> None:
        while not host.stopping:
            try:
                with self.consumer() as consumer:
                    host.on_term = consumer.stop
                    self.consume(host, consumer)
            except self.ends_by:
                raise
            except partq.PartqError:
                self.sleep(_AGAIN_S)

    def consumer(self, **more: Any) -> partq.Consumer:
        """As the plan has it."""
        plan = self.world.plan
        return self.world.queue(self._queue).consumer(
            self._group,
            flow=self._flow,
            ownership=self.world.ownership_of(self._queue),
            acknowledge="manual" if plan.manual else "next",
            starting="earliest",
            max_messages=plan.max_messages,
            session_timeout_s=plan.session_timeout_s,
            **more,
        )

    def consume(self, host: Host, consumer: partq.Consumer, most: int | None = None) -> None:
        """At most so many batches, or what there is; without a bound until it is told to stop."""
        world, plan = self.world, self.world.plan
        held: list[tuple[partq.Batch, tuple[Row, ...]]] = []  # not acknowledged yet
        while most != 0:
            asked_us = world.now_us
            try:
                batch = consumer.poll(1.0)
            except partq.Unavailable:
                self.sleep(_AGAIN_S)
                continue
            if batch is None:
                self._acknowledge_oldest(held, 0)
                if host.stopping or most is not None:
                    return
                continue
            most = None if most is None else most - 1
            rows = tuple(map(row_of, batch))
            world.take(Given(world.now_us, asked_us, self._group, self._flow, host.process.name, rows))
            self.sleep(host.rng.uniform(0.0, plan.handles_s))
            world.take(Handled(world.now_us, self._group, self._flow, rows))
            if plan.manual:
                held.append((batch, rows))
                self._acknowledge_oldest(held, int(plan.holds))

    def _acknowledge_oldest(self, held: list[tuple[partq.Batch, tuple[Row, ...]]], left: int) -> None:
        """The oldest, until so many are left."""
        while len(held) > left:
            batch, rows = held.pop(0)
            lost = patiently(batch.acknowledge, self.sleep)
            self.world.take(Acknowledged(self.world.now_us, self._group, self._flow, rows, lost))


_SETTINGS: Final[Sequence[Mapping[str, Any]]] = (
    {"rebalance_delay_s": 0.0},
    {"max_handoff_time_s": 0.0},
    {"access_type": "exclusive"},
    {"access_type": "non-exclusive"},
)


class Operator(Actor):
    """A person at a command line, who does one thing until it is done."""

    def __init__(self, world: World, name: str, event: Event) -> None:
        super().__init__(world, name)
        self._event = event

    def live(self, host: Host) -> None:
        while not self.is_done:
            try:
                self._do(self.world.queue(self._event.whom or self.world.QUEUE))
                self.is_done = True
            except partq.Unavailable:
                self.sleep(_AGAIN_S)

    def _do(self, queue: partq.Queue) -> None:
        ownership = self.world.ownership_of(self._event.whom or self.world.QUEUE)
        match self._event.what:
            case "alter":
                queue.alter(partitions=self._event.number, ownership=ownership)
            case "rewind":
                with suppress(partq.Invalid):  # no partition is past that place
                    queue.rewind(self.world.GROUP, by=self._event.number, ownership=ownership)
            case "settings":
                queue.alter(ownership=ownership, **_SETTINGS[self._event.number % len(_SETTINGS)])
            case "remake":
                for remade in (
                    lambda: queue.remove_group(self.world.GROUP, ownership=ownership, force=True),
                    lambda: queue.create_group(self.world.GROUP, starting="earliest", ownership=ownership),
                ):
                    with suppress(partq.Invalid, partq.Conflict):  # a flow was faster, or another person
                        remade()
            case "compact":
                queue.compact(min_age_s=0.0)
            case "collect":
                queue.collect()


def row_of(message: partq.Message) -> Row:
    """As the judge hears of it."""
    return Row(message.partition, message.offset, message.key, text_of(message.value), message.redelivered)


def patiently(call: Callable[[], T], sleep: Callable[[float], None]) -> T:
    """What may be repeated without harm."""
    while True:
        try:
            return call()
        except partq.Unavailable:
            sleep(_AGAIN_S)
