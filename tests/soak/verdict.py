"""What a soak run is judged by: samples of what is stored. Pure, without I/O."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """One figure in the second and the last third of a run."""

    name: str
    second: float
    last: float
    limit: float

    @property
    def is_bounded(self) -> bool:
        return self.last <= self.limit


def thirds(samples: Sequence[Sample]) -> tuple[Sequence[Sample], Sequence[Sample]]:
    """The second and the last third, by time."""
    begun_s, length_s = samples[0].at_s, samples[-1].at_s - samples[0].at_s
    first_s, second_s = begun_s + length_s / 3, begun_s + 2 * length_s / 3
    return [each for each in samples if first_s < each.at_s <= second_s], [
        each for each in samples if each.at_s > second_s
    ]


def compared(samples: Sequence[Sample]) -> list[Compared]:
    """The greatest number of objects and bytes, and the typical time of planning."""
    second, last = thirds(samples)

    def figure(name: str, of: Callable[[Sequence[Sample]], float], slack: float = 0.0) -> Compared:
        before = of(second)
        return Compared(name=name, second=before, last=of(last), limit=BOUND * before + slack)

    return [
        figure("objects", lambda them: max(each.objects for each in them)),
        figure("bytes", lambda them: max(each.bytes for each in them)),
        figure("planning", lambda them: statistics.median(each.plan_ms for each in them), SLACK_MS),
    ]


def grown(samples: Sequence[Sample]) -> list[str]:
    """What did not stay bounded."""
    if len(samples) < 6:
        return [f"only {len(samples)} samples: the run was too short to judge"]
    return [
        f"{each.name}: {each.last:,.1f} in the last third, {each.second:,.1f} in the second: above {each.limit:,.1f}"
        for each in compared(samples)
        if not each.is_bounded
    ]
