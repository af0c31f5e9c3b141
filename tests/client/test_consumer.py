"""A consumer in plain Python: what it gives out, what acknowledges, how it ends, and sharing a group with others by a
real coordinator (API-03).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

import partq
from partq_spark.base.errors import Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.log.reading import RangeReader
from tests.client.conftest import Make
from tests.coordinator.sidecars import Place
from tests.support.servers import RedisServer, running
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
WAIT_S = 30.0


def publish(queue: partq.Queue, messages: int, begin: int = 0) -> None:
    with queue.publication() as publication:
        numbers = range(begin, begin + messages)
        table = {"key": [f"k{number % 7}" for number in numbers], "value": [str(number) for number in numbers]}
        publication.add(pa.table(table))
        publication.commit()


def consuming(queue: partq.Queue, **more: Any) -> partq.Consumer:
    return queue.consumer("billing", **{"starting": "earliest", "idle_timeout_s": 0.5, **more})


def numbers(batch: partq.Batch | None) -> list[int]:
    assert batch is not None
    return [int(message.value) for message in batch]


def lag(queue: partq.Queue) -> int:
    return queue.checkpoints("billing").lag


# --- the loop ---------------------------------------------------------------------------------------------------------


def test_a_loop_gets_every_message_once_and_acknowledges_by_asking(make: Make) -> None:
    queue = make(partitions=3)
    publish(queue, 500)
    found: list[partq.Message] = []
    with consuming(queue, max_messages=60) as consumer:
        for batch in consumer:
            assert len(batch) <= 60
            found += batch
    assert sorted(int(each.value) for each in found) == list(range(500))
    assert not any(each.redelivered for each in found)
    for key in {each.key for each in found}:
        values = [int(each.value) for each in found if each.key == key]
        assert values == sorted(values)
    assert lag(queue) == 0
    publish(queue, 10, begin=500)
    with consuming(queue) as consumer:
        assert sorted(numbers(consumer.poll(WAIT_S))) == list(range(500, 510)), "and goes on where it was"


def leave_by_break(consumer: partq.Consumer) -> None:
    for _ in consumer:
        break


def leave_by_an_error(consumer: partq.Consumer) -> None:
    for _ in consumer:
        raise KeyError("mine")


def leave_by_closing(consumer: partq.Consumer) -> None:
    for _ in consumer:
        consumer.close()
        return


@pytest.mark.conformance("API-03")
@pytest.mark.parametrize("leave", [leave_by_break, leave_by_an_error, leave_by_closing])
def test_no_way_of_leaving_the_loop_acknowledges(make: Make, leave: Callable[[partq.Consumer], None]) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        assert len(numbers(consumer.poll(WAIT_S))) == 10
        try:
            leave(consumer)  # by its first question it acknowledges ten
        except KeyError:
            pass
    assert lag(queue) == 10
    with consuming(queue) as consumer:
        again = list(consumer.poll(WAIT_S) or ())
    assert [int(each.value) for each in again] == list(range(10, 20))
    assert all(each.redelivered for each in again)


@pytest.mark.conformance("API-03")
def test_stop_ends_the_loop_after_the_batch_that_is_handled(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 30)
    with consuming(queue, max_messages=10, idle_timeout_s=None) as consumer:
        for batch in consumer:
            assert len(batch) == 10
            consumer.stop()
        assert consumer.poll(5) is None
    assert lag(queue) == 20


@pytest.mark.conformance("API-03")
def test_an_idle_loop_and_one_that_waits_for_a_coordinator_or_a_store_stop_within_a_second(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("idle", "coordinator", "store"):
        queue = make(name, 1)
        if name == "store":
            queue.create_group("billing")
            monkeypatch.setattr(CheckpointStore, "list_checkpoints", _down)
            monkeypatch.setattr(CheckpointStore, "list_readable", _down)
            monkeypatch.setattr(CheckpointStore, "read", _down)
        ownership = "store" if name == "coordinator" else "none"
        consumer = queue.consumer("billing", ownership=ownership)
        ended: list[float] = []

        def run(consumer: partq.Consumer = consumer, ended: list[float] = ended) -> None:
            with consumer:
                for _ in consumer:
                    pass
            ended.append(time.monotonic())

        thread = threading.Thread(target=run)
        thread.start()
        time.sleep(0.7)
        asked_s = time.monotonic()
        consumer.stop()
        thread.join(WAIT_S)
        assert ended[0] - asked_s < 1.0, name


def _down(*_: Any) -> Any:
    raise Unavailable("no answer (test)")


def test_poll_gives_none_when_its_time_is_over(make: Make) -> None:
    queue = make(partitions=1)
    with consuming(queue) as consumer:
        begun_s = time.monotonic()
        assert consumer.poll(0.3) is None
        assert time.monotonic() - begun_s < 5
        publish(queue, 3)
        assert len(numbers(consumer.poll(WAIT_S))) == 3
    with pytest.raises(partq.Invalid, match="is closed"):
        consumer.poll(0)


# --- acknowledging and releasing --------------------------------------------------------------------------------------


def test_by_hand_nothing_is_acknowledged_but_what_is_said(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, acknowledge="manual", max_messages=10) as consumer:
        first, second = consumer.poll(WAIT_S), consumer.poll(WAIT_S)
        assert first is not None
        assert second is not None
        messages = list(first)
        assert first.acknowledge(messages[3]) == frozenset()
        with pytest.raises(partq.Invalid, match="is not in this batch"):
            first.acknowledge(next(iter(second)))
    assert lag(queue) == 16
    with consuming(queue, acknowledge="manual") as consumer:
        batch = consumer.poll(WAIT_S)
        assert numbers(batch) == list(range(4, 20))
        assert batch is not None
        done = threading.Thread(target=batch.acknowledge)
        done.start()
        done.join(WAIT_S)
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
@pytest.mark.parametrize("acknowledge", ["next", "manual"])
def test_what_is_released_comes_again_marked(make: Make, acknowledge: Any) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge=acknowledge) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        batch.acknowledge(list(batch)[3])
        batch.release()
        again = consumer.poll(WAIT_S)
        assert again is not None
        assert [(int(each.value), each.redelivered) for each in again] == [(n, True) for n in range(4, 10)]
        again.acknowledge()
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
def test_the_order_of_each_key_holds_while_the_number_of_partitions_changes(make: Make) -> None:
    queue = make(partitions=2)
    for round_, count in enumerate((5, 3, 4, 1)):
        publish(queue, 100, begin=100 * round_)
        queue.alter(partitions=count)
    publish(queue, 100, begin=400)
    found: list[partq.Message] = []
    with consuming(queue, max_messages=30) as consumer:
        for batch in consumer:
            found += batch
    assert sorted(int(each.value) for each in found) == list(range(500))
    for key in {each.key for each in found}:
        values = [int(each.value) for each in found if each.key == key]
        assert values == sorted(values)
    assert lag(queue) == 0


def test_what_could_not_be_read_is_not_skipped(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    with consuming(queue, max_messages=10) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(RangeReader, "pieces", _down)
            with pytest.raises(partq.Unavailable):
                consumer.poll(WAIT_S)
        found = [message for batch in consumer for message in batch]
    assert [int(each.value) for each in found] == list(range(20))
    assert lag(queue) == 0


def test_an_acknowledgement_that_failed_is_made_by_asking_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=1, retry_timeout_s=0.1)
    publish(queue, 10)
    with consuming(queue) as consumer:
        assert len(numbers(consumer.poll(WAIT_S))) == 10
        with monkeypatch.context() as patch:
            patch.setattr(partq.Batch, "acknowledge", _down)
            with pytest.raises(partq.Unavailable):
                consumer.poll(0.1)
        assert consumer.poll(0.1) is None
    assert lag(queue) == 0


@pytest.mark.conformance("API-03")
@pytest.mark.slow
def test_who_takes_the_group_over_fences_the_former_one(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 10)
    with consuming(queue, acknowledge="manual", flow="first") as first:
        batch = first.poll(WAIT_S)
        assert batch is not None
        with consuming(queue, flow="second") as second:
            taken = second.poll(WAIT_S)
            assert taken is not None
            assert all(each.redelivered for each in taken)
            with pytest.raises(partq.Fenced):
                go_on(first, batch)
            assert lag(queue) == 10


def go_on(consumer: partq.Consumer, batch: partq.Batch) -> None:
    """As one who has not noticed anything."""
    batch.acknowledge()
    consumer.poll(5)


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_a_table_with_the_columns_of_the_source(make: Make) -> None:
    queue = make(partitions=2)
    publish(queue, 10)
    with consuming(queue) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        table = pa.table(batch)
    assert table.column_names == ["key", "value", "queue", "partition", "offset", "timestamp", "redelivered"]
    rows = [(row["partition"], row["offset"], row["key"], row["value"]) for row in table.to_pylist()]
    assert rows == [(each.partition, each.offset, each.key, each.value) for each in batch]


@pytest.mark.parametrize("columns", [["offset", "headers"], ["Value", "key"], ["partition"], ["timestamp", "queue"]])
def test_a_batch_has_the_columns_that_were_asked_for_and_whole_messages(make: Make, columns: list[str]) -> None:
    """What is not asked for is not decoded, until somebody iterates."""
    queue = make(partitions=2)
    publish(queue, 10)
    with consuming(queue) as consumer:
        whole = consumer.poll(WAIT_S)
        assert whole is not None
    with queue.consumer("audit", starting="earliest", columns=columns) as consumer:
        batch = consumer.poll(WAIT_S)
        assert batch is not None
        stored = {name.lower() for name in columns} & {"key", "value"}
        assert all(set(piece.batch.schema.names) == stored for piece in batch.pieces)
        assert len(batch) == 10
        assert list(batch) == list(batch) == list(whole)
        table = pa.table(batch)
        assert table.column_names == columns
        for name in columns:
            expected = [getattr(message, name.lower()) for message in whole]
            assert table.column(name).to_pylist() == expected
        assert batch.acknowledge() == frozenset()


def test_reading_without_a_group(make: Make) -> None:
    queue = make(partitions=2)
    publish(queue, 50)
    table = pa.table(queue.read(columns=["value", "partition"]))
    assert table.column_names == ["value", "partition"]
    assert sorted(int(value) for value in table["value"].to_pylist()) == list(range(50))
    assert queue.groups() == ()
    assert pa.table(queue.read(starting="latest")).num_rows == 0
    some = pa.table(queue.read(starting={0: 2, 1: 3}, ending={0: 4, 1: 3}))
    assert [(row["partition"], row["offset"]) for row in some.to_pylist()] == [(0, 2), (0, 3)]
    with pytest.raises(partq.Invalid, match="its end lies before its start"):
        queue.read(starting={0: 4, 1: 0}, ending={0: 2, 1: 0})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"acknowledge": "never"}, "acknowledge='never'"),
        ({"columns": ["price"]}, "columns="),
        ({"columns": ["key", "key"]}, "columns="),
        ({"columns": ["key", "KEY"]}, "columns="),
        ({"columns": []}, "columns="),
        ({"max_messages": 0}, "max_messages=0"),
        ({"ownership": "carrier pigeon"}, "redis://host:port"),
        ({"flow": "A B"}, "flow name"),
    ],
)
def test_what_cannot_be_is_refused(make: Make, given: dict[str, Any], said: str) -> None:
    with pytest.raises(partq.Invalid, match=said):
        consuming(make(), **given)


def test_a_forked_child_has_no_part_in_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with consuming(make()) as consumer:
        own = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(partq.Invalid, match="its fork"):
            consumer.poll(0)
        monkeypatch.undo()


# --- processes --------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time, partq
queue = partq.open_queue("orders", store=sys.argv[1])
with queue.consumer("billing", flow="a", starting="earliest", max_messages=10) as consumer:
    for batch in consumer:
        for message in batch:
            os.write(1, message.value + b"\\n")
        time.sleep(float(sys.argv[2]))
os.write(1, b"ended\\n")
"""


@contextmanager
def started(queue: partq.Queue, pause_s: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROGRAM, queue.store, str(pause_s)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().strip() for _ in range(count)]


@pytest.mark.conformance("API-03")
@pytest.mark.crash
@pytest.mark.alone
def test_a_process_that_is_told_to_end_finishes_its_batch_and_leaves(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 100)
    with started(queue, 0.5) as process:
        assert lines(process, 15)[-1] == "14"  # the second batch is under way
        process.send_signal(signal.SIGTERM)
        told_s = time.monotonic()
        assert lines(process, 6)[-2:] == ["19", "ended"]
        assert time.monotonic() - told_s < 0.5 + 1.0, "what is left of the batch, and a second"
        assert process.communicate(timeout=WAIT_S)[1] == ""
        assert process.returncode == 0
    assert lag(queue) == 80


@pytest.mark.conformance("API-03")
@pytest.mark.crash
def test_what_a_killed_process_had_in_hand_comes_again_marked(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 100)
    with started(queue, 0) as process:
        got = lines(process, 45)
        process.kill()
        got += process.communicate(timeout=WAIT_S)[0].split()
    with consuming(queue, flow="b") as consumer:
        found = [message for batch in consumer for message in batch]
    seen = {int(each) for each in got if each.isdigit()}
    assert seen | {int(each.value) for each in found} == set(range(100))
    assert all(each.redelivered for each in found if int(each.value) in seen)


@pytest.mark.crash
def test_sigterm_is_left_to_those_who_handle_it_and_restored(make: Make) -> None:
    queue = make(partitions=1)
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with consuming(queue) as consumer:
            os.kill(os.getpid(), signal.SIGTERM)
            assert consumer.poll(WAIT_S) is None
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

        def mine(*_: object) -> None:
            """Somebody handles it."""

        signal.signal(signal.SIGTERM, mine)
        with consuming(queue):
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, former)


# --- sharing a group --------------------------------------------------------------------------------------------------


class Worker(threading.Thread):
    """A consumer in a thread of its own, that works on each batch for a while."""

    def __init__(self, queue: partq.Queue, flow: str, work_s: float = 0.01, **more: Any) -> None:
        super().__init__()
        self.consumer = queue.consumer(
            "billing", flow=flow, ownership="store", starting="earliest", max_messages=20, session_timeout_s=5, **more
        )
        self.work_s = work_s
        self.handled: list[partq.Message] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            with self.consumer:
                for batch in self.consumer:
                    time.sleep(self.work_s)
                    self.handled += batch
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def end(self) -> None:
        self.consumer.stop()
        self.join(WAIT_S)
        assert self.error is None


def shares(queue: partq.Queue) -> Counter[str | None]:
    view = queue.status("billing", ownership="store")
    return Counter(each.flow for each in view.partitions if each.status == "Ready")


@pytest.mark.redis
@pytest.mark.slow
def test_a_closed_consumer_gives_its_connections_back(make: Make) -> None:
    queue = make()
    with running(RedisServer()) as server, redis.Redis.from_url(server.url) as client:
        with queue.consumer("billing", ownership=server.url) as consumer:
            threading.Timer(1.0, consumer.stop).start()
            assert consumer.poll(WAIT_S) is None
            assert len(client.client_list()) > 1
        wait_until(lambda: len(client.client_list()) == 1, "end of its connections")


@pytest.mark.conformance("API-03")
@pytest.mark.crash
@pytest.mark.slow
def test_two_consumers_share_a_group_and_one_hands_over_to_the_other(make: Make, tmp_path: Path) -> None:
    queue = make(partitions=4, rebalance_delay_s=0)
    queue.create_group("billing", starting="earliest", ownership="store")
    with Place(tmp_path, "store", queue.store).sidecar():
        first = Worker(queue, "first")
        stop = threading.Event()

        def feed() -> None:
            number = 0
            while not stop.wait(0.02):
                publish(queue, 10, begin=number)
                number += 10

        feeder = threading.Thread(target=feed)
        feeder.start()
        wait_until(lambda: shares(queue) == {"first": 4} and bool(first.handled), "first share")
        second = Worker(queue, "second")
        wait_until(lambda: shares(queue) == {"first": 2, "second": 2} and bool(second.handled), "second share")
        first.end()
        wait_until(lambda: shares(queue) == {"second": 4}, "share of the other's")
        stop.set()
        feeder.join(WAIT_S)
        wait_until(lambda: lag(queue) == 0, "end of the backlog")
        second.end()
    total = queue.describe().messages
    every = [*first.handled, *second.handled]
    unmarked = Counter(int(each.value) for each in every if not each.redelivered)
    assert {int(each.value) for each in every} == set(range(total)), "none is missing"
    assert max(unmarked.values()) == 1, "none comes twice without a mark"
    orders: dict[tuple[int, str | None], list[int]] = defaultdict(list)
    for worker, one in enumerate((first, second)):
        for each in one.handled:
            orders[worker, each.key].append(int(each.value))
    assert all(order == sorted(order) for order in orders.values())


@pytest.mark.conformance("API-03")
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_slow_body_keeps_its_partitions(make: Make, tmp_path: Path) -> None:
    queue = make(partitions=2, rebalance_delay_s=0)
    publish(queue, 30)
    queue.create_group("billing", starting="earliest", ownership="store")
    with Place(tmp_path, "store", queue.store).sidecar():
        worker = Worker(queue, "slow", work_s=8.0)  # longer than the session timeout
        wait_until(lambda: shares(queue) == {"slow": 2}, "share")
        until_s = time.monotonic() + 7
        while time.monotonic() < until_s:
            assert shares(queue) == {"slow": 2}
            time.sleep(0.2)
        wait_until(lambda: lag(queue) <= 10, "acknowledgement")
        worker.end()
    assert not any(each.redelivered for each in worker.handled)
