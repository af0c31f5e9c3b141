"""The rule by which something is tried again: pauses grow and have bounds, and there is an end."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.effects import Backoff, Effects, Retry
from partq_spark.base.errors import Conflict, Unavailable

SECONDS = st.floats(0.001, 1000.0)


def pauses(retry: Retry, calls_s: Iterator[float], chance: Iterator[float]) -> list[float]:
    """All pauses of a trouble that does not end, where each try takes a time of its own."""
    now_s = 0.0
    found: list[float] = []
    while len(found) < 1000:
        began_s = now_s
        now_s += next(calls_s)
        retry.failed(began_s)
        share = next(chance)
        pause_s = retry.pause_s(now_s, lambda low, high, share=share: low + share * (high - low))  # type: ignore[misc]
        if pause_s is None:
            break
        found.append(pause_s)
        now_s += pause_s
    return found


@given(
    first_s=SECONDS,
    most_s=SECONDS,
    timeout_s=st.floats(0.0, 300.0),
    least=st.floats(0.0, 1.0),
    calls_s=st.lists(st.floats(0.0, 50.0), min_size=1),
    shares=st.lists(st.floats(0.0, 1.0), min_size=1),
)
def test_pauses_grow_between_their_bounds_and_end_with_the_time(
    first_s: float, most_s: float, timeout_s: float, least: float, calls_s: list[float], shares: list[float]
) -> None:
    retry = Retry(first_s=first_s, most_s=most_s, timeout_s=timeout_s, least=least)
    found = pauses(retry, itertools.cycle(calls_s), itertools.cycle(shares))
    for number, pause_s in enumerate(found):
        whole_s = min(first_s * 2.0**number, most_s)
        assert pause_s <= whole_s * (1 + 1e-9)
        # only the last may be cut short, by what is left of the time
        assert pause_s >= least * whole_s * (1 - 1e-9) or number == len(found) - 1 or sum(found) >= timeout_s * 0.999
    assert sum(found) <= timeout_s * (1 + 1e-9)


@given(tries=st.integers(1, 40), most_s=SECONDS)
def test_tries_have_a_bound(tries: int, most_s: float) -> None:
    retry = Retry(first_s=0.01, most_s=most_s, tries=tries)
    assert len(pauses(retry, itertools.repeat(0.0), itertools.repeat(1.0))) == tries - 1
    assert retry.failures == tries


def test_many_failures_are_no_overflow() -> None:
    retry = Retry(first_s=0.01, most_s=5.0)
    retry.failures = 5000
    assert retry.pause_s(0.0, max) == 5.0


def test_a_back_off_sleeps_and_then_raises_the_cause() -> None:
    slept: list[float] = []
    effects = Effects(now_s=lambda: sum(slept), sleep=slept.append, uniform=lambda _, high: high)
    backoff = Backoff(Retry(first_s=0.5, most_s=4.0, timeout_s=3.0, conflicts_s=5.0), effects)
    for _ in range(3):
        backoff.pause(Unavailable("away"))
    assert slept == [0.5, 1.0, 1.5]  # the last as long as the time lasts
    with pytest.raises(Unavailable, match="away"):
        backoff.pause(Unavailable("away"))
    backoff.pause(Conflict("somebody was faster"))
    with pytest.raises(Conflict):
        backoff.pause(Conflict("somebody was faster"))
