"""`partq checkpoints rewind` while plain Python flows consume: a real coordinator, a real Redis, nobody stopped."""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Claim
from partq_spark.group.model import GroupKey
from tests.cli.conftest import Partq
from tests.coordinator.sidecars import Place, consuming
from tests.group.session.world import batch_of
from tests.support.flow_loop import Batch
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]

SELDOM = {"PARTQ_COORDINATOR_HEADS_S": "60"}


@dataclass(slots=True)
class Consumer:
    """A flow in a thread, with what it handled: partition, offset, marked."""

    place: Place
    key: GroupKey
    handled: list[tuple[int, int, bool]] = field(default_factory=list)

    def _read(self, claim: Claim) -> Batch[int] | None:
        end = self.place.queue(self.key).refresh().next[claim.partition]
        return batch_of(claim, end) if end > claim.position else None

    def _handle(self, batch: Batch[int]) -> None:
        self.handled += [(batch.partition, offset, offset < batch.redelivered_below) for offset in batch.messages]

    def running(self, name: str) -> AbstractContextManager[None]:
        return consuming(self.place.session(self.key, name), self._read, self._handle)

    def checkpoints(self) -> CheckpointStore:
        return self.place.checkpoints(self.key)

    def offsets(self) -> list[int | None]:
        return [each.offset for each in self.checkpoints().list_checkpoints().values()]


@pytest.mark.conformance("CHK-04")
@pytest.mark.parametrize("told", [True, False], ids=["told", "looks"])
def test_idle_flows_get_rewound_partitions_again(tmp_path: Path, redis: RedisServer, told: bool) -> None:
    """Told by the ownership store at once; else as soon as the coordinator looks at the head."""
    place = Place(tmp_path, redis.url)
    partq = Partq(tmp_path / "store")
    key = place.group(partitions=2)
    partq("publish", "orders", stdin="\n".join(json.dumps({"key": f"k{n}", "value": "x"}) for n in range(40)))
    ends = list(place.queue(key).refresh().next)
    consumer = Consumer(place, key)
    with place.sidecar(**SELDOM if told else {}) as sidecar, consumer.running("a"), consumer.running("b"):
        wait_until(lambda: consumer.offsets() == ends, "acknowledgement of everything")
        wait_until(lambda: place.shares(key) == {"a": 1, "b": 1}, "balance")
        before = {number: each.owner for number, each in consumer.checkpoints().list_checkpoints().items()}
        first = list(consumer.handled)
        assert sorted(first) == [(p, offset, False) for p in (0, 1) for offset in range(ends[p])]
        for partition in (1, 0):  # one right after the other
            begun_s = time.monotonic()
            words = ["checkpoints", "rewind", "orders", "--group", "billing", "--to", 3, "--partition", partition]
            partq(*words, "--yes", "--ownership", place.ownership if told else "none")
            again = [(partition, offset, True) for offset in range(3, ends[partition])]
            wait_until(lambda: consumer.handled[-len(again) :] == again, "second delivery")  # noqa: B023 - called here
            assert time.monotonic() - begun_s < 5, "at once, or within the coordinator's look at the heads"
        wait_until(lambda: consumer.offsets() == ends, "acknowledgement of what came again")
        assert len(consumer.handled) == len(first) + sum(ends) - 6
        after = {number: each.owner for number, each in consumer.checkpoints().list_checkpoints().items()}
        assert after == before, "the same flows, none of which had to bind again"
        assert len(sidecar.lines("checkpoint_ahead")) == 2
        assert not sidecar.lines("flow_unbound")
