"""Who works on the log for days, and what befalls them, as data: the part of a plan that is about the log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

HOUR_S: Final = 3600.0
GRACE_S: Final = 24 * HOUR_S
"""Before what nobody needs is collected."""
KEEPERS: Final = ("trimmer", "collector", "compactor", "resizer", "rewinder", "reader")
_CALLS: Final = ("swap head", "after swap head", "load head", "written segments", "create log", "read segments")


@dataclass(frozen=True, kw_only=True)
class LogPlan:
    """`writers` publish batches; `keepers` do something now and then, `rounds` times: what, their names say. `sizes`:
    of a log's parts, small, as histories are short here. `sleepy`: that a writer sleeps for long between staging and
    publishing; `trim_all`: that a trim takes everything. `is_typed`: the queue has columns.
    """

    writers: tuple[str, ...] = ()
    keepers: tuple[str, ...] = ()
    rounds: int = 8
    sizes: tuple[tuple[str, int], ...] = ()
    sleepy: float = 0.0
    trim_all: float = 0.0
    is_typed: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        keepers = [f"{what}-{number}" for what in KEEPERS for number in range(rng.choice((0, 0, 1, 2)))]
        is_typed = rng.random() < 0.3
        sizes = {
            "inline_entries": rng.choice((2, 4, 6)),
            "fan_out": rng.randint(2, 3),
            "head_writers": rng.choice((2, 4)),
            "page_fan_out": 2,
            "slice_gain": 2,
        }
        return cls(
            writers=("writer", "second-writer", "anonymous")[rng.choice((0, 1)) : rng.randint(2, 3)],
            keepers=(*keepers, "collector-9", *(["alterer-9"] if is_typed else [])),
            sizes=tuple(sizes.items()),
            sleepy=rng.choice((0.05, 0.3, 0.7)),
            trim_all=rng.choice((0.1, 0.7)),
            is_typed=is_typed,
        )

    def events(self, rng: random.Random, lasts_s: float) -> Iterator[dict[str, Any]]:
        """Fields of what befalls them."""
        for _ in range(rng.choice((1, 4, 12, 20))):
            at_s, whom = round(rng.uniform(0.0, lasts_s)), rng.choice((*self.writers, *self.writers, *self.keepers))
            away_s = rng.choice((0.2, 30.0, 600.0, 3 * HOUR_S, 26 * HOUR_S, 60 * HOUR_S, 100 * HOUR_S))
            draw = rng.random()
            if draw < 0.5:
                what = rng.choice(("kill", "freeze", "freeze", "late", "answer lost", "answer lost"))
                number, on = rng.choice((1, 1, 2, 5)), rng.choice(_CALLS)
                yield {"at_s": at_s, "what": what, "whom": whom, "for_s": away_s, "number": number, "on": on}
            elif draw < 0.7:
                yield {"at_s": at_s, "what": rng.choice(("kill", "freeze")), "whom": whom, "for_s": away_s}
            else:
                what, rate = rng.choice(("storm", "outage", "refusals")), rng.choice((0.02, 0.1, 0.4))
                yield {"at_s": at_s, "what": what, "for_s": min(away_s, 600.0), "rate": rate}
