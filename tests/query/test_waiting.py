"""How long a query waits: for a store that does not answer (`retryTimeout`, once, however many retries nest), between
two looks, for its share and for acknowledgements.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.claims import Claim, Standing, View
from partq_spark.log.model import Head
from partq_spark.log.settings import QueueConfig
from partq_spark.objects.retrying import Retrying
from partq_spark.query.acknowledgements import BatchTimes
from partq_spark.query.waiting import AvailableNowTarget, Pace, StoreRetry
from tests.objects.conftest import memory_store
from tests.support.way import Hooked

LIMIT_S = 60.0


class Time:
    """A clock that only pauses and waits move."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def clock(self) -> float:
        return self.now_s

    def effects(self) -> Effects:
        return Effects(now_s=self.clock, sleep=self.sleep, uniform=random.Random(2).uniform)

    def sleep(self, pause_s: float) -> None:
        self.now_s += max(pause_s, 1e-6) if pause_s else 0.0


@pytest.mark.parametrize("retry_s", [0.0, 2.0, 30.0, LIMIT_S])
@pytest.mark.parametrize("call_s", [0.0, 2.0])
@pytest.mark.parametrize(
    ("away_s", "limit_s", "waits_s", "tried_s"),
    [
        (1e9, LIMIT_S, 0.0, LIMIT_S),
        (LIMIT_S - 5, LIMIT_S, 0.0, None),
        # What was waited before the first failure, for an answer or for messages, is no part of the outage.
        (LIMIT_S + 20, LIMIT_S, 25.0, None),
        (1e9, 0.0, 0.0, 0.0),
    ],
)
def test_the_time_is_counted_once_from_the_first_failure_however_long_the_store_itself_was_tried(
    retry_s: float, call_s: float, away_s: float, limit_s: float, waits_s: float, tried_s: float | None
) -> None:
    time = Time()
    store, back_s = Hooked(memory_store()), time.now_s + away_s
    retrying = Retrying(store, min(retry_s, limit_s), time.effects())

    def away(*_: str) -> None:
        time.sleep(call_s)
        if time.now_s < back_s:
            raise Unavailable("nobody answers (test)")

    store.before = away

    def call() -> object:
        time.sleep(waits_s if time.now_s < 1001 else 0.0)
        return retrying.load("d")

    retry = StoreRetry(limit_s, time.effects(), "group 'g'")
    if tried_s is None:
        assert retry.call(call) is None
        return
    with pytest.raises(Unavailable, match="nobody answers"):
        retry.call(call)
    assert tried_s <= time.now_s - 1000.0 <= tried_s + 5.0


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


def test_looks_become_rarer_without_news_and_keep_their_distance_whatever_is_asked_in_between() -> None:
    pace = Pace(0.01, None, 100.0)
    rarer = [round(pace.look_s(at_s), 3) for at_s in (100.0, 100.5, 101.0, 102.0, 110.0, 1000.0)]
    assert rarer == [0.01, 0.01, 0.02, 0.04, 0.06, 0.06]
    pace.news(1000.0)
    assert pace.look_s(1000.1) == 0.01
    azure = Pace(0.5, None, 100.0)
    due = [azure.due_in_s(at_s) for at_s in (100.0, 100.4, 100.5, 110.0)]
    assert due == [0.5, pytest.approx(0.1), 0.0, 0.0], "one that is late is made at once"
    azure.looked(110.0)
    assert azure.due_in_s(110.2) == pytest.approx(0.3)
    assert azure.due_in_s(110.4999) == 0.0, "no wait is that short"
    assert Pace(0.5, 0.1, 100.0).due_in_s(100.0) == pytest.approx(0.1), "who asks for shorter looks has them"


# --- what is waited for -----------------------------------------------------------------------------------------------


def test_a_run_up_to_now_that_is_forgotten_while_it_waits_waits_for_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """What it waited for acknowledgements does not count as waiting for a coordinator, which has answered it before."""
    config = QueueConfig(rebalance_delay_s=4.0, max_handoff_time_s=3.0)
    head = replace(Head.created("default", "orders", "q", 1, config=config, now_us=0), next=(5,))
    target, wait_s = AvailableNowTarget([5]), 12.0  # delay, max-handoff-time and session timeout together

    def waits(at_s: float, standing: Standing, *partitions: int) -> bool:
        claimed = {
            p: Claim(partition=p, epoch=1, position=0, acknowledged=0, redelivered_below=0, paused=False)
            for p in partitions
        }
        seen = View(instance="i", standing=standing, claims=claimed)
        return target.is_waited_for("flow 'left'", seen, {0: 1}, head, session_timeout_s=5.0, now_s=at_s)

    assert waits(100.0, Standing.ACTIVE, 0)
    assert waits(99.9 + wait_s, Standing.UNANSWERED)
    assert waits(99.8 + 2 * wait_s, Standing.UNANSWERED)
    with pytest.raises(Unavailable, match="no coordinator has answered flow 'left': start one"):
        waits(99.9 + 2 * wait_s, Standing.UNANSWERED)
    assert not waits(200.0, Standing.ACTIVE, 0), "its wait for messages began at 100 s"
    assert "flow 'left' ends without waiting longer for its partitions; 4 messages are left" in caplog.text


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
