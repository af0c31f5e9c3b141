"""The heartbeat's thread and the liveness: beats for the living only, errors for the main thread."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.group.binding import HeartbeatThread, Liveness
from tests.support.waiting import wait_until

INTERVAL_S = 0.01


class Beats(Liveness):
    """Counts beats, each of which may fail; for their thread it is as the test says."""

    gone = ""
    is_frozen = False

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__(parent=None)
        self.count, self.outcomes = 0, list(outcomes)
        self.thread = HeartbeatThread(self.beat, INTERVAL_S, self)

    def beat(self) -> None:
        self.count += 1
        if self.outcomes and (error := self.outcomes.pop(0)) is not None:
            raise error

    def is_still(self) -> bool:
        time.sleep(3 * INTERVAL_S)
        counted = self.count
        time.sleep(8 * INTERVAL_S)
        return self.count == counted


def test_it_beats_until_it_is_stopped_and_trouble_passes() -> None:
    beats = Beats(None, Unavailable("away"), Unavailable("still away"))
    with beats.thread as heartbeat:
        wait_until(lambda: beats.count >= 5, "beats")
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


@pytest.mark.conformance("LOS-07")
def test_it_is_silent_while_frozen_and_ends_when_gone(caplog: pytest.LogCaptureFixture) -> None:
    beats = Beats()
    with beats.thread as heartbeat:
        wait_until(lambda: beats.count > 0, "beat")
        beats.is_frozen = True
        assert beats.is_still()
        assert heartbeat.is_beating
        counted, beats.is_frozen = beats.count, False
        wait_until(lambda: beats.count > counted, "beat")
        beats.gone = "as told"
        wait_until(lambda: not heartbeat.is_beating, "end")
    assert "ends: as told" in caplog.text


@pytest.mark.conformance("LOS-07")
def test_a_main_thread_that_ended_is_nobody() -> None:
    other = threading.Thread(target=lambda: None)
    line = Liveness(parent=os.getppid(), main_thread=other)
    assert line.gone  # not even begun
    other.start()
    other.join()
    assert line.gone == "the main thread has ended"
    alone = Liveness(parent=None, main_thread=other)
    assert not alone.gone, "a process that stands alone may go on in other threads"


@pytest.mark.conformance("LOS-07")
@pytest.mark.parametrize(
    ("stat", "is_frozen", "is_gone"),
    [
        (b"1 (java) S 0 1 1", False, False),
        (b"1 (a) T) R 0 1 1", False, False),
        (b"1 (java) T 0 1 1", True, False),
        (b"1 (ja va)) t 0 1 1", True, False),
        (b"1 (java) Z 0 1 1", False, True),
        (b"1 (java) X 0 1 1", False, True),
        (b"", False, False),
        (b"1 (java)", False, False),
        (None, False, False),  # processes are hidden here
    ],
)
def test_the_parents_state_is_read_from_proc(
    tmp_path: Path, stat: bytes | None, is_frozen: bool, is_gone: bool
) -> None:
    parent = os.getppid()
    if stat is not None:
        (tmp_path / str(parent)).mkdir()
        (tmp_path / str(parent) / "stat").write_bytes(stat)
    found = Liveness(parent=parent, proc=tmp_path)
    assert (found.is_frozen, bool(found.gone)) == (is_frozen, is_gone)
    assert Liveness(parent=parent + 1, proc=tmp_path).gone, "another parent is no parent"
