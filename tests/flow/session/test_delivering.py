"""What a flow may deliver and acknowledge, and what it may not any more: claims, handoffs, freezes, lost stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest

from partq_spark.errors import Fenced, Invalid, Unavailable
from partq_spark.flow import acknowledging
from partq_spark.flow.binding import Life
from partq_spark.flow.claims import Standing
from partq_spark.flow.codec import decode_state, encode_state
from partq_spark.flow.hand import Hand
from partq_spark.flow.model import (
    Delivery,
    GroupKey,
    GroupSettings,
    GroupState,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)
from partq_spark.flow.model import Flow as FlowValue
from partq_spark.flow.session import Session
from partq_spark.flow.stores.api import StateDocument
from tests.flow.session.world import KEY, QUEUE_ID, Process, World, bound, with_settings

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
    monkeypatch.setattr(Hand, "is_same_epoch", lambda *_: True)
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
    assert view.claims[0].position == 0  # the coordinator has written the group's start
    assert a.session.deliver({0: 10, 1: 10})
    bound(b)
    world.until(lambda: bool(a.look().paused), 2)
    (moving,) = a.views[-1].paused
    began_s = world.now_s
    assert a.acknowledge(moving, 10)
    world.until(lambda: b.has(moving), 2)
    assert world.now_s - began_s < 1
    assert world.offset(moving) == 0
    assert b.views[-1].claims[moving].redelivered_below == 10


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


# --- lost answers and lost stores -------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["before", "after"])
def test_what_was_announced_and_not_delivered_is_taken_back(world: World, lost: str) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)

    def lose(verb: str) -> None:
        if verb == "deliver":
            setattr(world.server, lost, lambda _: None)
            raise Unavailable("lost (test)")

    setattr(world.server, lost, lose)
    with pytest.raises(Unavailable):
        a.deliver(0, 9)
    assert a.record_entry(0) == (1, 9 if lost == "after" else 3, 0)
    world.until(lambda: a.has(0, 1), 2)
    claim = a.views[-1].claims[0]
    assert (claim.epoch, claim.position, claim.redelivered_below) == (1, 3, 3)
    assert a.record_entry(0) == (1, 3, 0)


def test_what_a_refused_announcement_left_in_the_record_is_taken_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose record and state are two objects has written the record when it finds the state changed."""
    a = world.flow("a")
    bound(a)

    def refuse(
        key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        monkeypatch.undo()
        a.store.report(key, flow, instance, deliveries)
        return False

    monkeypatch.setattr(a.store, "deliver", refuse)
    assert not a.deliver(0, 9)
    assert a.record_entry(0) == (1, 9, 0)
    assert a.look().claims[0].position == 0
    assert a.record_entry(0) == (1, 0, 0)


def test_a_flow_that_the_coordinator_has_given_up_is_somebody_new_at_once(world: World) -> None:
    a = world.flow("a")
    instance = bound(a).instance
    world.tickers[0].frozen = True
    gone = {"a": FlowValue(name="a", instance=instance, bound=False, since=1)}
    held = {"status": RebalanceStatus.HOLDDOWN, "holddown_until_s": world.now_s + 60}
    rewrite(world, lambda state: replace(state, flows=gone, **held))  # type: ignore[arg-type] # fields by name
    view = a.look()
    assert view.instance != instance
    assert view.standing is Standing.UNANSWERED
    assert view.lost == {0: 1, 1: 1}
    world.tickers[0].frozen = False
    world.until(lambda: a.has(0, 1), 5)
    assert a.views[-1].claims[0].epoch == 1


def test_the_state_of_a_former_queue_says_nothing(world: World) -> None:
    a = world.flow("a")
    bound(a)
    world.tickers[0].frozen = True
    rewrite(world, lambda state: replace(state, queue_id="former"))
    assert a.look().paused == {0, 1}
    assert not a.deliver(0, 1)


def test_without_a_state_everything_is_held_back_and_nothing_is_forgotten(world: World) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 4)
    world.tickers[0].frozen = a.heart.frozen = True
    world.server.flush()
    view = a.look()
    assert view.paused == {0, 1}
    assert not view.deliverable
    assert view.claims[0].position == 4
    assert not a.deliver(0, 5)
    assert a.acknowledge(0, 4)
    assert world.offset(0) == 4


def rewrite(world: World, change: Callable[[GroupState], GroupState]) -> None:
    """Another state, by hand."""
    store = world.server.open()
    found = store.read_state(KEY)
    assert isinstance(found, StateDocument)
    state = change(decode_state(found.body, world.now_s, "the state"))
    store.swap_state(KEY, encode_state(state, world.now_s), token=world.token(), expected=found.token)


def lost_report(a: Process, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The next report of `a` gets no answer, and arrives when the list's only entry is called."""
    late: list[Callable[[], None]] = []
    report = a.store.report

    def lose(*arguments: object) -> None:
        monkeypatch.setattr(a.store, "report", report)
        late.append(lambda: report(*arguments))  # type: ignore[arg-type] # as they came
        raise Unavailable("on its way (test)")

    monkeypatch.setattr(a.store, "report", lose)
    return late


def test_a_report_that_arrives_late_does_not_undo_what_was_announced_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)
    late = lost_report(a, monkeypatch)
    world.sleep(1)
    with pytest.raises(Unavailable):
        a.acknowledge(0, 2)
    assert world.offset(0) == 2
    world.until(lambda: a.has(0, 1), 2)
    assert a.deliver(0, 12)
    with pytest.raises(Fenced):
        late[0]()
    assert a.record_entry(0) == (1, 12, 2)


def test_without_a_new_instance_it_would_be_undone(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 3)
    late = lost_report(a, monkeypatch)
    monkeypatch.setattr(acknowledging, "ending_if_unknown", lambda _: nullcontext())
    world.sleep(1)
    with pytest.raises(Unavailable):
        a.acknowledge(0, 2)
    a.look()
    assert a.deliver(0, 12)
    late[0]()
    assert a.record_entry(0) == (1, 3, 2)


@pytest.mark.conformance("OWN-03")
@pytest.mark.parametrize("how", ["restart", "flush"])
def test_an_ownership_store_that_comes_back_empty_costs_no_partition_and_no_acknowledgement(
    world: World, how: str
) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    bound(b)
    world.until(lambda: len(a.look().claims) == len(b.look().claims) == 1, 10)
    before = {process: process.views[-1].claims for process in (a, b)}
    for process, (partition,) in before.items():
        assert process.deliver(partition, 10)
    if how == "restart":
        world.server.restart_empty()
    else:
        world.server.flush()
    for process, (partition,) in before.items():
        assert not process.deliver(partition, 20)
        process.acknowledge(partition, 10, epoch=before[process][partition].epoch)  # in the middle of it
    world.until(lambda: all(set(process.look().deliverable) == set(before[process]) for process in before), 30)
    for process, (partition,) in before.items():
        claim = process.views[-1].claims[partition]
        assert claim.epoch == before[process][partition].epoch
        assert claim.position == 10
        assert process.views[-1].instance != process.views[0].instance
        world.sleep(1)
        process.look()
        assert world.offset(partition) == 10
        assert process.deliver(partition, 20)


@pytest.mark.conformance("OWN-04")
def test_an_ownership_store_that_jumps_back_gives_nothing_back_to_a_former_owner(world: World) -> None:
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    old = world.server.snapshot()
    bound(b)
    world.until(lambda: bool(b.look().claims), 10)
    (moved,) = b.views[-1].claims
    assert b.deliver(moved, 50)
    world.server.restore(old)  # a has both partitions, says the store
    assert not a.deliver(moved, 5)
    for _ in range(100):
        world.sleep(0.2)
        delivers = [p for p in (a, b) if moved in p.look().deliverable and p.deliver(moved, 60 + len(p.views))]
        assert len(delivers) <= 1
        for process in delivers:
            assert world.owner(moved)[0] == process.session.flow
    assert len(a.look().claims) == len(b.look().claims) == 1


def test_a_flow_says_how_long_its_lease_lasts_and_learns_of_news(world: World) -> None:
    a = world.flow("a")
    bound(a)
    world.sleep(2.0)
    assert 8.5 < a.session.lease_left_s() <= 10
    a.freeze()
    world.sleep(4.0)
    assert 4.0 < a.session.lease_left_s() < 6.1
    a.look()
    assert 4.0 < a.session.lease_left_s() < 6.1  # looking is no sign of life
    assert a.deliver(0, 1)
    assert a.session.lease_left_s() > 9.9
    a.look()
    assert not a.session.has_news
    bound(world.flow("b"))
    a.session.beat()
    assert a.session.has_news
