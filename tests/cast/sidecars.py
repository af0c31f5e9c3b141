"""Coordinators as processes with a log, a health port and an end, and applications that consume in a test's thread."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import partq
from tests.support.waiting import wait_until
from tools.processes import Program
from tools.servers import free_port

WAIT_S: Final = 90.0  # on an idle machine all of it takes a second or two
GROUP: Final = "billing"
SESSION_TIMEOUT_S: Final = 5.0  # the least that is allowed
COORDINATOR: Final = (sys.executable, "-P", "-m", "coordinator")


class Sidecar(Program):
    """`python -m coordinator`, with its log as JSON in a file."""

    def __init__(
        self, folder: Path, name: str, environ: Mapping[str, str], command: tuple[str, ...] = COORDINATOR
    ) -> None:
        self.port = free_port()
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "PARTQ_COORDINATOR_NAME": name,
            "PARTQ_COORDINATOR_HEALTH_PORT": str(self.port),
            "PARTQ_COORDINATOR_LOG_FORMAT": "json",
            **environ,
        }
        super().__init__(command, name=name, folder=folder, environment=given)

    def end(self, number: int = signal.SIGTERM) -> int:
        """By this signal; the exit code."""
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code, when it ends by itself."""
        return self.wait_end(WAIT_S)

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event."""
        return [line for line in lines_of(self.log) if line["event"] == event]

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
    def problem(self) -> str:
        """What it says is wrong."""
        return str(self.health()[1].get("problem", ""))

    @property
    def leads(self) -> int:
        """How many groups."""
        return int(self.health()[1].get("leading", 0))


def lines_of(log: Path) -> list[dict[str, Any]]:
    """A coordinator's log; of a killed one's last line there may be a part."""
    found = log.read_text(errors="replace").splitlines()
    return [json.loads(line) for line in found if line.startswith("{") and line.endswith("}")]


class Application:
    """Takes a group's messages in a thread, until the end of its `with` block. What it was given is kept in its order;
    `work` is done with each batch. It goes on after errors, which it keeps too.
    """

    def __init__(
        self,
        queue: partq.Queue,
        flow: str,
        ownership: str,
        work: Callable[[partq.Batch], object] = len,
        **options: Any,
    ) -> None:
        self.given: list[partq.Message] = []
        self.errors: list[partq.PartqError] = []
        self._queue = queue
        self._options = {
            "flow": flow,
            "ownership": ownership,
            "starting": "earliest",
            "session_timeout_s": SESSION_TIMEOUT_S,
            **options,
        }
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """It leaves the group in good order."""
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._queue.consumer(GROUP, **self._options) as consumer:
                    self._consume(consumer)
            except partq.PartqError as error:
                self.errors.append(error)

    def _consume(self, consumer: partq.Consumer) -> None:
        while not self._stop.is_set():
            try:
                batch = consumer.poll(0.1)
            except partq.Unavailable as error:
                self.errors.append(error)
                continue
            if batch is not None:
                self.given += list(batch)
                self._work(batch)


class Place:
    """A store and where ownership is kept, and sidecars and applications that use them."""

    def __init__(self, folder: Path, ownership: str, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"file://{folder}/store"
        self.ownership = ownership

    def environ(self, **more: str) -> dict[str, str]:
        return {"PARTQ_STORE": self.url, "PARTQ_OWNERSHIP": self.ownership, **more}

    def sidecar(self, name: str = "c1", **environ: str) -> Sidecar:
        return Sidecar(self.folder, name, self.environ(**environ))

    def group(self, queue: str = "orders", *, partitions: int = 4, delay_s: float = 0.0) -> partq.Queue:
        """A queue with a group `billing`, of which nobody said how it is shared."""
        made = partq.create_queue(
            queue, partitions=partitions, store=self.url, rebalance_delay_s=delay_s, max_handoff_time_s=2.0
        )
        made.create_group(GROUP, starting="earliest")
        return made

    def application(self, queue: partq.Queue, flow: str, **options: Any) -> Application:
        return Application(queue, flow, self.ownership, **options)

    def status(self, queue: partq.Queue) -> partq.GroupView:
        return queue.status(GROUP, ownership=self.ownership)

    def shares(self, queue: partq.Queue) -> dict[str, int]:
        """Partitions per flow, of those that are Ready."""
        found = self.status(queue).partitions
        return dict(Counter(str(each.flow) for each in found if each.status is partq.PartitionStatus.READY))

    def until_shared(self, queue: partq.Queue, **shares: int) -> None:
        """Until the flows have so many partitions each, and no others have any."""
        wait_until(lambda: self.shares(queue) == shares, f"{shares} of {queue}")

    def epochs(self, queue: partq.Queue) -> dict[int, tuple[str | None, int]]:
        """Who has what by the checkpoints."""
        return {each.partition: (each.flow, each.epoch) for each in checkpoints(queue)}

    def until_acknowledged(self, queue: partq.Queue) -> None:
        """Until all that was published is."""
        wait_until(lambda: not any(each.lag for each in checkpoints(queue)), "acknowledgement of everything")


def checkpoints(queue: partq.Queue, group: str = GROUP) -> list[partq.PartitionCheckpoint]:
    """Those that can be read."""
    found = queue.checkpoints(group).partitions
    return [each for each in found if isinstance(each, partq.PartitionCheckpoint)]
