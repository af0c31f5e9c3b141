"""What a run came to, read from its folder: what was done and what the judge says. May be asked again and again.

The folder has all that is needed: what everybody wrote down, what lay in the queue, and the course, which the run
wrote down at its end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.cast.consumers import FAILURE
from tests.cast.journal import EVENTS, LOG, read_facts, read_log
from tests.cast.verdict import Verdict, judge_group
from tests.chaos.course import GROUPS, Course, Mode, read_course
from tests.chaos.faults import Kind

READER_GONE: Final = "reader gone"
NO_WORKER: Final = "worker not there in time"  # Spark waits 10 s for one
_EXPECTED: Final = frozenset({READER_GONE, NO_WORKER, FAILURE, "Unavailable"})
_PARTQ: Final = re.compile(r"\b(?:partq|partq_spark(?:\.base)?\.errors)\.(\w+):")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run came to. `verdicts`: of the group of each mode. `errors`: what ended queries."""

    course: Course
    verdicts: Mapping[Mode, Verdict]
    errors: Counter[str]

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that must not have been; empty: all is well."""
        broken = (each for verdict in self.verdicts.values() for each in verdict.violations)
        return (*broken, *self._unexpected(), *self.course.troubles)

    def _unexpected(self) -> list[str]:
        found = [f"a query failed, {n} times: {what}" for what, n in self.errors.items() if what not in _EXPECTED]
        killed, gone = self.course.done.get(Kind.READER_KILLED.value, 0), self.errors[READER_GONE]
        if gone > killed:
            found.append(f"{killed} readers were killed, {gone} have ended")
        return found


def outcome_of(folder: Path) -> Outcome:
    """Judge what a run left in `folder`."""
    course = read_course(folder)
    facts = read_facts(folder)
    log = read_log(folder / LOG)
    return Outcome(
        course=course,
        verdicts={
            mode: judge_group(GROUPS[mode], facts, log, course.published, keeps_offsets=mode is not Mode.UNKEPT)
            for mode in course.modes
        },
        errors=sum(map(read_errors, folder.glob(f"*/{EVENTS}")), Counter()),
    )


def read_errors(events: Path) -> Counter[str]:
    """What ended a flow's query or consumer, by kind: of partq by name, else in the last words of Spark or Python."""
    found: Counter[str] = Counter()
    for line in events.read_text(encoding="utf-8").splitlines():
        if line.endswith("}"):  # a killed driver's last line may be a part
            event: dict[str, str] = json.loads(line)
            if event["what"] in ("failed", "not started"):
                found[kind_of(event["error"])] += 1
    return found


def kind_of(error: str) -> str:
    """The kind of an error, from all that Spark says of it."""
    if FAILURE in error:
        return FAILURE
    named = _PARTQ.findall(error)
    if named:
        return str(named[-1])
    lines = error.partition("=== Streaming Query ===")[0].partition(" SQLSTATE:")[0].strip().splitlines()
    words = lines[-1].strip() if lines else "no words"
    # The end of the source's process: without a word (spark-traps.md 31), or while the JVM was talking to it.
    if "(no cause message)" in error or words in ("Connection reset", "Broken pipe"):
        return READER_GONE
    if words.startswith("Python worker failed to connect back"):
        return NO_WORKER
    return words[:160]
