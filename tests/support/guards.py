"""Negative controls: a guard is switched off, and what checks without it must notice. Here is what all suites share.

Which guards there are, and what stands in their place, is each suite's own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self, TypeVar


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard:
    """One thing that stands between a fault and what must not happen."""

    name: str
    off: Callable[[], AbstractContextManager[object]]
    conditional: bool = True  # whether stores compare ETags
    first: int = 0  # a seed to begin with, because none long before it is known to notice: it saves time, nothing else


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The first seed that noticed a missing guard, and what it said."""

    seed: int
    error: str

    @classmethod
    def of(cls, seed: int, error: Exception) -> Self:
        return cls(seed=seed, error=f"{type(error).__name__}: {error}"[:150])


G = TypeVar("G", bound=Guard)


def search(
    guard: Guard, seeds: Iterable[int], play: Callable[[int], object], *, noticed: type[Exception] = Exception
) -> Finding | None:
    """Play seeds with the guard off until one fails with `noticed`. They are counted from where it is worth looking."""
    for number in seeds:
        seed = guard.first + number
        try:
            with guard.off():
                play(seed)
        except noticed as error:
            return Finding.of(seed, error)
    return None


def main(
    guards: Sequence[G],
    first_finding: Callable[[G, Sequence[int]], Finding | None],
    *,
    seeds: int,
    only_by_name: Collection[G] = (),
) -> int:
    """The command line of a suite: prints the first seed that notices each guard; 1 if one is never noticed.

    `seeds` is how many are tried if nothing else is said. Those of `only_by_name` are tried only when asked for.
    """
    parser = argparse.ArgumentParser(description="Which seed notices that a guard is off?")
    parser.add_argument("--seeds", type=int, default=seeds, help="how many seeds to try")
    parser.add_argument("--guard", choices=[guard.name for guard in guards], help="only this one")
    arguments = parser.parse_args()
    missed = 0
    for guard in guards:
        if guard.name == arguments.guard or (arguments.guard is None and guard not in only_by_name):
            finding = first_finding(guard, range(arguments.seeds))
            missed += finding is None
            said = f"seed {finding.seed}: {finding.error}" if finding else f"not noticed by {arguments.seeds} seeds"
            sys.stdout.write(f"without {guard.name}: {said}\n")
            sys.stdout.flush()
    return min(missed, 1)
