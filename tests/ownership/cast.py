"""The processes of a test: Redis, coordinators, flows, a publisher; and what can be seen of them from outside.

Starting, stopping, killing and freezing by process id; where everything is written; one look at state and checkpoints.
When things happen is decided elsewhere. Everything that is started here dies with the process that started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from partq_spark.base.errors import Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import decode_state
from partq_spark.group.model import GroupKey, GroupState, Lease, Phase, RebalanceStatus
from partq_spark.group.ownership import Ownership, Reincarnated, open_ownership
from partq_spark.log.admin import create_group, create_queue
from partq_spark.log.model import QueueConfig
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from partq_spark.objects.api import Unchanged
from tests.ownership.facts import Fact, Journal, Seen, now_s, read_facts
from tests.ownership.flow import Settings
from tests.support.servers import ROOT, RedisServer, die_with_parent

KEY: Final = GroupKey("default", "orders", "billing")
COORDINATOR = (sys.executable, "-m", "coordinator")
_END_WAIT_S: Final = 10.0
_LOOK_S: Final = 0.02


class Child:
    """One process. `name` also names its log."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.frozen = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from the main thread
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        """The exit code; None while it lives."""
        return self._process.poll()

    @property
    def alive(self) -> bool:
        return self.code is None

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._process.kill()
        self._process.wait(_END_WAIT_S)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        self.frozen = True

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.frozen = False

    def terminate(self) -> None:
        """SIGTERM, once the process handles it: one that is just starting would end without a word. Does not wait for
        the end.
        """
        until_s = time.monotonic() + _END_WAIT_S
        while self.alive and not _handles(self.pid, signal.SIGTERM) and time.monotonic() < until_s:
            time.sleep(0.01)
        self._process.terminate()

    def wait(self, wait_s: float = _END_WAIT_S) -> int:
        """The exit code. Fails if it does not end in time."""
        try:
            return self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end in {wait_s:g} s\n{self.tail()}") from None

    def tail(self) -> str:
        """The end of its log."""
        return f"--- {self.log}\n{self.log.read_text(errors='replace')[-3000:]}"


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, by what Linux says."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (number - 1) & 1)


class Cast:
    """A queue on `file:`, a group, a real Redis, and the players. A context manager that leaves nothing alive."""

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int,
        rebalance_delay_s: float = 1.5,
        max_handoff_time_s: float = 1.0,
        session_timeout_s: float = 5.0,
        on_objects: bool = False,
        store_url: str = "",
        store_environment: Mapping[str, str] | None = None,
    ) -> None:
        """`on_objects`: ownership is kept beside the queue (`ownership=store`), and Redis only stands by.
        `store_url`: another store than a folder, opened with this process' environment; the processes that are started
        open it with `store_environment`.
        """
        self.folder = folder
        self.partitions = partitions
        self.rebalance_delay_s = rebalance_delay_s
        self.session_timeout_s = session_timeout_s
        self.store_url = store_url or f"file://{folder}/store"
        self._store_environment = dict(store_environment or {})
        self.redis = RedisServer()
        self.ownership_url = "store" if on_objects else self.redis.url
        store = open_store(self.store_url, retry_timeout_s=2.0)
        self._objects = store
        config = QueueConfig(rebalance_delay_s=rebalance_delay_s, max_handoff_time_s=max_handoff_time_s)
        self.queue: QueueLog = create_queue(store, KEY.namespace, KEY.queue, partitions, config)
        create_group(self.queue, KEY.group, [0] * partitions)
        self.checkpoints = lifecycle.checkpoints_of(self.queue, KEY.group)
        self.flows: dict[str, Child] = {}
        self.coordinators: dict[str, Child] = {}
        self.publisher: Child | None = None
        self._others: list[Child] = []
        self._journals: dict[str, Path] = {}
        self._store: Ownership | None = None
        self._lives = 0
        (folder / "journals").mkdir(parents=True)

    def __enter__(self) -> Self:
        self.redis.start()
        self._store = open_ownership(self.ownership_url, store=self._objects)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in self._everybody():
            if child.alive:
                child.kill()
        if self._store is not None:
            self._store.close()
        self.redis.stop()

    def _everybody(self) -> Iterator[Child]:
        yield from self.flows.values()
        yield from self.coordinators.values()
        yield from self._others
        if self.publisher is not None:
            yield self.publisher

    # --- entrances ----------------------------------------------------------------------------------------------------

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Nothing of the caller's but what finds programs."""
        found = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        return {**found, **self._store_environment, **(extra or {})}

    def flow_settings(self, flow: str, **changes: Any) -> Settings:
        """A flow's settings, with a journal of its own for every process."""
        self._lives += 1
        settings = Settings(
            store=self.store_url,
            ownership=self.ownership_url,
            namespace=KEY.namespace,
            queue=KEY.queue,
            group=KEY.group,
            flow=flow,
            journal=str(self.folder / "journals" / f"{flow}-{self._lives:04d}.jsonl"),
            seed=self._lives,
            session_timeout_s=self.session_timeout_s,
        )
        return replace(settings, **changes)

    def flow_command(self, settings: Settings) -> list[str]:
        """How to run a flow with these settings."""
        file = Path(settings.journal).with_suffix(".json")
        file.write_text(json.dumps(asdict(settings)))
        return [sys.executable, "-m", "tests.ownership.flow", str(file)]

    def start_flow(self, flow: str, **changes: Any) -> Child:
        """A process under this name; a former one that still lives is no longer known by the name."""
        former = self.flows.get(flow)
        if former is not None and former.alive:
            self._others.append(former)
        settings = self.flow_settings(flow, **changes)
        self._journals[flow] = Path(settings.journal)
        child = Child(flow, self.flow_command(settings), self.folder, self.environment())
        self.flows[flow] = child
        return child

    def start_coordinator(self, name: str, **timing: float) -> Child:
        """A coordinator process with short timers."""
        short = {"LEASE_TIMEOUT_S": 1.5, "RENEWAL_S": 0.25, "FROZEN_AFTER_S": 2.0, "HEADS_S": 0.5, "RETRY_MOST_S": 0.5}
        short |= {"ASSUMED_SESSION_TIMEOUT_S": self.session_timeout_s, **timing}
        environment = {
            "PARTQ_STORE": self.store_url,
            "PARTQ_OWNERSHIP": self.ownership_url,
            "PARTQ_COORDINATOR_NAME": name,
            "PARTQ_COORDINATOR_HEALTH_PORT": "0",
            "PARTQ_COORDINATOR_LOG_FORMAT": "json",
            **{f"PARTQ_COORDINATOR_{field}": str(value) for field, value in short.items()},
        }
        child = Child(name, COORDINATOR, self.folder, self.environment(environment))
        self.coordinators[name] = child
        return child

    def start_publisher(self, messages: int, interval_s: float, keys: int = 0) -> Child:
        """Messages for all partitions, at a steady rate; with so many keys, or each with its own."""
        command = [sys.executable, "-m", "tests.ownership.publisher"]
        command += [self.store_url, KEY.namespace, KEY.queue, str(messages), str(interval_s), str(keys)]
        self.publisher = Child("publisher", command, self.folder, self.environment())
        return self.publisher

    def start_other(self, name: str, command: Sequence[str], extra: Mapping[str, str] | None = None) -> Child:
        """Any other process."""
        child = Child(name, command, self.folder, self.environment(extra))
        self._others.append(child)
        return child

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def state(self) -> GroupState | None:
        """The group's state now; None: there is none, or Redis does not answer."""
        if self._store is None:
            raise RuntimeError("the cast is not on stage: use it as a context manager")
        try:
            self._store.incarnation()
            found = self._store.read_state(KEY)
        except (Reincarnated, Unavailable):
            return None
        if found is None or isinstance(found, Unchanged):
            return None
        return decode_state(found.body, now_s(), "state")

    def lease(self) -> Lease | None:
        """The lease; None: there is none, or Redis does not answer."""
        if self._store is None:
            raise RuntimeError("the cast is not on stage: use it as a context manager")
        try:
            self._store.incarnation()
            document = self._store.read_lease(KEY)
        except (Reincarnated, Unavailable):
            return None
        return document.lease if document is not None else None

    def alive(self) -> list[str]:
        """The flows whose processes live, in order."""
        return sorted(name for name, child in self.flows.items() if child.alive)

    def unborn(self) -> list[str]:
        """Flows whose process lives and has not come to its own code yet."""
        return [name for name in self.alive() if not self._journals[name].exists()]

    def imbalance(self) -> str:
        """What keeps the group from being balanced over exactly the flows that live; empty: nothing."""
        state = self.state()
        if state is None:
            return "there is no state"
        if state.status is not RebalanceStatus.READY:
            return f"the status is {state.status.value}"
        alive = self.alive()
        bound = sorted(name for name, flow in state.flows.items() if flow.bound)
        if bound != alive:
            return f"bound are {bound}, alive are {alive}"
        counts = dict.fromkeys(bound, 0)
        for partition in state.partitions.values():
            owner = partition.owner
            if partition.phase is not Phase.OWNED or owner is None:
                return f"partition {partition.partition} is {partition.phase.value}"
            if owner.flow not in counts or state.flows[owner.flow].instance != owner.instance:
                return f"partition {partition.partition} is unbound"
            counts[owner.flow] += 1
        if counts and max(counts.values()) - min(counts.values()) > 1:
            return f"uneven: {counts}"
        return "" if counts else "nobody is bound"

    def offsets(self) -> list[int]:
        """The acknowledged offset of every partition."""
        found = self.checkpoints.list_checkpoints()
        numbers = range(len(self.queue.head.next))  # also of partitions that were removed
        return [(found[each].offset or 0) if each in found else 0 for each in numbers]

    def epochs(self) -> dict[int, int]:
        """The epoch in every checkpoint."""
        return {partition: found.epoch for partition, found in self.checkpoints.list_checkpoints().items()}

    def redis_command(self, command: str) -> bytes:
        """Send one command without arguments; the answer as it comes."""
        with socket.create_connection(("127.0.0.1", self.redis.port), timeout=5) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.recv(1000)

    def facts(self) -> list[Fact]:
        """Everything that anybody has written down."""
        return [fact for path in sorted((self.folder / "journals").glob("*.jsonl")) for fact in read_facts(path)]

    def facts_of(self, flow: str) -> list[Fact]:
        """What the processes of one flow have written down, in order."""
        paths = sorted((self.folder / "journals").glob(f"{flow}-*.jsonl"))
        return [fact for path in paths for fact in read_facts(path)]

    def decisions(self) -> Iterator[dict[str, str]]:
        """What all coordinators have told."""
        return decisions_in(self.folder)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_until(self, reason: Callable[[], str], wait_s: float) -> float:
        """Until `reason` has nothing to say any more; how long that took in s. Fails with what it said last."""
        begun_s = time.monotonic()
        while told := reason():
            if time.monotonic() - begun_s > wait_s:
                raise AssertionError(f"after {wait_s:g} s: {told}")
            time.sleep(_LOOK_S)
        return time.monotonic() - begun_s

    def behind(self, ends: Sequence[int]) -> str:
        """Which partitions are not acknowledged up to `ends`."""
        late = [each for each, (offset, end) in enumerate(zip(self.offsets(), ends, strict=True)) if offset < end]
        return f"partitions {late} are not acknowledged up to where they ended" if late else ""


def decisions_in(folder: Path) -> Iterator[dict[str, str]]:
    """The lines of all coordinators' logs that are JSON objects; a killed one's last line may not be."""
    for path in sorted(folder.glob("coordinator-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("{") and line.endswith("}"):
                yield json.loads(line)


class Observer:
    """A thread that looks at all checkpoints again and again and writes down what it finds. A context manager."""

    def __init__(
        self,
        cast: Cast,
        interval_s: float = 0.2,
        *,
        checkpoints: CheckpointStore | None = None,
        journal: Path | None = None,
    ) -> None:
        """`checkpoints` of another group than the cast's, with a journal of their own."""
        self._checkpoints = checkpoints if checkpoints is not None else cast.checkpoints
        self._interval_s = interval_s
        self._journal = Journal(journal if journal is not None else cast.folder / "journals" / "_observer.jsonl")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(_END_WAIT_S)
        self.look()

    def look(self) -> None:
        """One look."""
        sent_s = now_s()
        found = self._checkpoints.list_checkpoints()
        done_s = now_s()
        self._journal.write(
            *(
                Seen(
                    sent_s=sent_s,
                    done_s=done_s,
                    partition=each.partition,
                    epoch=each.epoch,
                    flow=each.owner.flow if each.owner else "",
                    instance=each.owner.instance if each.owner else "",
                    offset=each.offset or 0,
                    redelivered_below=each.redelivered_below,
                )
                for each in found.values()
            )
        )

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            with contextlib.suppress(Unavailable):  # the next look will do
                self.look()
