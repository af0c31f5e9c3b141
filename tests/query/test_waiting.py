"""How long a query waits: for a store that does not answer (`retryTimeout`, once, however many retries nest), between
two looks, for its share and for acknowledgements.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.claims import Claim, Standing, View
from partq_spark.log.model import Head, QueueConfig
from partq_spark.objects import Document, Unchanged
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from partq_spark.query.acknowledgements import BatchTimes
from partq_spark.query.available_now import AvailableNowTarget, Outlook
from partq_spark.query.waiting import Pace, StoreRetry

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


# --- how often is looked ----------------------------------------------------------------------------------------------


def test_looks_become_rarer_the_longer_there_are_no_news() -> None:
    pace = Pace(0.01, None, 100.0)
    assert pace.poll_s == 0.1
    assert [round(pace.look_s(at_s), 3) for at_s in (100.0, 100.5, 101.0, 102.0, 110.0, 1000.0)] == [
        *(0.01, 0.01, 0.02, 0.04, 0.06, 0.06)
    ]
    pace.news(1000.0)
    assert pace.look_s(1000.1) == 0.01
    azure = Pace(0.5, None, 0.0)
    assert (azure.poll_s, azure.look_s(0.0), azure.look_s(100.0)) == (0.5, 0.5, 0.5)
    assert Pace(0.5, 2.0, 0.0).poll_s == 2.0


def test_an_idle_wait_ends_with_a_look_where_its_end_is_near() -> None:
    pace = Pace(0.06, None, 0.0)
    pace.looked(10.0)
    assert pace.goes_on(10.1, 10.01), "to the next look"
    assert pace.goes_on(10.1, 10.06), "a look that is due is made"
    pace.looked(10.06)
    assert pace.goes_on(10.1, 10.06), "to its end, which is no short time"
    pace.looked(10.08)
    assert not pace.goes_on(10.1, 10.08)
    paid = Pace(0.5, None, 0.0)
    paid.looked(10.001)
    assert paid.goes_on(10.5, 10.001), "a wait that began with a look has its length, and costs no second one"
    at_once = Pace(0.0, 0.0, 0.0)
    assert not at_once.goes_on(10.0, 10.0), "no wait at all"


def test_looks_keep_their_distance_whatever_is_asked_in_between() -> None:
    azure = Pace(0.5, None, 100.0)
    assert azure.due_in_s(100.0) == 0.5
    assert azure.due_in_s(100.4) == pytest.approx(0.1)
    assert azure.due_in_s(100.5) == 0.0
    assert azure.due_in_s(110.0) == 0.0, "one that is late is made at once"
    azure.looked(110.0)
    assert azure.due_in_s(110.2) == pytest.approx(0.3)
    assert azure.due_in_s(110.4999) == 0.0, "no wait is that short"
    assert Pace(0.5, 0.1, 100.0).due_in_s(100.0) == pytest.approx(0.1), "who asks for shorter looks has them"


# --- what is waited for -----------------------------------------------------------------------------------------------


def test_a_run_up_to_now_that_is_forgotten_while_it_waits_for_messages_waits_anew_for_an_answer() -> None:
    """What it waited for acknowledgements does not count as waiting for a coordinator, which has answered it before."""
    config = QueueConfig(rebalance_delay_s=4.0, max_handoff_time_s=3.0)
    head = replace(Head.created("default", "orders", "q", 1, config=config, now_us=0), next=(5,))
    target, wait_s = AvailableNowTarget([5]), 12.0  # delay, max-handoff-time and session timeout together

    def outlook(at_s: float, standing: Standing, *partitions: int) -> Outlook:
        claimed = {
            p: Claim(partition=p, epoch=1, position=0, acknowledged=0, redelivered_below=0, paused=False)
            for p in partitions
        }
        seen = View(instance="i", standing=standing, claims=claimed)
        return target.outlook(seen, {0: 1}, head, session_timeout_s=5.0, now_s=at_s)

    assert outlook(100.0, Standing.ACTIVE, 0) is Outlook.WAIT
    assert outlook(99.9 + wait_s, Standing.UNANSWERED) is Outlook.WAIT
    assert outlook(99.8 + 2 * wait_s, Standing.UNANSWERED) is Outlook.WAIT
    assert outlook(99.9 + 2 * wait_s, Standing.UNANSWERED) is Outlook.UNANSWERED
    assert outlook(200.0, Standing.ACTIVE, 0) is Outlook.LATE, "its wait for messages began at 100 s"


def test_a_remark_lasts_as_long_as_batches_are_slow() -> None:
    times = BatchTimes("orders")
    assert times.acknowledged(1.0, 3.0) is None
    times.given(10.0)
    assert times.acknowledged(15.5, 3.0) is not None
    assert times.remark == "acknowledges after 5.5 s, max-handoff-time is 3 s"
    times.given(20.0)
    assert times.acknowledged(25.0, 3.0) is None  # it was said a moment ago
    assert times.remark
    times.given(100.0)
    assert times.acknowledged(104.0, 3.0) is not None
    times.given(110.0)
    assert times.acknowledged(113.0, 3.0) is None
    assert times.remark == ""
    times.given(120.0)
    assert times.acknowledged(160.0, 0.0) is None, "max-handoff-time 0: nobody waits for anybody"
