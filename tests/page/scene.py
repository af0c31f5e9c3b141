"""A group at work, for the page to show: a queue that is published to, a real coordinator, flows that hold what they
were given for a moment before they acknowledge it, so that a handoff can be seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import partq
from tests.cast.sidecars import Sidecar

QUEUE: Final = "orders"
GROUP: Final = "billing"
WAIT_S: Final = 30.0


class Flow:
    """A flow in a thread of its own, by the partq."""

    def __init__(self, queue: partq.Queue, name: str, hold_s: float) -> None:
        self.name = name
        self._queue = queue
        self._hold_s = hold_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"flow-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._end.set()
        self._thread.join(WAIT_S)

    def _run(self) -> None:
        with self._queue.consumer(
            GROUP, flow=self.name, ownership="store", acknowledge="manual", max_messages=50, session_timeout_s=5
        ) as consumer:
            while not self._end.is_set():
                batch = consumer.poll(0.2)
                if batch is not None:
                    self._end.wait(self._hold_s)
                    batch.acknowledge()


class Scene:
    """The queue, its group, and who takes part."""

    def __init__(self, folder: Path, *, partitions: int, rebalance_delay_s: float, max_handoff_time_s: float) -> None:
        self.store = f"file://{folder / 'store'}"
        self.queue = partq.create_queue(
            QUEUE,
            partitions=partitions,
            store=self.store,
            rebalance_delay_s=rebalance_delay_s,
            max_handoff_time_s=max_handoff_time_s,
            quota_bytes=50_000_000,
            retention_s=86_400,
        )
        self.queue.create_group(GROUP, starting="earliest", ownership="store")
        environ = {"PARTQ_STORE": self.store, "PARTQ_OWNERSHIP": "store", "PARTQ_COORDINATOR_HEADS_S": "0.2"}
        self.sidecar = Sidecar(folder, "coordinator-1", environ)
        self._flows: dict[str, Flow] = {}
        self._publishing = threading.Event()
        self._publisher = threading.Thread(target=self._publish, daemon=True)

    def publish(self, messages: int) -> None:
        with self.queue.publisher() as publisher:
            for number in range(messages):
                publisher.send(f'{{"order": {number}}}'.encode(), key=f"customer-{number % 997}")

    def keep_publishing(self) -> None:
        """Some hundred messages a second, until the end."""
        self._publisher.start()

    def join(self, name: str, *, hold_s: float = 0.3) -> None:
        self._flows[name] = Flow(self.queue, name, hold_s)
        self._flows[name].start()

    def leave(self, name: str) -> None:
        self._flows.pop(name).end()

    def status(self) -> partq.GroupView:
        return self.queue.status(GROUP, ownership="store")

    def settled(self, *flows: str) -> partq.GroupView:
        """When these flows share everything and nothing is on its way."""
        end_s = time.monotonic() + WAIT_S
        while True:
            seen = self.status()
            bound = {each.flow for each in seen.flows if each.bound}
            having = {each.flow for each in seen.partitions if each.status == "Ready"}
            if bound == having == set(flows) and seen.rebalance_status == "Ready":
                return seen
            assert time.monotonic() < end_s, seen
            time.sleep(0.05)

    def handoff(self, flow: str) -> partq.PartitionView:
        """A partition of this flow that is seen on its way to another one, with time left."""
        end_s = time.monotonic() + WAIT_S
        while True:
            seen = self.status()
            for each in seen.partitions:
                if each.flow == flow and each.handoff is not None and (each.handoff.remaining_s or 0.0) > 2.0:
                    return each
            assert time.monotonic() < end_s, seen
            time.sleep(0.05)

    def end(self) -> None:
        self._publishing.set()
        if self._publisher.is_alive():
            self._publisher.join(WAIT_S)
        for name in list(self._flows):
            self.leave(name)

    def _publish(self) -> None:
        number = 0
        with self.queue.publisher() as publisher:
            while not self._publishing.wait(0.05):
                for _ in range(20):
                    publisher.send(f'{{"order": {number}}}'.encode(), key=f"customer-{number % 997}")
                    number += 1


@contextmanager
def scene(
    folder: Path, *, partitions: int = 12, rebalance_delay_s: float = 1.0, max_handoff_time_s: float = 3.0
) -> Iterator[Scene]:
    """A group with its coordinator; no flow has joined yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        made = Scene(
            folder,
            partitions=partitions,
            rebalance_delay_s=rebalance_delay_s,
            max_handoff_time_s=max_handoff_time_s,
        )
        stack.enter_context(made.sidecar)
        stack.callback(made.end)
        yield made
