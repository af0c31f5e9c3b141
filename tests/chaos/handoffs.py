"""What coordinators' logs say of handoffs: when each began, when and how it ended. Pure.

A leader that is killed may have done a thing and not told it, so a pause ends at the next line that shows the partition
in somebody's hands: resumed, assigned, or paused once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

Line = Mapping[str, Any]
_OF_PARTITIONS: Final = frozenset({"pause", "resume", "assign", "fence", "partition_drained"})


class Ending(StrEnum):
    """How a handoff ended."""

    DRAINED = "drained"  # all that was delivered had been acknowledged
    FORCED = "forced"  # max-handoff-time was over
    KEPT = "kept"  # the receiving flow was lost
    CUT_SHORT = "cut short"  # the owner was lost, or coordinator or Redis on the way


class Handoff(NamedTuple):
    """One pause of a partition."""

    partition: int
    begun_s: float
    pause_s: float
    ending: Ending


@dataclass(frozen=True, kw_only=True, slots=True)
class Handoffs:
    """All pauses. `unended`: those that no line ends, as texts."""

    ended: tuple[Handoff, ...]
    unended: tuple[str, ...]


@dataclass(slots=True)
class _Pause:
    begun_s: float
    to: str
    why: Ending = field(default=Ending.CUT_SHORT)


def handoffs(lines: Iterable[Line]) -> Handoffs:
    """Of the lines of all coordinators, in any order."""
    ended: list[Handoff] = []
    running: dict[int, _Pause] = {}
    for at_s, line in sorted(_of_partitions(lines), key=lambda each: each[0]):
        partition, event = int(line["partition"]), line["event"]
        pause = running.get(partition)
        if event == "partition_drained" and pause is not None:
            pause.why = Ending.DRAINED
        elif event == "fence" and pause is not None and "max-handoff-time" in line.get("reason", ""):
            pause.why = Ending.FORCED
        elif event in ("resume", "assign", "pause"):
            if pause is not None:
                del running[partition]
                ending = Ending.KEPT if event == "resume" else pause.why
                ended.append(Handoff(partition, pause.begun_s, at_s - pause.begun_s, ending))
            if event == "pause":
                running[partition] = _Pause(at_s, line.get("to", ""))
    unended = tuple(f"partition {partition}, paused for {pause.to}" for partition, pause in sorted(running.items()))
    return Handoffs(ended=tuple(ended), unended=unended)


def _of_partitions(lines: Iterable[Line]) -> Iterator[tuple[float, Line]]:
    for line in lines:
        if line.get("event") in _OF_PARTITIONS:
            yield datetime.fromisoformat(line["time"]).timestamp(), line
