"""A queue whose partition count and access type are changed while plain Python flows consume: a real coordinator, a
real Redis, nobody stopped.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Claim
from partq_spark.group.key_order import Milestones
from partq_spark.group.model import GroupKey
from partq_spark.log.partitioner import partition_of
from tests.cli.conftest import Partq, json_lines
from tests.coordinator.sidecars import Place, consuming
from tests.group.session.world import batch_of
from tests.support.flow_loop import Batch
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]

KEYS = [f"key-{number}" for number in range(40)]


@dataclass(slots=True)
class Stage:
    """A queue with its flows, each in a thread, and what they handled, in the order in which they did."""

    place: Place
    key: GroupKey
    partq: Partq
    published: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)  # key, how-manieth of it
    handled: list[tuple[int, int, bool]] = field(default_factory=list)

    def publish(self) -> None:
        """One message for each key."""
        head = self.place.queue(self.key).refresh()
        following = list(head.next)
        self.partq("publish", "orders", stdin=json_lines({"key": key, "value": "x"} for key in KEYS))
        for key in KEYS:
            partition = partition_of(key.encode(), head.partitions)
            number = sum(1 for other, _ in self.published.values() if other == key)
            self.published[partition, following[partition]] = (key, number)
            following[partition] += 1

    def flow(self, name: str) -> AbstractContextManager[None]:
        queue = self.place.queue(self.key)
        session = self.place.session(self.key, name, milestones=Milestones(lambda: queue.head))

        def read(claim: Claim) -> Batch[int]:
            end = min(self.place.queue(self.key).refresh().next[claim.partition], claim.position + 20)
            return batch_of(claim, end)

        def handle(batch: Batch[int]) -> None:
            self.handled.extend((batch.partition, each, each < batch.redelivered_below) for each in batch.messages)

        return consuming(session, read, handle, head=queue.refresh, idle_s=0.05)

    def checkpoints(self) -> CheckpointStore:
        return self.place.checkpoints(self.key)

    def known(self) -> list[int]:
        """The partitions of the group, as its coordinator has them."""
        state = self.place.state(self.key)
        return list(state.partitions) if state is not None else []

    def is_done(self) -> bool:
        found = self.checkpoints().list_checkpoints()
        ends = self.place.queue(self.key).refresh().next
        return all(found[p].offset == end if p in found else end == 0 for p, end in enumerate(ends))

    def in_order(self) -> bool:
        """Each key's messages came for the first time in the order in which they were published."""
        seen: dict[str, int] = {}
        for partition, offset, _ in self.handled:
            key, number = self.published[partition, offset]
            if number > seen.get(key, -1) + 1:
                return False
            seen[key] = max(number, seen.get(key, -1))
        return True


@pytest.fixture
def stage(tmp_path: Path, place: Place) -> Stage:
    return Stage(place, place.group(partitions=4), Partq(tmp_path / "store"))


@pytest.mark.conformance("RES-01", "RES-02", "RES-03", "RES-04")
def test_from_4_to_8_to_3_to_16_partitions_under_way(stage: Stage) -> None:
    place, key = stage.place, stage.key
    with place.sidecar(), ExitStack() as flows:
        for name in ("a", "b", "c"):
            flows.enter_context(stage.flow(name))
        wait_until(lambda: sum(place.shares(key).values()) == 4, "balance")
        for count in (8, 3, 16):
            for _ in range(3):
                stage.publish()
            stage.partq("queue", "alter", "orders", "--partitions", count)
            stage.publish()
        stage.publish()
        wait_until(stage.is_done, "acknowledgement of everything")
        assert {(partition, offset) for partition, offset, _ in stage.handled} == set(stage.published)
        assert stage.in_order()
        wait_until(lambda: sorted(place.shares(key).values()) == [5, 5, 6], "balance of sixteen")
        stage.partq("queue", "alter", "orders", "--partitions", 3)
        wait_until(lambda: sorted(place.shares(key).values()) == [1, 1, 1], "balance of three")
        wait_until(lambda: stage.known() == [0, 1, 2], "end of what was removed")
        before = stage.checkpoints().list_checkpoints()
        assert all(before[number].owner is None for number in range(3, 16))
        stage.partq("queue", "alter", "orders", "--partitions", 5)
        stage.publish()
        wait_until(stage.is_done, "acknowledgement after the numbers came back")
        assert all(stage.checkpoints().list_checkpoints()[number].epoch > before[number].epoch for number in (3, 4))
        assert stage.in_order()
        shown = json.loads(
            stage.partq("status", "orders", "--group", "billing", "--ownership", place.ownership, "--json").stdout
        )
        assert (shown["scale_status"], len(shown["partitions"])) == ("Ready", 5)


@pytest.mark.conformance("REB-08", "RES-06")
def test_the_access_type_changes_while_flows_consume(stage: Stage) -> None:
    place, key = stage.place, stage.key
    with place.sidecar(), ExitStack() as flows:
        for name in ("a", "b", "c"):
            flows.enter_context(stage.flow(name))
        wait_until(lambda: sorted(place.shares(key).values()) == [1, 1, 2], "balance")
        stage.partq("queue", "alter", "orders", "--rebalance-delay", 60)
        for access, shares in (("exclusive", [4]), ("non-exclusive", [1, 1, 2])):
            stage.publish()
            stage.partq("queue", "alter", "orders", "--access-type", access)
            took_s = wait_until(lambda: sorted(place.shares(key).values()) == shares, access)  # noqa: B023 - called here
            assert took_s < 10.0, "at once, and not after the rebalance delay"
        stage.publish()
        wait_until(stage.is_done, "acknowledgement of everything")
        assert stage.in_order()
