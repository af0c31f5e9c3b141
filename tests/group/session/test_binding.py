"""Joining and leaving a group: the answer to a bind, restarts, twins, standing, updates."""

from __future__ import annotations

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.group import claims
from partq_spark.group.binding import MAX_FORMER, MAX_TRIES, Binder
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import FlowChangeUpdate, Standing
from partq_spark.group.model import Delivery, Flow, GroupSettings, GroupState, Owner, Partition, Phase
from partq_spark.group.session import Session, SessionSettings
from partq_spark.objects import open_store
from tests.group.session.world import KEY, QUEUE_ID, SETTINGS, World, bound
from tests.support.ownership import OwnershipServer

# --- the answer -------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-03")
def test_a_flow_that_binds_gets_its_partitions_in_the_answer(world: World) -> None:
    a = world.flow("a")
    binding = a.session.bind(wait_s=5)
    assert binding.answered
    assert binding.partitions == (0, 1)
    assert binding.standing is Standing.ACTIVE
    assert binding.view.updates == ()
    for claim in binding.view.claims.values():
        assert (claim.epoch, claim.position, claim.acknowledged, claim.paused) == (1, 0, 0, False)
    assert a.deliver(0, 3)


@pytest.mark.conformance("FLO-03")
def test_without_a_coordinator_a_bind_is_answered_later() -> None:
    world = World()
    a = world.flow("a")
    began_s = world.now_s
    binding = a.session.bind(wait_s=15)
    assert not binding.answered
    assert (binding.partitions, binding.standing) == ((), Standing.UNANSWERED)
    assert 15 <= world.now_s - began_s < 15.5
    world.coordinator()
    world.until(lambda: a.has(0, 1), 5)


def test_a_flow_beats_while_it_waits_for_its_answer() -> None:
    world = World()
    a = world.flow("a")
    a.freeze()  # no thread yet
    a.session.bind(wait_s=25)
    assert a.session.lease_left_s() > 8


def test_an_answer_that_is_lost_is_waited_for(world: World) -> None:
    a = world.flow("a")
    lost = {"bind": 2, "read_state": 1, "report": 1}

    def lose(verb: str) -> None:
        if lost.get(verb, 0) and not world.tickers[0].busy:
            lost[verb] -= 1
            raise Unavailable(f"{verb} lost (test)")

    world.server.after = lose
    binding = a.session.bind(wait_s=5)
    assert binding.partitions == (0, 1)
    assert not any(lost.values())


def test_a_store_that_stays_away_ends_a_bind_in_bounded_tries(world: World) -> None:
    a = world.flow("a")
    tries = []

    def lose(verb: str) -> None:
        if verb == "bind":
            tries.append(verb)
            raise Unavailable("away (test)")

    world.server.before = lose
    with pytest.raises(Unavailable):
        a.session.bind(wait_s=5)
    assert len(tries) == MAX_TRIES
    assert not a.session.is_bound


# --- standing and updates ---------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-05")
def test_a_standby_is_told_once_when_it_becomes_active_and_once_when_it_is_not() -> None:
    world = World(partitions=1)
    world.coordinator()
    a, b = world.flow("a"), world.flow("b")
    assert bound(a).standing is Standing.ACTIVE
    assert bound(b).standing is Standing.STANDBY
    a.session.unbind()
    world.until(lambda: b.has(0), 2)
    assert [view.updates for view in b.views if view.updates] == [(FlowChangeUpdate(active=True),)]
    assert b.views[-1].standing is Standing.ACTIVE


@pytest.mark.conformance("FLO-05")
def test_a_flow_that_loses_its_last_partition_is_told_once() -> None:
    world = World(partitions=2)
    world.coordinator()
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    bound(b)
    world.until(lambda: len(a.look().claims) == 1 and len(b.look().claims) == 1, 5)
    assert not any(view.updates for view in a.views)  # kept one
    assert sum(len(view.updates) for view in b.views) == 1
    world.facts = world.facts.__class__(
        queue_id=QUEUE_ID, settings=world.facts.settings, partitions=(0,), starts={0: 0}
    )
    world.until(lambda: len(a.look().claims) + len(b.look().claims) == 1, 10)
    world.sleep(3)
    told = [update for process in (a, b) for view in [*process.views, process.look()] for update in view.updates]
    assert told == [FlowChangeUpdate(active=True), FlowChangeUpdate(active=False)]


def test_updates_are_counted_not_guessed() -> None:
    flow = Flow(name="a", instance="1", bound=True, since=1, active=True, updates=5)
    on, off = FlowChangeUpdate(active=True), FlowChangeUpdate(active=False)
    assert claims.updates_since(flow, 5) == ()
    assert claims.updates_since(flow, 4) == (on,)
    assert claims.updates_since(flow, 2) == (on, off, on)


def test_a_newcomer_that_waits_for_its_share_is_pending() -> None:
    world = World(partitions=2, delay_s=5)
    world.coordinator()
    bound(world.flow("a"))
    assert bound(world.flow("b")).standing is Standing.PENDING
    assert bound(world.flow("c")).standing is Standing.STANDBY


# --- restarts and twins -----------------------------------------------------------------------------------------------


@pytest.mark.conformance("FLO-07")
def test_a_restart_with_its_mapping_gets_its_partitions_back_and_nothing_is_handed_off() -> None:
    world = World(partitions=4, delay_s=5)
    world.coordinator()
    a, b = world.flow("a"), world.flow("b")
    bound(a)
    bound(b)
    world.until(lambda: len(a.look().claims) == len(b.look().claims) == 2, 15)
    before = a.views[-1].claims
    handoffs = world.handoffs()
    mine = sorted(before)
    assert a.deliver(mine[0], 30)
    a.acknowledge(mine[0], 20)
    a.session.unbind()
    world.sleep(3)

    again = world.flow("a")
    binding = again.session.bind({p: claim.epoch for p, claim in before.items()}, wait_s=2)
    assert list(binding.partitions) == mine
    assert [claim.epoch for claim in binding.view.claims.values()] == [claim.epoch for claim in before.values()]
    taken = binding.view.claims[mine[0]]
    # 10 messages were delivered by the former process and not acknowledged: they come again, marked.
    assert (taken.position, taken.acknowledged, taken.redelivered_below) == (20, 20, 30)
    world.sleep(10)
    assert len(again.look().claims) == len(b.look().claims) == 2
    assert world.handoffs() == handoffs


@pytest.mark.conformance("FLO-08")
def test_a_twin_is_refused_and_takes_nothing(world: World) -> None:
    a = world.flow("a")
    bound(a)
    twin = world.flow("a")
    began_s = world.now_s
    with pytest.raises(Invalid, match="in use by another live process"):
        twin.session.bind(wait_s=5)
    assert world.now_s - began_s <= 3 * SETTINGS.beat_interval_s
    assert not twin.session.is_bound
    assert a.has(0, 1)
    assert len({view.instance for view in a.views}) == 1
    assert a.deliver(0, 5)


@pytest.mark.conformance("FLO-08")
@pytest.mark.parametrize("late_s", [3, 8])
def test_the_last_beat_of_a_killed_process_that_was_long_on_its_way_is_no_twin(world: World, late_s: int) -> None:
    """And its whole session timeout is waited for since then: perhaps it was no last one."""
    a = world.flow("a")
    instance = bound(a).instance
    a.kill()
    ticker = world.lives(lambda: 1000.0 if beaten(world, instance) else 0.0)
    ticker.due_s = world.now_s + late_s
    again = world.flow("a")
    began_s = world.now_s
    assert bound(again).claims
    assert late_s - 1 < world.now_s - began_s - SETTINGS.session_timeout_s < late_s + 1


def beaten(world: World, instance: str) -> bool:
    return world.server.open().beat(KEY, "a", instance) is not None


@pytest.mark.conformance("FLO-08")
def test_without_watching_a_twin_would_steal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    a = world.flow("a")
    bound(a)
    monkeypatch.setattr(Binder, "_moves", lambda *_: False)
    monkeypatch.setattr(Binder, "_is_own", lambda *_: True)
    assert bound(world.flow("a")).claims
    assert not a.session.deliver({0: 5})


@pytest.mark.conformance("FLO-08")
def test_a_restart_after_a_kill_is_accepted_within_one_session_timeout(world: World) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 8)
    a.kill()
    again = world.flow("a")
    began_s = world.now_s
    binding = again.session.bind({0: 1, 1: 1}, wait_s=5)
    assert world.now_s - began_s <= SETTINGS.session_timeout_s + 1
    assert binding.partitions == (0, 1)
    assert (binding.view.claims[0].position, binding.view.claims[0].redelivered_below) == (0, 8)


@pytest.mark.conformance("FLO-08")
def test_a_restart_waits_no_longer_than_the_coordinator() -> None:
    world = World(delay_s=20)
    world.coordinator()
    a = world.flow("a")
    bound(a)
    a.kill()
    world.sleep(9)
    again = world.flow("a")
    began_s = world.now_s
    assert again.session.bind({0: 1, 1: 1}, wait_s=2).partitions == (0, 1)
    assert world.now_s - began_s < 3  # the coordinator has watched for 9 s already


def test_a_record_names_the_instances_that_it_goes_on_from(world: World) -> None:
    instances = []
    for _ in range(MAX_FORMER + 2):
        a = world.flow("a")
        instances.append(bound(a).instance)
        a.session.unbind()
    record = world.server.records_of(KEY)["a"]
    assert (record.instance, record.former) == (instances[-1], tuple(reversed(instances[1:-1])))
    world.server.lose_flow(KEY, "a")
    bound(world.flow("a"))
    assert world.server.records_of(KEY)["a"].former == ()


def test_what_was_reported_in_another_life_of_the_store_is_not_taken_over(world: World) -> None:
    a = world.flow("a")
    bound(a)
    assert a.deliver(0, 8)
    a.kill()
    world.server.incarnation = "another"  # as after a restart from a copy: it may lack what was reported last
    world.tickers[0].frozen = True
    again = world.flow("a")
    again.session.bind(wait_s=0)
    with pytest.raises(KeyError):
        again.record_entry(0)


@pytest.mark.conformance("FLO-03")
def test_a_bind_is_answered_when_what_is_on_its_way_has_arrived() -> None:
    a, b, c = Owner("a", "1"), Owner("b", "2"), Owner("c", "3")

    def state(*partitions: Partition) -> GroupState:
        return GroupState(
            queue_id=QUEUE_ID,
            incarnation="i",
            settings=GroupSettings(),
            partitions={one.partition: one for one in partitions},
            flows={
                "a": Flow(name="a", instance="1", bound=True, since=1, active=True),
                "b": Flow(name="b", instance="2", bound=True, since=2),
                "c": Flow(name="c", instance="3", bound=True, since=3),
            },
        )

    owned = Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=a)
    to_b = Partition(partition=1, phase=Phase.FENCING, epoch=1, to=b, to_epoch=2)
    to_nobody = Partition(partition=1, phase=Phase.FENCING, epoch=1, owner=c, to=None, to_epoch=2)
    paused = Partition(partition=1, phase=Phase.PAUSED, epoch=1, owner=a, to=b, deadline_s=3.0)
    settling = [
        (each, claims.is_settling(state(owned, each), me)) for each in (to_b, to_nobody, paused) for me in (b, c)
    ]
    assert settling == [
        (to_b, True),
        (to_b, False),
        (to_nobody, True),
        (to_nobody, False),  # a standby: others come first
        (paused, False),  # waits for acknowledgements, for seconds perhaps: pending
        (paused, False),
    ]


def test_who_has_unbound_is_not_waited_for(world: World) -> None:
    a = world.flow("a")
    bound(a)
    a.session.unbind()
    a.session.unbind()
    began_s = world.now_s
    assert bound(world.flow("a")).claims
    assert world.now_s - began_s < 1


@pytest.mark.conformance("FLO-08")
def test_a_process_that_was_replaced_while_it_was_frozen_is_the_twin_when_it_wakes(world: World) -> None:
    a = world.flow("a")
    bound(a)
    a.freeze()
    again = world.flow("a")
    bound(again)
    a.thaw()
    with pytest.raises(Invalid, match="in use by another live process"):
        a.session.observe()
    assert not a.session.deliver({0: 4})
    assert again.has(0, 1)


def test_a_session_begins_and_ends_once(world: World) -> None:
    a = world.flow("a")
    with pytest.raises(Invalid, match="not bound: call bind first"):
        a.session.observe()
    assert not a.session.deliver({0: 1})
    a.session.beat()
    a.session.flush()
    bound(a)
    with pytest.raises(Invalid, match="bound already"):
        a.session.bind(wait_s=1)
    a.session.unbind()
    assert not a.session.is_bound
    assert a.session.lease_left_s() < 0
    assert bound(a).claims


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "A", "a b", "-a", "ä", "a" * 64, "a/b", "a\n"])
def test_flow_names_are_checked(world: World, name: str) -> None:
    with pytest.raises(Invalid, match="flow name"):
        Session(world.server.open(KEY), world.checkpoints(), KEY, QUEUE_ID, name)


@pytest.mark.parametrize(("beat_interval_s", "session_timeout_s"), [(0.0, 10.0), (-1.0, 10.0), (4.0, 10.0)])
def test_a_heartbeat_has_to_fit_into_the_session(beat_interval_s: float, session_timeout_s: float) -> None:
    with pytest.raises(Invalid, match="beat at least three times as often"):
        SessionSettings(beat_interval_s=beat_interval_s, session_timeout_s=session_timeout_s)


def test_what_a_record_says_and_what_a_process_knows_are_merged() -> None:
    def one(epoch: int, delivered: int) -> Delivery:
        return Delivery(epoch=epoch, delivered=delivered, acknowledged=0)

    stored = {0: one(1, 10), 1: one(2, 10), 2: one(3, 10), 3: one(1, 10)}
    own = {0: one(1, 7), 1: one(1, 20), 2: one(4, 20), 4: one(1, 1)}
    assert claims.merged(stored, own, by_itself=True) == {**stored, 0: one(1, 7), 2: one(4, 20), 4: one(1, 1)}
    assert claims.merged(stored, own, by_itself=False) == {**stored, 2: one(4, 20), 4: one(1, 1)}


def test_a_bind_that_fails_leaves_nobody_bound() -> None:
    server = OwnershipServer()
    store = open_store("file:///nowhere-that-is-written-to", retry_timeout_s=0)
    session = Session(server.open(KEY), CheckpointStore(store, KEY, QUEUE_ID), KEY, QUEUE_ID, "a")

    def damaged(verb: str) -> None:
        if verb == "read_state":
            raise Corrupt("the state is damaged")

    server.before = damaged
    with pytest.raises(Corrupt):
        session.bind(wait_s=1.0)
    server.before = lambda _: None
    found = server.open(KEY).read_flow(KEY, "a")
    assert found is not None
    assert not found[0].bound


def test_what_was_reported_of_a_former_queue_is_not_taken_over() -> None:
    store = OwnershipServer().open(KEY)

    def bind(queue_id: str, own: dict[int, Delivery]) -> None:
        effects = Effects(sleep=lambda _: None)
        binder = Binder(store, KEY, queue_id, "a", session_timeout_s=5.0, effects=effects)
        binder.leave(binder.bind({}, own))

    bind("former", {0: Delivery(epoch=1, delivered=50, acknowledged=0)})
    bind(QUEUE_ID, {})
    found = store.read_flow(KEY, "a")
    assert found is not None
    assert (found[0].deliveries, found[0].former) == ({}, ())
