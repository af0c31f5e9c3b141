"""A partition on its way to another flow, and acknowledgements in quiet times: what still counts, and from where it
goes on.
"""

from __future__ import annotations

import pytest

from partq_spark.group.holdings import FlowHoldings
from tests.group.session.world import Process, World, bound, with_settings

# --- handoff ----------------------------------------------------------------------------------------------------------


def shared(world: World) -> tuple[Process, Process]:
    """a has delivered 10 messages of each of two partitions when b comes for its share."""
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    assert a.session.deliver({0: 10, 1: 10})
    bound(b)
    return a, b


def there_and_back(world: World) -> tuple[Process, int]:
    """The partition that a has again, which b had meanwhile, with nothing of it acknowledged."""
    a, b = shared(world)
    world.until(lambda: bool(b.look().claims), 5)
    (moved,) = b.views[-1].claims
    b.session.unbind()
    world.until(lambda: a.has(0, 1), 5)
    return a, moved


@pytest.mark.conformance("OWN-03")
def test_a_paused_partition_is_acknowledged_at_once_and_moves_when_it_is_drained(world: World) -> None:
    a, b = shared(world)
    world.until(lambda: bool(a.look().paused), 2)
    (moving,) = a.views[-1].paused
    (staying,) = a.views[-1].deliverable
    assert not a.deliver(moving, 11)
    assert a.deliver(staying, 11)  # HAN-04
    assert not b.look().claims
    assert a.acknowledge(moving, 10)
    assert world.offset(moving) == 10  # now, whatever the interval is
    assert a.record_entry(moving) == (1, 10, 10)
    world.until(lambda: b.has(moving), 1)
    claim = b.views[-1].claims[moving]
    assert (claim.epoch, claim.position, claim.redelivered_below) == (2, 10, 10)
    assert a.look().lost == {moving: 1}
    assert a.look().lost == {}
    assert not a.acknowledge(moving, 10, epoch=1)


def test_what_is_not_acknowledged_in_time_comes_again_marked(world: World) -> None:
    a, b = shared(world)
    world.until(lambda: bool(a.look().paused), 2)
    (moving,) = a.views[-1].paused
    assert a.acknowledge(moving, 4)
    began_s = world.now_s
    world.until(lambda: bool(b.look().claims), 5)
    assert 2.5 < world.now_s - began_s < 4
    claim = b.views[-1].claims[moving]
    assert (claim.position, claim.redelivered_below) == (4, 10)
    a.acknowledge(moving, 10, epoch=1)
    a.session.flush()
    assert world.offset(moving) == 4


def test_a_partition_that_went_and_came_back_is_not_acknowledged_by_who_had_it_before(world: World) -> None:
    a, moved = there_and_back(world)
    assert a.views[-1].claims[moved].epoch == 3
    assert not a.acknowledge(moved, 10, epoch=1)  # HAN-10
    a.session.flush()
    assert world.offset(moved) == 0
    assert a.acknowledge(moved, 5, epoch=3)


def test_without_comparing_epochs_it_would_be_acknowledged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a, moved = there_and_back(world)
    monkeypatch.setattr(FlowHoldings, "is_same_epoch", lambda *_: True)
    assert a.acknowledge(moved, 10, epoch=1)
    a.session.flush()
    assert world.offset(moved) == 10


def test_a_state_that_changed_is_looked_at_before_anything_is_delivered(world: World) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    bound(b)
    world.sleep(0.5)  # paused meanwhile, and a has not looked
    assert not a.deliver(0, 4)
    assert not a.deliver(1, 4)
    a.look()
    assert a.record_entry(0)[1] == a.record_entry(1)[1] == 0  # what was refused is taken back


# --- quiet times ------------------------------------------------------------------------------------------------------


def test_acknowledgements_are_written_at_the_interval_and_at_the_end() -> None:
    world = World()
    world.coordinator()
    a = world.flow("a", with_settings(checkpoint_interval_s=5.0))
    bound(a)
    for end in range(1, 11):
        assert a.deliver(0, end)
        assert a.acknowledge(0, end)
        world.sleep(0.4)
    assert world.offset(0) == 0
    world.sleep(1.2)
    a.look()
    assert world.offset(0) == 10
    assert a.deliver(0, 20)
    a.acknowledge(0, 15)
    assert world.offset(0) == 10
    a.session.flush()
    assert world.offset(0) == 15
    a.acknowledge(0, 18)
    a.session.unbind()
    assert world.offset(0) == 18


def test_a_batch_that_ended_before_the_process_began_is_acknowledged() -> None:
    world = World(delay_s=5)
    world.coordinator()
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 12)
    a.session.unbind()
    again = world.flow("a")
    again.views.append(again.session.bind({0: 1, 1: 1}, wait_s=2).view)
    assert again.acknowledge(0, 12)
    again.session.flush()
    assert world.offset(0) == 12
    assert again.look().claims[0].position == 12


def test_without_offsets_a_flow_begins_at_the_start_and_still_drains() -> None:
    world = World()
    world.coordinator()
    a, b = (world.flow(name, with_settings(keep_offsets=False)) for name in "ab")
    view = bound(a)
    assert view.claims[0].position == 5  # the group's start by the flow's word: the fence's offset was taken out
    assert a.session.deliver({0: 10, 1: 10})
    bound(b)
    world.until(lambda: bool(a.look().paused), 2)
    (moving,) = a.views[-1].paused
    began_s = world.now_s
    assert a.acknowledge(moving, 10)
    world.until(lambda: b.has(moving), 2)
    assert world.now_s - began_s < 1
    assert world.offset(moving) is None
    assert b.views[-1].claims[moving].redelivered_below == 10
