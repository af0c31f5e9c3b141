"""What a flow may deliver: what its own name in the checkpoint gives it, as long as its own clock gives it time."""

from __future__ import annotations

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.group.binding import Life
from partq_spark.group.codec import encode_state
from partq_spark.group.model import Flow as FlowValue
from partq_spark.group.model import (
    GroupSettings,
    GroupState,
    Owner,
    Partition,
    Phase,
)
from partq_spark.group.session import Session
from tests.group.session.world import KEY, QUEUE_ID, Process, World, bound

# --- claims -----------------------------------------------------------------------------------------------------------


def grant(world: World, process: Process, instance: str, *, checkpoint: Owner | None, epoch: int) -> None:
    """By hand: the state gives partition 0 to the flow at epoch 2, the checkpoint says `checkpoint` at `epoch`."""
    me = Owner(process.session.flow, instance)
    world.checkpoints().fence(0, to=checkpoint, epoch=epoch, start=7, delivered=None)
    state = GroupState(
        queue_id=QUEUE_ID,
        incarnation=world.server.incarnation,
        settings=GroupSettings(),
        partitions={0: Partition(partition=0, phase=Phase.OWNED, epoch=2, owner=me)},
        flows={me.flow: FlowValue(name=me.flow, instance=instance, bound=True, since=1, active=True)},
    )
    world.server.open().swap_state(KEY, encode_state(state, world.now_s), token=world.token(), expected=None)


def unanswered(world: World) -> tuple[Process, str]:
    a = world.flow("a")
    return a, a.session.bind(wait_s=0).view.instance


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize(
    ("flow", "instance", "epoch"),
    [("b", "", 2), ("a", "former", 2), ("a", "", 1), ("a", "", 3), (None, "", 2)],
)
def test_nothing_is_delivered_before_ones_own_name_and_epoch_are_read_in_the_checkpoint(
    flow: str | None, instance: str, epoch: int
) -> None:
    world = World(partitions=1)
    a, own = unanswered(world)
    grant(world, a, own, checkpoint=None if flow is None else Owner(flow, instance or own), epoch=epoch)
    for _ in range(3):
        assert not a.look().claims
        assert not a.deliver(0, 9)
    with pytest.raises(KeyError):
        a.record_entry(0)


@pytest.mark.conformance("OWN-03")
def test_without_reading_the_checkpoint_it_would_be_delivered(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(partitions=1)
    a, own = unanswered(world)
    grant(world, a, own, checkpoint=Owner("b", "other"), epoch=2)
    monkeypatch.setattr(Session, "_names_me", lambda *_: True)
    assert a.has(0)
    assert a.deliver(0, 9)


@pytest.mark.conformance("OWN-03")
def test_with_its_name_in_the_checkpoint_it_begins_at_its_offset_and_says_so_first() -> None:
    world = World(partitions=1)
    a, own = unanswered(world)
    grant(world, a, own, checkpoint=Owner("a", own), epoch=2)
    assert a.look().claims[0].position == 7
    assert a.record_entry(0) == (2, 7, 7)
    with pytest.raises(Invalid, match="begin at the view's position"):
        a.deliver(0, 6)
    assert a.deliver(0, 9)
    assert a.record_entry(0) == (2, 9, 7)
    assert a.look().claims[0].position == 9


@pytest.mark.conformance("OWN-03")
@pytest.mark.conformance("OWN-04")
def test_a_state_that_its_checkpoint_contradicts_heals(world: World) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 20)
    world.seize(0, Owner("stranger", "x"), 7)
    assert a.acknowledge(0, 20) is True  # noted; whether it can be written shows when it is written
    world.sleep(1)
    assert 0 in a.look().lost
    world.until(lambda: a.has(0, 1), 10)
    assert a.views[-1].claims[0].epoch == 8
    assert a.views[-1].claims[0].redelivered_below >= 20
    assert world.owner(0) == ("a", 8)


@pytest.mark.conformance("OWN-01")
def test_a_checkpoint_without_an_offset_begins_where_the_group_does() -> None:
    world = World(partitions=1)
    a, own = unanswered(world)
    world.checkpoints().fence(0, to=Owner("a", own), epoch=2, start=None, delivered=None)
    state = GroupState(
        queue_id=QUEUE_ID,
        incarnation=world.server.incarnation,
        settings=GroupSettings(),
        partitions={0: Partition(partition=0, phase=Phase.OWNED, epoch=2, owner=Owner("a", own))},
        flows={"a": FlowValue(name="a", instance=own, bound=True, since=1, active=True)},
    )
    world.server.open().swap_state(KEY, encode_state(state, world.now_s), token="t", expected=None)
    assert a.look().claims[0].position == 5


# --- time -------------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("LOS-06")
def test_a_flow_that_slept_past_its_session_delivers_nothing_until_it_is_somebody_new() -> None:
    world = World()
    coordinator = world.coordinator()
    a = world.flow("a")
    instance = bound(a).instance
    assert a.deliver(0, 5)
    a.freeze()
    coordinator.frozen = True  # the store would accept anything: only its own clock stops it
    world.sleep(10.1)
    assert a.session.lease_left_s() < 0
    assert not a.deliver(0, 9)
    coordinator.frozen = False
    a.thaw()
    world.until(lambda: a.has(0, 1), 5)
    assert a.views[-1].instance != instance
    assert a.views[-1].claims[0].epoch == 1
    assert a.views[-1].claims[0].position == 5  # nobody had it in between: what it had in hand it still has
    assert a.deliver(0, 9)


@pytest.mark.conformance("LOS-06")
def test_without_its_own_clock_it_would_deliver(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.coordinator().frozen = False
    a = world.flow("a")
    bound(a)
    a.freeze()
    world.tickers[0].frozen = True
    world.sleep(10.1)
    monkeypatch.setattr(Life, "is_alive", lambda life, _: not life.ended)
    assert a.deliver(0, 9)


@pytest.mark.conformance("LOS-06")
def test_a_flow_frozen_between_the_stores_yes_and_its_own_delivers_nothing(world: World) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)

    def freeze(verb: str) -> None:
        if verb == "deliver":
            world.server.after = lambda _: None
            a.freeze()
            bound(b, wait_s=20)
            world.sleep(15)
            a.thaw()

    world.server.after = freeze
    assert not a.deliver(0, 9)
    assert b.has(0, 1)
    assert world.owner(0)[0] == "b"
    assert not a.acknowledge(0, 9, epoch=1) or world.offset(0) == 0
    world.until(lambda: len(a.look().claims) == 1, 20)
    assert a.views[0].instance != a.views[-1].instance


@pytest.mark.conformance("LOS-06")
def test_what_a_frozen_flow_acknowledges_after_the_move_changes_nothing(world: World) -> None:
    a, b = world.flow("a"), world.flow("b")
    view = bound(a)
    assert a.deliver(0, 30)
    bound(b)
    world.until(lambda: len(b.look().claims) == 1 and len(a.look().claims) == 1, 10)
    kept = next(iter(a.views[-1].claims))
    a.freeze()
    world.until(lambda: b.has(0, 1), 30)
    before = {p: world.offset(p) for p in (0, 1)}
    assert all(b.deliver(p, 40) for p in (0, 1))
    a.thaw()
    for partition in (0, 1):
        a.acknowledge(partition, 39, epoch=view.claims[partition].epoch)
    a.session.flush()
    assert {p: world.offset(p) for p in (0, 1)} == before
    assert kept not in a.look().claims or world.owner(kept)[0] == "a"


@pytest.mark.conformance("OWN-05")
@pytest.mark.parametrize("handoff_s", [0.0, 3.0])
def test_clocks_that_are_ten_minutes_apart_change_nothing(handoff_s: float) -> None:
    world = World(partitions=4, handoff_s=handoff_s)
    world.coordinator(skew_s=0)
    a, b = world.flow("a", skew_s=600), world.flow("b", skew_s=-600)
    first = bound(a)
    for partition in range(4):
        assert a.deliver(partition, 10)
        a.acknowledge(partition, 10)
    began_s = world.now_s
    bound(b)
    world.until(lambda: len(b.look().claims) == len(a.look().claims) == 2, 5)
    assert world.now_s - began_s < 1
    for _ in range(40):
        world.sleep(1)
        for process in (a, b):
            view = process.look()
            assert len(view.claims) == 2
            for partition, claim in view.claims.items():
                assert process.deliver(partition, claim.position + 1)
                process.acknowledge(partition, claim.position + 1)
    assert {view.instance for view in a.views} == {first.instance}
    assert len({view.instance for view in b.views}) == 1
    assert [world.offset(p) for p in range(4)] != [10] * 4
