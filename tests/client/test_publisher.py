"""A publisher: order, what a Future says, failures, bounds, and the ends of processes (API-02)."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import partq
from partq_spark.client import publisher as publisher_module
from partq_spark.client.outgoing import publish_together
from tests.client.conftest import Make
from tests.docs.blocks import ROOT
from tests.support.waiting import wait_until


def published(queue: partq.Queue) -> list[tuple[str | None, str]]:
    return [(each.key, each.value.decode()) for each in queue.browse()]


# --- order and Futures ------------------------------------------------------------------------------------------------


@pytest.mark.conformance("API-02")
def test_what_each_thread_sends_keeps_its_order_for_each_key_and_each_future_its_own_place(make: Make) -> None:
    """Also while the number of partitions changes; the world's publishers show it in histories at random."""
    queue = make(partitions=3)
    futures: dict[str, Any] = {}
    with queue.publisher(linger_s=0, max_batch_bytes=500) as publisher:

        def run(thread: int) -> None:
            for number in range(60):
                if (thread, number) == (0, 30):
                    queue.alter(partitions=5)
                text = f"{thread}/{number:02}"
                futures[text] = publisher.send(text, key=f"{thread}{number % 4}" if number % 5 else None)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(2)))
    found = list(queue.browse())  # in publish order
    lies = {each.value.decode(): (each.partition, each.offset) for each in found}
    assert {text: future.result(0) for text, future in futures.items()} == lies
    assert {partition for partition, _ in lies.values()} >= {0, 1, 2}
    for key in {each.key for each in found} - {None}:
        order = [each.value for each in found if each.key == key]
        assert order == sorted(order)


@pytest.mark.conformance("API-02")
def test_what_lingers_becomes_visible_together_and_a_table_in_its_turn(make: Make) -> None:
    queue = make(partitions=1)
    with queue.publisher(linger_s=60) as publisher:
        futures = [publisher.send(text, key="a") for text in ("before", "cancelled", "too")]
        assert futures[1].cancel()
        assert published(queue) == []
        report = publisher.send_table(pa.table({"value": ["in", "the", "table"], "key": ["a", "a", None]})).result(0)
        assert (report.messages, report.queues[0].messages) == (3, 3)
        last = publisher.send(b"after")
        publisher.flush()
        assert (futures[2].result(0).offset, last.result(0).offset) == (1, 5)
        publisher.send("more")  # and leaving does not linger
    assert [value for _, value in published(queue)] == ["before", "too", "in", "the", "table", "after", "more"]
    assert len({each.timestamp for each in queue.browse()}) == 4


# --- publish ids ------------------------------------------------------------------------------------------------------


def test_all_that_is_sent_under_a_publish_id_is_one_publish_that_is_made_once(make: Make) -> None:
    queue = make(partitions=4)
    for again in (False, True):
        with queue.publisher(linger_s=0, publish_id="monday") as publisher:
            futures = [publisher.send(str(number), key=f"k{number}") for number in range(50)]
            time.sleep(0.05)
            assert len(published(queue)) == 50 * again
            with suppress(partq.Unavailable):
                publisher.flush(timeout_s=0)  # what is one publish is whole, published or not
            with pytest.raises(partq.Invalid, match="was published"):
                publisher.send("more")
        assert all((each.result(0).offset is None) is again for each in futures)
    assert len(published(queue)) == 50
    assert len({each.timestamp for each in queue.browse()}) == 1


def test_under_a_publish_id_nothing_waits_for_room_that_cannot_come(make: Make) -> None:
    queue = make()
    with queue.publisher(publish_id="big", max_batch_bytes=1000, max_pending_bytes=2000) as publisher:
        publisher.send("x" * 1000)
        with pytest.raises(partq.Invalid, match="max_pending_bytes"):
            publisher.send("x" * 1000)
    assert len(published(queue)) == 1


def test_under_a_publish_id_nothing_is_published_of_what_an_exception_cut_short(make: Make) -> None:
    queue = make()
    publisher = queue.publisher(publish_id="half")
    future = publisher.send("1")
    publisher.__exit__(None, left := ValueError("the source has ended"), None)
    assert "nothing is published under id 'half'" in str(left.__notes__)
    with pytest.raises(partq.Invalid, match="left by ValueError"):
        future.result(0)
    with queue.publisher(publish_id="half") as publisher:
        publisher.send("all")
    assert len(published(queue)) == 1


# --- failures ---------------------------------------------------------------------------------------------------------


def test_who_waited_in_vain_has_read_nothing(make: Make) -> None:
    queue = make()
    publisher = queue.publisher(linger_s=60)
    with pytest.raises(TimeoutError):
        publisher.send("a").result(0)
    queue.delete()
    with pytest.raises(partq.Invalid, match="deleted"):
        publisher.flush()


@pytest.mark.conformance("API-02")
@pytest.mark.conformance("RES-05")
@pytest.mark.parametrize("meanwhile", ["smaller", "deleted", "again", "again by topic"])
def test_after_a_failed_publish_all_later_futures_fail_in_order(make: Make, meanwhile: str) -> None:
    queue = make(partitions=1)
    publisher = queue.publisher(linger_s=0, max_batch_bytes=1)
    assert publisher.send("kept").result(30) == (0, 0)
    if meanwhile == "smaller":
        queue.alter(max_message_bytes=1000)
    else:
        queue.delete()
    if "again" in meanwhile:
        make()
        with pytest.raises(partq.Invalid, match="deleted and created again"):
            publisher.send_table(pa.table({"value": ["b"]}))
    ended: list[int] = []
    topic = "a/b" if "topic" in meanwhile else None
    futures = [publisher.send(f"{number:02000}", topic=topic) for number in range(20)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, each=number: ended.append(each))  # type: ignore[misc] # its kind is plain
    with pytest.raises(partq.Invalid, match="row 0 has 2000 bytes" if meanwhile == "smaller" else "deleted"):
        publisher.flush()
    assert sorted(ended) == list(range(20))
    assert "because an earlier publish failed" in str(futures[-1].exception(0))
    late = publisher.send("late")
    assert late.done()
    with pytest.raises(partq.Invalid, match="because an earlier publish failed"):
        publisher.close()
    with pytest.raises(partq.Invalid, match="closed"):
        publisher.send("after the end")
    assert "again" not in meanwhile or published(queue) == []


@pytest.mark.conformance("API-02")
def test_leaving_says_what_nobody_has_read(make: Make) -> None:
    queue = make(quota_bytes=1)
    with queue.publisher() as publisher:
        publisher.send("fits").result(30)
        future = publisher.send("does not")
        with pytest.raises(partq.Invalid, match="is full"):
            future.result(30)
    said = "its quota is 1.*partq queue alter orders --quota-bytes N"
    with pytest.raises(partq.Invalid, match=said), queue.publisher() as publisher:
        publisher.send("does not")
    mine = ValueError("mine")
    with suppress(ValueError), queue.publisher() as publisher:
        publisher.send("does not")
        raise mine
    assert "not all that was sent is published" in mine.__notes__[0]


RELEASED = memoryview(b"x")
RELEASED.release()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value": 7}, "a value is bytes or text, not int"),
        ({"value": RELEASED}, "a value is bytes or text, not memoryview"),
        ({"value": "x", "key": "ä" * 128}, "256 bytes in UTF-8"),
        ({"value": "x", "key": "\ud800"}, "no UTF-8"),
        ({"value": "x" * 1001}, "the queue takes 1000"),
        ({"value": "\ud800"}, "is no UTF-8"),
        *(
            ({"value": "x", "headers": each}, r"headers=.* is not allowed: give a mapping, or pairs")
            for each in ({0: b"x"}, {"\ud800": b"x"}, {b"x": b"x"}, [b"x"], [("x", b"y", b"z")], ["xy"])
        ),
        ({"value": "x", "topic": "orders/*"}, "has no wildcards"),
    ],
)
def test_what_no_queue_takes_is_refused_when_it_is_sent(make: Make, given: dict[str, Any], said: str) -> None:
    queue = make(max_message_bytes=1000)
    headers: list[Any] = [{"a": None, "b": bytearray(b"x")}, [("twice", memoryview(b"1")), ("twice", b"2")]]
    with queue.publisher(linger_s=60) as publisher:
        lingers = publisher.send("good", headers=headers[0])
        with pytest.raises(partq.Invalid, match=said):
            publisher.send(**given)
        publisher.send("good", headers=headers[1])
    assert lingers.result(0).offset is not None
    assert sorted(each.headers or () for each in queue.browse()) == [
        (("a", None), ("b", b"x")),
        (("twice", b"1"), ("twice", b"2")),
    ]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("API-02")
def test_sending_waits_for_room_and_then_gives_up(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, opened = make(), threading.Event()

    def when_opened(*arguments: Any) -> Any:
        assert opened.wait(30)
        return publish_together(*arguments)

    monkeypatch.setattr(publisher_module, "publish_together", when_opened)
    with queue.publisher(linger_s=0, max_batch_bytes=1000, max_pending_bytes=3000) as publisher:
        futures = [publisher.send("x" * 500) for _ in range(3)]
        with pytest.raises(partq.Unavailable, match="max_pending_bytes is 3000"):
            publisher.send("x" * 500, timeout_s=0.05)
        with pytest.raises(partq.Unavailable, match=r"3000 bytes are on their way.*not done yet"):
            publisher.flush(timeout_s=0.05)
        threading.Timer(0.2, opened.set).start()
        futures.append(publisher.send("x" * 500, timeout_s=30))
    assert all(each.result(0).offset is not None for each in futures)
    assert len(published(queue)) == 4, "what was given up was not sent"


def test_a_callback_that_waits_for_its_own_publisher_is_refused_and_one_that_exits_ends_nothing(make: Make) -> None:
    refused: list[str] = []

    def wait(_: object) -> str:
        for call in (publisher.flush, publisher.close, partial(publisher.send_table, pa.table({"value": ["b"]}))):
            with pytest.raises(partq.Invalid, match="callback") as error:
                call()
            refused.append(str(error.value))
        return "b"

    with make().publisher(linger_s=0.2) as publisher:
        future = publisher.send("a")
        future.add_done_callback(wait)
        future.add_done_callback(lambda _: sys.exit())
        assert publisher.send("c").result(30).offset is not None
        own = (pa.record_batch({"value": [wait(_)]}) for _ in range(1))
        publisher.send_table(pa.RecordBatchReader.from_batches(pa.schema({"value": pa.string()}), own))
    assert len(refused) == 6


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_the_thread_has_taken_and_cannot_publish_has_failed(make: Make) -> None:
    before = {*threading.enumerate()}
    publisher = make().publisher(linger_s=60)
    first, second = publisher.send("a"), publisher.send("b")
    first.set_running_or_notify_cancel()  # its own affair
    with pytest.raises(partq.Unavailable, match="has ended"):
        publisher.close()
    assert isinstance(second.exception(0), partq.Unavailable)
    wait_until(lambda: before.issuperset(threading.enumerate()), "the thread's end")


@pytest.mark.conformance("API-02")
def test_what_another_thread_sent_before_the_end_is_published_and_more_is_refused(make: Make) -> None:
    queue = make(partitions=1)
    futures: list[Any] = []

    def send() -> None:
        while True:
            futures.append(publisher.send("a"))

    with ThreadPoolExecutor(1) as pool:
        with queue.publisher() as publisher:
            sending = pool.submit(send)
            time.sleep(0.1)
        assert isinstance(sending.exception(30), partq.Invalid)
    assert all(each.done() for each in futures)
    assert queue.describe().messages == len(futures) > 0


# --- processes --------------------------------------------------------------------------------------------------------


def said_by(text: str, queue: partq.Queue) -> str:
    """What a program prints that has the queue as `queue`, and ends well and without a warning."""
    code = f"import partq, os, sys\nqueue = partq.open_queue('orders', store={queue.store!r})\n{text}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.conformance("API-02")
@pytest.mark.crash
def test_a_process_that_ends_without_closing_publishes_what_it_sent(make: Make) -> None:
    queue, _ = make(partitions=1), make("other")
    queue.subscribe("a/b")
    said_by(
        "import partq_spark.log.admin as admin; admin.is_paid = bool\n"  # heads are read side by side, as of a service
        "p = queue.publisher(linger_s=3600)\nfor n in range(10): p.send(str(n), topic=None if n % 2 else 'a/b')",
        queue,
    )
    assert [value for _, value in published(queue)] == [str(number) for number in range(10)]


@pytest.mark.conformance("API-02")
@pytest.mark.crash
def test_a_forked_child_publishes_nothing_of_its_parents(make: Make) -> None:
    queue = make(partitions=1)
    said = said_by(
        "from partq_spark.objects import open_store as at; import warnings; warnings.simplefilter('ignore')\n"
        "with queue.publisher(linger_s=3600) as publisher, queue.publication() as p, at(queue.store).writer('o'):\n"
        "    publisher.send('of the parent')\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        for call in (lambda: publisher.send('x'), publisher.flush, publisher.close,\n"
        "                     lambda: publisher.send_table(None), publisher.__enter__, p.commit):\n"
        "            try: call()\n"
        "            except partq.Invalid: os.write(1, b'refused\\n')\n"
        "        sys.exit(7)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), queue.describe().messages)\n",
        queue,
    )
    assert said == "refused\n" * 6 + "7 0\n"
    assert published(queue) == [(None, "of the parent")]
