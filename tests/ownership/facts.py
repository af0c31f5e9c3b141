"""What flow processes and the observer write down, one JSON line each: the checker's only evidence.

Facts only, in the hands of their writers. Times are seconds of CLOCK_MONOTONIC, which all processes of one machine
share; nothing under test ever sees them. `sent_s` is before a call was begun, `done_s` after it had returned.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final


def now_s() -> float:
    """The clock of every fact."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A bind returned. `partitions`: those of the answer; `mapping`: whether the client presented one."""

    sent_s: float
    done_s: float
    flow: str
    instance: str
    partitions: tuple[int, ...]
    mapping: bool
    standing: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Claimed:
    """A look showed a partition as this instance's own at `epoch`. `position`: the next offset to deliver."""

    sent_s: float
    done_s: float
    flow: str
    instance: str
    partition: int
    epoch: int
    position: int
    acknowledged: int
    redelivered_below: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Paused:
    """A look showed that new messages of a partition are held back, for the first time at this epoch."""

    at_s: float
    flow: str
    instance: str
    partition: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Lost:
    """A look told that a partition that was claimed is so no longer."""

    at_s: float
    flow: str
    instance: str
    partition: int
    epoch: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """Messages `[start, end)` may go to the application: the session said so. Below `redelivered_below` marked."""

    sent_s: float
    done_s: float
    flow: str
    instance: str
    partition: int
    epoch: int
    start: int
    end: int
    redelivered_below: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Acknowledged:
    """Everything before `end` is acknowledged, and the checkpoint says so: the session said that it does."""

    sent_s: float
    done_s: float
    flow: str
    instance: str
    partition: int
    epoch: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """A call raised."""

    at_s: float
    flow: str
    instance: str
    doing: str
    error: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """The process ends in good order."""

    at_s: float
    flow: str
    instance: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """A checkpoint, as the observer found it."""

    sent_s: float
    done_s: float
    partition: int
    epoch: int
    flow: str
    instance: str  # both empty: nobody
    offset: int
    redelivered_below: int


Fact = Bound | Claimed | Paused | Lost | Delivered | Acknowledged | Failed | Ended | Seen
_KINDS: Final[dict[str, Callable[..., Fact]]] = {
    each.__name__: each for each in (Bound, Claimed, Paused, Lost, Delivered, Acknowledged, Failed, Ended, Seen)
}


class Journal:
    """Appends facts to a file, each by one write to the kernel: what was written survives SIGKILL."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *facts: Fact) -> None:
        """Add facts, in order."""
        lines = "".join(json.dumps({"what": type(fact).__name__, **asdict(fact)}) + "\n" for fact in facts)
        if lines:
            os.write(self._file, lines.encode())


def read_facts(path: Path) -> Iterator[Fact]:
    """The facts of one file. A last line without its end is what a killed process left, and is no fact."""
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        raw: dict[str, Any] = json.loads(line)
        kind = _KINDS[raw.pop("what")]
        yield kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()})
