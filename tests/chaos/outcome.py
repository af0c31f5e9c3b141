"""What a run came to, read from its folder: what was done and what the judges say. May be asked again and again.

The folder has all that is needed: Spark's logs and the sinks, the coordinators' logs, the observer's looks, and the
course, which the run wrote down at its end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.environment import Environment
from tests.cast.consumers import FAILURE
from tests.cast.looks import read_seen
from tests.cast.publisher import key_of
from tests.cast.sidecars import GROUP, lines_of
from tests.chaos.by_hand import ByHandVerdict, judge_by_hand, read_by_hand
from tests.chaos.checker import Verdict, judge, judge_unkept
from tests.chaos.evidence import (
    NO_WORKER,
    READER_GONE,
    read_consumed,
    read_errors,
    read_planned,
    read_rows,
    read_rows_by_batch,
    read_times,
)
from tests.chaos.faults import Kind
from tests.chaos.handoffs import Handoffs, handoffs
from tests.chaos.layouts import Change, Count, changes
from tests.chaos.modes import CONSUMED, JOURNAL, Mode, driver_names
from tests.chaos.stage import CONSUMERS

STUCK_S: Final = 60.0
"""Longer than any handoff may take: session timeout, delay, max-handoff-time, a new leader, a Redis that came back."""

_EXPECTED: Final = frozenset({READER_GONE, NO_WORKER, FAILURE, "Unavailable"})
LOOKS: Final = "looks.jsonl"
LOOKS_BY_HAND: Final = "looks-by-hand.jsonl"
COURSE: Final = "course.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What was done, how often, and what must not be (`troubles`). `missed`: faults whose victim was not there.
    `counts`: the partition counts that the queue had, one after another. `calm`: no faults were wanted. `drivers`
    shared a group; of each other of the `modes` there was one beside them.
    """

    command: str  # that repeats it
    drivers: int
    store: str
    seed: int
    minutes: float
    took_s: float
    published: int
    keys: int
    done: Mapping[str, int]
    missed: int
    troubles: list[str]
    machine: Environment
    counts: tuple[Count, ...] = ()
    calm: bool = False
    modes: tuple[Mode, ...] = (Mode.AUTO,)
    python: bool = False  # one consumer in plain Python of each kind shared the group with the drivers


@dataclass(frozen=True, kw_only=True, slots=True)
class Consumers:
    """What the consumers in plain Python came to, all together."""

    rows: int
    batches: int
    unfinished: int  # batches


@dataclass(frozen=True, kw_only=True, slots=True)
class Unkept:
    """What the query with `checkpoints=none` came to."""

    violations: tuple[str, ...]
    rows: int
    repeated: int
    left_out: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. `errors`: what ended queries. `changes`: of the partition count. `by_hand`, `unkept`: of the
    queries of the other modes, where there were any.
    """

    course: Course
    verdict: Verdict
    handoffs: Handoffs
    errors: Counter[str]
    changes: tuple[Change, ...] = ()
    by_hand: ByHandVerdict | None = None
    unkept: Unkept | None = None
    consumers: Consumers | None = None

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that must not have been; empty: all is well."""
        stuck = (
            f"a handoff that took too long: partition {each.partition}, {each.pause_s:.0f} s"
            for each in self.handoffs.ended
            if each.pause_s > STUCK_S
        )
        unended = (f"a handoff without an end: {each}" for each in self.handoffs.unended)
        others = [each for found in (self.by_hand, self.unkept) if found is not None for each in found.violations]
        return (*self.verdict.violations, *others, *unended, *stuck, *self._unexpected(), *self.course.troubles)

    def _unexpected(self) -> list[str]:
        found = [f"a query failed, {n} times: {what}" for what, n in self.errors.items() if what not in _EXPECTED]
        killed, gone = self.course.done.get(Kind.READER_KILLED.value, 0), self.errors[READER_GONE]
        if gone > killed:
            found.append(f"{killed} readers were killed, {gone} have ended")
        return found


def outcome_of(folder: Path) -> Outcome:
    """Judge what a run left in `folder`."""
    course = read_course(folder)
    named = driver_names(course.drivers, course.modes)
    drivers = [folder / name for name, mode in named.items() if mode is Mode.AUTO]
    rows = [row for each in drivers for row in read_rows(each.name, each / "sink")]
    planned = [span for each in drivers for span in read_planned(each.name, each / "checkpoint")]
    consumed = [read_consumed(name, folder / name / CONSUMED) for name in CONSUMERS] if course.python else []
    rows += [row for each in consumed for row in each.rows]
    planned += [span for each in consumed for span in each.planned]
    unfinished = {batch for each in consumed for batch in each.unfinished}
    seen = read_seen(folder / LOOKS)
    logs = [line for path in folder.glob("coordinator-*.log") for line in lines_of(path)]
    published = {number: key_of(number, course.keys) for number in range(course.published)}
    times = dict(each for driver in drivers for each in read_times(driver.name, driver / "checkpoint"))
    times.update(batch for each in consumed for batch in each.times.items())
    flows = [*named, *(CONSUMERS if course.python else ())]
    return Outcome(
        course=course,
        verdict=judge(rows, planned, seen, published, course.counts, times, unfinished),
        handoffs=handoffs(line for line in logs if str(line.get("group", "")).endswith(f"/{GROUP}")),
        errors=sum((read_errors(folder / name / "events.jsonl") for name in flows), Counter()),
        changes=tuple(changes(planned, course.counts, times)),
        by_hand=_by_hand(folder, published) if Mode.MANUAL in course.modes else None,
        unkept=_unkept(folder / f"driver-{Mode.UNKEPT}", published) if Mode.UNKEPT in course.modes else None,
        consumers=Consumers(
            rows=sum(len(each.rows) for each in consumed),
            batches=sum(len(each.times) for each in consumed),
            unfinished=len(unfinished),
        )
        if course.python
        else None,
    )


def _by_hand(folder: Path, published: Mapping[int, str]) -> ByHandVerdict:
    facts = read_by_hand(folder / f"driver-{Mode.MANUAL}" / JOURNAL)
    return judge_by_hand(facts, read_seen(folder / LOOKS_BY_HAND), published)


def _unkept(driver: Path, published: Mapping[int, str]) -> Unkept:
    rows = list(read_rows_by_batch(driver.name, driver / "sink"))
    planned = list(read_planned(driver.name, driver / "checkpoint"))
    delivered = {(row.batch, row.partition) for row in rows}
    return Unkept(
        violations=judge_unkept(rows, planned, published),
        rows=len(rows),
        repeated=len(rows) - len({row.number for row in rows}),
        left_out=sum(each.start < each.to and (each.batch, each.partition) not in delivered for each in planned),
    )


def write_course(folder: Path, course: Course) -> None:
    """Keep it with the rest."""
    (folder / COURSE).write_text(json.dumps(asdict(course), indent=1), encoding="utf-8")


def read_course(folder: Path) -> Course:
    """What `write_course` kept."""
    raw = json.loads((folder / COURSE).read_text(encoding="utf-8"))
    counts = tuple(Count(**each) for each in raw.pop("counts", ()))
    modes = tuple(map(Mode, raw.pop("modes", [Mode.AUTO])))
    return Course(**{**raw, "machine": Environment(**raw["machine"]), "counts": counts, "modes": modes})
