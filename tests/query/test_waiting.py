"""How long a query goes on trying while a store does not answer: `retryTimeout`, once, however many retries nest."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.objects import Document, Unchanged
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from partq_spark.query.waiting import StoreRetry

LIMIT_S = 60.0


class Time:
    """A clock that only pauses and waits move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def clock(self) -> float:
        return self.now_s

    def effects(self, seed: int) -> Effects:
        return Effects(now_s=self.clock, sleep=self.sleep, uniform=random.Random(seed).uniform)

    def sleep(self, pause_s: float) -> None:
        self.now_s += max(pause_s, 1e-6) if pause_s else 0.0


class Away(MemoryStore):
    """Answers nothing until `back_s`; a call takes `call_s`."""

    def __init__(self, time: Time, back_s: float, call_s: float) -> None:
        super().__init__(clock=time.clock, rng=random.Random(1))
        self.time = time
        self.back_s = back_s
        self.call_s = call_s

    def load(self, name: str, *, known: str | None = None) -> Document | Unchanged | None:
        self.time.sleep(self.call_s)
        if self.time.now_s < self.back_s:
            raise Unavailable("nobody answers (test)")
        return super().load(name, known=known)


@pytest.fixture
def time() -> Time:
    return Time()


def retry(time: Time, limit_s: float = LIMIT_S) -> StoreRetry:
    return StoreRetry(limit_s, time.effects(2), "group 'g'")


def loading(time: Time, retry_s: float, *, away_s: float, call_s: float = 0.0) -> Callable[[], object]:
    store = Away(time, time.now_s + away_s, call_s)
    retrying = Retrying(store, retry_s, time.effects(3))
    return lambda: retrying.load("d")


@pytest.mark.parametrize("retry_s", [0.0, 2.0, 30.0, LIMIT_S])
@pytest.mark.parametrize("call_s", [0.0, 2.0])
def test_the_time_is_counted_once_however_long_the_store_itself_was_tried(
    time: Time, retry_s: float, call_s: float
) -> None:
    with pytest.raises(Unavailable, match="nobody answers"):
        retry(time).call(loading(time, retry_s, away_s=1e9, call_s=call_s))
    assert LIMIT_S <= time.now_s - 1000.0 <= LIMIT_S + 5.0


@pytest.mark.parametrize("retry_s", [0.0, 2.0, LIMIT_S])
def test_an_outage_that_is_shorter_is_lived_through(time: Time, retry_s: float) -> None:
    assert retry(time).call(loading(time, retry_s, away_s=LIMIT_S - 5)) is None


def test_what_was_waited_for_before_the_outage_is_no_part_of_it(time: Time) -> None:
    load = loading(time, 0.0, away_s=LIMIT_S + 20)

    def wait_and_load() -> object:
        time.sleep(25.0 if time.now_s < 1001 else 0.0)  # as for a coordinator's answer, or for messages
        return load()

    assert retry(time).call(wait_and_load) is None


def test_with_no_time_it_is_tried_once(time: Time) -> None:
    with pytest.raises(Unavailable):
        retry(time, 0.0).call(loading(time, 0.0, away_s=1e9))
    assert time.now_s == 1000.0


def test_time_in_which_the_machine_sleeps_is_no_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first failure the lid is closed for an hour: only clocks that run on through that see it."""
    awake = Time()
    slept_s = 0.0
    effects = Effects(sleep=awake.sleep, uniform=random.Random(1).uniform)
    monkeypatch.setattr("time.monotonic", awake.clock)
    monkeypatch.setattr("time.clock_gettime", lambda _clock: awake.clock() + slept_s)
    tries = 0

    def call() -> int:
        nonlocal tries, slept_s
        tries += 1
        slept_s = 3600.0 if tries > 1 else 0.0
        if tries < 3:
            raise Unavailable("the network is not there yet")
        return tries

    assert effects.now_s() == 1000.0, "a lease's clock, that runs on"
    assert StoreRetry(LIMIT_S, effects, "queue 'orders'").call(call) == 3
    assert effects.now_s() > 4600.0
