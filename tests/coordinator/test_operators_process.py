"""What people do, and what happens to a store, while applications consume: real coordinators, a real Redis, nobody
stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import pytest
from redis import Redis

import partq
from tests.cast.sidecars import Place, checkpoints
from tests.support.servers import RedisServer, running
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.redis, pytest.mark.crash]

KEYS: Final = [f"key-{number}" for number in range(40)]


class Stage:
    """A queue with a coordinator, its applications, what was published, and what was handled in which order."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.queue = place.group(partitions=4)
        self.published: dict[tuple[int, int], tuple[str, int]] = {}  # by place: key, how-manieth of it
        self.rounds = 0
        self.handled: list[partq.Message] = []

    def publish(self) -> None:
        """One message for each key."""
        with self.queue.publisher() as publisher:
            sent = {key: publisher.send("x", key=key) for key in KEYS}
        for key, future in sent.items():
            done = future.result()
            assert done.partition is not None
            assert done.offset is not None
            self.published[done.partition, done.offset] = (key, self.rounds)
        self.rounds += 1

    def handle(self, batch: partq.Batch) -> None:
        """Of all applications."""
        self.handled.extend(batch)

    def until_done(self) -> None:
        """All is acknowledged; each key's messages came for the first time in their order, whoever got them."""
        self.place.until_acknowledged(self.queue)
        seen: dict[str, int] = {}
        for message in self.handled:
            key, number = self.published[message.partition, message.offset]
            assert number <= seen.get(key, -1) + 1, f"{key}: {number} after {seen.get(key)}"
            seen[key] = max(number, seen.get(key, -1))
        assert set(seen.values()) == {self.rounds - 1}


@pytest.fixture
def stage(place: Place) -> Iterator[Stage]:
    made = Stage(place)
    with place.sidecar(), ExitStack() as stack:
        for name in ("a", "b", "c"):
            stack.enter_context(place.application(made.queue, name, max_messages=20, work=made.handle))
        wait_until(lambda: sorted(place.shares(made.queue).values()) == [1, 1, 2], "balance")
        yield made


@pytest.mark.conformance("RES-01", "RES-02", "RES-03", "RES-04")
def test_from_4_to_8_to_3_to_16_partitions_under_way(stage: Stage) -> None:
    place, queue = stage.place, stage.queue
    for count in (8, 3, 16):
        for _ in range(3):
            stage.publish()
        queue.alter(partitions=count, ownership=place.ownership)
        stage.publish()
    stage.publish()
    stage.until_done()
    wait_until(lambda: sorted(place.shares(queue).values()) == [5, 5, 6], "balance of sixteen")
    queue.alter(partitions=3, ownership=place.ownership)
    wait_until(lambda: sorted(place.shares(queue).values()) == [1, 1, 1], "balance of three")
    wait_until(lambda: len(place.status(queue).partitions) == 3, "end of what was removed")
    before = place.epochs(queue)
    queue.alter(partitions=5, ownership=place.ownership)
    stage.publish()
    stage.until_done()
    assert all(place.epochs(queue)[number][1] > before[number][1] for number in (3, 4) if number in before)
    view = place.status(queue)
    assert (view.scale_status, len(view.partitions)) == ("Ready", 5)


@pytest.mark.conformance("REB-08", "RES-06")
def test_the_access_type_changes_while_flows_consume(stage: Stage) -> None:
    place, queue = stage.place, stage.queue
    queue.alter(rebalance_delay_s=3600.0)  # nobody waits for it
    accesses: list[tuple[Literal["exclusive", "non-exclusive"], list[int]]] = [
        ("exclusive", [4]),
        ("non-exclusive", [1, 1, 2]),
    ]
    for access, shares in accesses:
        stage.publish()
        queue.alter(access_type=access, ownership=place.ownership)
        wait_until(lambda: sorted(place.shares(queue).values()) == shares, access)  # noqa: B023 - called here
    stage.publish()
    stage.until_done()


@pytest.mark.conformance("CHK-04")
def test_idle_flows_get_rewound_partitions_again(stage: Stage) -> None:
    """None of them has to bind again. Where nobody is told, here by another database, it looks by itself."""
    place, queue = stage.place, stage.queue
    stage.publish()
    stage.until_done()
    before = {number: flow for number, (flow, _) in place.epochs(queue).items()}
    for ownership in (place.ownership, place.ownership.removesuffix("/0") + "/1"):
        handled = len(stage.handled)
        ends = {each.partition: each.end for each in checkpoints(queue)}
        queue.rewind("billing", to=3, partitions=(0, 1), ownership=ownership)
        again = [(partition, offset, True) for partition in (0, 1) for offset in range(3, ends[partition])]
        wait_until(lambda: len(stage.handled) == handled + len(again), "second delivery")  # noqa: B023 - called here
        assert sorted((m.partition, m.offset, m.redelivered) for m in stage.handled[handled:]) == again
        stage.until_done()
    assert {number: flow for number, (flow, _) in place.epochs(queue).items()} == before


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
