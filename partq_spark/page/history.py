"""What the page remembers of numbers that it saw: bounded in time and count; rates and lines made from it. Pure.

Where nobody looked, nothing was seen: a line has a gap there, and no number is made up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

KEPT_S: Final = 600.0
MOST_POINTS: Final = 900
RATE_S: Final = 10.0
"""A rate is that of the last seconds, so many of them."""
GAP_S: Final = 6.0
"""What lies further apart is not connected."""
WIDTH: Final = 600
HEIGHT: Final = 80
WINDOWS_S: Final = (60.0, 120.0, 300.0, KEPT_S)
"""A line shows the shortest of these times that holds everything that was seen."""
_BUCKETS: Final = 300


class Point(NamedTuple):
    """A number, and when it was seen by this process' own clock; None: it was not known."""

    at_s: float
    value: float | None


History = tuple[Point, ...]


def remembered(history: History, at_s: float, value: float | None) -> History:
    """With one more sample, without what is too old or too much."""
    first = next((i for i, each in enumerate(history) if each.at_s > at_s - KEPT_S), len(history))
    return (*history[max(first, len(history) + 1 - MOST_POINTS) :], Point(at_s, value))


def rate(history: History) -> float | None:
    """By how much a number that only grows grew per second, over the last seconds; None: it was seen once only, or it
    became less (it is another one's by now).
    """
    if not history or history[-1].value is None:
        return None
    last = history[-1]
    recent = [each for each in history if each.at_s >= last.at_s - RATE_S and each.value is not None]
    first = recent[0]
    if last.at_s - first.at_s < 0.5 or first.value is None or last.value is None or last.value < first.value:
        return None
    return (last.value - first.value) / (last.at_s - first.at_s)


def part(value: float, most: float) -> int:
    """`value` in hundredths of `most`, 0 to 100; something is never shown as nothing."""
    return min(max(round(100 * value / most), 1), 100) if value > 0 and most > 0 else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A line of the last `minutes` as the points of SVG polylines (`WIDTH` × `HEIGHT`), one for each stretch without a
    gap, and the areas below them. `now` None: the number is not known.
    """

    points: tuple[str, ...]
    areas: tuple[str, ...]
    now: float | None
    highest: float
    minutes: int


def line(history: History, now_s: float) -> Line:
    """The last minutes, the present at the right, the highest value at the top."""
    age_s = now_s - history[0].at_s if history else 0.0
    window_s = next((each for each in WINDOWS_S if each >= age_s), KEPT_S)
    highest = max((each.value for each in history if each.value is not None), default=0.0)
    stretches: list[list[tuple[int, int]]] = []
    before: float | None = None
    for at_s, value in _thinned(history, now_s, window_s):
        if before is None or at_s - before > GAP_S:
            stretches.append([])
        before = at_s
        x = round(WIDTH * (1 - (now_s - at_s) / window_s))
        y = HEIGHT - (round((HEIGHT - 4) * value / highest) if highest else 0)
        stretches[-1].append((x, y))
    return Line(
        points=tuple(_points(each) for each in stretches),
        areas=tuple(_points([(each[0][0], HEIGHT), *each, (each[-1][0], HEIGHT)]) for each in stretches),
        now=history[-1].value if history else None,
        highest=highest,
        minutes=round(window_s / 60),
    )


def _thinned(history: History, now_s: float, window_s: float) -> list[tuple[float, float]]:
    """At most one sample for each pixel or two: the highest, so that no peak is lost."""
    found: dict[int, tuple[float, float]] = {}
    width_s = window_s / _BUCKETS
    for at_s, value in history:
        if value is None or at_s < now_s - window_s:
            continue
        bucket = int(at_s // width_s)
        if bucket not in found or value > found[bucket][1]:
            found[bucket] = (at_s, value)
    return sorted(found.values())


def _points(points: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)
