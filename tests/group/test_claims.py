"""What a flow may deliver and what it knows of itself, as far as that is decided without any store."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group import claims
from partq_spark.group.binding import Life
from partq_spark.group.claims import FlowChangeUpdate
from partq_spark.group.model import Delivery, Flow, GroupSettings, GroupState, Owner, Partition, Phase
from partq_spark.group.progress_writer import ending_if_unknown
from partq_spark.group.settings import SessionSettings

A, B, C = Owner("a", "1"), Owner("b", "2"), Owner("c", "3")


def state(*partitions: Partition) -> GroupState:
    return GroupState(
        queue_id="q",
        incarnation="i",
        settings=GroupSettings(),
        partitions={one.partition: one for one in partitions},
        flows={
            "a": Flow(name="a", instance="1", bound=True, since=1, active=True),
            "b": Flow(name="b", instance="2", bound=True, since=2),
            "c": Flow(name="c", instance="3", bound=True, since=3),
        },
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
def test_a_bind_is_answered_when_what_is_on_its_way_has_arrived(
    partition: Partition, settles: tuple[bool, bool]
) -> None:
    """For `b`; `c` is a standby: others come first."""
    seen = state(Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=A), partition)
    assert (claims.is_settling(seen, B), claims.is_settling(seen, C)) == settles


@pytest.mark.conformance("FLO-05")
def test_updates_are_counted_not_guessed() -> None:
    flow = Flow(name="a", instance="1", bound=True, since=1, active=True, updates=5)
    on, off = FlowChangeUpdate(active=True), FlowChangeUpdate(active=False)
    assert claims.updates_since(flow, 5) == ()
    assert claims.updates_since(flow, 4) == (on,)
    assert claims.updates_since(flow, 2) == (on, off, on)


def test_what_a_record_says_and_what_a_process_knows_are_merged() -> None:
    def one(epoch: int, delivered: int) -> Delivery:
        return Delivery(epoch=epoch, delivered=delivered, acknowledged=0)

    stored = {0: one(1, 10), 1: one(2, 10), 2: one(3, 10), 3: one(1, 10)}
    own = {0: one(1, 7), 1: one(1, 20), 2: one(4, 20), 4: one(1, 1)}
    assert claims.merged(stored, own, by_itself=True) == {**stored, 0: one(1, 7), 2: one(4, 20), 4: one(1, 1)}
    assert claims.merged(stored, own, by_itself=False) == {**stored, 2: one(4, 20), 4: one(1, 1)}


@pytest.mark.parametrize(("beat_interval_s", "session_timeout_s"), [(0.0, 10.0), (-1.0, 10.0), (4.0, 10.0)])
def test_a_heartbeat_has_to_fit_into_the_session(beat_interval_s: float, session_timeout_s: float) -> None:
    with pytest.raises(Invalid, match="beat at least three times as often"):
        SessionSettings(beat_interval_s=beat_interval_s, session_timeout_s=session_timeout_s)


def test_a_change_of_its_record_of_which_nobody_heard_ends_the_instance() -> None:
    """What it says may arrive later, when something else was announced or handed over."""
    life = Life("0123456789abcdef", session_timeout_s=10.0, renewed_s=0.0)
    with pytest.raises(Unavailable), ending_if_unknown(life):
        raise Unavailable("on its way")
    assert not life.is_alive(1.0)


@pytest.mark.conformance("LOS-06")
def test_an_instance_lives_for_its_session_timeout_by_its_own_clock_and_does_not_come_back() -> None:
    life = Life("0123456789abcdef", session_timeout_s=10.0, renewed_s=100.0)
    life.renew(105.0)
    life.renew(103.0)
    assert life.left_s(114.0) == 1.0
    assert life.is_alive(114.9)
    assert not life.is_alive(115.0)
    life.renew(116.0)
    assert not life.is_alive(116.0)
