"""Real coordinators, flows and a Redis, and one checkpoint on the disk that is damaged (REB-15, HAN-04)."""

from __future__ import annotations

from pathlib import Path

import pytest

from partq_spark.group.model import GroupKey, Phase, RebalanceStatus
from tests.coordinator.sidecars import Place, Sidecar, living
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]


def healthy(place: Place, key: GroupKey, damaged: int) -> dict[str, int]:
    """Who has how many of the other partitions."""
    state = place.state(key)
    shares: dict[str, int] = {}
    for number, partition in state.partitions.items() if state is not None else ():
        if number != damaged and partition.phase is Phase.OWNED and partition.owner is not None:
            shares[partition.owner.flow] = shares.get(partition.owner.flow, 0) + 1
    return shares


def is_ready(place: Place, key: GroupKey) -> bool:
    state = place.state(key)
    return state is not None and state.status is RebalanceStatus.READY


@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("HAN-04")
def test_a_damaged_checkpoint_keeps_its_own_partition_alone(place: Place) -> None:
    key = place.group(partitions=4)
    with place.sidecar("c1") as first:
        a = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(a))
        blob = Path(place.folder, "store", place.checkpoints(key).name_of(3))
        good = blob.read_bytes()
        blob.write_bytes(b"not what it was")
        a.unbind()  # it is a's no more, and nobody else's either
        b = place.flow(key, "b")
        wait_until(lambda: healthy(place, key, 3) == {"b": 3}, "what a healthy partition needs", also=living(b))
        wait_until(lambda: is_ready(place, key), "end of the rebalance", also=living(b))
        (told,) = first.lines("partition_stuck")
        assert (told["partition"], told["level"]) == (3, "error")
        assert "restore" in told["reason"]
        code, facts = first.health()
        assert code == 200
        assert "partition 3" in facts["problem"]
        first.kill()
    with place.sidecar("c2") as second:
        c = place.flow(key, "c")
        wait_until(lambda: set(healthy(place, key, 3)) == {"b", "c"}, "share for c", also=living(b, c), wait_s=45)
        wait_until(lambda: is_ready(place, key), "end of the rebalance", also=living(b, c))
        is_told(second)
        blob.write_bytes(good)
        wait_until(lambda: sum(place.shares(key).values()) == 4, "healing", also=living(b, c))
        wait_until(lambda: second.health()[1].get("problem") == "", "silence", also=living(b, c))
        assert second.end()[0] == 0


def is_told(sidecar: Sidecar) -> None:
    """A leader that adopted the group says which one it cannot read."""
    assert [line["partition"] for line in sidecar.lines("checkpoint_damaged")] == [3]
