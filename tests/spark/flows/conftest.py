"""A queue with a group, a real Redis and a real coordinator process, for queries of the shared session; and how tests
look at all of them from outside: by `import partq`, and by what Spark writes down.
"""

from __future__ import annotations

import json
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import partq
from tests.cast.sidecars import Sidecar
from tests.support.spark import Consumer, Lab
from tests.support.waiting import WAIT_S, wait_until
from tools.processes import readers_among
from tools.servers import RedisServer

GROUP = "billing"
SESSION_S = 5


@dataclass(kw_only=True)
class Shared:
    """One queue, its group, and what can be seen of both from outside. Partition p's messages have the key `key(p)`."""

    lab: Lab
    ownership: str
    name: str
    partitions: int

    @property
    def queue(self) -> partq.Queue:
        return self.lab.queue(self.name)

    def stream(self, **options: str) -> DataFrame:
        """A stream of the group, shared by Redis, that begins at the beginning."""
        given = {"group": GROUP, "ownership": self.ownership, "startingOffsets": "earliest"}
        given |= {"sessionTimeout": f"{SESSION_S}s", "retryTimeout": "20s"}
        given |= options
        return self.lab.stream(self.name, **given)

    def start(self, name: str, trigger: str | None = None, **options: str) -> tuple[Consumer, StreamingQuery]:
        """A query with a Spark checkpoint of its own, past its first, empty batch."""
        consumer = self.lab.consumer(name)
        return consumer, self.restart(consumer, trigger, **options)

    def restart(self, consumer: Consumer, trigger: str | None = None, **options: str) -> StreamingQuery:
        query = consumer.start(self.stream(**options), trigger=trigger)
        wait_until(lambda: not query.isActive or (consumer.checkpoint / "commits" / "0").exists(), "first, empty batch")
        return query

    def key_of(self, partition: int) -> str:
        """By the formula that users are told (DIS-01)."""
        return next(f"k{n}" for n in range(10_000) if partition_of(f"k{n}", self.partitions) == partition)

    def publish(self, *values: tuple[int, bytes]) -> None:
        """Messages for given partitions, in one publish."""
        self.lab.publish(self.name, [(self.key_of(partition), value) for partition, value in values])

    def publish_all(self, value: bytes) -> None:
        """One message for each partition, in one publish."""
        self.publish(*((partition, value) for partition in range(self.partitions)))

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def status(self) -> partq.GroupView | None:
        """None before the group is there."""
        try:
            return self.queue.status(GROUP, ownership=self.ownership)
        except partq.Invalid:
            return None

    def statuses(self) -> dict[int, str]:
        view = self.status()
        return {each.partition: str(each.status) for each in view.partitions} if view is not None else {}

    def bound(self) -> set[str]:
        view = self.status()
        return {each.flow for each in view.flows if each.bound} if view is not None else set()

    def assigned(self) -> set[str]:
        """The flows that partitions are kept for, also those that may come back within the delay."""
        view = self.status()
        return {each.flow for each in view.partitions if each.flow} if view is not None else set()

    def checkpoints(self) -> Mapping[int, partq.PartitionCheckpoint]:
        """Those that are there."""
        try:
            found = self.queue.checkpoints(GROUP).partitions
        except partq.Invalid:
            return {}
        return {each.partition: each for each in found if isinstance(each, partq.PartitionCheckpoint) and each.epoch}

    def offsets(self) -> list[int]:
        """What is acknowledged of each partition."""
        found = self.checkpoints()
        return [found[p].acknowledged if p in found else 0 for p in range(self.partitions)]

    def owners(self) -> dict[int, str | None]:
        """The flow in each checkpoint."""
        return {p: found.flow for p, found in self.checkpoints().items()}

    def epochs(self) -> dict[int, int]:
        return {p: found.epoch for p, found in self.checkpoints().items()}

    def shares(self) -> dict[str, int]:
        """Partitions per bound flow, by state and checkpoints alike; empty while something moves."""
        view, owners = self.status(), self.owners()
        if view is None or any(p.status != "Ready" or owners.get(p.partition) != p.flow for p in view.partitions):
            return {}
        flows = [p.flow for p in view.partitions]
        return {each.flow: flows.count(each.flow) for each in view.flows if each.bound}

    def wait_for_shares(self, *counts: int, wait_s: float = WAIT_S) -> None:
        wait_until(lambda: sorted(self.shares().values()) == sorted(counts), f"shares {counts}", wait_s)

    def wait_for_offsets(self, *offsets: int, wait_s: float = WAIT_S) -> None:
        wait_until(lambda: self.offsets() == [*offsets], f"acknowledgements {offsets}", wait_s)

    def everything(self) -> list[tuple[int, int]]:
        """(partition, offset) of all messages."""
        return [(p, offset) for p, end in enumerate(self.lab.ends(self.name)) for offset in range(end)]


def partition_of(key: str, partitions: int) -> int:
    """`pmod(xxhash64(key), partitions)`."""
    found = xxhash.xxh64_intdigest(key.encode(), 42)
    return (found - (found >> 63 << 64)) % partitions


def flow_of(consumer: Consumer) -> str:
    """The name in the consumer's Spark checkpoint."""
    newest = consumer.checkpoint / "offsets" / str(consumer.log_files("offsets")[-1])
    name: str = json.loads(newest.read_text().splitlines()[-1])["flow"]
    return name


def told(query: StreamingQuery) -> dict[str, Any]:
    """What the newest progress says of the source; as one text, for this is asked again and again."""
    progress = query._jsq.lastProgress()
    found: dict[str, Any] | None = progress and json.loads(progress.json())["sources"][0]["latestOffset"]
    return found or {}


def got(*consumers: Consumer) -> list[tuple[int, int]]:
    """(partition, offset) of what was delivered, in order of partitions and offsets, repeated as delivered."""
    return sorted((row.partition, row.offset) for consumer in consumers for row in consumer.rows)


def marked(*consumers: Consumer) -> list[tuple[int, int]]:
    """(partition, offset) of what was delivered as redelivered."""
    return sorted((row.partition, row.offset) for consumer in consumers for row in consumer.rows if row.redelivered)


def readers(spark: SparkSession) -> list[psutil.Process]:
    """The processes that hold a stream's reader."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return readers_among(psutil.Process(gateway.proc.pid).children(recursive=True))


class Gate:
    """Holds a consumer's batches back while it is closed."""

    def __init__(self, *, closed: bool = False) -> None:
        self._open = threading.Event()
        self.held = threading.Event()
        if not closed:
            self._open.set()

    def close(self) -> None:
        self.held.clear()
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def __call__(self, _batch_id: int) -> bool:
        if not self._open.is_set():
            self.held.set()
            assert self._open.wait(90)
        return False


@contextmanager
def going_on(step: Callable[[], object], pause_s: float) -> Iterator[None]:
    """Does something again and again, beside the test."""
    stop = threading.Event()

    def keep_on() -> None:
        while not stop.wait(pause_s):
            step()

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def frozen(victim: psutil.Process) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    victim.suspend()
    try:
        yield
    finally:
        victim.resume()


@pytest.fixture
def shared(lab: Lab, redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Shared]]:
    """Makes queues with a group, shared by Redis, and one coordinator for all of them."""
    with ExitStack() as stack:

        def make(partitions: int = 2, *, delay_s: float = 0.0, handoff_s: float = 30.0) -> Shared:
            name = f"orders-{secrets.token_hex(4)}"
            made = Shared(lab=lab, ownership=redis_server.url, name=name, partitions=partitions)
            lab.create(name, partitions, rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s)
            return made

        stack.enter_context(coordinator(lab.url, redis_server.url, tmp_path))
        yield make
        for query in lab.spark.streams.active:
            query.stop()


def coordinator(store_url: str, ownership: str, folder: Path) -> Sidecar:
    """With short timers."""
    short = {"LEASE_TIMEOUT_S": 1.5, "RENEWAL_S": 0.25, "FROZEN_AFTER_S": 2.0, "HEADS_S": 0.2, "RETRY_MOST_S": 0.5}
    short["ASSUMED_SESSION_TIMEOUT_S"] = SESSION_S
    credentials = ("AZURE_STORAGE_CONNECTION_STRING", "PARTQ_REDIS_PASSWORD", "PARTQ_S3_ENDPOINT", "AWS_")
    environment = {name: value for name, value in os.environ.items() if name.startswith(credentials)}
    environment |= {"PARTQ_STORE": store_url, "PARTQ_OWNERSHIP": ownership}
    environment |= {f"PARTQ_COORDINATOR_{name}": str(value) for name, value in short.items()}
    return Sidecar(folder, "coordinator", environment)
