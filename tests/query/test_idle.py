"""A flow with nothing to do relies on being told of news of its group, and looks at its log alone, for a while."""

from __future__ import annotations

import pytest

from partq_spark.group.claims import View
from partq_spark.query.waiting import IDLE_LOOK_S, Pace
from tests.query.world import Query, World, begun


class Watched:
    """A query whose whole looks are counted; `wait` is what it waits with, as the reader process has it."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.query: Query
        (self.query,) = begun(world, world.query())
        self.query.drain()
        self.looks = 0
        self.waking = False
        member = self.query.consumer.member
        assert member is not None
        observe = member.observe

        def counted() -> View:
            self.looks += 1
            return observe()

        monkeypatch.setattr(member, "observe", counted)
        monkeypatch.setattr(self.query.consumer, "_wait_for", self.wait)

    def wait(self, wait_s: float) -> None:
        self.world.sleep(wait_s)
        if self.waking:
            self.waking = False
            self.query.consumer.wake()

    def looks_in_a_trigger(self) -> int:
        before = self.looks
        self.query.trigger()
        return self.looks - before


@pytest.fixture
def watched(world: World, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(world, monkeypatch)


def test_a_whole_look_is_good_for_a_while(watched: Watched) -> None:
    assert watched.looks_in_a_trigger() == 1
    assert [watched.looks_in_a_trigger() for _ in range(3)] == [0, 0, 0]
    watched.world.sleep(IDLE_LOOK_S)
    assert watched.looks_in_a_trigger() == 1


def test_who_is_told_of_news_looks_at_once(watched: Watched) -> None:
    watched.looks_in_a_trigger()
    watched.query.consumer.wake()
    assert watched.looks_in_a_trigger() == 1


def test_news_that_come_during_a_quiet_wait_are_not_forgotten(watched: Watched) -> None:
    """Also if they come at its very end, when nothing tells the wait from one that was slept out."""
    watched.looks_in_a_trigger()
    watched.waking = True
    assert watched.looks_in_a_trigger() == 1


def test_messages_are_delivered_after_a_whole_look(watched: Watched) -> None:
    watched.looks_in_a_trigger()
    watched.world.publish(2, 1)
    assert watched.looks_in_a_trigger() == 2, "before the end is given away, and before its batch is read (HAN-05)"
    assert len(watched.query.rows) == 3


def test_an_instance_that_ended_is_replaced_at_once(watched: Watched) -> None:
    watched.looks_in_a_trigger()
    member = watched.query.consumer.member
    assert member is not None
    before = member.instance
    watched.query.freeze()
    watched.world.sleep(30.0)
    watched.query.thaw()
    watched.looks_in_a_trigger()
    assert member.instance != before


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


def test_an_idle_flow_wakes_up_for_its_looks_alone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark comes back 11 ms later, so that a wait of 100 ms begins between two looks."""
    monkeypatch.setattr(watched.query.consumer, "_pace", Pace(0.05, None, watched.world.now_s))
    watched.looks_in_a_trigger()
    waits: list[float] = []

    def wait(wait_s: float) -> None:
        waits.append(wait_s)
        watched.world.sleep(wait_s)

    monkeypatch.setattr(watched.query.consumer, "_wait_for", wait)
    heads = 0
    refresh = watched.query.consumer.queue.refresh

    def looked() -> object:
        nonlocal heads
        heads += 1
        return refresh()

    monkeypatch.setattr(watched.query.consumer.queue, "refresh", looked)
    for _ in range(4):
        watched.world.sleep(0.011)
        watched.query.trigger()
    assert heads == len(waits) == 8
