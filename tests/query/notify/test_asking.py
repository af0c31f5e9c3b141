"""The reader process' local socket: who is found by a name, what is answered, and how long is waited for it."""

from __future__ import annotations

import threading
import time

import pytest

from partq_spark.base import errors
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.query import notify
from partq_spark.query.notify import Address, Datagram, Mailbox, send
from tests.query.notify.mailboxes import NAMES, asker, echo, line, mailbox
from tests.support.waiting import wait_until


def test_a_question_is_answered_to_everybody_who_knows_the_names() -> None:
    with mailbox(echo):
        assert line().ask({"say": "hello"})["heard"] == "hello"
        assert line().ask({"say": [1, 2]})["heard"] == [1, 2]


def test_names_that_differ_in_anything_find_somebody_else() -> None:
    with mailbox(echo):
        for field in Address._fields:
            with pytest.raises(Unavailable):
                line(0.1, NAMES._replace(**{field: "other"})).ask({"say": "hello"})


def test_a_word_needs_no_answer() -> None:
    heard: list[Datagram] = []
    with mailbox(heard.append) as box:
        assert send(box.path, {"do": "complete", "end": "digest"})
        wait_until(lambda: len(heard) == 1, "the word")
        assert heard == [{"v": 1, "do": "complete", "end": "digest"}]
    assert not send(box.path, {"do": "complete"})
    assert not send("/nowhere/at/all", {"do": "complete"})


@pytest.mark.parametrize("kind", ["Invalid", "Conflict", "Fenced", "Unavailable", "Corrupt", "ObjectMissing"])
def test_an_error_of_the_reader_is_raised_where_it_was_asked(kind: str) -> None:
    def handle(_message: Datagram) -> Datagram:
        raise getattr(errors, kind)("queue 'orders' is not there: make it")

    with mailbox(handle), pytest.raises(errors.PartqError, match="queue 'orders' is not there: make it") as caught:
        line().ask({"say": "hello"})
    assert type(caught.value).__name__ == kind


def test_a_long_error_stays_small() -> None:
    def handle(_message: Datagram) -> Datagram:
        raise Invalid("x" * 100_000)

    with mailbox(handle), pytest.raises(Invalid) as caught:
        line().ask({"say": "hello"})
    assert 500 < len(str(caught.value)) < 1500


def test_nobody_there_is_told_within_the_time_with_all_names() -> None:
    begun_s = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        line(0.3).ask({"say": "hello"})
    assert 0.3 <= time.monotonic() - begun_s < 1.5
    assert "flow 'billing-1' of group default/orders/billing has no reader process here" in str(caught.value)
    assert "within 0.3 s" in str(caught.value)
    assert list(notify.folder().iterdir()) == [], "the asker's own socket is gone"


def test_a_reader_that_is_just_being_started_is_waited_for() -> None:
    made: list[Mailbox] = []
    later = threading.Timer(0.5, lambda: made.append(Mailbox(NAMES, echo)))
    later.start()
    try:
        assert line().ask({"say": "hello"})["heard"] == "hello"
    finally:
        later.join()
        made[0].close()


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_the_time() -> None:
    go_on = threading.Event()

    def handle(_message: Datagram) -> Datagram:
        go_on.wait(10.0)
        return {}

    with mailbox(handle):
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"answered within 0\.4 s"):
            line(0.4).ask({"say": "hello"})
        assert time.monotonic() - begun_s < 2.0
        go_on.set()


def test_the_late_answer_to_an_earlier_question_is_not_taken() -> None:
    with mailbox(echo), asker() as late:

        def handle(message: Datagram) -> Datagram:
            # Before the answer comes others: to a question of another time, one that is no answer at all.
            (own,) = (path for path in notify.folder().glob("ask-*") if path.name != "ask-by-hand")
            for wrong in (
                b'{"v":1,"n":"00000000","heard":"late"}',
                b'{"v":1,"heard":"late"}',
                b'{"n":[]}',
                b"[]",
                b"{",
            ):
                late.sendto(wrong, str(own))
            return echo(message)

        with mailbox(handle, NAMES._replace(flow="billing-2")):
            assert line(address=NAMES._replace(flow="billing-2")).ask({"say": "now"})["heard"] == "now"
