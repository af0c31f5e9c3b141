"""What shares a group: the sidecar; and ownership that forgets, a server in memory with Redis' semantics, which is
emptied, restarted or set back, and each process' way to it. `ownership="store"` is production's own, beside the queue.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from coordinator.service import Service
from coordinator.settings import Settings
from partq_spark.group.documents import Announce, DocumentOperation, Remove, Swap, Value
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership, import_client, open_ownership
from partq_spark.log.queue import shared_store
from partq_spark.objects.api import ObjectStore
from tests.support.documents import Copy, MemoryDocuments, MemoryServer
from tests.world.machine import Host, Machine
from tests.world.plan import URL
from tests.world.processes import Actor
from tests.world.scheduler import SECOND_US, Strand
from tests.world.store import Journey

LOSSES: Final = ("flush", "empty", "rollback")
"""It is emptied and says nothing of it; it is started again without data; with an old copy."""

Seen = Callable[[GroupKey, str, Value | None], None]
_open_ownership = open_ownership  # production's own


class Coordinator(Actor):
    """The sidecar."""

    def live(self, host: Host) -> None:
        world, plan = self.world, self.world.plan
        settings = Settings(
            store=world.url,
            ownership=world.ownership_of(),
            name=self.name,
            lease_timeout_s=plan.lease_timeout_s,
            renewal_s=plan.lease_timeout_s / 4,
            handoff_look_s=0.1,
            heads_look_s=1.0,
            frozen_after_s=min(plan.lease_timeout_s, 3.0),
            assumed_session_timeout_s=plan.session_timeout_s,
            housekeeping=False,
            retry_most_s=2.0,
        )
        ownership = world.server.open(world.ownership_of(), store=shared_store(world.url, 0.0))
        service = Service(settings, store=shared_store(world.url, 2.0), ownership=ownership)
        host.on_term = service.stop
        if not host.stopping:  # as SIGTERM ends a process that has no handler yet
            service.run()


class _Board(threading.Condition):
    """The server's condition: strands wait here. Nothing is locked, one runs at a time."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._waiting: list[Strand] = []

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def notify_all(self) -> None:
        """News travel, too."""
        waiting, self._waiting = self._waiting, []
        for strand in waiting:
            self._machine.scheduler.wake(strand, self._machine.scheduler.rng.randrange(2000))

    def wait(self, timeout: float | None = None) -> bool:
        strand = self._machine.strand
        self._waiting.append(strand)
        try:
            self._machine.wait(timeout)
        finally:
            self._waiting = [each for each in self._waiting if each is not strand]
        return True


class OwnershipServer:
    """What all processes share. `copy` is taken, so that it may be set back to it."""

    def __init__(self, machine: Machine, rng: random.Random, journey: Journey, seen: Seen) -> None:
        self._memory = MemoryServer(now_s=machine.true_unix_s, rng=rng)
        self._memory.changed = _Board(machine)
        self._machine, self._journey, self._seen = machine, journey, seen
        self._copies: list[Copy] = []
        machine.stand_ins |= {id(open_ownership): self.open, id(import_client): lambda _: None}

    def open(self, url: str, *, store: ObjectStore, group: GroupKey | None = None, **more: Any) -> Ownership:
        """In place of production's `open_ownership`."""
        if url == "store":
            return _open_ownership(url, store=store, group=group, **more)
        assert url == URL, url
        return Ownership(_Documents(self._memory, self._machine, self._journey, self._seen, group))

    def copy(self) -> None:
        self._copies.append(self._memory.snapshot())

    def forget(self, how: str, rng: random.Random) -> None:
        """One of `LOSSES`."""
        if how == "flush":
            self._memory.flush()
        elif how == "empty" or not self._copies:
            self._memory.restart_empty()
        else:
            self._memory.restore(rng.choice(self._copies))


class _Documents(MemoryDocuments):
    """One user's, some way off."""

    def __init__(
        self, server: MemoryServer, machine: Machine, journey: Journey, seen: Seen, group: GroupKey | None
    ) -> None:
        super().__init__(server, group=group)
        self._machine, self._journey, self._tell = machine, journey, seen

    @property
    def url(self) -> str:
        return URL

    @property
    def look_interval_s(self) -> float:
        return 0.1

    def ask(self, group: GroupKey, /, *operations: DocumentOperation[Any]) -> Any:
        def effect() -> Any:
            answers = MemoryDocuments.ask(self, group, *operations)
            for operation, answer in zip(operations, answers, strict=True):
                if isinstance(operation, Swap) and answer is not None:
                    self._tell(group, operation.name, operation.value)
            return answers

        is_write = any(isinstance(each, Swap | Remove | Announce) for each in operations)
        return self._journey.make(_words(operations), effect, is_write=is_write)

    def drop(self, group: GroupKey) -> None:
        def effect() -> None:
            MemoryDocuments.drop(self, group)
            self._tell(group, "state", None)

        self._journey.make("drop", effect, is_write=True)

    def wait(self, timeout_s: float) -> frozenset[GroupKey] | None:
        until_us = self._machine.scheduler.now_us + max(0, round(timeout_s * SECOND_US))
        while True:
            news = self.take_news()
            left_us = until_us - self._machine.scheduler.now_us
            if news is None or news or left_us <= 0:
                return news
            self._server.changed.wait(left_us / SECOND_US)


def _words(operations: Sequence[DocumentOperation[Any]]) -> str:
    """What is done, as of objects: by the first change, else by the first of all."""
    first = next((each for each in operations if isinstance(each, Swap | Remove)), operations[0])
    where = getattr(first, "name", "") or getattr(first, "folder", "")
    return f"{type(first).__name__.lower()} {where.partition('/')[0]}"
