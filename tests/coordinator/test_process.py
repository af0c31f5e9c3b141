"""The sidecar as a real process with a real Redis: its beginning, work and end, and what it says when it cannot."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from partq_spark.group.documents.identity import store_id
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.log import admin
from tests.coordinator.sidecars import WAIT_S, Place, Sidecar, living
from tests.group.ownership.redis_servers import command
from tests.support.servers import Azurite, RedisServer, free_port, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]


class GuardedRedis(RedisServer):
    """One that asks for a password."""

    def command(self) -> list[str]:
        return [*super().command(), "--requirepass", "open sesame"]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(7) == b"-NOAUTH"


# --- its work ---------------------------------------------------------------------------------------------------------


def test_it_shares_partitions_and_ends_in_good_order(place: Place) -> None:
    key = place.group()
    with place.sidecar() as sidecar:
        a, b = place.flow(key, "a"), place.flow(key, "b")
        wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "balance", also=living(a, b))
        wait_until(lambda: {len(each.observe().deliverable) for each in (a, b)} == {2}, "claims")
        assert sidecar.health("/healthz")[0] == 200
        wait_until(sidecar.is_ready, "readiness")
        assert sidecar.leads == 1
        code, took_s = sidecar.end()
        assert code == 0
        assert took_s < 2.0
    assert open_ownership(place.ownership, store=place.store).read_lease(key) is None, "the lease was given up"
    reasons = [line["reason"] for line in sidecar.lines("assign")]
    assert len(reasons) >= 4
    assert all(reasons)


def test_a_group_that_is_new_is_found_at_once_when_a_flow_binds(place: Place) -> None:
    with place.sidecar(PARTQ_COORDINATOR_HEADS_S="60") as sidecar:
        wait_until(sidecar.is_ready, "readiness")
        key = place.group()
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", wait_s=5, also=living(flow))


def test_a_store_without_a_queue_is_told_of_for_its_address_may_be_mistyped(tmp_path: Path) -> None:
    place = Place(tmp_path, "store")
    with place.sidecar() as sidecar:
        wait_until(lambda: sidecar.is_ready() and sidecar.health()[1]["problem"] != "", "a problem")
        (told,) = sidecar.lines("no_queue")
        assert told["level"] == "warning"
        assert told["reason"] == sidecar.health()[1]["problem"]
        assert told["reason"].startswith(f"store {place.url} has no queue in namespace 'default': ")
        place.group()
        wait_until(lambda: sidecar.health()[1]["problem"] == "", "peace")
        assert sidecar.is_ready()


def test_metrics_that_nobody_can_have_are_told_of(tmp_path: Path) -> None:
    """Else the alert that no coordinator is seen would be the only word."""
    place = Place(tmp_path, "store")
    everywhere = {"PARTQ_COORDINATOR_HEALTH_HOST": "0.0.0.0"}  # noqa: S104 - as in a container
    with (
        place.sidecar("c1", **everywhere) as closed,
        place.sidecar("c2", PARTQ_UI_TOKEN="t" * 32, **everywhere) as open_,
    ):
        wait_until(lambda: closed.is_ready() and open_.is_ready(), "two coordinators")
        (told,) = closed.lines("metrics_closed")
        assert told["reason"] == "other machines reach 0.0.0.0: set PARTQ_UI_TOKEN to have metrics and the page"
        assert not open_.lines("metrics_closed")


def test_ownership_may_be_kept_beside_the_queue(tmp_path: Path) -> None:
    place = Place(tmp_path, "store")
    key = place.group()
    with place.sidecar() as sidecar:
        a, b = place.flow(key, "a"), place.flow(key, "b")
        wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "balance", also=living(a, b))
        assert sidecar.end()[0] == 0


@pytest.mark.azurite
def test_it_works_with_nothing_but_a_container(
    tmp_path: Path, azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    place = Place(tmp_path, "store", azurite.fresh_url())
    key = place.group()
    with place.sidecar(AZURE_STORAGE_CONNECTION_STRING=azurite.connection_string) as sidecar:
        a, b = place.flow(key, "a"), place.flow(key, "b")
        wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "balance", also=living(a, b))
        assert sidecar.end()[0] == 0
    assert azurite.key not in sidecar.text()


def test_signals_reach_it_through_the_command_line(place: Place) -> None:
    key = place.group()
    command = (sys.executable, "-m", "partq_spark.cli.main", "coordinator", "run", "--json")
    with Sidecar(place.folder, "c1", place.environ(), command) as sidecar:
        wait_until(sidecar.is_ready, "readiness")
        wait_until(lambda: sidecar.leads == 1, "leader")
        assert sidecar.process is not None
        os.kill(sidecar.process.pid, signal.SIGINT)
        assert sidecar.wait() == 0
    assert open_ownership(place.ownership, store=place.store).read_lease(key) is None


def test_a_queue_that_is_deleted_and_made_again_begins_anew(place: Place) -> None:
    key = place.group()
    with place.sidecar() as sidecar:
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(flow))
        flow.unbind()
        admin.delete_queue(place.queue(key))
        wait_until(lambda: place.state(key) is None, "end of the group")
        wait_until(lambda: bool(sidecar.lines("group_dropped")), "its last line")
        place.group()
        again = place.flow(key, "b")
        wait_until(lambda: place.shares(key) == {"b": 4}, "assignment", also=living(again))
        assert sidecar.end()[0] == 0


def test_a_group_that_fails_leaves_the_others_alone(place: Place, redis: RedisServer) -> None:
    good, bad = place.group("good"), place.group("bad")
    damaged = f"partq:{{{store_id(place.store)}/{bad}}}:beats"
    command(redis, "HSET", damaged, "of-nobody", "nonsense", "of-nobody version", "0123 1")
    with place.sidecar(PARTQ_COORDINATOR_RETRY_MOST_S="0.5") as sidecar:
        flow, hapless = place.flow(good, "a"), place.flow(bad, "b")
        wait_until(lambda: place.shares(good) == {"a": 4}, "assignment", also=living(flow, hapless))
        wait_until(lambda: bool(sidecar.lines("group_failed")), "failure of the other", also=living(flow, hapless))
        (line,) = sidecar.lines("group_failed")
        assert line["group"] == str(bad)
        assert damaged in line["reason"]
        code, facts = sidecar.health()
        assert (code, facts["failing"], facts["groups"]) == (200, 1, 2)
        command(redis, "HDEL", damaged, "of-nobody")
        wait_until(lambda: bool(sidecar.lines("group_recovered")), "recovery", also=living(flow, hapless))
        assert len(sidecar.lines("group_failed")) == 1, "once, however often it was tried"


def epochs(place: Place, key: GroupKey) -> dict[int, tuple[str | None, int]]:
    """Who has what by the checkpoints."""
    found = place.checkpoints(key).list_checkpoints()
    return {number: (each.owner.flow if each.owner else None, each.epoch) for number, each in found.items()}


# --- leaders and stores that go away ----------------------------------------------------------------------------------


def test_when_the_leader_is_killed_another_one_goes_on(place: Place) -> None:
    key = place.group(delay_s=1.0)
    with place.sidecar("c1") as first, place.sidecar("c2") as second:
        a = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(a))
        leader, other = (first, second) if first.leads else (second, first)
        b = place.flow(key, "b")
        leader.kill()
        took_s = wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "balance", also=living(a, b))
        assert took_s < 5.0 + 3.0 + 1.0, "the lease's time-out, the rebalance delay and a little"
        assert other.lines("lease_taken")[-1]["reason"] == f"{leader.name} was silent"
        leader.start()
        wait_until(leader.is_ready, "readiness", also=living(a, b))
        assert other.end()[0] == 0
        wait_until(lambda: leader.leads == 1, "leader again", wait_s=3, also=living(a, b))


@pytest.mark.conformance("OWN-03")
def test_a_redis_that_comes_back_empty_costs_nobody_his_partitions(place: Place, redis: RedisServer) -> None:
    key = place.group(delay_s=1.0)
    with place.sidecar() as sidecar:
        a, b = place.flow(key, "a"), place.flow(key, "b")
        wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "balance", also=living(a, b))
        wait_until(lambda: {len(each.observe().deliverable) for each in (a, b)} == {2}, "claims")
        before = epochs(place, key)
        redis.kill()
        wait_until(lambda: not sidecar.is_ready(), "notice")
        redis.start()
        took_s = wait_until(lambda: place.shares(key) == {"a": 2, "b": 2}, "the same shares", also=living(a, b))
        assert took_s < 5.0, "nobody's time ran out"
        assert epochs(place, key) == before, "the same flows at the same epochs"
        wait_until(sidecar.is_ready, "readiness", also=living(a, b))


def test_a_redis_that_is_not_there_yet_is_waited_for(place: Place, redis: RedisServer) -> None:
    key = place.group()
    redis.kill()
    with place.sidecar(PARTQ_COORDINATOR_RETRY_MOST_S="0.3") as sidecar:
        wait_until(lambda: sidecar.health()[0] == 503, "health")
        assert sidecar.health("/healthz")[0] == 200
        wait_until(lambda: "cannot be reached" in str(sidecar.health()[1].get("problem")), "reason")
        wait_until(lambda: bool(sidecar.lines("ownership_unavailable")), "line")
        assert len(sidecar.lines("ownership_unavailable")) == 1, "once, however often it was tried"
        redis.start()
        wait_until(sidecar.is_ready, "readiness")
        flow = place.flow(key, "a")
        wait_until(lambda: place.shares(key) == {"a": 4}, "assignment", also=living(flow))


def test_it_ends_in_time_while_it_waits_for_its_first_answer(place: Place, redis: RedisServer) -> None:
    redis.freeze()
    try:
        with place.sidecar() as sidecar:
            wait_until(lambda: bool(sidecar.lines("started")), "start")
            code, took_s = sidecar.end()
    finally:
        redis.thaw()
    assert code == 0
    assert took_s < 2.0


def test_it_ends_in_time_while_redis_does_not_answer(place: Place, redis: RedisServer) -> None:
    place.group()
    with place.sidecar() as sidecar:
        wait_until(lambda: sidecar.leads == 1, "leader")
        redis.freeze()
        try:
            code, took_s = sidecar.end()
        finally:
            redis.thaw()
        assert code == 0
        assert took_s < 2.0


# --- what it refuses --------------------------------------------------------------------------------------------------


def refused(place: Place, **environ: str) -> str:
    """The one line of a sidecar that ends with exit code 2."""
    with place.sidecar(f"refused-{len(list(place.folder.iterdir()))}", **environ) as sidecar:
        assert sidecar.wait() == 2, sidecar.text()
        (line,) = [line for line in sidecar.text().splitlines() if not line.startswith("{")]
        assert line.startswith("coordinator: ")
        return line


def test_a_wrong_password_is_final_at_the_start_and_not_shown(tmp_path: Path) -> None:
    with running(GuardedRedis()) as redis:
        place = Place(tmp_path, redis.url)
        place.group()
        line = refused(place, PARTQ_REDIS_PASSWORD="hunter2")
        assert "PARTQ_REDIS_PASSWORD" in line
        assert "hunter2" not in line
        assert "PARTQ_REDIS_PASSWORD" in refused(place)
        with place.sidecar(PARTQ_REDIS_PASSWORD="open sesame") as sidecar:
            wait_until(lambda: sidecar.leads == 1, "leader")
            assert sidecar.end()[0] == 0
        assert "sesame" not in sidecar.text()


def test_a_health_port_that_is_taken_is_named(place: Place) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        line = refused(place, PARTQ_COORDINATOR_HEALTH_PORT=str(port))
    assert f"health.port = {port} on 127.0.0.1 cannot be used" in line
    assert "Address already in use" in line


def test_without_a_health_port_nothing_listens(place: Place) -> None:
    with place.sidecar(PARTQ_COORDINATOR_HEALTH_PORT="0") as sidecar:
        wait_until(lambda: bool(sidecar.lines("started")), "start")
        assert "health_port" not in sidecar.lines("started")[0]
        assert sidecar.end()[0] == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[leader]\nrenewal = 1\n", "key leader.renewal is not known: did you mean leader.renewal_s?"),
        ("[leader]\nrenewal_s = '1'\n", "leader.renewal_s = '1' is not allowed: give seconds from 0.05 to 60"),
        (
            "[leader]\nlease_timeout_s = 0.5\n",
            "leader.lease_timeout_s = 0.5 contradicts leader.renewal_s (default) = 1",
        ),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_it_with_one_line(place: Place, text: str, words: str) -> None:
    config = place.folder / "bad.toml"
    config.write_text(text)
    command = [sys.executable, "-m", "partq_spark.cli.main", "coordinator", "run", "--config", str(config)]
    environ = {"PATH": os.environ["PATH"], "HOME": str(place.folder), **place.environ()}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"coordinator: {config}: {words}")


def test_an_address_of_something_else_is_named(place: Place) -> None:
    with socket.socket() as listener:  # answers nothing at all, which may pass
        listener.bind(("127.0.0.1", free_port()))
        port = listener.getsockname()[1]
        with place.sidecar(PARTQ_OWNERSHIP=f"redis://127.0.0.1:{port}/0") as sidecar:
            wait_until(lambda: bool(sidecar.lines("ownership_unavailable")), "notice")
            code, took_s = sidecar.end()
            assert (code, took_s < 2.0) == (0, True)
    assert "redis://me@host" not in refused(place, PARTQ_OWNERSHIP="redis://me@host:1/0")
