"""One soak run: a publisher, a consumer and a coordinator as processes, and a look at what is stored every few seconds.

The coordinator is `python -m coordinator` and keeps house by itself; nothing is trimmed or collected from here. What
the consumer was given is judged as in scripts/chaos; that nothing comes again, marked or not, is asked here.
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import psutil

import partq
from tests.cast.cast import QUEUE, Cast
from tests.cast.consumers import Kind
from tests.cast.journal import NAME, read_facts
from tests.cast.looks import Observer
from tests.cast.sidecars import COORDINATOR, GROUP, checkpoints
from tests.cast.verdict import judge_group
from tests.support.waiting import wait_until
from tests.world.facts import Fact, Given, Lying

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
    coordinator: tuple[str, ...] = COORDINATOR  # its command, where it is another one


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
    samples: list[Sample] = []
    house = {
        "COLLECTION_GRACE_S": course.grace_s,
        "COMPACTION_MIN_AGE_S": course.min_age_s,
        "HOUSEKEEPING_LOOK_S": course.look_s,
    }
    with (
        Cast(
            folder,
            session_timeout_s=10.0,
            ownership_url="store",
            partitions=course.partitions,
            rebalance_delay_s=0.5,
            retention_s=course.retention_s,
        ) as cast,
        Observer(cast.queue, GROUP, folder / NAME),
    ):
        queue, wanted = cast.queue, {f"PARTQ_COORDINATOR_{name}": f"{value:g}" for name, value in house.items()}
        sidecar = cast.start_coordinator("coordinator", wanted, course.coordinator)
        children = [
            cast.consumer("consumer", Kind.NEXT, steady=True).start(),
            cast.publisher(course.messages, course.interval_s).start(),
        ]
        begun_s = time.monotonic()
        while (at_s := time.monotonic() - begun_s) < course.length_s:
            samples.append(sample(folder, queue, at_s))
            tell(_line(samples[-1]))
            for child in children:
                assert child.code is None, f"{child.name} has ended: {child.tail()}"
            due_s = begun_s + len(samples) * course.sample_s
            time.sleep(max(0.0, min(due_s, begun_s + course.length_s) - time.monotonic()))
        cpu_s = {each.name: sum(psutil.Process(each.pid).cpu_times()[:2]) for each in (sidecar, *children)}
        for child in reversed(children):
            if child.name == "consumer":
                wait_until(lambda: not any(each.lag for each in checkpoints(queue)), "acknowledgements", _END_WAIT_S)
            os.kill(child.pid, signal.SIGTERM)
            assert child.wait_end(_END_WAIT_S) == 0, child.tail()
        sidecar.end()
    published = int((folder / "publisher.log").read_text().split()[-1])
    facts = read_facts(folder)
    return Outcome(
        course=course,
        samples=samples,
        published=published,
        received=sum(len(fact.rows) for fact in facts if isinstance(fact, Given)),
        trimmed=sum(line["messages"] for line in sidecar.lines("messages_trimmed")),
        deleted=sum(line["objects"] for line in sidecar.lines("objects_deleted")),
        compactions=len(sidecar.lines("log_compacted")),
        cpu_s=cpu_s,
        failures=[
            *grown(samples),
            *misread(facts, published),
            *(f"the housekeeper: {line['reason']}" for line in sidecar.lines("housekeeping_failed")[:5]),
        ],
    )


def misread(facts: Sequence[Fact], published: int) -> list[str]:
    """What the consumer should not have been given, or was not. Most of the log is gone: what was given says what it
    was.
    """
    given = [fact for fact in facts if isinstance(fact, Given)]
    log = {(row.partition, row.offset): Lying(row.key, row.value, fact.at_us) for fact in given for row in fact.rows}
    verdict = judge_group(GROUP, facts, log, published)
    again = [f"{verdict.repeated} messages came again, {verdict.marked} were marked"]
    return [*verdict.violations, *(again if verdict.repeated or verdict.marked else ())]


def sample(folder: Path, queue: partq.Queue, at_s: float) -> Sample:
    """One look at what is stored, and some walks through the log by readers that know nothing yet."""
    sizes = []
    for place, _, files in os.walk(folder / "store" / "default" / QUEUE):
        for name in files:
            try:
                sizes.append((Path(place) / name).stat().st_size)
            except FileNotFoundError:
                pass  # deleted or replaced just now
    found, times_ms = queue.describe(), []
    for _ in range(PLANS):
        begun_s = time.perf_counter()
        found = queue.describe(count_bytes=True)
        times_ms.append((time.perf_counter() - begun_s) * 1000)
    return Sample(
        at_s=at_s,
        objects=len(sizes),
        bytes=sum(sizes),
        head_bytes=found.log.head_bytes,
        messages=found.messages,
        references=found.log.chunks,
        entries=found.log.entries,
        plan_ms=min(times_ms),  # the others had to wait for a processor
    )


def _line(sample: Sample) -> str:
    head = f"head {sample.head_bytes / 1000:.1f} kB with {sample.references} chunks and {sample.entries} entries"
    stored = f"{sample.objects} objects, {sample.bytes / 1000:,.0f} kB"
    return f"{sample.at_s:6.0f} s: {stored}, {head}, {sample.messages:,} messages, plan {sample.plan_ms:.1f} ms"


# --- what it is judged by ---------------------------------------------------------------------------------------------

BOUND: Final = 1.2
"""What the last third of a run may have at most, as a multiple of the second third."""

SLACK_MS: Final = 2.0
"""What planning may take longer on top of that: other processes of the machine are felt in a time of milliseconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One look. `plan_ms`: the quickest of some reads of the head and of all that it leads to."""

    at_s: float
    objects: int
    bytes: int
    head_bytes: int
    messages: int
    references: int  # to chunks, in the head
    entries: int  # in the head itself
    plan_ms: float


class Compared(NamedTuple):
    """One figure in the second and the last third of a run."""

    name: str
    second: float
    last: float
    limit: float


def compared(samples: Sequence[Sample]) -> list[Compared]:
    """The greatest number of objects and bytes, and the typical time of planning, by time."""
    length_s = samples[-1].at_s - samples[0].at_s
    thirds: list[list[Sample]] = [[], [], []]
    for each in samples:
        thirds[min(int(3 * (each.at_s - samples[0].at_s) / length_s), 2)].append(each)
    found = []
    for name, slack in (("objects", 0.0), ("bytes", 0.0), ("planning", SLACK_MS)):
        _, second, last = (
            statistics.median(each.plan_ms for each in third)
            if slack
            else float(max(getattr(each, name) for each in third))
            for third in thirds
        )
        found.append(Compared(name, second, last, BOUND * second + slack))
    return found


def grown(samples: Sequence[Sample]) -> list[str]:
    """What did not stay bounded."""
    if len(samples) < 6:
        return [f"only {len(samples)} samples: the run was too short to judge"]
    return [
        f"{name}: {last:,.1f} in the last third, {second:,.1f} in the second: above {limit:,.1f}"
        for name, second, last, limit in compared(samples)
        if last > limit
    ]
