"""What the benchmark makes of messages that came: no JVM, no measuring."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import latency
from benchmarks.latency import Latencies
from benchmarks.spark import LOGS


def batch(*numbers: int) -> Any:
    """As `foreachBatch` gets one."""
    return SimpleNamespace(collect=lambda: [SimpleNamespace(value=bytearray(b"%03d" % each)) for each in numbers])


def test_a_message_arrives_once_with_its_batch() -> None:
    arrivals = latency._Arrivals()
    assert not arrivals.wait_for_any(0)
    begun_ns = time.monotonic_ns()
    arrivals.take(batch(3, 4), 0)
    assert arrivals.wait_for(4, 0)
    assert not arrivals.wait_for(5, 0)
    assert begun_ns <= arrivals.at_ns(3) == arrivals.at_ns(4) <= time.monotonic_ns()
    with pytest.raises(RuntimeError, match="message 4 came twice"):
        arrivals.take(batch(4), 1)


def test_messages_are_published_one_after_the_other_at_their_times(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    published: list[bytes] = []
    sent_ns = latency._publish_steadily(published.append, 7, 3)
    assert [int(value) for value in published] == list(sent_ns) == [7, 8, 9]
    assert {len(value) for value in published} == {latency.VALUE_BYTES}
    assert slept[1:] == pytest.approx([latency.EVERY_S, 2 * latency.EVERY_S], abs=0.05)


def test_partqs_ways_are_compared_with_kafkas_of_the_same_logs() -> None:
    found = {
        (name, each): [Latencies(p50=p50 * (1 + quick), p99=9 * p50)]
        for each, quick in LOGS.items()
        for name, p50 in (
            (latency._ALONE, 1.0),
            (latency._GROUP, 2.0),
            (latency._DEFAULT, 10.0),
            (latency._TUNED, 4.0),
        )
    }
    made = latency._measures(found, 150)
    assert len(made) == len(LOGS) * 2 * 2 * 2
    assert [(each.value, each.verdict()) for each in made[:4]] == [
        (0.25, "met"),
        (0.1, "met"),
        (0.5, "met"),
        (0.2, "met"),
    ]
    assert {each.goal for each in made[8:]} == {None}
    assert all("150" in each.what for each in made)
    alone = {key: samples for key, samples in found.items() if key[0] in (latency._ALONE, latency._GROUP)}
    without = latency._measures(alone, 150)
    assert {(each.reference, each.goal) for each in without} == {(None, None)}
    assert len(without) == len(LOGS) * 2 * 2
