"""One soak run: a publisher, a consumer and a coordinator as processes, and a look at what is stored every few seconds.

The coordinator is `python -m coordinator` and keeps house by itself; nothing is trimmed or collected from here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partq_spark.group import lifecycle
from partq_spark.group.model import GroupKey
from partq_spark.log import admin, tree
from partq_spark.log.model import QueueConfig
from partq_spark.log.names import head_name
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.coordinator.sidecars import Sidecar
from tests.soak.verdict import Sample, failures
from tests.support.servers import die_with_parent
from tests.support.waiting import wait_until

QUEUE: Final = "soak"
GROUP: Final = "readers"
KEYS: Final = 50
PLANS: Final = 7  # of one sample
_END_WAIT_S: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What a run is made of. Times in seconds."""

    length_s: float
    interval_s: float = 1.0  # between two publishes
    messages: int = 100  # of each
    partitions: int = 8
    retention_s: float = 60.0
    grace_s: float = 60.0
    min_age_s: float = 20.0
    sample_s: float = 10.0
    look_s: float = 5.0
    coordinator: tuple[str, ...] = ()  # its command, where it is another one


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What came of it."""

    course: Course
    samples: list[Sample]
    published: int
    received: int
    trimmed: int
    deleted: int
    compactions: int
    cpu_s: dict[str, float]
    failures: list[str]


def run(folder: Path, course: Course, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """Take the course. Raises `AssertionError` if somebody never begins or never ends."""
    url = f"file://{folder}/store"
    store = open_store(url)
    queue = admin.create_queue(
        store, "default", QUEUE, course.partitions, QueueConfig(rebalance_delay_s=0.5, retention_s=course.retention_s)
    )
    admin.create_group(queue, GROUP, (0,) * course.partitions)
    sidecar = Sidecar(folder, "coordinator", _environ(url, course), course.coordinator)
    publisher_words = [url, "default", QUEUE, str(course.messages), str(course.interval_s), str(KEYS)]
    samples: list[Sample] = []
    with (
        sidecar,
        _Child(folder, "tests.soak.consumer", url, QUEUE, GROUP, str(KEYS)) as consumer,
        _Child(folder, "tests.ownership.publisher", *publisher_words) as publisher,
    ):
        begun_s = time.monotonic()
        while (at_s := time.monotonic() - begun_s) < course.length_s:
            samples.append(sample(folder, url, at_s))
            tell(_line(samples[-1]))
            for child in (consumer, publisher):
                assert child.process.poll() is None, f"{child.name} has ended: {child.log.read_text()[-2000:]}"
            due_s = begun_s + len(samples) * course.sample_s
            time.sleep(max(0.0, min(due_s, begun_s + course.length_s) - time.monotonic()))
        published = int(publisher.end())
        key = GroupKey("default", QUEUE, GROUP)
        checkpoints = lifecycle.checkpoints_of(queue, key.group)

        def is_acknowledged() -> bool:
            ends = queue.refresh().next
            found = checkpoints.list_checkpoints()
            return all(p in found and found[p].offset == end for p, end in enumerate(ends))

        wait_until(is_acknowledged, "acknowledgement of everything", _END_WAIT_S)
        found: dict[str, Any] = json.loads(consumer.end())
        assert sidecar.process is not None
        cpu_s = {"publisher": publisher.cpu_s, "consumer": consumer.cpu_s, "coordinator": _cpu_s(sidecar.process.pid)}
        sidecar.end()
    store.close()
    return Outcome(
        course=course,
        samples=samples,
        published=published,
        received=found["messages"],
        trimmed=sum(line["messages"] for line in sidecar.lines("messages_trimmed")),
        deleted=sum(line["objects"] for line in sidecar.lines("objects_deleted")),
        compactions=len(sidecar.lines("log_compacted")),
        cpu_s=cpu_s,
        failures=[
            *failures(
                samples,
                published=published,
                received=found["messages"],
                marked=found["marked"],
                out_of_order=found["out_of_order"],
                strange=found["strange"],
            ),
            *(f"the housekeeper: {line['reason']}" for line in sidecar.lines("housekeeping_failed")[:5]),
        ],
    )


def sample(folder: Path, url: str, at_s: float) -> Sample:
    """One look at what is stored, and some plans by readers that know nothing yet."""
    sizes = []
    for place, _, files in os.walk(folder / "store" / "default" / QUEUE):
        for name in files:
            try:
                sizes.append((Path(place) / name).stat().st_size)
            except FileNotFoundError:
                pass  # deleted or replaced just now
    times_ms = []
    head = None
    for _ in range(PLANS):
        begun_s = time.perf_counter()
        store = open_store(url)
        queue = QueueLog(store, "default", QUEUE)
        head = queue.refresh()
        # Of an entry that was trimmed and collected since, the next head has no word.
        queue.settled(lambda now, q=queue: _plan(q, now))  # type: ignore[misc]
        times_ms.append((time.perf_counter() - begun_s) * 1000)
        store.close()
    assert head is not None
    return Sample(
        at_s=at_s,
        objects=len(sizes),
        bytes=sum(sizes),
        head_bytes=(folder / "store" / head_name("default", QUEUE)).stat().st_size,
        messages=head.messages,
        references=len(head.tree),
        entries=len(head.entries),
        plan_ms=min(times_ms),  # the others had to wait for a processor
    )


def _plan(queue: QueueLog, head: Any) -> int:
    wanted = {partition: (earliest, head.next[partition]) for partition, earliest in enumerate(head.earliest)}
    return sum(len(entry.slices) for entry in tree.walk(tree.view(head, wanted), queue.load_chunk))


def _line(sample: Sample) -> str:
    head = f"head {sample.head_bytes / 1000:.1f} kB with {sample.references} chunks and {sample.entries} entries"
    stored = f"{sample.objects} objects, {sample.bytes / 1000:,.0f} kB"
    return f"{sample.at_s:6.0f} s: {stored}, {head}, {sample.messages:,} messages, plan {sample.plan_ms:.1f} ms"


def _environ(url: str, course: Course) -> dict[str, str]:
    here = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {
        **here,
        "PARTQ_STORE": url,
        "PARTQ_OWNERSHIP": "store",
        "PARTQ_COORDINATOR_COLLECTION_GRACE_S": f"{course.grace_s:g}",
        "PARTQ_COORDINATOR_COMPACTION_MIN_AGE_S": f"{course.min_age_s:g}",
        "PARTQ_COORDINATOR_HOUSEKEEPING_LOOK_S": f"{course.look_s:g}",
    }


class _Child:
    """One of our programs; its last line of output is its report."""

    def __init__(self, folder: Path, module: str, *words: str) -> None:
        self.name = module
        self.log = folder / f"{module}.log"
        self._output = folder / f"{module}.out"
        self._command = [sys.executable, "-m", module, *words]
        self.process: subprocess.Popen[bytes]
        self.cpu_s = 0.0

    def __enter__(self) -> _Child:
        with self.log.open("wb") as log, self._output.open("wb") as output:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call
            )
        return self

    def end(self) -> str:
        """SIGTERM, and what it reports."""
        self.cpu_s = _cpu_s(self.process.pid)
        self.process.terminate()
        code = self.process.wait(_END_WAIT_S)
        assert code == 0, f"{self.name} ended with {code}: {self.log.read_text()[-2000:]}"
        return self._output.read_text().strip()

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(_END_WAIT_S)


def _cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
