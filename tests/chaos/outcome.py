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
from tests.chaos.checker import Verdict, judge
from tests.chaos.evidence import NO_WORKER, READER_GONE, read_errors, read_planned, read_rows, read_times
from tests.chaos.faults import Kind
from tests.chaos.handoffs import Handoffs, handoffs
from tests.chaos.layouts import Change, Count, changes
from tests.ownership.cast import decisions_in
from tests.ownership.facts import Seen, read_facts
from tests.ownership.publisher import key_of

STUCK_S: Final = 60.0
"""Longer than any handoff may take: session timeout, delay, max-handoff-time, a new leader, a Redis that came back."""

_EXPECTED: Final = frozenset({READER_GONE, NO_WORKER, "Unavailable"})
COURSE: Final = "course.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """What was done, how often, and what must not be (`troubles`). `missed`: faults whose victim was not there.
    `counts`: the partition counts that the queue had, one after another. `calm`: no faults were wanted.
    """

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. `errors`: what ended queries. `changes`: of the partition count."""

    course: Course
    verdict: Verdict
    handoffs: Handoffs
    errors: Counter[str]
    changes: tuple[Change, ...] = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that must not have been; empty: all is well."""
        stuck = (
            f"a handoff that took too long: partition {each.partition}, {each.pause_s:.0f} s"
            for each in self.handoffs.ended
            if each.pause_s > STUCK_S
        )
        unended = (f"a handoff without an end: {each}" for each in self.handoffs.unended)
        return (*self.verdict.violations, *unended, *stuck, *self._unexpected(), *self.course.troubles)

    def _unexpected(self) -> list[str]:
        found = [f"a query failed, {n} times: {what}" for what, n in self.errors.items() if what not in _EXPECTED]
        killed, gone = self.course.done.get(Kind.READER_KILLED.value, 0), self.errors[READER_GONE]
        if gone > killed:
            found.append(f"{killed} readers were killed, {gone} have ended")
        return found


def outcome_of(folder: Path) -> Outcome:
    """Judge what a run left in `folder`."""
    course = read_course(folder)
    drivers = [folder / f"driver-{number}" for number in range(1, course.drivers + 1)]
    rows = [row for each in drivers for row in read_rows(each.name, each / "sink")]
    planned = [span for each in drivers for span in read_planned(each.name, each / "checkpoint")]
    journals = sorted((folder / "journals").glob("*.jsonl"))
    seen = [fact for path in journals for fact in read_facts(path) if isinstance(fact, Seen)]
    published = {number: key_of(number, course.keys) for number in range(course.published)}
    times = dict(each for driver in drivers for each in read_times(driver.name, driver / "checkpoint"))
    return Outcome(
        course=course,
        verdict=judge(rows, planned, seen, published, course.counts, times),
        handoffs=handoffs(decisions_in(folder)),
        errors=sum((read_errors(each / "events.jsonl") for each in drivers), Counter()),
        changes=tuple(changes(planned, course.counts, times)),
    )


def write_course(folder: Path, course: Course) -> None:
    """Keep it with the rest."""
    (folder / COURSE).write_text(json.dumps(asdict(course), indent=1), encoding="utf-8")


def read_course(folder: Path) -> Course:
    """What `write_course` kept."""
    raw = json.loads((folder / COURSE).read_text(encoding="utf-8"))
    counts = tuple(Count(**each) for each in raw.pop("counts", ()))
    return Course(**{**raw, "machine": Environment(**raw["machine"]), "counts": counts})
