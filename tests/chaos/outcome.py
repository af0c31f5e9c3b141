"""What a run came to, read from its folder: what was done and what the judge says. May be asked again and again.

The folder has all that is needed: what everybody wrote down, what lay in the queue, and the course, which the run
wrote down at its end.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from benchmarks.environment import Environment
from tests.cast.consumers import FAILURE
from tests.cast.journal import EVENTS, LOG, read_facts, read_log
from tests.cast.verdict import Verdict, judge_group
from tests.chaos.faults import Kind
from tests.chaos.modes import GROUPS, Mode

COURSE: Final = "course.json"
READER_GONE: Final = "reader gone"
NO_WORKER: Final = "worker not there in time"  # Spark waits 10 s for one
_EXPECTED: Final = frozenset({READER_GONE, NO_WORKER, FAILURE, "Unavailable"})
_PARTQ: Final = re.compile(r"\b(?:partq|partq_spark(?:\.base)?\.errors)\.(\w+):")


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
    counts: tuple[int, ...] = ()
    calm: bool = False
    modes: tuple[Mode, ...] = (Mode.AUTO,)
    python: bool = False  # one consumer in plain Python of each kind shared the group with the drivers


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
            mode: judge_group(
                GROUPS[mode],
                facts,
                log,
                published=course.published,
                keys=course.keys,
                keeps_offsets=mode is not Mode.UNKEPT,
            )
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


def write_course(folder: Path, course: Course) -> None:
    """Keep it with the rest."""
    (folder / COURSE).write_text(json.dumps(asdict(course), indent=1), encoding="utf-8")


def read_course(folder: Path) -> Course:
    """What `write_course` kept."""
    raw = json.loads((folder / COURSE).read_text(encoding="utf-8"))
    machine, modes = Environment(**raw["machine"]), tuple(map(Mode, raw["modes"]))
    return Course(**{**raw, "machine": machine, "counts": tuple(raw["counts"]), "modes": modes})
