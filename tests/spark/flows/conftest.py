"""A queue with a group, a real Redis and a real coordinator process, for queries of the shared session."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.model import FlowRecord, GroupKey, GroupState
from partq_spark.group.ownership import StateDocument, open_ownership
from partq_spark.log.model import QueueConfig
from partq_spark.log.schema.columns import Columns
from partq_spark.objects import open_store
from tests.spark.test_outages import azure_lab
from tests.support.servers import ROOT, RedisServer, die_with_parent
from tests.support.spark import Consumer, Lab
from tests.support.waiting import WAIT_S, wait_until

__all__ = ["azure_lab", "shared"]

GROUP = "billing"
SESSION_S = 5


@dataclass(kw_only=True)
class Shared:
    """One queue, its group, and what can be seen of both from outside. Partition p's messages have the key `key(p)`."""

    lab: Lab
    ownership: str
    name: str
    partitions: int
    consumers: list[Consumer] = field(default_factory=list)

    @property
    def key(self) -> GroupKey:
        return GroupKey("default", self.name, GROUP)

    def stream(self, **options: str) -> DataFrame:
        """A stream of the group, shared by Redis, that begins at the beginning."""
        given = {"group": GROUP, "ownership": self.ownership, "startingOffsets": "earliest"}
        given |= {"sessionTimeout": f"{SESSION_S}s", "retryTimeout": "20s"}
        given |= options
        if given["ownership"] == "none":
            del given["sessionTimeout"]
        return self.lab.stream(self.name, **given)

    def consumer(self, name: str) -> Consumer:
        made = self.lab.consumer(name)
        self.consumers.append(made)
        return made

    def start(self, name: str, trigger: str | None = None, **options: str) -> tuple[Consumer, StreamingQuery]:
        """A query with a Spark checkpoint of its own, past its first, empty batch."""
        consumer = self.consumer(name)
        return consumer, self.restart(consumer, trigger, **options)

    def restart(self, consumer: Consumer, trigger: str | None = None, **options: str) -> StreamingQuery:
        query = consumer.start(self.stream(**options), trigger=trigger)
        wait_until(lambda: not query.isActive or (consumer.checkpoint / "commits" / "0").exists(), "first, empty batch")
        return query

    def key_of(self, partition: int) -> str:
        from partq_spark.log.partitioner import partition_of

        return next(f"k{n}" for n in range(10_000) if partition_of(b"k%d" % n, self.partitions) == partition)

    def publish(self, *values: tuple[int, bytes]) -> None:
        """Messages for given partitions, in one publish."""
        self.lab.publish(self.name, [(self.key_of(partition), value) for partition, value in values])

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def state(self) -> GroupState | None:
        store = open_ownership(self.ownership, store=open_store(self.lab.url))
        try:
            found = store.read_state(self.key)
        finally:
            store.close()
        return decode_state(found.body, 0.0, "state") if isinstance(found, StateDocument) else None

    def records(self) -> Mapping[str, FlowRecord]:
        store = open_ownership(self.ownership, store=open_store(self.lab.url))
        try:
            return store.read_flows(self.key)
        finally:
            store.close()

    def checkpoints(self) -> Mapping[int, Checkpoint]:
        queue_id = self.lab.head(self.name).queue_id
        return CheckpointStore(open_store(self.lab.url), self.key, queue_id).list_checkpoints()

    def offsets(self) -> list[int | None]:
        found = self.checkpoints()
        return [found[p].offset if p in found else None for p in range(self.partitions)]

    def owners(self) -> dict[int, str | None]:
        """The flow in each checkpoint."""
        return {p: found.owner.flow if found.owner is not None else None for p, found in self.checkpoints().items()}

    def shares(self) -> dict[str, int]:
        """Partitions per bound flow, by state and checkpoints alike; empty while something moves."""
        state, owners = self.state(), self.owners()
        if state is None or any(p.owner is None or p.phase != "owned" for p in state.partitions.values()):
            return {}
        owners = {p: flow for p, flow in owners.items() if p in state.partitions}  # without those that were removed
        if owners != {n: p.owner.flow for n, p in state.partitions.items() if p.owner is not None}:
            return {}
        return {name: list(owners.values()).count(name) for name, flow in state.flows.items() if flow.bound}

    def wait_for_shares(self, *counts: int, wait_s: float = WAIT_S) -> None:
        wait_until(lambda: sorted(self.shares().values()) == sorted(counts), f"shares {counts}", wait_s)

    def everything(self) -> list[tuple[int, int]]:
        """(partition, offset) of all messages."""
        return [(p, offset) for p, end in enumerate(self.lab.head(self.name).next) for offset in range(end)]


def flow_of(consumer: Consumer) -> str:
    """The name in the consumer's Spark checkpoint."""
    import json

    newest = consumer.log_files("offsets")[-1]
    lines = (consumer.checkpoint / "offsets" / str(newest)).read_text().splitlines()
    name: str = json.loads(lines[-1])["flow"]
    return name


def got(*consumers: Consumer) -> list[tuple[int, int]]:
    """(partition, offset) of what was delivered, in order of partitions and offsets, repeated as delivered."""
    return sorted((row.partition, row.offset) for consumer in consumers for row in consumer.rows)


@pytest.fixture
def shared(lab: Lab, redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., Shared]]:
    """Makes queues with a group, and one coordinator for all of them."""
    process: subprocess.Popen[bytes] | None = None

    def make(
        partitions: int = 2,
        *,
        delay_s: float = 0.0,
        handoff_s: float = 30.0,
        coordinated: bool = True,
        columns: Columns | None = None,
    ) -> Shared:
        nonlocal process
        made = Shared(lab=lab, ownership=redis_server.url, name=f"orders-{secrets.token_hex(4)}", partitions=partitions)
        config = QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s)
        lab.create(made.name, partitions, config, columns=columns)
        if coordinated and process is None:
            process = start_coordinator(lab.url, redis_server.url, tmp_path / "coordinator.log")
        return made

    yield make
    for query in lab.spark.streams.active:
        query.stop()
    if process is not None:
        process.kill()
        process.wait(10)


def start_coordinator(store_url: str, ownership: str, log: Path) -> subprocess.Popen[bytes]:
    """A coordinator with short timers."""
    short = {"LEASE_TIMEOUT_S": 1.5, "RENEWAL_S": 0.25, "FROZEN_AFTER_S": 2.0, "HEADS_S": 0.2, "RETRY_MOST_S": 0.5}
    names = ("AZURE_STORAGE_CONNECTION_STRING", "PARTQ_REDIS_PASSWORD")
    credentials = {name: os.environ[name] for name in names if name in os.environ}
    environment: dict[str, Any] = {
        **credentials,
        "PATH": os.environ["PATH"],
        "HOME": str(log.parent),
        "PYTHONPATH": str(ROOT),
        "PARTQ_STORE": store_url,
        "PARTQ_OWNERSHIP": ownership,
        "PARTQ_COORDINATOR_HEALTH_PORT": "0",
        "PARTQ_COORDINATOR_ASSUMED_SESSION_TIMEOUT_S": str(SESSION_S),
        **{f"PARTQ_COORDINATOR_{name}": str(value) for name, value in short.items()},
    }
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "coordinator"],
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from the main thread
        )
