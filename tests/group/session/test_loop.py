"""A flow in plain Python, on every ownership store, with a real coordinator, threads and clocks."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from coordinator.heads import GroupFacts
from coordinator.leadership import StoreLife
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Claim
from partq_spark.group.heartbeat import Liveness, Sign
from partq_spark.group.model import GroupKey, GroupSettings
from partq_spark.group.ownership import Ownership, open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.objects import open_store
from tests.group.session.test_heartbeat import Told
from tests.group.session.world import batch_of
from tests.support.flow_loop import Batch, run_flow
from tests.support.ownership import OwnershipServer
from tests.support.servers import RedisServer, running
from tests.support.waiting import wait_until

QUEUE_ID = "q"
PARTITIONS = 4
MESSAGES = 150
SETTINGS = SessionSettings(session_timeout_s=5.0, beat_interval_s=0.1, checkpoint_interval_s=0.2)
WAIT_S = 60.0


@dataclass(slots=True)
class Place:
    """A group of a queue that is a list in memory, its stores, and a coordinator that runs in a thread."""

    store_url: str
    open: Callable[[GroupKey | None], Ownership]
    key: GroupKey = field(default_factory=lambda: GroupKey("default", "orders", "g" + secrets.token_hex(4)))
    handled: list[tuple[str, int, int, bool]] = field(default_factory=list)  # flow, partition, offset, marked
    published: int = MESSAGES  # of each partition
    settings: SessionSettings = SETTINGS

    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(open_store(self.store_url, retry_timeout_s=0), self.key, QUEUE_ID)

    def session(self, flow: str) -> Session:
        return Session(self.open(self.key), self.checkpoints(), self.key, QUEUE_ID, flow, self.settings)

    def coordinate(self, stop: threading.Event) -> None:
        store = self.open(None)
        checkpoints = self.checkpoints()
        runtime = GroupRuntime(
            self.key,
            store=store,
            life=StoreLife(store),
            checkpoints=lambda _: checkpoints,
            ends=lambda _: (self.published,) * PARTITIONS,
            settings=Settings(name="test"),
        )
        facts = GroupFacts(
            queue_id=QUEUE_ID,
            settings=GroupSettings(rebalance_delay_s=0.0),
            partitions=tuple(range(PARTITIONS)),
            starts=dict.fromkeys(range(PARTITIONS), 0),
        )
        while not stop.is_set():
            try:
                next_s = runtime.step(facts)
            except Unavailable:
                time.sleep(0.05)
            else:
                store.wait_news(min(next_s, 0.1))
        runtime.release()
        store.close()

    def poll(self, claim: Claim) -> Batch[int] | None:
        end = min(claim.position + 10, self.published)
        return batch_of(claim, end) if end > claim.position else None

    def consume(self, flow: str, stop: threading.Event, line: Liveness | None = None) -> None:
        def handle(batch: Batch[int]) -> None:
            for offset in batch.messages:
                self.handled.append((flow, batch.partition, offset, offset < batch.redelivered_below))
            time.sleep(0.005)

        line = line if line is not None else Liveness(parent=None, main_thread=threading.current_thread())
        session = self.session(flow)
        run_flow(session, self.poll, handle, keep_on=lambda: not stop.is_set(), idle_s=0.05, liveness=line)

    def owners(self) -> set[str | None]:
        found = self.checkpoints().list_checkpoints().values()
        return {each.owner.flow if each.owner is not None else None for each in found}

    def is_done(self) -> bool:
        return len({(partition, offset) for _, partition, offset, _ in self.handled}) == PARTITIONS * self.published

    def works(self, flow: str) -> bool:
        """Whether this flow has handled something; there is always something more to handle."""
        self.published += 1
        return any(name == flow for name, *_ in self.handled)


@pytest.fixture(params=["memory", "store", pytest.param("redis", marks=pytest.mark.redis)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    url = f"file://{tmp_path}/store"
    if request.param == "memory":
        server = OwnershipServer()
        made = Place(url, server.open)
    elif request.param == "store":
        made = Place(url, lambda group: open_ownership("store", store=open_store(url, retry_timeout_s=0), group=group))
    else:
        redis = request.getfixturevalue("redis_server")
        made = Place(url, lambda group: open_ownership(redis.url, store=open_store(url), group=group))
    stop = threading.Event()
    thread = threading.Thread(target=made.coordinate, args=(stop,), daemon=True)
    thread.start()
    yield made
    stop.set()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_flows_share_a_queue_and_everything_is_handled_in_order(place: Place) -> None:
    flows = {name: threading.Event() for name in "abc"}
    threads = {name: threading.Thread(target=place.consume, args=(name, stop)) for name, stop in flows.items()}
    for name, thread in threads.items():
        thread.start()
        wait_until(partial(place.works, name), "flow at work")
    flows["b"].set()
    threads["b"].join(WAIT_S)
    place.published += 20
    wait_until(place.is_done, "end of the queue")
    for name, stop in flows.items():
        stop.set()
        threads[name].join(WAIT_S)
        assert not threads[name].is_alive()

    assert len({flow for flow, *_ in place.handled}) == 3
    times = Counter((partition, offset) for _, partition, offset, _ in place.handled)
    marked = Counter((partition, offset) for _, partition, offset, mark in place.handled if mark)
    assert all(count - marked[message] <= 1 for message, count in times.items()), "a repetition is not marked"
    for partition in range(PARTITIONS):
        offsets = [offset for _, number, offset, _ in place.handled if number == partition]
        assert list(dict.fromkeys(offsets)) == list(range(place.published))
    ends = {p: found.offset for p, found in place.checkpoints().list_checkpoints().items()}
    assert ends == dict.fromkeys(range(PARTITIONS), place.published)


@pytest.mark.alone  # half a second of silence ends a session here
@pytest.mark.conformance("LOS-06", "LOS-07")
def test_a_flow_of_a_frozen_process_falls_silent_and_that_of_a_dead_one_ends(tmp_path: Path) -> None:
    """It does not come back as a new instance in its name either, when its session is over."""
    server = OwnershipServer()
    place = Place(f"file://{tmp_path}/store", server.open, settings=replace(SETTINGS, session_timeout_s=0.5))
    coordinated, stopped, line = threading.Event(), threading.Event(), Told()
    coordinator = threading.Thread(target=place.coordinate, args=(coordinated,), daemon=True)
    flow = threading.Thread(target=place.consume, args=("a", stopped, line), daemon=True)
    coordinator.start()
    flow.start()
    wait_until(partial(place.works, "a"), "flow at work")
    line.sign = Sign.FROZEN
    store = server.open(place.key)
    wait_until(lambda: place.owners() == {None}, "partitions without an owner")
    wait_until(lambda: store.read_flow(place.key, "a") is None, "word of the coordinator, which lets the flow go")
    handled = len(place.handled)
    place.published += 5
    time.sleep(1.0)
    assert place.owners() == {None}
    assert store.read_flow(place.key, "a") is None
    assert len(place.handled) == handled
    line.sign = Sign.ALIVE
    wait_until(lambda: len(place.handled) > handled, "messages of the flow that is back")
    line.sign = Sign.GONE
    flow.join(WAIT_S)
    assert not flow.is_alive()
    coordinated.set()
    coordinator.join(WAIT_S)


@pytest.mark.conformance("FLO-03")
def test_a_bind_is_answered_soon(place: Place, request: pytest.FixtureRequest) -> None:
    took_s = []
    for _ in range(5):
        session = place.session("a")
        begun_s = time.monotonic()
        binding = session.bind(wait_s=10)
        took_s.append(time.monotonic() - begun_s)
        assert binding.partitions == (0, 1, 2, 3)
        session.unbind()
    assert sorted(took_s)[2] < 2.0, f"{request.node.name}: {took_s}"


@pytest.mark.conformance("LOS-06")
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.parametrize("how", ["frozen", "empty"])
def test_a_redis_that_was_away_costs_time_and_nothing_else(tmp_path: Path, how: str) -> None:
    settings = SessionSettings(session_timeout_s=1.5, beat_interval_s=0.1, checkpoint_interval_s=0.2)
    url = f"file://{tmp_path}/store"
    with running(RedisServer()) as redis:
        place = Place(
            url, lambda group: open_ownership(redis.url, store=open_store(url), group=group), settings=settings
        )
        stop = threading.Event()
        threads = [threading.Thread(target=place.coordinate, args=(stop,))]
        threads += [threading.Thread(target=place.consume, args=(name, stop)) for name in "ab"]
        for thread in threads:
            thread.start()
        wait_until(lambda: place.works("a"), "flow at work")
        wait_until(lambda: place.works("b"), "second flow at work")
        if how == "frozen":
            redis.freeze()
            time.sleep(0.3)
            handled = len(place.handled)
            time.sleep(2 * settings.session_timeout_s)
            assert len(place.handled) <= handled + 10  # a batch that was under way
            redis.thaw()
        else:
            redis.kill()
            redis.start()
        place.published += 50
        wait_until(place.is_done, "end of the queue")
        stop.set()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
    times = Counter((partition, offset) for _, partition, offset, _ in place.handled)
    marked = Counter((partition, offset) for _, partition, offset, mark in place.handled if mark)
    assert all(count - marked[message] <= 1 for message, count in times.items()), "a repetition is not marked"


def test_what_handling_raises_ends_the_flow_in_good_order(place: Place) -> None:
    def handle(batch: Batch[int]) -> None:
        if batch.begin >= 20:
            raise ValueError("not this one")

    with pytest.raises(ValueError, match="not this one"):
        run_flow(place.session("a"), place.poll, handle, keep_on=lambda: True)
    offsets = {p: found.offset for p, found in place.checkpoints().list_checkpoints().items()}
    assert max(offset or 0 for offset in offsets.values()) == 20  # what was handled is acknowledged, no more
    again = place.session("b")
    again.bind(wait_s=10)
    wait_until(lambda: any(claim.redelivered_below == 30 for claim in again.observe().claims.values()), "marks")
    assert {claim.position for claim in again.observe().claims.values() if claim.redelivered_below == 30} == {20}


def test_a_flow_that_no_coordinator_answers_says_so(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    key = GroupKey("default", "orders", "forgotten")
    session = Session(place.open(key), place.checkpoints(), key, QUEUE_ID, "a", SETTINGS)
    turns = iter([True, False])
    with caplog.at_level("WARNING", "partq.flow"):
        run_flow(session, place.poll, lambda _: None, keep_on=lambda: next(turns), bind_wait_s=0.05, idle_s=0.01)
    assert "no coordinator has answered flow a of group default/orders/forgotten in 0.05 s" in caplog.text


def test_an_error_of_the_heartbeat_ends_the_loop(place: Place) -> None:
    session = place.session("a")
    session.beat = lambda: (_ for _ in ()).throw(ValueError("a mistake"))  # type: ignore[method-assign] # made to fail
    with pytest.raises(ValueError, match="a mistake"):
        run_flow(session, place.poll, lambda _: None, keep_on=lambda: True)
    assert not session.is_bound
