"""The heartbeat's thread and the liveness: beats for the living only, errors for the main thread."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.group.binding import HeartbeatThread, Liveness, Sighting, Sign
from tests.support.waiting import wait_until

INTERVAL_S = 0.01


class Beats(Liveness):
    """Counts beats, each of which may fail; their thread looks at a sign that the test sets."""

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__(parent=None)
        self.count, self.sign, self.outcomes = 0, Sign.ALIVE, list(outcomes)
        self.troubles: list[Exception | None] = []  # as each beat found them
        self.thread = HeartbeatThread(self.beat, INTERVAL_S, self)

    def look(self) -> Sighting:
        return Sighting(sign=self.sign, reason="as told")

    def beat(self) -> None:
        self.count += 1
        self.troubles.append(self.thread.trouble)
        if self.outcomes and (error := self.outcomes.pop(0)) is not None:
            raise error

    def is_still(self) -> bool:
        time.sleep(3 * INTERVAL_S)
        counted = self.count
        time.sleep(8 * INTERVAL_S)
        return self.count == counted


def test_it_beats_until_it_is_stopped_and_trouble_passes() -> None:
    away, still_away = Unavailable("away"), Unavailable("still away")
    beats = Beats(None, away, still_away)
    with beats.thread as heartbeat:
        wait_until(lambda: beats.count >= 5, "beats")
        assert beats.troubles[:5] == [None, None, away, still_away, None]
    assert beats.is_still()
    assert not heartbeat.is_beating
    heartbeat.stop()
    heartbeat.check()


@pytest.mark.parametrize("error", [Corrupt("nonsense"), ValueError("a mistake")])
def test_an_error_ends_it_and_reaches_the_main_thread(error: Exception) -> None:
    beats = Beats(error)
    with beats.thread as heartbeat:
        wait_until(lambda: not heartbeat.is_beating, "end")
        assert beats.count == 1
        with pytest.raises(type(error)):
            heartbeat.check()
        assert type(error).__name__ in heartbeat.ended_because


@pytest.mark.conformance("LOS-07")
def test_it_is_silent_while_frozen_and_ends_when_gone() -> None:
    beats = Beats()
    with beats.thread as heartbeat:
        wait_until(lambda: beats.count > 0, "beat")
        beats.sign = Sign.FROZEN
        assert beats.is_still()
        assert heartbeat.is_beating
        counted, beats.sign = beats.count, Sign.ALIVE
        wait_until(lambda: beats.count > counted, "beat")
        beats.sign = Sign.GONE
        wait_until(lambda: not heartbeat.is_beating, "end")
        assert heartbeat.ended_because == "as told"


@pytest.mark.conformance("LOS-07")
def test_a_main_thread_that_ended_is_nobody() -> None:
    other = threading.Thread(target=lambda: None)
    line = Liveness(parent=os.getppid(), main_thread=other)
    assert line.look().sign is Sign.GONE  # not even begun
    other.start()
    other.join()
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
    assert Liveness(parent=parent + 1, proc=tmp_path).look().sign is Sign.GONE, "another parent is no parent"
