"""What judges demand, and say when it is not so. Who is judged by which rules is theirs (`tests/world/judge.py`)."""

from __future__ import annotations

MOST_RATE_DIFFERENCE = 0.0002  # two clocks differ in rate by at most so much


class Violation(AssertionError):
    """Something happened that must never happen."""


def demand(condition: bool, *what: object) -> None:
    """Raise `Violation` with `what` unless the condition holds."""
    if not condition:
        raise Violation(" ".join(map(str, what)))
