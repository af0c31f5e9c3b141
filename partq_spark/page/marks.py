"""By which colour and pattern a flow is known on the page: stable while it is there, told apart by colour-blind people.

Seven colours of Okabe and Ito, whose differences survive the usual kinds of colour blindness, times three patterns. A
colour never says anything alone: the flow's name stands beside it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from zlib import crc32

COLOURS: Final = 7
PATTERNS: Final = 3
MOST_KEPT: Final = 200
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
    room = max(MOST_KEPT - len(made), 0)
    others = [(name, mark) for name, mark in known.items() if name not in made]
    return dict(others[len(others) - min(room, len(others)) :]) | made


def _candidates(name: str) -> list[Mark]:
    """All marks, in the order in which they suit this name."""
    own = crc32(name.encode(errors="replace")) % COLOURS
    return [
        Mark(colour=(own + step) % COLOURS, pattern=pattern) for pattern in range(PATTERNS) for step in range(COLOURS)
    ]
