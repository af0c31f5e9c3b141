"""The reader process' local socket: who is found by a name, what is answered and how long is waited for it; what is no
message cannot bring it down; and its folder, which is for one user alone.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base import errors
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.query import notify
from partq_spark.query.notify import Address, Datagram, Mailbox, Requester, send
from tests.support.waiting import wait_until

NAMES = Address("file:///srv/queues", "default", "orders", "billing", "billing-1")


@contextmanager
def mailbox(handle: Callable[[Datagram], Datagram | None], address: Address = NAMES) -> Iterator[Mailbox]:
    """A mailbox that deals with its messages by `handle`."""
    with closing(Mailbox(address, handle)) as made:
        yield made


def echo(message: Datagram) -> Datagram:
    """Answers with what was said."""
    return {"heard": message["say"]}


def line(timeout_s: float = 5.0, address: Address = NAMES) -> Requester:
    """A line to the readers that are there under the names."""
    return Requester(address, timeout_s=timeout_s)


@contextmanager
def asker() -> Iterator[socket.socket]:
    """Somebody with an address, who says whatever a test wants."""
    path = notify.folder() / "ask-by-hand"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(5.0)
        yield made
    path.unlink()


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


# --- what is no message -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", None),
        (b"\xff\xfe", "malformed"),
        (b"{", "malformed"),
        (b"[1]", "malformed"),
        (b"[" * 20_000, "malformed"),
        (b'{"v":1,"n":"a"}', "malformed (KeyError('say'))"),
        (b'{"v":2,"n":"a","say":"hello"}', "not of version 1: use one partq"),
        (b'{"n":"a","say":"hello"}', "not of version 1: use one partq"),
        (b"x" * 60_000, "malformed"),
    ],
)
def test_what_is_no_message_is_answered_and_the_mailbox_lives_on(data: bytes, words: str | None) -> None:
    with mailbox(echo) as box, asker() as somebody:
        somebody.sendto(data, box.path)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:  # has no address to answer to
            nobody.sendto(data, box.path)
        if words is not None:
            answer = json.loads(somebody.recv(65536))
            assert answer["error"] == "Invalid"
            assert words in answer["message"]
            assert answer["n"] == ("a" if b'"n"' in data else None)
        assert line().ask({"say": "hello"})["heard"] == "hello"


def test_a_reader_of_another_version_is_named_to_the_application() -> None:
    """Both ways: it says so itself, or it answers in its own way."""
    with mailbox(echo), pytest.raises(Invalid, match="not of version 1: use one partq for reader and application"):
        line().ask({"say": "hello", "v": 2})
    with (
        mailbox(lambda _message: {"v": 2, "heard": "hello"}),
        pytest.raises(Invalid, match="answer is not of version 1"),
    ):
        line().ask({"say": "hello"})


def test_an_unknown_kind_of_error_may_be_tried_again() -> None:
    for kind in ("Strange", "annotations", "getattr"):
        told: dict[str, Any] = {"error": kind, "message": "of a later version"}
        with mailbox(lambda _message, told=told: told), pytest.raises(Unavailable, match="of a later version"):  # type: ignore[misc]
            line().ask({})


def test_a_fault_of_the_reader_is_told_and_the_mailbox_lives_on(caplog: pytest.LogCaptureFixture) -> None:
    def handle(message: Datagram) -> Datagram:
        if message["say"] == "break":
            raise ZeroDivisionError("a fault")
        return echo(message)

    with mailbox(handle):
        with caplog.at_level(logging.ERROR, "partq.flow"), pytest.raises(Unavailable, match="ZeroDivisionError"):
            line().ask({"say": "break"})
        assert line().ask({"say": "hello"})["heard"] == "hello"
    assert "a message to the reader was not dealt with" in caplog.text


def test_a_client_may_be_gone_when_the_answer_comes() -> None:
    with mailbox(echo) as box:
        with asker() as gone:
            gone.sendto(b'{"v":1,"say":"hello"}', box.path)
        assert line().ask({"say": "hello"})["heard"] == "hello"


# --- the folder, and the end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o701, 0o710, 0o777])
def test_a_folder_that_others_may_enter_is_refused(mode: int) -> None:
    path = notify.folder()
    path.chmod(mode)
    with pytest.raises(Invalid, match=f"{path} is not a folder that only this user may enter: remove it"):
        Mailbox(NAMES, echo)
    with pytest.raises(Invalid, match="only this user may enter"):
        line().ask({})


@pytest.mark.parametrize("what", ["a file", "a link", "a dead link"])
def test_what_is_no_folder_is_refused(place: Path, what: str) -> None:
    path = place / f"partq-{os.getuid()}"
    if what == "a file":
        path.write_text("")
    else:
        target = place / "elsewhere"
        if what == "a link":
            target.mkdir(mode=0o700)
        path.symlink_to(target)
    with pytest.raises(Invalid, match="only this user may enter"):
        notify.folder()


def test_a_folder_of_somebody_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    path = notify.folder()
    somebody = os.getuid() + 1
    path.rename(path.with_name(f"partq-{somebody}"))
    monkeypatch.setattr(os, "getuid", lambda: somebody)
    with pytest.raises(Invalid, match="only this user may enter"):
        notify.folder()


def test_a_place_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    deep = place / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    for use in (lambda: Mailbox(NAMES, echo), lambda: line().ask({})):
        with pytest.raises(Invalid, match=r"no socket can be made at .*: set TMPDIR to a writable place whose path"):
            use()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "not there"))
    with pytest.raises(Invalid, match=r"cannot be made .*: set TMPDIR to a writable place"):
        notify.folder()


def test_closing_ends_the_thread_and_removes_the_path() -> None:
    box = Mailbox(NAMES, echo)
    assert line().ask({"say": "hello"})["heard"] == "hello"
    box.close()
    assert not Path(box.path).exists()
    wait_until(lambda: not box._thread.is_alive(), "end of the thread", wait_s=5)
    box.close()
    with pytest.raises(Unavailable):
        line(0.1).ask({"say": "hello"})
