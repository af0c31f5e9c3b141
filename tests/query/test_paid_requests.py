"""What is spared where each request is paid for, and that it is spared in quiet times only (decision 0057)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.log import admin
from partq_spark.query.joining import BEAT_S, VERIFY_S, beat_interval_s
from partq_spark.query.settings import GroupOptions
from partq_spark.query.waiting import Pace
from tests.group.session.world import KEY
from tests.query.world import Query, World, begun

CHECKPOINT_S = 10.0  # the default of checkpointInterval on Azure


@pytest.fixture
def world() -> World:
    """One whose store says that its requests are paid for."""
    made = World(store_url="azure://container/queues")
    made.coordinated()
    return made


@pytest.fixture
def listings(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When checkpoints were listed."""
    times_s: list[float] = []
    real = CheckpointStore.list_checkpoints

    def counted(store: CheckpointStore) -> Mapping[int, Checkpoint]:
        times_s.append(world.now_s)
        return real(store)

    monkeypatch.setattr(CheckpointStore, "list_checkpoints", counted)
    return times_s


def idle_query(world: World) -> Query:
    """A query that has its group to itself, and has handled and acknowledged what there was."""
    (query,) = begun(world, world.query(ownership="none", checkpointInterval=f"{CHECKPOINT_S:g}s"))
    query.run()
    world.publish(4, 3)
    world.until(lambda: world.offset(0) == 4 and world.offset(1) == 3, wait_s=3 * CHECKPOINT_S)
    return query


def test_a_query_alone_lists_its_checkpoints_seldom_in_quiet_times(world: World, listings: list[float]) -> None:
    query = idle_query(world)
    world.sleep(VERIFY_S)  # what there was is settled
    listings.clear()
    world.sleep(10 * VERIFY_S)
    assert query.failure is None
    assert 8 <= len(listings) <= 10


def test_a_rewind_is_noticed_as_soon_as_ever(world: World, listings: list[float]) -> None:
    query = idle_query(world)
    world.sleep(VERIFY_S)
    listings.clear()
    world.checkpoints().rewind(0, 1, fence=True, delivered=4)
    admin.count_rewind(world.open_queue(), KEY.group)
    begun_s = world.now_s
    world.until(lambda: query.offsets(0) == [0, 1, 2, 3, 1, 2, 3], wait_s=VERIFY_S)
    assert world.now_s - begun_s <= CHECKPOINT_S + 2.0


def test_partitions_that_are_added_are_taken_as_soon_as_ever(world: World, listings: list[float]) -> None:
    query = idle_query(world)
    world.sleep(VERIFY_S)
    listings.clear()
    admin.alter_queue(world.open_queue(), partitions=3)
    begun_s = world.now_s
    world.until(lambda: query.partitions == (0, 1, 2), wait_s=VERIFY_S)
    assert world.now_s - begun_s <= CHECKPOINT_S + 2.0


@pytest.mark.parametrize(
    ("ownership", "store", "session_timeout_s", "beat_s"),
    [
        ("store", "azure://c/p", 10.0, 2.5),
        ("store", "azure://c/p", 60.0, 15.0),
        ("store", "azure://c/p", 5.0, 1.25),
        ("store", "file:///srv/q", 60.0, BEAT_S),
        ("redis://127.0.0.1:6379/0", "azure://c/p", 60.0, BEAT_S),
        ("none", "azure://c/p", 60.0, BEAT_S),
    ],
)
def test_heartbeats_that_are_paid_for_come_four_times_in_a_session_timeout(
    ownership: str, store: str, session_timeout_s: float, beat_s: float
) -> None:
    group = GroupOptions(
        name="billing",
        ownership=ownership,
        keep_offsets=True,
        flow=None,
        checkpoint_interval_s=None,
        session_timeout_s=session_timeout_s,
        max_poll_interval_s=None,
        manual_acks=False,
    )
    assert beat_interval_s(group, store) == beat_s


def test_looks_keep_their_distance_whatever_is_asked_in_between() -> None:
    azure = Pace(0.5, None, 100.0)
    assert azure.due_in_s(100.0) == 0.5
    assert azure.due_in_s(100.4) == pytest.approx(0.1)
    assert azure.due_in_s(100.5) == 0.0
    assert azure.due_in_s(110.0) == 0.0, "one that is late is made at once"
    azure.looked(110.0)
    assert azure.due_in_s(110.2) == pytest.approx(0.3)
    assert azure.due_in_s(110.4999) == 0.0, "no wait is that short"


def test_who_asks_for_shorter_looks_has_them() -> None:
    azure = Pace(0.5, 0.1, 100.0)
    assert azure.due_in_s(100.0) == pytest.approx(0.1)
