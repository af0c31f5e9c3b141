"""The heartbeat's thread and the liveness: beats for the living only, errors for the main thread."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.group.heartbeat import HeartbeatThread, Liveness, Sighting, Sign

WAIT_S = 10.0
INTERVAL_S = 0.01


def soon(look: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not look():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


class Told(Liveness):
    """A liveness that shows what it is told to."""

    def __init__(self) -> None:
        super().__init__(parent=None)
        self.sign = Sign.ALIVE

    def look(self) -> Sighting:
        return Sighting(sign=self.sign, reason="as told")


@pytest.fixture
def line() -> Told:
    return Told()


def test_it_beats_until_it_is_stopped(line: Told) -> None:
    beats: list[float] = []
    with HeartbeatThread(lambda: beats.append(time.monotonic()), INTERVAL_S, line) as heartbeat:
        soon(lambda: len(beats) >= 5)
    counted = len(beats)
    time.sleep(5 * INTERVAL_S)
    assert len(beats) == counted
    assert not heartbeat.is_beating
    heartbeat.stop()
    heartbeat.check()


def test_trouble_passes_and_is_kept(line: Told) -> None:
    outcomes: list[Exception | None] = [None, Unavailable("away"), Unavailable("still away")]
    beats = []

    def beat() -> None:
        beats.append(1)
        if len(beats) <= len(outcomes) and (error := outcomes[len(beats) - 1]) is not None:
            raise error

    with HeartbeatThread(beat, INTERVAL_S, line) as heartbeat:
        soon(lambda: len(beats) == 3 and heartbeat.trouble is not None)
        soon(lambda: len(beats) > 4)
        assert heartbeat.trouble is None
        heartbeat.check()


@pytest.mark.parametrize("error", [Corrupt("nonsense"), ValueError("a mistake")])
def test_an_error_ends_it_and_reaches_the_main_thread(line: Told, error: Exception) -> None:
    beats = []

    def beat() -> None:
        beats.append(1)
        raise error

    with HeartbeatThread(beat, INTERVAL_S, line) as heartbeat:
        soon(lambda: not heartbeat.is_beating)
        assert len(beats) == 1
        with pytest.raises(type(error)):
            heartbeat.check()
        assert type(error).__name__ in heartbeat.ended_because


@pytest.mark.conformance("LOS-07")
def test_it_is_silent_while_frozen_and_ends_when_gone(line: Told) -> None:
    beats: list[int] = []
    with HeartbeatThread(lambda: beats.append(1), INTERVAL_S, line) as heartbeat:
        soon(lambda: bool(beats))
        line.sign = Sign.FROZEN
        time.sleep(3 * INTERVAL_S)
        counted = len(beats)
        time.sleep(10 * INTERVAL_S)
        assert len(beats) == counted
        assert heartbeat.is_beating
        line.sign = Sign.ALIVE
        soon(lambda: len(beats) > counted)
        line.sign = Sign.GONE
        soon(lambda: not heartbeat.is_beating)
        assert heartbeat.ended_because == "as told"


@pytest.mark.conformance("LOS-07")
def test_a_main_thread_that_ended_is_nobody() -> None:
    other = threading.Thread(target=lambda: None)
    line = Liveness(parent=os.getppid(), main_thread=other)
    assert line.look().sign is Sign.GONE  # not even begun
    other.start()
    other.join(WAIT_S)
    assert line.look() == Sighting(sign=Sign.GONE, reason="the main thread has ended")
    alone = Liveness(parent=None, main_thread=other)
    assert alone.look() == Sighting(sign=Sign.ALIVE), "a process that stands alone may go on in other threads"


@pytest.mark.conformance("LOS-07")
@pytest.mark.parametrize(
    ("stat", "sign"),
    [
        (b"1 (java) S 0 1 1", Sign.ALIVE),
        (b"1 (a) T) R 0 1 1", Sign.ALIVE),
        (b"1 (java) T 0 1 1", Sign.FROZEN),
        (b"1 (ja va)) t 0 1 1", Sign.FROZEN),
        (b"1 (java) Z 0 1 1", Sign.GONE),
        (b"1 (java) X 0 1 1", Sign.GONE),
        (b"", Sign.ALIVE),
        (b"1 (java)", Sign.ALIVE),
        (None, Sign.ALIVE),  # processes are hidden here
    ],
)
def test_the_parents_state_is_read_from_proc(tmp_path: Path, stat: bytes | None, sign: Sign) -> None:
    parent = os.getppid()
    if stat is not None:
        (tmp_path / str(parent)).mkdir()
        (tmp_path / str(parent) / "stat").write_bytes(stat)
    assert Liveness(parent=parent, proc=tmp_path).look().sign is sign


@pytest.mark.conformance("LOS-07")
def test_another_parent_is_no_parent() -> None:
    assert Liveness(parent=os.getppid()).look().sign is Sign.ALIVE
    assert Liveness(parent=os.getppid() + 1).look().sign is Sign.GONE
