"""Real coordinators for tests: processes with a log, a health port and an end; and flows that live in the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Claim
from partq_spark.group.codec import decode_state
from partq_spark.group.model import GroupKey, GroupState, PartitionStatus
from partq_spark.group.ownership import StateDocument, open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.group.status import partition_status
from partq_spark.log import admin
from partq_spark.log.model import Head, QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.objects import ObjectStore, open_store
from tests.support.flow_loop import Batch, run_flow
from tests.support.servers import die_with_parent, free_port

WAIT_S: Final = 30.0
SESSION: Final = SessionSettings(session_timeout_s=5.0, beat_interval_s=0.5)


class Sidecar:
    """`python -m coordinator`, with its log as JSON in a file."""

    def __init__(self, folder: Path, name: str, environ: Mapping[str, str], command: tuple[str, ...] = ()) -> None:
        self.name = name
        self.port = free_port()
        self.log = folder / f"{name}.log"
        self._command = command or (sys.executable, "-P", "-m", "coordinator")
        self._environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PARTQ_COORDINATOR_NAME": name,
            "PARTQ_COORDINATOR_HEALTH_PORT": str(self.port),
            "PARTQ_COORDINATOR_LOG_FORMAT": "json",
            **environ,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a test's main thread
            )
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)

    def end(self) -> tuple[int, float]:
        """SIGTERM; the exit code and how long it took."""
        assert self.process is not None
        begun_s = time.monotonic()
        self.process.terminate()
        code = self.process.wait(WAIT_S)
        return code, time.monotonic() - begun_s

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(WAIT_S)

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        assert self.process is not None
        return self.process.wait(WAIT_S)

    def text(self) -> str:
        return self.log.read_text()

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event."""
        found = [json.loads(line) for line in self.text().splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def health(self, path: str = "/readyz") -> tuple[int, dict[str, Any]]:
        """Status code and facts; (0, {}) if nobody answers."""
        try:
            with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=2) as answer:
                return answer.status, json.loads(answer.read())
        except HTTPError as error:
            with error:
                return error.code, json.loads(error.read())
        except (URLError, OSError):
            return 0, {}

    def is_ready(self) -> bool:
        return self.health()[0] == 200

    @property
    def leads(self) -> int:
        """How many groups."""
        return int(self.health()[1].get("leading", 0))


class Place:
    """An object store, an ownership store, and sidecars and flows that use them."""

    def __init__(self, folder: Path, ownership: str, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"file://{folder}/store"
        self.ownership = ownership
        self.store: ObjectStore = open_store(self.url)

    def environ(self, **more: str) -> dict[str, str]:
        return {"PARTQ_STORE": self.url, "PARTQ_OWNERSHIP": self.ownership, **more}

    def sidecar(self, name: str = "c1", **environ: str) -> Sidecar:
        return Sidecar(self.folder, name, self.environ(**environ))

    def group(self, queue: str = "orders", *, partitions: int = 4, delay_s: float = 0.0) -> GroupKey:
        """A queue with a group `billing`."""
        config = QueueConfig(rebalance_delay_s=delay_s, max_handoff_time_s=2.0)
        made = admin.create_queue(self.store, "default", queue, partitions, config)
        admin.create_group(made, "billing", (0,) * partitions)
        return GroupKey("default", queue, "billing")

    def queue(self, key: GroupKey) -> QueueLog:
        return QueueLog(self.store, key.namespace, key.queue)

    def checkpoints(self, key: GroupKey) -> CheckpointStore:
        return lifecycle.checkpoints_of(self.queue(key), key.group)

    def session(self, key: GroupKey, name: str, milestones: Callable[[int], Sequence[int]] = lambda _: ()) -> Session:
        """A flow that is not bound yet."""
        queue_id = self.queue(key).head.queue_id
        return Session(
            open_ownership(self.ownership, store=self.store, group=key),
            self.checkpoints(key),
            key,
            queue_id,
            name,
            SESSION,
            milestones=milestones,
        )

    def flow(self, key: GroupKey, name: str) -> Session:
        """A bound flow. It beats only when its `observe` or `beat` is called."""
        session = self.session(key, name)
        session.bind(wait_s=0.0)
        return session

    def state(self, key: GroupKey) -> GroupState | None:
        document = open_ownership(self.ownership, store=self.store).read_state(key)
        return decode_state(document.body, 0.0, str(key)) if isinstance(document, StateDocument) else None

    def shares(self, key: GroupKey) -> dict[str, int]:
        """Partitions per flow, of those that are Ready."""
        state = self.state(key)
        shares: dict[str, int] = {}
        for partition in state.partitions.values() if state is not None else ():
            assert state is not None
            if partition.owner is not None and partition_status(state, partition) is PartitionStatus.READY:
                shares[partition.owner.flow] = shares.get(partition.owner.flow, 0) + 1
        return shares


def living(*sessions: Session) -> Callable[[], None]:
    """What the flows' main threads do all the time."""

    def live() -> None:
        for session in sessions:
            try:
                session.beat()
                session.observe()
            except Unavailable:
                continue

    return live


@contextmanager
def consuming(
    session: Session,
    read: Callable[[Claim], Batch[int] | None],
    handle: Callable[[Batch[int]], None],
    *,
    head: Callable[[], Head] | None = None,
    idle_s: float = 0.1,
) -> Iterator[None]:
    """The flow reads and handles in a thread of its own until the end of the block."""
    stop = threading.Event()
    thread = threading.Thread(
        target=run_flow,
        args=(session, read, handle),
        kwargs={"keep_on": lambda: not stop.is_set(), "head": head, "idle_s": idle_s},
    )
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
