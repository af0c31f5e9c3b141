"""A real coordinator whose Redis reads but does not write, or cannot be used at all: what it says, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.coordinator.sidecars import Place, Sidecar, living
from tests.group.ownership.redis_servers import SpecialRedis, command
from tests.support.servers import RedisServer, free_port, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]

Order = Callable[[], tuple[str, ...]]


TROUBLES = pytest.mark.parametrize(
    ("spoil", "heal", "words"),
    [
        pytest.param(
            lambda: ("REPLICAOF", "127.0.0.1", str(free_port())),
            lambda: ("REPLICAOF", "NO", "ONE"),
            "this Redis is a read-only replica: wait for the failover to end",
            id="replica",
        ),
        pytest.param(
            lambda: ("CONFIG", "SET", "maxmemory", "1"),
            lambda: ("CONFIG", "SET", "maxmemory", "0"),
            "maxmemory reached, Redis takes no more writes: raise maxmemory or free memory",
            id="maxmemory",
        ),
    ],
)


def is_out_of_order(sidecar: Sidecar, words: str) -> bool:
    """Not ready, and it says why."""
    code, facts = sidecar.health()
    return code == 503 and words in facts["problem"]


def told(sidecar: Sidecar, words: str) -> list[str]:
    """The errors that say so."""
    return [line["reason"] for line in sidecar.lines("group_failed") if words in line["reason"]]


@TROUBLES
def test_a_redis_that_takes_no_writes_at_the_start_is_waited_for(
    place: Place, redis: RedisServer, spoil: Order, heal: Order, words: str
) -> None:
    key = place.group()
    command(redis, *spoil())
    with place.sidecar(PARTQ_COORDINATOR_RETRY_MOST_S="0.3") as sidecar:
        wait_until(lambda: is_out_of_order(sidecar, words), "trouble")
        assert sidecar.health("/healthz")[0] == 200
        command(redis, *heal())
        wait_until(sidecar.is_ready, "readiness")
        assert len(told(sidecar, words)) == 1, "once, however often it was tried"
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(flow))
        assert sidecar.end()[0] == 0


@TROUBLES
def test_a_leader_whose_redis_takes_no_more_writes_heals_with_it(
    place: Place, redis: RedisServer, spoil: Order, heal: Order, words: str
) -> None:
    key = place.group()
    with place.sidecar(PARTQ_COORDINATOR_RETRY_MOST_S="0.3") as sidecar:
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(flow))
        command(redis, *spoil())
        wait_until(lambda: is_out_of_order(sidecar, words), "trouble")
        wait_until(lambda: len(told(sidecar, words)) == 1, "line")
        command(redis, *heal())
        wait_until(sidecar.is_ready, "readiness", also=living(flow))
        wait_until(lambda: place.shares(key) == {"a": 4}, "the same shares", also=living(flow))
        command(redis, *spoil())
        wait_until(lambda: is_out_of_order(sidecar, words), "trouble again")
        code, took_s = sidecar.end()
    assert code == 0
    assert took_s < 2.0
    assert "Traceback" not in sidecar.text()


def test_a_replica_is_ready_while_there_is_nothing_to_write(place: Place, redis: RedisServer) -> None:
    command(redis, "REPLICAOF", "127.0.0.1", str(free_port()))
    with place.sidecar(PARTQ_COORDINATOR_RETRY_MOST_S="0.3", PARTQ_COORDINATOR_HEADS_S="0.1") as sidecar:
        wait_until(sidecar.is_ready, "readiness")
        place.group()
        wait_until(lambda: is_out_of_order(sidecar, "read-only replica"), "trouble")
        assert sidecar.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "database", "words"),
    [
        (("--databases", "1"), 5, "there is no such database"),
        (("--user", "default", "on", "nopass", "~*", "&*", "+@all", "-info"), 0, "the user may not do this"),
    ],
    ids=["database", "rights"],
)
def test_a_redis_that_can_never_be_used_ends_it_at_the_start(
    tmp_path: Path, arguments: tuple[str, ...], database: int, words: str
) -> None:
    with running(SpecialRedis(*arguments)) as redis:
        place = Place(tmp_path, f"redis://127.0.0.1:{redis.port}/{database}")
        with place.sidecar() as sidecar:
            assert sidecar.wait() == 2, sidecar.text()
        (line,) = [line for line in sidecar.text().splitlines() if not line.startswith("{")]
    assert line.startswith("coordinator: ")
    assert words in line
