"""Side by side, within a bound: how the sidecar runs the fences of one group. Simulations run them in a row instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

A = TypeVar("A")
B = TypeVar("B")


class Run(Protocol):
    """`map` over some work; the answers come in the order of the work."""

    def __call__(self, each: Callable[[A], B], work: Sequence[A], /) -> Iterable[B]: ...


def in_a_row(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
    """One after the other, in the calling thread."""
    return [each(item) for item in work]


class Pool:
    """At most `threads` pieces of work at once, of all groups together."""

    def __init__(self, threads: int, name: str) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        """All of `work`; a single piece is done at once, without another thread."""
        if len(work) <= 1:
            return in_a_row(each, work)
        return list(self._executor.map(each, work))

    def close(self) -> None:
        """Begin nothing further; what runs is left to end by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
