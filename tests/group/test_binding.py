"""Who gets a flow's name, and after how long: a process that binds, with ownership in memory and a clock of its own;
and the thread of its heartbeat: beats for the living only, errors for the main thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.group.binding import MAX_TRIES, Binder, HeartbeatThread, Liveness
from partq_spark.group.codec import encode_state
from partq_spark.group.membership import GroupInQueue
from partq_spark.group.model import Flow, FlowRecord, GroupSettings, GroupState
from partq_spark.log.admin import create_queue
from partq_spark.log.groups import create_group
from tests.objects.conftest import memory_store
from tests.support.ownership import OwnershipServer
from tests.support.waiting import wait_until

QUEUE = create_queue(memory_store(), "default", "orders", 1)
create_group(QUEUE, "billing", [0])
GROUP = GroupInQueue(QUEUE, "billing")
KEY = GROUP.key
TIMEOUT_S = 10.0


class Place:
    """A former instance that has the name, and a process that binds; `events`: what happens after so long."""

    def __init__(self) -> None:
        self.server = OwnershipServer()
        self.users = self.server.open(KEY)
        self.now_s = 0.0
        self.events: dict[float, Callable[[], object]] = {}
        self.binder = Binder(
            self.server.open(KEY), GROUP, "a", session_timeout_s=TIMEOUT_S,
            effects=Effects(now_s=lambda: self.now_s, sleep=self.sleep),
        )  # fmt: skip
        self.record = FlowRecord(
            flow="a", instance="former", queue_id=GROUP.queue_id, bound=True, session_timeout_s=TIMEOUT_S
        )
        self.users.bind(KEY, self.record, replaces=None)

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        for at_s in [each for each in self.events if each <= self.now_s]:
            self.events.pop(at_s)()

    def beats(self) -> None:
        self.users.beat(KEY, self.record)

    def leaves(self) -> None:
        self.users.unbind(KEY, "a", "former")

    def is_given_up(self, instance: str = "former", *, bound: bool = False) -> None:
        flow = Flow(name="a", instance=instance, bound=bound, since=1)
        state = GroupState(queue_id=GROUP.queue_id, settings=GroupSettings(), partitions={}, flows={"a": flow})
        self.users.swap_state(KEY, encode_state(state, self.now_s), token="t", expected=None)


HAPPENS: dict[str, tuple[dict[float, Callable[[Place], object]], float | None]] = {
    "it beats twice": ({3.0: Place.beats, 6.0: Place.beats}, None),  # so it lives and keeps its name
    "it left": ({-1.0: Place.leaves}, 0.0),
    "it leaves": ({4.0: Place.leaves}, 4.0),
    "it beats, then leaves": ({3.0: Place.beats, 6.0: Place.leaves}, 6.0),
    "it is silent": ({}, TIMEOUT_S),
    "its last beat was long on its way": ({8.0: Place.beats}, 8.0 + TIMEOUT_S),
    "the coordinator gives it up": ({4.0: Place.is_given_up}, 4.0),
    "the coordinator has given it up": ({-1.0: Place.is_given_up}, 0.0),
    "the coordinator sees it": ({-1.0: lambda place: place.is_given_up(bound=True)}, TIMEOUT_S),
    "another was given up": ({-1.0: lambda place: place.is_given_up("one before it")}, TIMEOUT_S),
}


@pytest.mark.conformance("FLO-08")
@pytest.mark.parametrize("what", HAPPENS)
def test_the_name_of_one_that_is_over_is_taken_once_that_is_known(what: str) -> None:
    place = Place()
    happens, after_s = HAPPENS[what]
    for at_s, act in happens.items():
        if at_s < 0:
            act(place)
        else:
            place.events[at_s] = lambda act=act: act(place)  # type: ignore[misc]
    if after_s is None:
        with pytest.raises(Invalid, match="in use by another live process"):
            place.binder.bind({4: 2})
        assert place.now_s <= max(happens) + 0.2
        assert place.server.records_of(KEY)["a"] == place.record
        return
    life = place.binder.bind({4: 2})
    assert after_s <= place.now_s <= after_s + 0.2
    record = place.server.records_of(KEY)["a"]
    assert (record.instance, record.mapping) == (life.says.instance, {4: 2})


def test_a_store_that_stays_away_ends_a_bind_in_bounded_tries() -> None:
    place = Place()
    place.leaves()
    tries = []

    def lose(verb: str) -> None:
        if verb == "bind":
            tries.append(verb)
            raise Unavailable("away (test)")

    place.server.before = lose
    with pytest.raises(Unavailable, match=rf"could not be bound in {MAX_TRIES} tries: .*away"):
        place.binder.bind({4: 2})
    assert len(tries) == MAX_TRIES


# --- the heartbeat's thread, and whether its process lives ------------------------------------------------------------

INTERVAL_S = 0.01


class Beats(Liveness):
    """Counts beats, each of which may fail; for their thread it is as the test says."""

    gone = ""
    is_frozen = False

    def __init__(self, *outcomes: Exception | None) -> None:
        super().__init__(parent=None)
        self.count, self.outcomes = 0, list(outcomes)
        self.thread = HeartbeatThread(self.beat, INTERVAL_S, self)

    def __enter__(self) -> HeartbeatThread:
        self.thread.start()
        return self.thread

    def __exit__(self, *_: object) -> None:
        self.thread.stop()

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
    with beats as heartbeat:
        wait_until(lambda: beats.count >= 5, "beats")
    assert beats.is_still()
    assert not heartbeat.is_beating
    heartbeat.stop()
    heartbeat.check()


@pytest.mark.parametrize("error", [Corrupt("nonsense"), ValueError("a mistake")])
def test_an_error_ends_it_and_reaches_the_main_thread(error: Exception) -> None:
    beats = Beats(error)
    with beats as heartbeat:
        wait_until(lambda: not heartbeat.is_beating, "end")
        assert beats.count == 1
        with pytest.raises(type(error)):
            heartbeat.check()


@pytest.mark.conformance("LOS-07")
def test_it_is_silent_while_frozen_and_ends_when_gone(caplog: pytest.LogCaptureFixture) -> None:
    beats = Beats()
    with beats as heartbeat:
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
def test_a_parents_state_is_read_from_proc(tmp_path: Path, stat: bytes | None, is_frozen: bool, is_gone: bool) -> None:
    parent = os.getppid()
    if stat is not None:
        (tmp_path / str(parent)).mkdir()
        (tmp_path / str(parent) / "stat").write_bytes(stat)
    found = Liveness(parent=parent, proc=tmp_path)
    assert (found.is_frozen, bool(found.gone)) == (is_frozen, is_gone)
    assert Liveness(parent=parent + 1, proc=tmp_path).gone, "another parent is no parent"
