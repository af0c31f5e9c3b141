"""The sidecar as a real process with a real Redis: its beginning, work and end, and what it says when it cannot."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import partq
from tests.cast.sidecars import Place, Sidecar
from tests.group.ownership.redis_servers import SpecialRedis, command
from tests.support.waiting import wait_until
from tools.servers import Azurite, RedisServer, free_port, running

pytestmark = [pytest.mark.redis, pytest.mark.crash]

RETRY = {"PARTQ_COORDINATOR_RETRY_MOST_S": "0.3"}


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A server of one's own, to kill, flush and spoil."""
    with running(RedisServer()) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path, redis: RedisServer) -> Place:
    """Stores of one's own: the queues in a folder, ownership in that Redis."""
    return Place(tmp_path, redis.url)


# --- its work ---------------------------------------------------------------------------------------------------------


@pytest.mark.azurite
@pytest.mark.parametrize("kept", ["redis", "beside the queue", "in a container"])
def test_it_shares_and_ends_well(place: Place, azurite: Azurite, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    environ = {}
    if kept != "redis":
        url = azurite.fresh_url() if kept == "in a container" else None
        place = Place(place.folder, "store", url)
        environ = {"AZURE_STORAGE_CONNECTION_STRING": azurite.connection_string}
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    queue = place.group()
    with place.sidecar(**environ) as sidecar:
        with place.application(queue, "a"), place.application(queue, "b"):
            place.until_shared(queue, a=2, b=2)
            assert sidecar.health("/healthz")[0] == 200
            wait_until(sidecar.is_ready, "readiness")
            assert (sidecar.leads, place.status(queue).coordinator.leader) == (1, "c1")
        assert sidecar.end() == 0
    assert place.status(queue).coordinator.leader is None, "the lease was given up"
    reasons = [line["reason"] for line in sidecar.lines("assign")]
    assert len(reasons) >= 4
    assert all(reasons)
    assert azurite.key not in sidecar.text()


def test_signals_reach_it_through_the_command_line(place: Place) -> None:
    """It finds a group that is new at once when a flow binds, however seldom it looks."""
    command = (sys.executable, "-m", "partq_spark.cli.main", "coordinator", "run", "--json")
    environ = place.environ(PARTQ_COORDINATOR_HEADS_S="60")
    with Sidecar(place.folder, "c1", environ, command) as sidecar:
        wait_until(sidecar.is_ready, "readiness")
        queue = place.group()
        with place.application(queue, "a"):
            place.until_shared(queue, a=4)
        assert sidecar.end(signal.SIGINT) == 0
    assert place.status(queue).coordinator.leader is None


def test_what_it_cannot_do_for_anybody_is_told(tmp_path: Path) -> None:
    """A store without a queue: its address may be mistyped. Metrics that nobody can have: else the alert that no
    coordinator is seen would be the only word.
    """
    place = Place(tmp_path, "store")
    with place.sidecar(PARTQ_COORDINATOR_HEALTH_HOST="0.0.0.0") as closed:  # noqa: S104 - as in a container
        wait_until(lambda: closed.is_ready() and closed.problem != "", "a problem")
        (told,) = closed.lines("no_queue")
        assert (told["level"], told["reason"]) == ("warning", closed.problem)
        assert closed.problem.startswith(f"store {place.url} has no queue in namespace 'default': ")
        place.group()
        wait_until(lambda: closed.problem == "", "peace")
        (told,) = closed.lines("metrics_closed")
        assert told["reason"] == "other machines reach 0.0.0.0: set PARTQ_UI_TOKEN to have metrics and the page"


@pytest.mark.conformance("REB-15", "HAN-04")
def test_a_damaged_checkpoint_keeps_its_own_partition_alone(place: Place) -> None:
    queue = place.group()
    with place.sidecar() as first:
        with place.application(queue, "a"):
            place.until_shared(queue, a=4)
            blob = Path(place.folder, "store/default/orders/billing/checkpoint/3")
            good = blob.read_bytes()
            blob.write_bytes(b"not what it was")
        # It is a's no more, and nobody else's either.
        with place.application(queue, "b"):
            wait_until(lambda: place.shares(queue).get("b") == 3, "what a healthy partition needs")
            wait_until(lambda: place.status(queue).rebalance_status is partq.RebalanceStatus.READY, "its end")
            (told,) = first.lines("partition_stuck")
            assert (told["partition"], told["level"]) == (3, "error")
            assert "restore" in told["reason"]
            code, facts = first.health()
            assert code == 200
            assert "partition 3" in facts["problem"]
            blob.write_bytes(good)
            wait_until(lambda: place.shares(queue) == {"b": 4}, "healing")
            wait_until(lambda: first.problem == "", "silence")


# --- stores that go away ----------------------------------------------------------------------------------------------


def test_a_redis_that_is_not_there_yet_is_waited_for(place: Place, redis: RedisServer) -> None:
    redis.kill()
    with place.sidecar(**RETRY) as sidecar:
        wait_until(lambda: sidecar.health()[0] == 503, "health")
        assert sidecar.health("/healthz")[0] == 200
        wait_until(lambda: "cannot be reached" in sidecar.problem, "reason")
        wait_until(lambda: bool(sidecar.lines("ownership_unavailable")), "line")
        assert len(sidecar.lines("ownership_unavailable")) == 1, "once, however often it was tried"
        redis.start()
        wait_until(sidecar.is_ready, "readiness")
        queue = place.group()
        with place.application(queue, "a"):
            place.until_shared(queue, a=4)


@pytest.mark.parametrize("leads", [False, True])
def test_it_ends_in_time_while_redis_does_not_answer(place: Place, redis: RedisServer, leads: bool) -> None:
    place.group()
    if not leads:
        redis.freeze()
    try:
        with place.sidecar() as sidecar:
            wait_until(lambda: sidecar.leads == 1 if leads else bool(sidecar.lines("started")), "start")
            if leads:
                redis.freeze()
            assert sidecar.end() == 0
    finally:
        redis.thaw()


def test_a_redis_that_takes_no_writes_is_waited_for(place: Place, redis: RedisServer) -> None:
    """At the start, while it leads, and when it ends. With nothing to write it is ready."""

    def spoil() -> None:
        command(redis, "REPLICAOF", "127.0.0.1", str(free_port()))

    def heal() -> None:
        command(redis, "REPLICAOF", "NO", "ONE")
        wait_until(sidecar.is_ready, "readiness")

    def is_out_of_order() -> bool:
        code, facts = sidecar.health()
        return code == 503 and "this Redis is a read-only replica" in facts["problem"]

    spoil()
    with place.sidecar(PARTQ_COORDINATOR_HEADS_S="0.1", **RETRY) as sidecar:
        wait_until(sidecar.is_ready, "readiness")
        queue = place.group()
        wait_until(is_out_of_order, "trouble")
        assert sidecar.health("/healthz")[0] == 200
        heal()
        with place.application(queue, "a"):
            place.until_shared(queue, a=4)
            spoil()
            wait_until(is_out_of_order, "trouble")
            heal()
            place.until_shared(queue, a=4)
        assert len(sidecar.lines("group_failed")) == 2, "once each time, however often it was tried"
        spoil()
        wait_until(is_out_of_order, "trouble once more")
        assert sidecar.end() == 0
    assert "Traceback" not in sidecar.text()


# --- what it refuses --------------------------------------------------------------------------------------------------


def refused(place: Place, **environ: str) -> str:
    """The one line of a sidecar that ends with exit code 2."""
    with place.sidecar(f"refused-{len(list(place.folder.iterdir()))}", **environ) as sidecar:
        assert sidecar.wait() == 2, sidecar.text()
        (line,) = [line for line in sidecar.text().splitlines() if not line.startswith("{")]
        assert line.startswith("coordinator: ")
        return line


def test_a_redis_that_can_never_be_used_ends_it_at_the_start(tmp_path: Path) -> None:
    with running(SpecialRedis("--requirepass", "open sesame")) as redis:
        place = Place(tmp_path, f"redis://127.0.0.1:{redis.port}/0")
        for given in ({}, {"PARTQ_REDIS_PASSWORD": "hunter2"}):
            line = refused(place, **given)
            assert "PARTQ_REDIS_PASSWORD" in line
            assert "hunter2" not in line
        with place.sidecar(PARTQ_REDIS_PASSWORD="open sesame", PARTQ_COORDINATOR_HEALTH_PORT="0") as sidecar:
            wait_until(lambda: bool(sidecar.lines("started")), "start")
            assert "health_port" not in sidecar.lines("started")[0], "nothing listens"
            assert sidecar.end() == 0
        assert "sesame" not in sidecar.text()
    assert "redis://me@host" not in refused(place, PARTQ_OWNERSHIP="redis://me@host:1/0")
