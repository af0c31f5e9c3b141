"""What happens to a store while applications consume: real coordinators, a real Redis, nobody stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis

import partq
from tests.cast.sidecars import Place, checkpoints
from tests.support.servers import RedisServer, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]


@pytest.mark.conformance("REB-15", "HAN-04")
def test_a_damaged_checkpoint_keeps_its_own_partition_alone(place: Place) -> None:
    queue = place.group()
    with place.sidecar("c1") as first:
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
            first.kill()
            with place.sidecar("c2") as second, place.application(queue, "c"):
                wait_until(lambda: set(place.shares(queue)) == {"b", "c"}, "share for c")
                assert [line["partition"] for line in second.lines("checkpoint_damaged")] == [3]
                blob.write_bytes(good)
                wait_until(lambda: sum(place.shares(queue).values()) == 4, "healing")
                wait_until(lambda: second.problem == "", "silence")
                assert second.end() == 0


@pytest.fixture
def fail_over(redis: RedisServer) -> Iterator[Callable[[str], None]]:
    """The Redis that everybody uses, and a replica: `over` promotes that, `back` makes the first one have all that the
    former replica has, and be the master again. No connection breaks.
    """
    with running(RedisServer()) as replica, Redis(port=redis.port) as one, Redis(port=replica.port) as other:

        def follow(server: Redis, of: Redis, port: int) -> None:
            server.config_set("repl-diskless-sync-delay", 0)
            of.config_set("repl-diskless-sync-delay", 0)
            server.replicaof("127.0.0.1", str(port))
            synced(server, of)

        def synced(server: Redis, of: Redis) -> None:
            def is_there() -> bool:
                said = server.info("replication")
                there = of.info("replication")["master_repl_offset"]
                return bool(said.get("master_link_status") == "up" and said.get("slave_repl_offset") == there)

            wait_until(is_there, "replica that has everything")

        def fail(where: str) -> None:
            if where == "over":
                synced(other, one)
                other.replicaof("NO", "ONE")
            else:
                follow(one, other, replica.port)
                one.replicaof("NO", "ONE")

        follow(other, one, redis.port)
        yield fail


@pytest.mark.conformance("OWN-04")
def test_what_a_lost_report_said_comes_again_marked(place: Place, fail_over: Callable[[str], None]) -> None:
    """A Redis that failed over and back at once: nobody called in between, no connection broke, a report is gone."""
    queue = place.group(partitions=2)
    given, go_on = threading.Event(), threading.Event()

    def hold(_batch: partq.Batch) -> None:
        given.set()
        go_on.wait(60)

    with place.sidecar() as sidecar, ExitStack() as stack:
        stack.callback(go_on.set)
        first = stack.enter_context(place.application(queue, "a", work=hold))
        place.until_shared(queue, a=2)
        fail_over("over")
        with queue.publisher() as publisher:
            for number in range(30):
                publisher.send(str(number), key=str(number))
        assert given.wait(60)
        fail_over("back")  # all of it is in hand, and the report of that is gone
        other = stack.enter_context(place.application(queue, "b"))
        wait_until(lambda: bool(other.given), "handoff")
        moved = other.given[0].partition
        (mark,) = (each for each in checkpoints(queue) if each.partition == moved)
        assert {each.partition for each in first.given} == {0, 1}
        assert mark.redelivered_below >= mark.end > 0
        assert all(each.redelivered for each in other.given)
        go_on.set()
        first.stop()
        assert sidecar.end() == 0
