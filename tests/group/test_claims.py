"""What a flow may deliver and what it knows of itself, as far as that is decided without any store; and what a
partition waits for after a change of the count.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from msgspec import structs

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group import claims
from partq_spark.group.binding import Life
from partq_spark.group.left_out import LOOK_S, KeyOrder
from partq_spark.group.membership import GroupInQueue, SessionSettings
from partq_spark.group.model import Flow, FlowRecord, Partition, Phase
from partq_spark.group.solo import SoloSession
from partq_spark.log import admin, groups
from partq_spark.log.layouts import resized
from partq_spark.log.model import Group, Head
from tests.group.test_status import A, B, C, state
from tests.log.queues import empty_head
from tests.objects.conftest import memory_store
from tests.support.way import Hooked


def a_life(renewed_s: float) -> Life:
    return Life(
        FlowRecord(flow="a", instance="1", queue_id="q", bound=True, session_timeout_s=10.0), renewed_s, lives=0
    )


@pytest.mark.conformance("FLO-03")
@pytest.mark.parametrize(
    ("partition", "settles"),
    [
        (Partition(partition=1, phase=Phase.FENCING, epoch=1, to=B, to_epoch=2), (True, False)),
        (Partition(partition=1, phase=Phase.FENCING, epoch=1, owner=C, to=None, to_epoch=2), (True, False)),
        # It waits for acknowledgements, for seconds perhaps: pending.
        (Partition(partition=1, phase=Phase.PAUSED, epoch=1, owner=A, to=B, deadline_s=3.0), (False, False)),
    ],
)
def test_a_bind_is_answered_when_what_is_under_way_is_there(partition: Partition, settles: tuple[bool, bool]) -> None:
    """For `b`; `c` is a standby: others come first."""
    seen = state(Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=A), partition)
    assert (claims.is_settling(seen, B), claims.is_settling(seen, C)) == settles


@pytest.mark.conformance("FLO-05")
def test_updates_are_counted_not_guessed() -> None:
    flow = Flow(name="a", instance="1", bound=True, since=1, active=True, updates=5)
    on, off = True, False
    assert claims.updates_since(flow._replace(updates=1), a_life(0.0).updates) == (on,)
    assert claims.updates_since(flow, 5) == ()
    assert claims.updates_since(flow, 4) == (on,)
    assert claims.updates_since(flow, 2) == (on, off, on)


@pytest.mark.parametrize("session_timeout_s", [5.0, 10.0, 3600.0])
@pytest.mark.parametrize("store", ["file:///x", "azure://c/x"])
def test_three_heartbeats_fit_into_every_session(store: str, session_timeout_s: float) -> None:
    assert 0 < SessionSettings.at(store, "store", session_timeout_s, None).beat_interval_s <= session_timeout_s / 3


@pytest.mark.conformance("LOS-06")
def test_an_instance_lives_for_its_session_timeout_by_its_own_clock_and_does_not_come_back() -> None:
    life = a_life(100.0)
    life.renew(105.0)
    life.renew(103.0)
    assert life.left_s(114.0) == 1.0
    assert life.is_alive(114.9, 0)
    assert not life.is_alive(115.0, 0)
    life.renew(116.0)
    assert not life.is_alive(116.0, 0)


@pytest.mark.conformance("OWN-03")
def test_an_instance_does_not_outlive_the_store_in_which_it_bound() -> None:
    """A state that is as it was known may be a copy of what it was then."""
    life = a_life(100.0)
    assert life.is_alive(101.0, 0)
    assert not life.is_alive(101.0, 1)


@pytest.mark.parametrize("then", [Unavailable, KeyboardInterrupt])
def test_a_write_in_doubt_is_followed_by_a_swap_also_where_nothing_has_changed(then: type[BaseException]) -> None:
    """Else the one that was lost lands after it, and says less than what was delivered meanwhile."""
    way = Hooked(memory_store())
    queue = admin.create_queue(way, "default", "orders", 1)
    groups.create_group(queue, "billing", [0])
    group = GroupInQueue(queue, "billing")
    checkpoints = group.checkpoints(way, Effects(sleep=lambda _: None))
    flow = SoloSession(group, checkpoints, "a")
    flow.bind(wait_s=0.0)
    assert flow.deliver({0: 10})
    assert flow.deliver({0: 20})
    before = checkpoints.read(0)

    def lose(kind: str, name: str) -> None:
        raise (Unavailable if kind == "swap" else then)(f"{name} is away (test)")

    way.before = lose
    with pytest.raises(then):
        flow.flush()
    way.before = None
    assert flow.deliver({0: 20})
    after = checkpoints.read(0)
    assert before is not None
    assert after is not None
    assert replace(after, etag=before.etag, updated=before.updated) == before
    assert after.etag != before.etag


# --- the order of keys ------------------------------------------------------------------------------------------------


def two_of_three() -> Head:
    """Ten messages in each of two partitions, and then three partitions with twelve in each."""
    head = resized(replace(empty_head(2), next=(10, 10)), 3)
    return replace(head, next=(12, 12, 12))


class Told:
    """A member that is asked for acknowledgements."""

    def __init__(self, **offsets: int) -> None:
        self.offsets = {int(name[1:]): offset for name, offset in offsets.items()}
        self.asked: list[frozenset[int]] = []

    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]:
        self.asked.append(frozenset(partitions))
        return {p: self.offsets[p] for p in partitions if p in self.offsets}


@pytest.mark.conformance("RES-03")
def test_what_is_finished_is_not_asked_for_again_and_the_rest_not_often() -> None:
    now_s = [100.0]
    order = KeyOrder("billing", look_s=0.01, now_s=lambda: now_s[0])
    head, reached = two_of_three(), {2: 0}
    told = Told(p0=10, p1=3)
    assert order.waits(head, told.acknowledged, {2}, reached)[2].waits_for == {1: 10}
    assert len(told.asked) == 2, "its own, and then all"
    for _ in range(5):
        order.waits(head, told.acknowledged, {2}, reached)
    assert len(told.asked) == 2 + 5, "its own cost nothing"
    now_s[0] += 2 * LOOK_S
    told.offsets[1] = 10
    assert order.waits(head, told.acknowledged, {2}, reached) == {}
    asked = len(told.asked)
    told.offsets.clear()
    assert order.waits(head, told.acknowledged, {2}, reached) == {}
    assert not any(told.asked[asked:]), "nobody else is asked"
    assert order.waits(resized(head, 5), told.acknowledged, {2}, {2: 12}).keys() == {2}


@pytest.mark.conformance("RES-03")
def test_what_a_flow_had_acknowledged_before_a_rewind_is_not_taken_for_what_is_now() -> None:
    """It is told of the rewind before its partitions are taken from it, and gets one of them back before the other."""
    order = KeyOrder("billing", look_s=0.01, now_s=lambda: 0.0)
    group = Group(since_sequence=1, start=(0, 0))
    head = replace(two_of_three(), groups={"billing": group})
    told = Told(p0=10, p1=10)
    assert order.waits(head, told.acknowledged, {0, 1, 2}, {2: 12}) == {}
    head = replace(head, groups={"billing": structs.replace(group, rewinds=1)})
    assert order.waits(head, told.acknowledged, {0, 1, 2}, {2: 12}) == {}
    told.offsets[0] = 4
    assert order.waits(head, told.acknowledged, {1, 2}, {2: 0})[2].waits_for == {0: 10}


@pytest.mark.conformance("RES-03", "RES-04")
def test_what_was_let_go_counts_as_finished_up_to_where_it_ended_and_not_when_its_number_comes_back() -> None:
    """Without checkpoints a member says of it that it is finished, and no offset."""
    now_s = [100.0]
    order = KeyOrder("billing", look_s=0.01, now_s=lambda: now_s[0])
    head = replace(resized(replace(empty_head(3), next=(10, 10, 10)), 2), next=(12, 12, 10))
    told = Told(p0=10, p1=9, p2=sys.maxsize)
    assert order.waits(head, told.acknowledged, {0}, {0: 10})[0].waits_for == {1: 10}
    head = replace(resized(head, 3), next=(13, 13, 15))
    head = replace(resized(head, 2), next=(14, 14, 15))
    now_s[0] += 2 * LOOK_S
    told = Told(p0=13, p1=13, p2=10)
    assert order.waits(head, told.acknowledged, {0}, {0: 13})[0].waits_for == {2: 15}


def test_others_that_keep_nothing_back_are_not_asked_for() -> None:
    order = KeyOrder("billing", look_s=0.01, now_s=lambda: 0.0)
    told = Told()
    head = replace(two_of_three(), next=(12, 12, 0))
    order.waits(head, told.acknowledged, {2}, {2: 0})
    assert told.asked == [frozenset()]
    assert order.waits(empty_head(2), told.acknowledged, {0}, {0: 0}) == {}
