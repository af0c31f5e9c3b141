"""The processes of a run: Redis, coordinators, a publisher and whoever else is started; and what can be seen of them.

Starting, finding, killing by process; where everything is written. When things happen is decided elsewhere, and nothing
is judged here. Everything that is started here dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

import partq
from tests.cast import consumers, publisher
from tests.cast.journal import EVENTS, NAME
from tests.cast.sidecars import COORDINATOR, GROUP, Place, Sidecar, checkpoints
from tools import ROOT
from tools.processes import Program
from tools.servers import RedisServer

QUEUE: Final = "orders"
_PUBLISHER: Final = Path(publisher.__file__)
_SHORT: Final = {"LEASE_TIMEOUT_S": 1.5, "RENEWAL_S": 0.25, "FROZEN_AFTER_S": 2.0, "HEADS_S": 0.5, "RETRY_MOST_S": 0.5}


class Cast(Place):
    """A queue with a group, a real Redis, and the players. A context manager that leaves nothing alive."""

    def __init__(
        self,
        folder: Path,
        *,
        session_timeout_s: float,
        store_url: str = "",
        store_environment: Mapping[str, str] | None = None,
        ownership_url: str = "",
        **queue: Any,
    ) -> None:
        """`store_url`: another store than a folder, opened with this process' environment; the processes that are
        started open it with `store_environment`. `ownership_url`: in place of a Redis.
        """
        self.redis = RedisServer()
        super().__init__(folder, ownership_url or self.redis.url, store_url or None)
        self.session_timeout_s = session_timeout_s
        self._store_environment = dict(store_environment or {})
        self.queue = partq.create_queue(QUEUE, store=self.url, **queue)
        self.queue.create_group(GROUP, starting="earliest", ownership=ownership_url or None)
        self.coordinators: dict[str, Sidecar] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        if self.ownership == self.redis.url:
            self.redis.start()
            self._stack.callback(self.redis.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- entrances ----------------------------------------------------------------------------------------------------

    def start_coordinator(
        self, name: str, extra: Mapping[str, str] = MappingProxyType({}), command: tuple[str, ...] = COORDINATOR
    ) -> Sidecar:
        """A coordinator process with short timers."""
        if name not in self.coordinators:
            short = {**_SHORT, "ASSUMED_SESSION_TIMEOUT_S": self.session_timeout_s}
            given = {f"PARTQ_COORDINATOR_{field}": str(value) for field, value in short.items()}
            environ = self.environ(**self._store_environment, **given, **extra)
            self.coordinators[name] = Sidecar(self.folder, name, environ, command)
            self._stack.callback(self.coordinators[name].kill)
        return self.coordinators[name].start()

    def consumer(self, name: str, kind: consumers.Kind, *, steady: bool = False) -> Program:
        """One in plain Python, whose flow and folder have this name. It is still to be started."""
        folder = self.folder / name
        plan = consumers.Plan(
            store=self.url,
            queue=QUEUE,
            group=GROUP,
            ownership=self.ownership,
            session_timeout_s=self.session_timeout_s,
            flow=name,
            kind=kind,
            steady=steady,
            journal=str(folder / NAME),
            events=str(folder / EVENTS),
        )
        return self.program(Path(consumers.__file__), plan, name, folder)

    def publisher(self, messages: int, interval_s: float) -> Program:
        """Publishes so many messages at a time once it is started."""
        plan = publisher.Plan(store=self.url, queue=QUEUE, messages=messages, interval_s=interval_s)
        return self.program(_PUBLISHER, plan, "publisher", self.folder)

    def program(self, script: Path, plan: object, name: str, folder: Path, **environment: str) -> Program:
        """One of our scripts, which is still to be started. It has nothing of the caller's but what finds programs."""
        given = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        given |= {**self._store_environment, **environment}
        made = Program.script(script, plan, name=name, folder=folder, environment=given)
        self._stack.callback(made.kill)
        return made

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def leader(self) -> str | None:
        """The coordinator that leads the group, as far as is known."""
        try:
            return self.status(self.queue).coordinator.leader
        except partq.Unavailable:
            return None

    def ends(self) -> list[int]:
        """Of all partitions that the queue ever had."""
        return [each.next for each in self.queue.describe().partitions]

    def behind(self, group: str, ends: Sequence[int]) -> str:
        """Which partitions are not acknowledged up to `ends`; empty: none."""
        found = {each.partition: each.acknowledged for each in checkpoints(self.queue, group)}
        late = [each for each, end in enumerate(ends) if found.get(each, 0) < end]
        return f"group {group!r} has not acknowledged partitions {late} up to where they ended" if late else ""

    def unsettled(self, flows: int) -> str:
        """What keeps the group from being at rest, with so many flows bound; empty: nothing."""
        try:
            view = self.status(self.queue)
        except partq.Unavailable as error:
            return str(error)
        if view.rebalance_status is not partq.RebalanceStatus.READY:
            return f"the status is {view.rebalance_status.value}"
        moving = [each.partition for each in view.partitions if each.status is not partq.PartitionStatus.READY]
        if moving:
            return f"partitions {moving} are not in anybody's hands"
        if len(view.partitions) != self.queue.describe().layout.partitions:
            return f"the group has {len(view.partitions)} partitions"
        bound = sum(each.bound for each in view.flows)
        return "" if bound == flows else f"{bound} of {flows} flows are bound"
