"""What the page remembers from look to look, bounded in time and count: numbers, with rates and lines made from them;
by which mark a flow is known; what a coordinator decided. Nothing is read or written here.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, NamedTuple, TypeVar
from zlib import crc32

MOST_REMEMBERED: Final = 200

T = TypeVar("T")


class Kept(Generic[T]):
    """What is remembered by name: of so many at most, those that were used last."""

    def __init__(self, fresh: T) -> None:
        self._fresh = fresh
        self._kept: OrderedDict[str, T] = OrderedDict()

    def __getitem__(self, name: str) -> T:
        return self._kept.get(name, self._fresh)

    def __setitem__(self, name: str, value: T) -> None:
        self._kept[name] = value
        self._kept.move_to_end(name)
        while len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)


# --- numbers ----------------------------------------------------------------------------------------------------------

# Where nobody looked, nothing was seen: a line has a gap there, and no number is made up.

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


# --- marks ------------------------------------------------------------------------------------------------------------

# The colour and pattern by which a flow is known: stable while it is there, told apart by colour-blind people. Seven
# colours of Okabe and Ito, whose differences survive the usual kinds of colour blindness, times three patterns. A
# colour never says anything alone: the flow's name stands beside it.

COLOURS: Final = 7
PATTERNS: Final = 3
MOST_MARKS: Final = 200
"""Marks that are remembered, those of flows that left included: a flow that comes back looks as before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """How a flow looks: its classes in page.css."""

    colour: int
    pattern: int

    @property
    def css(self) -> str:
        """The classes of the style sheet."""
        return f"mark c{self.colour} p{self.pattern}"


NOBODY: Final = "mark nobody"
"""The classes of what no flow has."""


def marks(flows: Iterable[str], known: Mapping[str, Mark]) -> dict[str, Mark]:
    """A mark for each of `flows`: the one that it has had, else that which fewest of the others have, from its name's
    own colour on, plain ones first. What is `known` of others is kept as long as there is room.
    """
    names = list(dict.fromkeys(flows))
    made = {name: known[name] for name in names if name in known}
    used = Counter(made.values())
    for name in names:
        if name not in made:
            made[name] = min(_candidates(name), key=lambda mark: used[mark])
            used[made[name]] += 1
    room = max(MOST_MARKS - len(made), 0)
    others = [(name, mark) for name, mark in known.items() if name not in made]
    return dict(others[len(others) - min(room, len(others)) :]) | made


def _candidates(name: str) -> list[Mark]:
    """All marks, in the order in which they suit this name."""
    own = crc32(name.encode(errors="replace")) % COLOURS
    return [
        Mark(colour=(own + step) % COLOURS, pattern=pattern) for pattern in range(PATTERNS) for step in range(COLOURS)
    ]


# --- decisions --------------------------------------------------------------------------------------------------------

KEPT_DECISIONS: Final = timedelta(hours=6)
MOST_DECISIONS: Final = 5000
SHOWN_DECISIONS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """A line of a coordinator's log in words: when, what, about what, and why. `group` is `namespace/queue/group`."""

    time: datetime
    group: str
    event: str
    facts: str
    reason: str

    @property
    def clock(self) -> str:
        """`12:00:01.250`."""
        return f"{self.time:%H:%M:%S}.{self.time.microsecond // 1000:03}"


class Timeline:
    """The last decisions of a coordinator, which fills it, for the page that is served in its process. Safe for use by
    several threads.
    """

    def __init__(self) -> None:
        self._kept: deque[Decision] = deque(maxlen=MOST_DECISIONS)
        self._lock = threading.Lock()

    def add(self, event: str, facts: Mapping[str, object]) -> None:
        """A line of the log; what concerns no group is not kept."""
        if "group" not in facts:
            return
        told = [(name, value) for name, value in facts.items() if name not in ("group", "reason") and value is not None]
        now = datetime.now(UTC)
        made = Decision(
            time=now,
            group=str(facts["group"]),
            event=event.replace("_", " "),
            facts=", ".join(f"{name.replace('_', ' ')} {value}" for name, value in told),
            reason=str(facts.get("reason", "")),
        )
        with self._lock:
            self._kept.append(made)
            while self._kept[0].time < now - KEPT_DECISIONS:
                self._kept.popleft()

    def of(self, group: str) -> tuple[Decision, ...]:
        """The last decisions about a group, newest first."""
        with self._lock:
            mine = [each for each in self._kept if each.group == group]
        return tuple(reversed(mine[-SHOWN_DECISIONS:]))
