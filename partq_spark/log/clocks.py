"""Which time a queue goes by, and what an entry's time is worth if the clock behind it was wrong. Pure.

Ages (retention, the grace of collection, how long writers are remembered) are differences between times that different
machines wrote down. One wrong clock must not lead them away, so a machine's own clock counts only as far as the
store's agrees with it, where the store has one that can be asked. Where none could be asked while a clock was wrong, a
time too far in the future is no time at all: what carries it counts as old as what was published after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MOST_OFF_US: Final = 10 * 60 * 1_000_000
"""So far may a machine's clock be off the store's: of more than 10 minutes the store's own time is taken."""

MOST_AHEAD_US: Final = 4 * 3600 * 1_000_000
"""So far may the time of an entry be ahead of now: of more than 4 hours it is false. Less heals by waiting."""


def agreed_us(own_us: int, store_us: int | None) -> int:
    """The time to go by: this machine's, unless the store's clock says that it is wrong. Unix, microseconds."""
    return store_us if store_us is not None and abs(own_us - store_us) > MOST_OFF_US else own_us


def latest_us(now_us: int) -> int:
    """The latest time that an entry can truly have."""
    return now_us + MOST_AHEAD_US


def following_us(last_us: int, now_us: int) -> int:
    """The time of what comes after an entry with `last_us`: later, unless that time is false. Then time begins anew."""
    return now_us if last_us > latest_us(now_us) else max(last_us + 1, now_us)


def set_right_us(last_us: int, now_us: int) -> int:
    """`last_us`, or now if it is false."""
    return now_us if last_us > latest_us(now_us) else last_us


def published_by(times: Sequence[int], after_us: int | None = None) -> list[int]:
    """For each of `times`, in publish order, when it was published at the latest: no later than what follows it, and
    than `after_us`, which follows all.
    """
    found: list[int] = []
    least = after_us
    for time_us in reversed(times):
        least = time_us if least is None else min(least, time_us)
        found.append(least)
    return found[::-1]
