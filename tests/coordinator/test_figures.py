"""The picture that metrics are made of: what the stores say, looked up only where it is not known already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from coordinator.figures import LOOKS_MOST_S, Figures
from coordinator.heads import GroupFacts, Heads
from coordinator.health import Status
from coordinator.measuring import MeasuredStore
from coordinator.metrics import GroupFigures, Picture
from coordinator.runtime import GroupRuntime
from coordinator.tally import Tally
from partq_spark.base.errors import Unavailable
from partq_spark.client import checkpoints, groups
from partq_spark.group import retention
from partq_spark.group.model import PartitionStatus, RebalanceStatus
from partq_spark.log import admin
from partq_spark.log.compaction import compact
from partq_spark.log.model import QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.log.sizes import LogSizes
from partq_spark.objects.api import Document
from tests.coordinator.world import KEY, World
from tests.log.queues import send

AT_ONCE = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=3.0)


class Scraped:
    """The one coordinator of a world, and who takes its picture."""

    def __init__(self, world: World, *, looks_most_s: float = LOOKS_MOST_S) -> None:
        self.world = world
        self.coordinator = world.coordinator()
        self.heads = Heads(world.objects, KEY.namespace)
        self.tally = Tally()
        self.store = MeasuredStore(world.objects, self.tally.store)
        self.figures = Figures(
            self,
            name="c1",
            namespace="default",
            store=self.store,
            tally=self.tally,
            effects=world.effects(),
            looks_most_s=looks_most_s,
        )

    def status(self) -> Status:
        return Status(alive=True, ready=True, looked_s=0.0, groups=1, leading=1, failing=0)

    def groups(self) -> Sequence[tuple[GroupRuntime, GroupFacts]]:
        return [(self.coordinator.runtime, facts) for facts in self.heads.groups().values()]

    def head_documents(self) -> Mapping[str, Document]:
        return self.heads.documents()

    def picture(self) -> Picture:
        self.heads.look(KEY.queue)
        return self.figures.picture()

    def group(self) -> GroupFigures:
        (found,) = self.picture().groups
        return found

    def lags(self) -> list[tuple[Any, Any]]:
        return [(each.lag, each.lag_s) for each in self.group().partitions]

    def looks(self) -> dict[str, int]:
        """How often the store was asked for pictures."""
        return {operation: sum(h.distribution().counts) for operation, h in self.tally.store.durations.items()}


def as_status_has_it(world: World) -> list[tuple[Any, Any]]:
    view = groups.status(world.queue, world.server.open(), KEY.group)
    return [(each.lag, each.lag_s) for each in view.partitions]


@pytest.fixture
def world() -> World:
    made = World(partitions=2, config=AT_ONCE)
    sizes = LogSizes(inline_entries=4, fan_out=3)
    made.queue = QueueLog(made.objects, KEY.namespace, KEY.queue, made.effects(), sizes=sizes)
    made.queue.refresh()
    return made


def publish(world: World, publishes: int) -> None:
    """A publish a second, each of a message for both partitions at least."""
    for number in range(publishes):
        world.now_s += 1
        send(world.queue, [(f"key {row}", b"%d" % number) for row in range(8)])


# --- lag --------------------------------------------------------------------------------------------------------------


def test_lag_is_what_status_says_and_costs_no_look_while_the_head_tells_it(world: World) -> None:
    scraped = Scraped(world)
    flow = world.flow("a")
    world.settle()
    publish(world, 3)
    ends = world.queue.refresh().next
    for partition in (0, 1):
        assert flow.deliver(partition, ends[partition])
    flow.acknowledge(0, ends[0])
    flow.acknowledge(1, ends[1] - 1)
    world.run(2)
    assert scraped.lags() == as_status_has_it(world)
    assert scraped.lags()[0] == (0, 0.0)
    assert scraped.lags()[1] == (1, pytest.approx(2))
    assert scraped.looks() == {}, "records and head say it all"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_message_that_is_older_than_what_the_head_tells_is_looked_up_once(world: World, compacted: bool) -> None:
    scraped = Scraped(world)
    flow = world.flow("a")
    world.settle()
    publish(world, 40)
    if compacted:
        assert compact(world.queue, min_age_s=0.0) is not None
    for partition, end in enumerate(world.queue.refresh().next):
        assert flow.deliver(partition, end)
        flow.acknowledge(partition, end // 4)
    world.run(2)
    found = scraped.lags()
    assert found == as_status_has_it(world)
    assert all(25 < lag_s < 45 for _, lag_s in found)
    looks = scraped.looks()
    assert looks["read"] >= 1
    world.now_s += 5
    assert scraped.lags() == [(lag, pytest.approx(lag_s + 5)) for lag, lag_s in found]
    assert scraped.looks() == looks, "the message is the same"


def test_where_no_flow_is_the_checkpoints_are_asked_once(world: World) -> None:
    """The group that nobody works for is the one whose lag matters most."""
    scraped = Scraped(world)
    flow = world.flow("a")
    world.settle()
    publish(world, 2)
    for partition, end in enumerate(world.queue.refresh().next):
        assert flow.deliver(partition, end)
        flow.acknowledge(partition, end - 1)
    flow.unbind()
    world.run(3)
    assert {each.status for each in scraped.group().partitions} == {PartitionStatus.UNASSIGNED}
    assert scraped.lags() == as_status_has_it(world)
    assert [lag for lag, _ in scraped.lags()] == [1, 1]
    assert scraped.looks()["list"] == 1
    publish(world, 1)
    assert scraped.lags() == as_status_has_it(world)
    assert scraped.looks()["list"] == 1


def test_a_group_without_any_flow_yet_has_its_lag(world: World) -> None:
    scraped = Scraped(world)
    publish(world, 2)
    world.run(2)
    group = scraped.group()
    assert (group.status, group.flows) == (RebalanceStatus.READY, {"active": 0, "inactive": 0, "unbound": 0})
    assert scraped.lags() == as_status_has_it(world)


def test_a_rewind_is_seen(world: World) -> None:
    scraped = Scraped(world)
    flow = world.flow("a")
    world.settle()
    publish(world, 4)
    for partition, end in enumerate(world.queue.refresh().next):
        assert flow.deliver(partition, end)
        flow.acknowledge(partition, end)
    flow.unbind()
    world.run(3)
    assert scraped.lags() == [(0, 0.0), (0, 0.0)]

    checkpoints.rewind(
        world.queue, KEY.group, checkpoints.goal_of("earliest", None, None), (), ownership="none", dry_run=False
    )
    world.run(2)
    assert scraped.lags() == as_status_has_it(world)
    assert all(lag > 4 for lag, _ in scraped.lags())


def test_a_store_that_is_away_leaves_out_what_is_not_known_and_hides_nothing_else(world: World) -> None:
    scraped = Scraped(world)
    flow = world.flow("a")
    world.settle()
    publish(world, 40)
    for partition, end in enumerate(world.queue.refresh().next):
        assert flow.deliver(partition, end)
        flow.acknowledge(partition, 1)
    world.run(2)
    asked: list[str] = []

    def away(name: str, **_: object) -> memoryview:
        asked.append(name)
        raise Unavailable("away")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.objects, "read", away)
        picture = scraped.picture()
        (group,) = picture.groups
        assert [each.lag for each in group.partitions] == [end - 1 for end in world.queue.head.next]
        assert [each.lag_s for each in group.partitions] == [None, None]
        assert picture.ages_unknown == 2
        assert picture.store.errors == {("read", "Unavailable"): 1}
        assert len(asked) == 1, "one outage is met once in a picture"
    found = scraped.lags()
    assert found == as_status_has_it(world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.objects, "read", away)
        world.now_s += 60  # what was looked up is remembered: it is as old as it was, and a minute more
        assert scraped.lags() == [(lag, pytest.approx(lag_s + 60)) for lag, lag_s in found]


def test_looks_end_when_their_time_is_over(world: World) -> None:
    scraped = Scraped(world, looks_most_s=0.0)
    publish(world, 2)
    world.run(2)
    (group,) = scraped.picture().groups
    assert [(each.lag, each.lag_s) for each in group.partitions] == [(None, None)] * 2
    assert scraped.looks() == {}


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_flows_partitions_and_queue_are_told_as_they_are(world: World) -> None:
    scraped = Scraped(world)
    publish(world, 3)
    world.flow("a")
    world.flow("b")
    world.flow("c")
    world.run(3)
    picture = scraped.picture()
    (group,) = picture.groups
    assert group.flows == {"active": 2, "inactive": 1, "unbound": 0}
    assert [each.status for each in group.partitions] == [PartitionStatus.READY] * 2
    assert [each.epoch for each in group.partitions] == [p.epoch for _, p in sorted(world.state().partitions.items())]
    (queue,) = picture.queues
    head = world.queue.refresh()
    assert (queue.messages, queue.published, queue.changes) == (24, 24, head.sequence)
    assert (queue.stored_bytes, queue.quota_bytes, queue.groups) == (head.stored_bytes, None, 1)


def test_trimmed_messages_count_as_published_and_not_as_there(world: World) -> None:
    scraped = Scraped(world)
    publish(world, 3)
    flow = world.flow("a")
    world.settle()
    ends = world.queue.refresh().next
    for partition in (0, 1):
        assert flow.deliver(partition, ends[partition])
        flow.acknowledge(partition, ends[partition])
    retention.trim(world.queue, ends)
    (queue,) = scraped.picture().queues
    assert (queue.messages, queue.published) == (0, 24)


def test_a_group_that_another_one_leads_is_only_named(world: World) -> None:
    scraped = Scraped(world)
    other = world.coordinator("c2")
    world.flow("a")
    world.run(2)
    assert (scraped.coordinator.runtime.leading, other.runtime.leading) == (True, False)
    scraped.coordinator = other
    picture = scraped.picture()
    assert (picture.groups, picture.followed) == ([], [KEY])


def test_a_queue_that_is_gone_is_forgotten(world: World) -> None:
    scraped = Scraped(world)
    world.run(2)
    assert len(scraped.picture().queues) == 1
    admin.delete_queue(world.queue)
    scraped.heads.look(KEY.queue)
    picture = scraped.figures.picture()
    assert (picture.queues, picture.groups) == ([], [])
