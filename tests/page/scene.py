"""A group at work, for the page to show: a queue that is published to, a real coordinator, flows that hold what they
were given for a moment before they acknowledge it, so that a handoff can be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import partq
from tests.cast.sidecars import GROUP, Place
from tests.support.waiting import wait_until

QUEUE: Final = "orders"
WAIT_S: Final = 30.0


class Scene(Place):
    """The queue, its group, and who takes part."""

    def __init__(self, folder: Path, partitions: int, **config: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(folder, "store")
        self.queue = partq.create_queue(QUEUE, partitions=partitions, store=self.url, **config)
        self.queue.create_group(GROUP, starting="earliest", ownership="store")
        self.coordinator = self.sidecar("coordinator-1", PARTQ_COORDINATOR_HEADS_S="0.2")
        self.stack = ExitStack()
        self.ended = threading.Event()

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

        return waiting(self._seen(waiting))[0]

    def _seen(self, condition: Callable[[partq.GroupView], object]) -> partq.GroupView:
        found = self.status(self.queue)

        def is_seen() -> bool:
            nonlocal found
            found = self.status(self.queue)
            return bool(condition(found))

        wait_until(is_seen, "what is to be seen", WAIT_S)
        return found


@contextmanager
def scene(folder: Path, *, partitions: int = 12, delay_s: float = 1.0, handoff_s: float = 3.0) -> Iterator[Scene]:
    """A group with its coordinator; no flow has joined yet."""
    made = Scene(folder, partitions, rebalance_delay_s=delay_s, max_handoff_time_s=handoff_s)
    with made.coordinator, made.stack:
        try:
            yield made
        finally:
            made.ended.set()
