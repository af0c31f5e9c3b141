"""The story of `partq demo`: what happens when. Each act begins when the group shows the outcome of the one before.

What is read comes from the group, the coordinator's log and the queries; what is shown goes to the screen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from partq_spark.base.errors import Unavailable
from partq_spark.client import PartitionStatus, RebalanceStatus
from partq_spark.demo.ledger import Ledger

if TYPE_CHECKING:
    from partq_spark.cli.demo_screen import Screen
    from partq_spark.client import GroupView
    from partq_spark.demo.processes import Coordinator
    from partq_spark.demo.queries import DemoQueries

QUIET_S: Final = 1.0  # between two acts, so that a person sees what came of the last one
WARM: Final = 0.1  # of all flights: that many are acknowledged before anything else happens
TIMEOUT_S: Final = 240.0  # for one act, on a machine that is very busy
LOOK_S: Final = 0.2


class Story:
    """What happens, act by act: each waits until the last one's outcome shows in the group."""

    def __init__(
        self,
        coordinator: Coordinator,
        queries: DemoQueries,
        *,
        look: Callable[[], GroupView],
        screen: Screen,
        flights: int,
    ) -> None:
        self._coordinator = coordinator
        self._queries = queries
        self._look = look
        self._screen = screen
        self._flights = flights
        self._over = False
        self.ledger = Ledger()

    def play(self) -> None:
        """From the first query to the proof. Raises `Unavailable` where something does not come to pass."""
        self._tell("Spark and a coordinator start")
        self._until(lambda view: self._queries.is_idle, "start of Spark")
        self._tell("two queries start: the flows amber and blue of one consumer group")
        self._join("amber", "blue")
        self._tell("another query publishes flights from now on, thousands every second")
        self._queries.do(self._queries.publish)
        self._until(lambda view: acknowledged(view) >= self._flights * WARM, "first flights")
        self._tell("a third query starts, the flow coral")
        self._join("coral")
        self._tell("blue is killed: SIGKILL for its reader process, and nobody starts it again")
        self._queries.do(self._queries.kill, "blue")
        self._until(lambda view: is_settled(view, {"amber", "coral"}), "new owners for blue's partitions")
        self._quiet()
        self._tell("the rest of the year comes at once")
        self._queries.do(self._queries.rest)
        self._until(self._is_done, "end of all flights")
        self._tell("everything is acknowledged; what the queries wrote is counted")
        self._queries.do(self._queries.prove)
        self._over = True
        self._until(lambda view: bool(self._queries.facts), "proof")

    def _join(self, *flows: str) -> None:
        for flow in flows:
            self._queries.do(self._queries.join, flow)
        together = {*flows, *self.ledger.bound}
        self._until(lambda view: is_settled(view, together), f"even share of {', '.join(sorted(together))}")
        self._quiet()

    def _quiet(self) -> None:
        until_s = time.monotonic() + QUIET_S
        self._until(lambda view: time.monotonic() >= until_s, "")

    def _is_done(self, view: GroupView) -> bool:
        return self._queries.published >= self._flights and not any(each.lag for each in view.partitions)

    def _until(self, done: Callable[[GroupView], bool], what: str) -> None:
        begun_s = time.monotonic()
        while True:
            self._queries.look()
            view = self._look()
            # The log after the state: a change that is seen there is told here.
            for line in self._coordinator.news():
                if not self._over:  # that the queries leave at the end is no part of the story
                    self._screen.changed(self.ledger, self.ledger.heed(line), self._queries.killed_ms)
            self._screen.show(view, self._queries.published, self._flights)
            if done(view):
                return
            if time.monotonic() - begun_s > TIMEOUT_S:
                raise Unavailable(f"the demo saw no {what} within {TIMEOUT_S:.0f} s: see coordinator.log and spark.log")
            time.sleep(LOOK_S)

    def _tell(self, words: str) -> None:
        self._screen.tell(self.ledger, words)


def acknowledged(view: GroupView) -> int:
    """Messages that the group has dealt with, from its start."""
    return sum(each.acknowledged for each in view.partitions)


def is_settled(view: GroupView, flows: set[str]) -> bool:
    """Whether exactly these flows are bound and share all partitions evenly, and every partition delivers."""
    bound = {each.flow for each in view.flows if each.bound}
    shares = [sum(each.flow == flow for each in view.partitions) for flow in flows]
    return (
        bound == flows
        and view.rebalance_status is RebalanceStatus.READY
        and all(each.status is PartitionStatus.READY for each in view.partitions)
        and sum(shares) == len(view.partitions)
        and max(shares) - min(shares) <= 1
    )
