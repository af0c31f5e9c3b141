"""What a soak run is judged by: samples of what is stored. Pure, without I/O."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

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
