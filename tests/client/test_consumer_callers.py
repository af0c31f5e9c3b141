"""Whatever a caller does: nothing is acknowledged that was not handled, nothing comes twice without a mark (API-05)."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import partq
from partq_spark.query.consumer_process import ConsumerProcess
from tests.client.conftest import Make
from tests.client.test_consumer import WAIT_S, _down, consuming, lag, numbers, publish
from tests.support.waiting import wait_until

pytestmark = pytest.mark.conformance("API-05")


class Handled:
    """Each message that was handled, and whether it was marked."""

    def __init__(self) -> None:
        self.times: Counter[tuple[int, int]] = Counter()

    def __call__(self, batch: partq.Batch) -> None:
        for message in batch:
            place = message.partition, message.offset
            assert message.redelivered or place not in self.times, f"{place} comes twice without a mark"
            self.times[place] += 1

    def check(self, queue: partq.Queue, messages: int, *, most: int = 10**9) -> None:
        assert len(self.times) == messages
        assert max(self.times.values()) <= most
        assert lag(queue) == 0


# --- loops that are begun again ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", ["break", "error"])
def test_a_loop_that_is_begun_again_gets_the_batch_that_the_former_one_was_left_with(make: Make, leaves: str) -> None:
    queue, handled, attempts = make(partitions=2), Handled(), 0
    publish(queue, 40)
    with consuming(queue, max_messages=10) as consumer:
        while attempts < 10:
            with suppress(KeyError):
                for batch in consumer:
                    attempts += 1
                    if attempts % 3 == 1:
                        if leaves == "break":
                            break
                        raise KeyError("mine")
                    handled(batch)
                else:
                    break
    handled.check(queue, 40, most=1)


def test_a_batch_whose_body_had_ended_is_acknowledged_by_the_next_loop(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(partitions=1, retry_timeout_s=0.1)
    publish(queue, 10)
    with consuming(queue) as consumer:
        loop = iter(consumer)
        assert len(numbers(next(loop))) == 10
        with monkeypatch.context() as patch:
            patch.setattr(ConsumerProcess, "acknowledge", _down)
            with pytest.raises(partq.Unavailable):
                next(loop)
        assert list(consumer) == []
    assert lag(queue) == 0


def test_a_loop_may_be_gone_on_with(make: Make) -> None:
    queue, handled = make(partitions=1), Handled()
    publish(queue, 30)
    with consuming(queue, max_messages=10) as consumer:
        loop = iter(consumer)
        assert iter(loop) is loop
        assert iter(consumer) is not loop
        handled(next(loop))
        for batch in loop:
            handled(batch)
    handled.check(queue, 30, most=1)


def test_by_hand_a_loop_that_begins_gives_nothing_back(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, acknowledge="manual", max_messages=10) as consumer:
        first, second = next(iter(consumer)), next(iter(consumer))
        assert [numbers(first)[0], numbers(second)[0]] == [0, 10]
        assert second.acknowledge() == frozenset()
    assert lag(queue) == 0


# --- polls that nobody waits for, and several threads -----------------------------------------------------------------


def test_what_a_poll_gave_and_nobody_looked_into_comes_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        unseen = consumer.poll(WAIT_S)
        again = consumer.poll(WAIT_S)
        assert again is not None
        assert [(int(each.value), each.redelivered) for each in again] == [(n, True) for n in range(10)]
        assert "nobody looked into it: it comes again, marked" in caplog.text
        assert unseen is not None
        assert unseen.acknowledge() == {0}, "it was given back"
        assert len(consumer.poll(WAIT_S) or ()) == 10, "measured"
        assert consumer.poll(0) is None
    assert lag(queue) == 0


@pytest.mark.parametrize("acknowledge", ["next", "manual"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after it has ended"])
def test_an_abandoned_poll_loses_nothing(make: Make, acknowledge: Any, waits: bool) -> None:
    queue, handled = make(partitions=1), Handled()

    async def run(consumer: partq.Consumer) -> None:
        with ThreadPoolExecutor(4) as pool:
            loop = asyncio.get_running_loop()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.run_in_executor(pool, consumer.poll, 2), 0.3)
            if not waits:
                with pytest.raises(partq.Invalid, match="asked for a batch by another thread or task"):
                    await loop.run_in_executor(pool, consumer.poll, 1)
            publish(queue, 40)
            await asyncio.sleep(0.5)  # the abandoned poll returns a batch to nobody
            while (batch := await loop.run_in_executor(pool, consumer.poll, 0.5)) is not None:
                handled(batch)
                if acknowledge == "manual":
                    batch.acknowledge()

    with consuming(queue, acknowledge=acknowledge, max_messages=10) as consumer:
        asyncio.run(run(consumer))
    handled.check(queue, 40, most=1)


def test_three_threads_that_poll_get_every_message_once_without_a_mark(make: Make) -> None:
    queue, refused = make(partitions=2), Counter[str]()
    unmarked: Counter[tuple[int, int]] = Counter()
    seen: set[tuple[int, int]] = set()
    publish(queue, 600)

    def poll() -> None:
        idle = 0
        while idle < 3:
            try:
                batch = consumer.poll(0.1)
            except partq.Invalid:
                refused["polls"] += 1
                time.sleep(0.01)
                continue
            idle += batch is None
            messages = list(batch or ())
            seen.update((each.partition, each.offset) for each in messages)
            unmarked.update((each.partition, each.offset) for each in messages if not each.redelivered)

    with consuming(queue, max_messages=10) as consumer, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: poll(), range(3)))
    assert refused["polls"] > 0
    assert len(seen) == 600
    assert max(unmarked.values()) == 1


# --- asyncio ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["anext of a loop", "anext of the consumer"])
def test_a_wait_that_is_cancelled_takes_no_batch(make: Make, way: str) -> None:
    queue, handled, seed = make(partitions=2), Handled(), random.Random(24)
    cancelled = 0

    async def run(consumer: partq.Consumer) -> None:
        nonlocal cancelled
        source: Any = aiter(consumer) if way == "anext of a loop" else consumer
        for at in range(0, 200, 20):
            publish(queue, 20, begin=at)
            while len(handled.times) < at + 20:
                wait = asyncio.ensure_future(anext(source))
                try:
                    if seed.random() < 0.3:  # at once: no answer can have come by then, however fast the machine is
                        await asyncio.sleep(0)
                        wait.cancel()
                    handled(await asyncio.wait_for(wait, seed.uniform(0.001, 0.006)))
                except (TimeoutError, asyncio.CancelledError):
                    cancelled += 1
        with pytest.raises(StopAsyncIteration):
            await anext(source)

    with consuming(queue, max_messages=7) as consumer:
        asyncio.run(run(consumer))
    assert cancelled > 0
    handled.check(queue, 200, most=1)


def test_waits_that_were_cancelled_are_not_looked_for_one_after_the_other(make: Make) -> None:
    queue = make(partitions=1)
    most = 100

    async def cancelled(consumer: partq.Consumer) -> None:
        for _ in range(most):
            with suppress(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.002)

    with consuming(queue, idle_timeout_s=None) as consumer:
        consumer.poll(0)
        asyncio.run(cancelled(consumer))
        begun_s = time.monotonic()
        assert consumer.poll(0) is None
        assert time.monotonic() - begun_s < most * 0.1 / 2, "a look takes 0.1 s"


def test_an_async_loop_that_is_begun_again_gets_the_batch_that_the_former_one_was_left_with(make: Make) -> None:
    queue, handled = make(partitions=1), Handled()
    publish(queue, 20)

    async def run(consumer: partq.Consumer) -> None:
        async for _ in consumer:
            break
        async for batch in consumer:
            task = asyncio.ensure_future(anext(consumer))
            with pytest.raises(partq.Invalid, match="by another thread or task"):
                await asyncio.gather(anext(consumer), task)
            handled(batch)
            break

    with consuming(queue, max_messages=10, idle_timeout_s=0.3) as consumer:
        asyncio.run(run(consumer))
    assert len(handled.times) == 10
    assert lag(queue) == 20


# --- rounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("API-03")
def test_an_acknowledgement_from_before_a_release_does_not_count(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, acknowledge="manual", max_messages=10) as consumer:
        first, second = consumer.poll(WAIT_S), consumer.poll(WAIT_S)
        assert first is not None
        assert second is not None
        assert numbers(second) == list(range(10, 20))
        first.release()
        assert second.acknowledge() == {0}, "all of the partition comes again"
        again = consumer.poll(WAIT_S)
        assert numbers(again) == list(range(20)), "the same, and more"
        assert second.acknowledge() == {0}
        second.release()
        assert consumer.poll(0) is None, "what is in hand stays there"
        assert lag(queue) == 20
        assert again is not None
        assert again.acknowledge() == frozenset()
    assert lag(queue) == 0


# --- signals ----------------------------------------------------------------------------------------------------------


class Alarm(BaseException):
    """As Ctrl-C, but the test's own."""


def under_alarms(seed: int, times: int, run: Callable[[], object]) -> None:
    """Run it, perhaps not to its end: so many times an exception comes on the main thread, at any line."""
    chance, main = random.Random(seed), threading.main_thread().ident
    assert main is not None
    rings = True

    def raises(*_: object) -> None:
        if rings:
            raise Alarm

    def ring() -> None:
        for _ in range(times):
            time.sleep(chance.uniform(0.0001, 0.02))
            signal.pthread_kill(main, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, raises)
    thread = threading.Thread(target=ring, daemon=True)
    try:
        thread.start()
        run()
    except Alarm:
        pass
    finally:
        rings = False
        thread.join(WAIT_S)
        signal.signal(signal.SIGUSR1, former)


def by_loop(consumer: partq.Consumer, handled: Handled) -> bool:
    for batch in consumer:
        handled(batch)
    return True


def by_poll(consumer: partq.Consumer, handled: Handled) -> bool:
    batch = None
    try:
        while (batch := consumer.poll(0.5)) is not None:
            handled(batch)
    except Alarm:
        if batch is not None:
            _again(batch.release)
        raise
    return True


def by_hand(consumer: partq.Consumer, handled: Handled) -> bool:
    while (batch := consumer.poll(0.5)) is not None:
        try:
            handled(batch)
        except Alarm:
            _again(batch.release)
            raise
        _again(batch.acknowledge)
    return True


def _again(call: Callable[[], object]) -> None:
    while True:
        with suppress(Alarm):
            call()
            return


@pytest.mark.slow
@pytest.mark.parametrize(("acknowledge", "work"), [("next", by_loop), ("next", by_poll), ("manual", by_hand)])
@pytest.mark.parametrize("seed", range(2))
def test_an_exception_from_a_signal_handler_loses_no_batch(
    make: Make, acknowledge: Any, work: Callable[[partq.Consumer, Handled], bool], seed: int
) -> None:
    queue, handled, done = make(partitions=2), Handled(), False
    publish(queue, 600)
    consumer = consuming(queue, acknowledge=acknowledge, max_messages=10)

    def run() -> None:
        nonlocal done
        while not done:
            with suppress(Alarm):
                done = work(consumer, handled)

    for round_ in range(20):
        under_alarms(1000 * seed + round_, 20 if round_ < 19 else 0, run)
    consumer.close()
    assert done
    handled.check(queue, 600)


def test_a_consumer_that_is_closed_while_it_is_asked_first_leaves_no_thread(make: Make) -> None:
    queue = make(partitions=1)

    def poll() -> None:
        with suppress(partq.Invalid):  # it is closed before it is asked
            consumer.poll(WAIT_S)

    for pause_s in [0.0, 0.0, 0.0, 0.001, 0.003, 0.01]:
        consumer = consuming(queue)
        asking = threading.Thread(target=poll)
        asking.start()
        time.sleep(pause_s)
        consumer.close()
        asking.join(WAIT_S)
    wait_until(lambda: not any("heartbeat" in each.name for each in threading.enumerate()), "that it has left", WAIT_S)


# --- forks, and threads that end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", [lambda batch: batch.acknowledge(), lambda batch: batch.release()])
def test_a_forked_child_acknowledges_nothing_and_says_so(make: Make, act: Callable[[partq.Batch], object]) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge="manual") as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        child = os.fork()
        if child == 0:
            try:
                act(batch)
            except partq.Invalid:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert batch.acknowledge() == frozenset()


@pytest.mark.conformance("API-03")
@pytest.mark.slow
def test_a_consumer_lives_as_long_as_its_process_and_leaves_if_nobody_is_left_to_ask(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    caplog.set_level(logging.WARNING)

    def in_a_thread() -> partq.Batch | None:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(consumer.poll, WAIT_S).result(WAIT_S)

    with consuming(queue, session_timeout_s=5) as consumer:
        assert len(in_a_thread() or ()) == 10
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < 7:
            assert consumer.poll(0.5) is None, "the main thread goes on"
        assert caplog.text == ""
        assert lag(queue) == 0
        publish(queue, 10, begin=10)
        asked_s = time.monotonic()
        assert len(in_a_thread() or ()) == 10
        wait_until(lambda: "nobody did" in caplog.text, "that it leaves, and says so", WAIT_S)
        assert time.monotonic() - asked_s > 5
        assert "asking joins again" in caplog.text
        again = [message for batch in consumer for message in batch]
        assert [(int(each.value), each.redelivered) for each in again] == [(n, True) for n in range(10, 20)]
    assert lag(queue) == 0
