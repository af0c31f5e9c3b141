"""Consumers in plain Python as processes: how they end, and what a Redis beside them does to them (API-03)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis

import partq
from partq_spark.group.documents.redis_script import RIGHTS
from tests.cast.sidecars import Place
from tests.client.conftest import Make
from tests.client.test_consumer import ROOT, WAIT_S, consuming, lag, publish
from tests.support.waiting import wait_until
from tools.servers import RedisServer, running

PROGRAM = """
import os, sys, time, partq
queue = partq.open_queue("orders", store=sys.argv[1])
with queue.consumer("billing", flow="a", starting="earliest", max_messages=10) as consumer:
    for batch in consumer:
        for message in batch:
            os.write(1, message.value + b"\\n")
        time.sleep(0.5)
os.write(1, b"ended\\n")
"""

ENDS = """
import sys, partq
def batches(consumer):
    with consumer:
        yield from consumer
consumer = partq.open_queue("orders", store=sys.argv[1]).consumer("billing", starting="earliest", max_messages=10)
held = batches(consumer)
len(next(held)), len(next(held))
class Asks:
    def __del__(self, poll=consumer.poll):
        poll()  # when no thread runs any more
held_too = Asks()
"""


def test_a_process_that_ends_with_an_open_consumer_leaves_without_a_word_too_many(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 20)
    command = [sys.executable, "-c", ENDS, queue.store]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=True)
    assert "generator" not in ended.stderr
    assert "the consumer is closed" in ended.stderr, "it does not wait for what never comes"
    assert lag(queue) == 10, "what the loop asked beyond is written down"


@pytest.mark.conformance("API-03")
@pytest.mark.crash
@pytest.mark.alone
def test_a_process_that_is_told_to_end_finishes_its_batch_and_leaves(make: Make) -> None:
    queue = make(partitions=1)
    publish(queue, 100)
    command = [sys.executable, "-c", PROGRAM, queue.store]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            shown = [process.stdout.readline() for _ in range(15)]
            assert shown[-1] == "14\n", "the second batch is under way"
            process.send_signal(signal.SIGTERM)
            told_s = time.monotonic()
            shown = [process.stdout.readline() for _ in range(6)]  # `communicate` would skip what is buffered here
            assert time.monotonic() - told_s < 0.5 + 1.0, "what is left of the batch, and a second"
            assert shown[-2:] == ["19\n", "ended\n"]
            assert process.communicate(timeout=WAIT_S)[1] == ""
            assert process.returncode == 0
        finally:
            process.kill()
    assert lag(queue) == 80


@pytest.mark.crash
def test_sigterm_is_left_to_those_who_handle_it_and_restored(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make(partitions=1)
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        publish(queue, 1)
        publish(other := make("other"), 1)
        with consuming(queue) as consumer, consuming(other) as second:
            os.kill(os.getpid(), signal.SIGTERM)
            assert second.poll(WAIT_S) is None, "it was told, too"
            assert consumer.poll(WAIT_S) is None
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        raised: list[int] = []
        monkeypatch.setattr(signal, "raise_signal", raised.append)
        for _ in range(2):
            with consuming(queue) as third:
                (closing := threading.Thread(target=third.close)).start()
                closing.join(WAIT_S)
                if not raised:
                    os.kill(os.getpid(), signal.SIGTERM)
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert raised == [signal.SIGTERM], "as if nobody had handled it"

        def mine(*_: object) -> None:
            """Somebody handles it."""

        signal.signal(signal.SIGTERM, mine)
        with consuming(queue):
            assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, former)


# --- beside a Redis ---------------------------------------------------------------------------------------------------


@contextmanager
def working(queue: partq.Queue, ownership: str) -> Iterator[list[int]]:
    """A consumer in a thread of its own: what it has handled so far. Only the block ends it."""
    handled: list[int] = []

    def work() -> None:
        for batch in consumer:
            handled.extend(int(each.value) for each in batch)

    with queue.consumer(
        "billing", flow="a", ownership=ownership, starting="earliest", max_messages=20, session_timeout_s=5
    ) as consumer:
        thread = threading.Thread(target=work)
        thread.start()
        yield handled
        assert thread.is_alive()
        consumer.stop()
        thread.join(WAIT_S)


@pytest.mark.redis
@pytest.mark.slow
def test_a_closed_consumer_gives_its_connections_back(make: Make) -> None:
    queue = make()
    with running(RedisServer()) as server, redis.Redis.from_url(server.url) as client:
        with working(queue, server.url):
            wait_until(lambda: len(client.client_list()) > 1, "a connection of its own")
        wait_until(lambda: len(client.client_list()) == 1, "end of its connections")


@pytest.mark.conformance("OWN-03", "OBS-06")
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_redis_that_has_forgotten_its_users_is_waited_for(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first login that is refused is a mistake, and later ones are not."""
    queue = make(partitions=2, rebalance_delay_s=0)
    secrets = {"PARTQ_REDIS_USERNAME": "partq", "PARTQ_REDIS_PASSWORD": "hunter2-is-not-shown"}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    said = "refuses user or password"

    with running(RedisServer()) as server, redis.Redis.from_url(server.url) as administrator:

        def give_user() -> None:
            administrator.execute_command(f"ACL SETUSER partq on >{secrets['PARTQ_REDIS_PASSWORD']} {RIGHTS}")

        with pytest.raises(partq.Invalid, match=said):
            queue.consumer("billing", ownership=server.url).poll(WAIT_S)
        give_user()
        with Place(tmp_path, server.url, queue.store).sidecar(**secrets) as sidecar:
            with working(queue, server.url) as handled:
                publish(queue, 20)
                wait_until(lambda: len(handled) == 20 and lag(queue) == 0, "the first messages")
                server.kill()
                server.start()
                wait_until(lambda: said in sidecar.health()[1].get("problem", ""), "the coordinator's word")
                wait_until(lambda: said in caplog.text, "the consumer's word")
                publish(queue, 20, begin=20)
                assert any(said in each for each in queue.status("billing", ownership=server.url).notes)
                give_user()
                wait_until(lambda: len(handled) >= 40 and lag(queue) == 0, "all goes on by itself")
            assert secrets["PARTQ_REDIS_PASSWORD"] not in caplog.text + sidecar.text()
    assert set(handled) == set(range(40))
