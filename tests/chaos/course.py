"""What a run is made of and what was done in it; what its drivers are: those that share a group in the ordinary way,
and one of each other mode, which has a group of its own, since a group is of one mode. And what the run came to, read
from its folder, as often as one likes: it has what everybody wrote down, what lay in the queue, and the course.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.cast.consumers import FAILURE
from tests.cast.journal import EVENTS, LOG, read_facts, read_log
from tests.cast.sidecars import GROUP
from tests.cast.verdict import Verdict, judge_group
from tests.chaos.faults import Kind
from tools.environment import Environment

NAME: Final = "course.json"


class Mode(StrEnum):
    """How a driver's query acknowledges, and what of it is kept outside of Spark's checkpoint."""

    AUTO = "auto"
    MANUAL = "manual"  # ackMode=manual: an application that acknowledges late, or fails before it does
    UNKEPT = "unkept"  # checkpoints=none: only Spark's checkpoint says how far the query is


GROUPS: Final = {Mode.AUTO: GROUP, Mode.MANUAL: "by-hand", Mode.UNKEPT: "unkept"}
OPTIONS: Final[dict[Mode, dict[str, str]]] = {
    Mode.AUTO: {},
    Mode.MANUAL: {"ackMode": "manual", "flow": "by-hand"},
    Mode.UNKEPT: {"checkpoints": "none"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """`drivers` share a group; of each other of the `modes` there is one beside them. What was done, how often, and
    what must not be (`troubles`), is known in the end.
    """

    minutes: float
    seed: int
    drivers: int
    store: str = "file"  # or "azurite", "s3", "careless"
    counts: tuple[int, ...] = (8,)  # of partitions, one after another
    modes: tuple[Mode, ...] = (Mode.AUTO,)
    python: bool = False  # one consumer in plain Python of each kind shares the group with the drivers

    machine: Environment | None = None
    took_s: float = 0.0
    published: int = 0
    done: Mapping[str, int] = field(default_factory=dict)
    missed: int = 0  # faults whose victim was not there
    troubles: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What repeats it."""
        words = [f"scripts/chaos --minutes {self.minutes:g} --seed {self.seed} --drivers {self.drivers}"]
        words.append(f"--store {self.store}")
        words += [f"--resize {','.join(map(str, self.counts))}"] if len(self.counts) > 1 else []
        words += [f"--modes {','.join(self.modes)}"] if len(self.modes) > 1 else []
        return " ".join([*words, *(["--python"] if self.python else [])])

    @property
    def names(self) -> dict[str, Mode]:
        """The drivers by name, in the order in which faults count them."""
        sharing = {f"driver-{number}": Mode.AUTO for number in range(1, self.drivers + 1)}
        return {**sharing, **{f"driver-{mode}": mode for mode in self.modes if mode is not Mode.AUTO}}

    def write(self, folder: Path) -> None:
        """Keep it with the rest."""
        (folder / NAME).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def read_course(folder: Path) -> Course:
    """What a run wrote at its end."""
    raw = json.loads((folder / NAME).read_text(encoding="utf-8"))
    raw["machine"] = Environment(**raw["machine"])
    lists = {name: tuple(raw[name]) for name in ("counts", "troubles")}
    return Course(**{**raw, **lists, "modes": tuple(map(Mode, raw["modes"]))})


# --- what it came to --------------------------------------------------------------------------------------------------

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
