"""What a soak run is judged by: samples of what is stored, and what the consumer found. Pure, without I/O."""

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
    """One look. `plan_ms`: the quickest of some plans, each by a fresh reader: a cold read of the head and a plan of
    all that can be read.
    """

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


def failures(
    samples: Sequence[Sample], *, published: int, received: int, marked: int, out_of_order: int, strange: Sequence[str]
) -> list[str]:
    """What must not be."""
    found: list[str] = []
    if len(samples) < 6:
        return [f"only {len(samples)} samples: the run was too short to judge"]
    found += [
        f"{each.name}: {each.last:,.1f} in the last third, {each.second:,.1f} in the second: above {each.limit:,.1f}"
        for each in compared(samples)
        if not each.is_bounded
    ]
    if received != published:
        found.append(f"the consumer received {received:,} of {published:,} messages")
    if marked or out_of_order:
        found.append(f"{marked} messages came again, {out_of_order} were not the next of their key: {strange}")
    return found
