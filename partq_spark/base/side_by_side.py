"""Several calls of a store side by side: where each takes a while, and none depends on another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class RunAll(Protocol):
    """`map` over some work; the answers come in the order of the work."""

    def __call__(self, each: Callable[[A], B], work: Sequence[A], /) -> Iterable[B]: ...


def in_a_row(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
    """One after the other, in the calling thread."""
    return [each(item) for item in work]


def side_by_side(threads: Executor) -> RunAll:
    """By these threads; a single piece without another thread."""

    def run(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        return in_a_row(each, work) if len(work) <= 1 else list(threads.map(each, work))

    return run
