"""Two object stores whose queues, groups and flows have the same names, with one Redis; and one that was made anew."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

from partq_spark.group.model import GroupKey
from tests.coordinator.sidecars import Place, Sidecar, living
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]


def keeps_house(sidecar: Sidecar) -> bool:
    return sidecar.health()[1].get("housekeeper") is True


def has_all(place: Place, key: GroupKey) -> bool:
    return place.shares(key) == {"a": 2}


def test_each_store_has_its_coordinator_and_its_housekeeper(tmp_path: Path, redis: RedisServer) -> None:
    places = [Place(tmp_path / name, redis.url) for name in ("one", "other")]
    for place in places:
        place.folder.mkdir()
    one, other = places
    keys = [place.group(partitions=2) for place in places]
    assert keys[0] == keys[1]
    with one.sidecar("c1") as first, other.sidecar("c2") as second:
        for sidecar in (first, second):
            wait_until(partial(keeps_house, sidecar), "housekeeper")
        flows = [place.flow(keys[0], "a") for place in places]
        for place in places:
            wait_until(partial(has_all, place, keys[0]), "assignment", also=living(*flows))
        shutil.rmtree(one.folder / "store" / "default" / "orders")
        wait_until(lambda: bool(first.lines("group_dropped")), "end of the deleted group", also=living(flows[1]))
        assert other.shares(keys[0]) == {"a": 2}, "that was the other store's"
        assert second.health()[0] == 200


def test_a_store_that_was_removed_and_made_anew_is_coordinated_again(place: Place) -> None:
    with place.sidecar(PARTQ_COORDINATOR_HEADS_S="0.1") as sidecar:
        key = place.group(partitions=2)
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 2}, "assignment", also=living(flow))
        shutil.rmtree(place.folder / "store")
        anew = Place(place.folder, place.ownership)
        key = anew.group(partitions=2)
        second = anew.flow(key, "b")
        wait_until(lambda: anew.shares(key) == {"b": 2}, "assignment in the new store", also=living(second))
        assert sidecar.end()[0] == 0
