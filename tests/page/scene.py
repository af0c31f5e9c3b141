"""A group at work, for the page to show: a queue that is published to, a real coordinator, flows that hold what they
were given for a moment before they acknowledge it, so that a handoff can be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import partq
from tests.cast.sidecars import GROUP, Place
from tests.support.waiting import wait_until

QUEUE: Final = "orders"
WAIT_S: Final = 30.0


class Scene(Place):
    """The queue, its group, and who takes part."""

    def __init__(self, folder: Path, *, partitions: int, rebalance_delay_s: float, max_handoff_time_s: float) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, "store")
        self.queue = partq.create_queue(
            QUEUE,
            partitions=partitions,
            store=self.url,
            rebalance_delay_s=rebalance_delay_s,
            max_handoff_time_s=max_handoff_time_s,
            quota_bytes=50_000_000,
            retention_s=86_400,
        )
        self.queue.create_group(GROUP, starting="earliest", ownership="store")
        self.coordinator = self.sidecar("coordinator-1", PARTQ_COORDINATOR_HEADS_S="0.2")
        self.stack = ExitStack()
        self.ended = threading.Event()

    def publish(self, messages: int) -> None:
        with self.queue.publisher() as publisher:
            for number in range(messages):
                publisher.send(f'{{"order": {number}}}'.encode(), key=f"customer-{number % 997}")

    def keep_publishing(self) -> None:
        """Some hundred messages a second, until the end."""

        def publish() -> None:
            while not self.ended.wait(0.05):
                self.publish(20)

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()
        self.stack.callback(thread.join, WAIT_S)

    def join(self, name: str, *, hold_s: float = 0.3) -> None:
        def hold(_: partq.Batch) -> None:
            self.ended.wait(hold_s)

        self.stack.enter_context(self.application(self.queue, name, work=hold, max_messages=50))

    def settled(self, *flows: str) -> partq.GroupView:
        """When these flows share everything and nothing is on its way."""

        def is_settled(seen: partq.GroupView) -> bool:
            bound = {each.flow for each in seen.flows if each.bound}
            having = {each.flow for each in seen.partitions if each.status == "Ready"}
            return bound == having == set(flows) and seen.rebalance_status == "Ready"

        return self._seen(is_settled)

    def handoff(self, flow: str) -> partq.PartitionView:
        """A partition of this flow that is seen on its way to another one, with time left."""

        def waiting(seen: partq.GroupView) -> list[partq.PartitionView]:
            mine = [each for each in seen.partitions if each.flow == flow and each.handoff is not None]
            return [each for each in mine if each.handoff and (each.handoff.remaining_s or 0.0) > 2.0]

        return waiting(self._seen(lambda seen: bool(waiting(seen))))[0]

    def _seen(self, condition: Callable[[partq.GroupView], bool]) -> partq.GroupView:
        found: list[partq.GroupView] = []

        def is_seen() -> bool:
            found.append(self.status(self.queue))
            return condition(found[-1])

        wait_until(is_seen, "what is to be seen", WAIT_S)
        return found[-1]


@contextmanager
def scene(
    folder: Path, *, partitions: int = 12, rebalance_delay_s: float = 1.0, max_handoff_time_s: float = 3.0
) -> Iterator[Scene]:
    """A group with its coordinator; no flow has joined yet."""
    made = Scene(
        folder, partitions=partitions, rebalance_delay_s=rebalance_delay_s, max_handoff_time_s=max_handoff_time_s
    )
    with made.coordinator, made.stack:
        try:
            yield made
        finally:
            made.ended.set()
