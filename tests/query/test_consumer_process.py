"""What lives beside Spark's calls: real threads, real time, a real socket, a store on disk; `ownership=none`."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from partq_spark.base.errors import Fenced, Invalid, Unavailable
from partq_spark.client.acknowledge import Acknowledger
from partq_spark.group import lifecycle
from partq_spark.group.model import GroupKey
from partq_spark.log import admin
from partq_spark.log.model import Head
from partq_spark.log.publish import publish
from partq_spark.log.queue import QueueLog
from partq_spark.log.segment import Stager
from partq_spark.log.segment_columns import segment_schema
from partq_spark.log.staged import stage_of
from partq_spark.objects import open_store
from partq_spark.query import notify, offsets
from partq_spark.query.consumer_process import ConsumerProcess
from partq_spark.query.joining import open_consumer
from partq_spark.query.planning import Spans
from partq_spark.spark.options import stream_source_options
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SOON_S = 5.0  # on a busy machine; a long idle look takes 20
KEY = GroupKey("default", "orders", "billing")
NOTHING: Spans = {}


class Reader:
    """A reader process with its main thread: what Spark does with `spark.reader`, without Spark."""

    def __init__(self, store_url: str, flow: str, options: dict[str, str], **waits_s: Any) -> None:
        given = {"queue": KEY.queue, "store": store_url, "group": KEY.group, "ownership": "none", "flow": flow}
        given |= {"startingOffsets": "earliest", "checkpointInterval": "0s", "retryTimeout": "2s", **options}
        self.store_url = store_url
        self.flow = flow
        self.process = ConsumerProcess(
            lambda wait: open_consumer(stream_source_options(given), wait=wait), is_flow=True, **waits_s
        )
        self.at: dict[str, Any] = dict(offsets.INITIAL)
        self._spark = ThreadPoolExecutor(1)

    def trigger(self) -> Spans:
        """What a micro-batch delivers, nothing if there is none."""
        with self.process.asked() as consumer:
            end = consumer.next_end(self.at)
        if end == self.at:
            return NOTHING
        with self.process.asked() as consumer:
            spans = consumer.batch(self.at, end, _spans, NOTHING)
        self.at = end
        return spans

    def begun(self) -> Reader:
        """Past its first, empty batch, with everything that there is."""
        assert self.trigger() == {}
        assert self.trigger()
        return self

    def trigger_meanwhile(self) -> Future[Spans]:
        """In another thread, which is now in its look."""
        running = self._spark.submit(self.trigger)
        wait_until(lambda: self.process._asking, "a question of Spark's", SOON_S)
        return running

    def application(self, timeout_s: float = 10.0) -> Acknowledger:
        return Acknowledger(queue=KEY.queue, group=KEY.group, flow=self.flow, store=self.store_url, timeout_s=timeout_s)

    def stop(self) -> None:
        self.process.stop()
        self._spark.shutdown()


def _spans(_head: Head, spans: Spans) -> Spans:
    return spans


class Place:
    """A store with a queue of one partition."""

    def __init__(self, folder: Path) -> None:
        self.url = f"file://{folder}/store"
        self.store = open_store(self.url)
        self.queue = admin.create_queue(self.store, KEY.namespace, KEY.queue, 1)
        self.readers: list[Reader] = []

    def reader(
        self, flow: str = "left", *, busy_wait_s: float = 20.0, stop_wait_s: float = 5.0, **options: str
    ) -> Reader:
        made = Reader(self.url, flow, options, busy_wait_s=busy_wait_s, stop_wait_s=stop_wait_s)
        self.readers.append(made)
        return made

    def publish(self, count: int) -> None:
        queue = QueueLog(self.store, KEY.namespace, KEY.queue)
        queue.refresh()
        stage = stage_of(queue.refresh())
        rows = [pa.array(["k"] * count, pa.string()), pa.array([b"x"] * count, pa.binary())]
        with Stager(queue.store, stage, seed="here", headers=False, compression="none") as stager:
            stager.add(pa.RecordBatch.from_arrays(rows, schema=segment_schema(False)))
            segment = stager.finish()
        assert segment is not None
        publish(queue, stage, [segment], None)

    @property
    def offset(self) -> int | None:
        """Acknowledged, by the checkpoint."""
        found = lifecycle.checkpoints_of(self.queue, KEY.group).read(0)
        return found.offset if found is not None else None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    sockets = tempfile.mkdtemp(prefix="pq-")
    monkeypatch.setattr(tempfile, "tempdir", sockets)
    made = Place(tmp_path)
    yield made
    for reader in made.readers:
        reader.stop()
    shutil.rmtree(sockets)


def took_s(do: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    do()
    return time.monotonic() - begun_s


# --- who asks ---------------------------------------------------------------------------------------------------------


def test_an_application_is_answered_while_spark_waits_in_a_long_idle_look(place: Place) -> None:
    place.publish(3)
    reader = place.reader(ackMode="manual", pollInterval="20s").begun()
    idle = reader.trigger_meanwhile()
    begun_s = time.monotonic()
    hand = reader.application().in_hand()
    assert {p: (held.acknowledged, held.delivered) for p, held in hand.partitions.items()} == {0: (0, 3)}
    assert hand.acknowledge({0: 2}) == {0}
    wait_until(lambda: place.offset == 2, "the acknowledgement", SOON_S)
    assert time.monotonic() - begun_s < SOON_S
    assert not idle.done()
    place.publish(1)
    assert idle.result(SOON_S)[0][1:3] == (3, 4)


def test_an_application_is_answered_while_spark_is_busy_with_a_batch(place: Place) -> None:
    place.publish(3)
    reader = place.reader(ackMode="manual").begun()
    assert reader.application().in_hand().acknowledge({0: 3}) == {0}
    wait_until(lambda: place.offset == 3, "the acknowledgement", SOON_S)


def test_a_batch_that_a_listener_says_is_complete_is_acknowledged_at_once(place: Place) -> None:
    place.publish(3)
    reader = place.reader(pollInterval="20s").begun()
    told = reader.process.report()
    assert told is not None
    assert place.offset == 0
    assert notify.send(str(told["notify"]), {"do": "complete", "end": offsets.digest(reader.at)})
    wait_until(lambda: place.offset == 3, "the acknowledgement", SOON_S)


def test_what_is_not_known_is_refused(place: Place) -> None:
    place.publish(1)
    reader = place.reader().begun()
    line = notify.Requester(notify.Address(place.url, *_names(), "left"), timeout_s=SOON_S)
    with pytest.raises(Invalid, match="'sing' is not known to this version of partq"):
        line.ask({"do": "sing"})
    for malformed in ({}, {"do": "in_hand"}, {"do": "acknowledge", "process": "x", "p": {"0": 3}}):
        with pytest.raises(Invalid, match="malformed"):
            line.ask(malformed)
    with pytest.raises(Invalid, match="ackMode=auto: give it the option ackMode=manual"):
        line.ask({"do": "acknowledge", "process": "x", "p": {"0": [1, 1, 0]}})
    assert reader.application().in_hand().partitions.keys() == {0}


def _names() -> tuple[str, str, str]:
    return KEY.namespace, KEY.queue, KEY.group


def test_an_application_is_told_that_the_reader_is_stuck(place: Place) -> None:
    place.publish(1)
    reader = place.reader(ackMode="manual", busy_wait_s=0.3).begun()
    with reader.process.asked():
        asking = ThreadPoolExecutor(1).submit(reader.application().in_hand)
        with pytest.raises(Unavailable, match="waits for a store that does not answer: ask again later"):
            asking.result(SOON_S)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_flow_that_was_taken_over_beside_a_batch_learns_it_by_the_next_question(place: Place) -> None:
    place.publish(1)
    reader = place.reader().begun()
    place.reader("right").begun()
    wait_until(lambda: reader.process._trouble is not None, "a look beside", SOON_S)
    with pytest.raises(Fenced, match="right"), reader.process.asked():
        pytest.fail("nothing is asked of a flow that is in trouble")


def test_a_fault_beside_a_batch_is_raised_by_the_next_question(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.publish(1)
    reader = place.reader().begun()
    with reader.process.asked() as consumer:
        member = consumer.member

    def wait_news(_timeout_s: float) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(member, "wait_news", wait_news)
    wait_until(lambda: reader.process._trouble is not None, "a look beside", SOON_S)
    with pytest.raises(ZeroDivisionError, match="a fault"), reader.process.asked():
        pass
    monkeypatch.undo()
    assert {thread.name for thread in threading.enumerate()} >= {"partq news", "partq mailbox"}


def test_a_flow_that_nobody_can_tell_anything_is_refused_by_hand(place: Place) -> None:
    place.publish(1)
    notify.folder().chmod(0o755)
    reader = place.reader(ackMode="manual")
    with pytest.raises(Invalid, match=r"flow 'left' of group .* cannot be reached by its application: .*partq-"):
        reader.trigger()


def test_a_flow_that_acknowledges_by_itself_goes_on_without_a_listener(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.publish(1)
    notify.folder().chmod(0o755)
    reader = place.reader(pollInterval="50ms")
    with caplog.at_level(logging.WARNING, "partq.flow"):
        reader.begun()
        for _ in range(3):
            assert reader.trigger() == {}
    said = [record.getMessage() for record in caplog.records if "no listener can reach" in record.getMessage()]
    assert len(said) == 1, "once, and not at every trigger"
    assert "only this user may enter: remove it, or set TMPDIR" in said[0]
    assert place.offset == 1
    told = reader.process.report()
    assert told is not None
    assert told["notify"] is None


# --- the end ----------------------------------------------------------------------------------------------------------


def test_stopping_writes_down_what_is_acknowledged_and_ends_everything(place: Place) -> None:
    place.publish(3)
    before = set(threading.enumerate())
    reader = place.reader(ackMode="manual", checkpointInterval="1h").begun()
    reader.application().in_hand().acknowledge({0: 2})
    assert place.offset == 0
    told = reader.process.report()
    assert told is not None
    for _ in range(2):
        reader.process.stop()
    assert place.offset == 2
    assert not Path(str(told["notify"])).exists()
    wait_until(lambda: not set(threading.enumerate()) - before, "the end of all threads", SOON_S)
    with pytest.raises(Unavailable):
        reader.application(timeout_s=0.1).in_hand()


def test_stopping_does_not_wait_for_ever(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.publish(1)
    reader = place.reader(stop_wait_s=0.3).begun()
    with reader.process.asked(), ThreadPoolExecutor(1) as other:
        # The thread that uses the flow is stuck in a store; another one ends the process.
        assert other.submit(took_s, reader.process.stop).result(SOON_S) < SOON_S / 2
    assert "the flow's group will notice that it is gone" in caplog.text
    reader.process.stop()


def test_stopping_in_the_middle_of_a_question_is_no_deadlock(place: Place) -> None:
    """A signal ends the main thread wherever it is, also in `asked`."""
    place.publish(1)
    reader = place.reader().begun()
    with reader.process.asked():
        assert took_s(reader.process.stop) < SOON_S
