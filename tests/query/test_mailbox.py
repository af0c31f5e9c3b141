"""The reader process' local socket: who is found by a name, what is answered and how long is waited for it; that a
process which takes the name over is found from then on; what is no message cannot bring it down; and its folder, which
is for one user alone.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from partq_spark.base import errors
from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.query import notify
from partq_spark.query.notify import Address, Mailbox, Message, Requester, is_taken, send
from tests.support.waiting import wait_until

NAMES = Address("file:///srv/queues", "default", "orders", "billing", "billing-1")
OTHER = NAMES._replace(flow="billing-2")


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets of a test's own, with a short path."""
    made = Path(tempfile.mkdtemp(prefix="pq-"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


@contextmanager
def mailbox(handle: Callable[[Message], Message | None], address: Address = NAMES) -> Iterator[Mailbox]:
    """A mailbox that deals with its messages by `handle`."""
    with closing(Mailbox(address, handle)) as made:
        yield made


def echo(message: Message) -> Message:
    """Answers with what was said."""
    return {"heard": message["say"]}


def ask(message: Message, timeout_s: float = 5.0, address: Address = NAMES) -> Message:
    """What the readers that are there under the names answer."""
    return Requester(address, timeout_s=timeout_s).ask(message)


def says(text: str = "hello", address: Address = NAMES) -> bool:
    return bool(ask({"say": text}, address=address)["heard"] == text)


@contextmanager
def silent(address: Address = NAMES) -> Iterator[socket.socket]:
    """Somebody who has the name and takes no connection, as a process that is frozen. What he leaves behind is what a
    killed process does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.bind(str(notify.folder() / address.stem))
        made.listen(1)
        yield made


def say_raw(path: str, data: bytes) -> bytes:
    """What is answered to bytes that somebody else sends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as somebody:
        somebody.settimeout(5.0)
        somebody.connect(path)
        somebody.sendall(data)
        somebody.shutdown(socket.SHUT_WR)
        return somebody.recv(65536)


# --- questions and answers --------------------------------------------------------------------------------------------


def test_names_that_differ_in_anything_find_somebody_else() -> None:
    with mailbox(echo):
        for field in Address._fields:
            with pytest.raises(Unavailable):
                ask({"say": "hello"}, 0.1, NAMES._replace(**{field: "other"}))


def test_a_word_needs_no_answer() -> None:
    heard: list[Message] = []
    with mailbox(heard.append) as box:
        assert send(box.path, {"do": "complete", "end": "digest"})
        wait_until(lambda: len(heard) == 1, "the word")
        assert heard == [{"v": 1, "do": "complete", "end": "digest"}]
    assert not send(box.path, {"do": "complete"})
    assert not send("/nowhere/at/all", {"do": "complete"})


ERRORS = [errors.Invalid, errors.Conflict, errors.Fenced, errors.Unavailable, errors.Corrupt, errors.ObjectMissing]
TOLD: list[tuple[Exception | Message, type[Exception], str]] = [
    *((error("queue 'orders' is not there"), error, "^queue 'orders' is not there$") for error in ERRORS),
    (Invalid("x" * 100_000), Invalid, "^x{100000}$"),
    (ZeroDivisionError("a fault"), Unavailable, "could not deal with it.*ZeroDivisionError"),
    (KeyError("say"), Invalid, r"malformed \(KeyError\('say'\)\)"),
    *(({"error": kind, "message": "later"}, Unavailable, "^later$") for kind in ("Strange", "annotations", "getattr")),
    ({"v": 2}, Invalid, "answer is not of version 1"),
]


@pytest.mark.parametrize(("told", "error", "words"), TOLD)
def test_an_error_of_the_reader_is_raised_where_it_was_asked_and_the_mailbox_lives_on(
    told: Exception | Message, error: type[Exception], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Message) -> Message:
        if message["say"] == "hello":
            return echo(message)
        if isinstance(told, Exception):
            raise told
        return told

    with mailbox(handle):
        with caplog.at_level(logging.ERROR, "partq.flow"), pytest.raises(error, match=words) as caught:
            ask({"say": "break"})
        assert type(caught.value) is error
        assert says()
    assert ("a message to the reader was not dealt with" in caplog.text) is ("ZeroDivision" in words)


def test_a_reader_that_is_just_being_started_is_waited_for_and_nobody_is_told_with_all_names() -> None:
    begun_s = time.monotonic()
    with pytest.raises(Unavailable) as caught:
        ask({"say": "hello"}, 0.3)
    assert 0.3 <= time.monotonic() - begun_s < 1.5
    assert "flow 'billing-1' of group default/orders/billing has no reader process here" in str(caught.value)
    assert "answered within 0.3 s" in str(caught.value)
    made: list[Mailbox] = []
    later = threading.Timer(0.5, lambda: made.append(Mailbox(NAMES, echo)))
    later.start()
    try:
        assert says()
    finally:
        later.join()
        made[0].close()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        *((data, "malformed") for data in (b"", b"\xff\xfe", b"{", b"[1]", b"[" * 20_000, b"x" * 60_000)),
        (b'{"v":2,"say":"hello"}\n', "not of version 1: use one partq for reader and application"),
        (b'{"say":"hello"}\n', "not of version 1: use one partq"),
    ],
)
def test_what_is_no_message_is_answered_and_the_mailbox_lives_on(data: bytes, words: str) -> None:
    with mailbox(echo) as box:
        answer = json.loads(say_raw(box.path, data))
        assert answer["error"] == "Invalid"
        assert words in answer["message"]
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as impatient:
            impatient.connect(box.path)
            impatient.sendall(b'{"v":1,"say":"hello"}\n')  # and is gone when the answer comes
        assert says()


def test_who_connects_and_says_nothing_holds_nobody_up_for_long() -> None:
    with mailbox(echo) as box, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as mute:
        mute.connect(box.path)
        begun_s = time.monotonic()
        assert says()
        assert time.monotonic() - begun_s < 5.0


def test_what_a_thousand_partitions_say_is_one_message() -> None:
    text = "x" * 200_000
    with mailbox(echo):
        assert says(text)


# --- several under one name -------------------------------------------------------------------------------------------


def test_whoever_comes_last_has_the_name_and_one_that_goes_leaves_it_to_him() -> None:
    with mailbox(lambda _: {"who": "former"}) as former:
        assert (is_taken(NAMES), is_taken(OTHER), former.is_found) == (True, False, True)
        with mailbox(lambda _: {"who": "present"}) as present:
            assert (former.is_found, present.is_found) == (False, True)
            assert ask({})["who"] == "present"
            former.close()
            assert ask({})["who"] == "present"
    assert not is_taken(NAMES)
    with pytest.raises(Unavailable):
        ask({}, 0.1)


def test_what_a_killed_process_left_behind_is_nobody_and_is_replaced() -> None:
    with silent():
        assert is_taken(NAMES)
    assert not is_taken(NAMES)
    with pytest.raises(Unavailable):
        ask({}, 0.2)
    with mailbox(echo):
        assert says()
    assert list(notify.folder().iterdir()) == []


def test_one_that_is_frozen_keeps_nobody_waiting_and_its_successor_answers() -> None:
    with silent() as frozen:
        path = str(notify.folder() / NAMES.stem)
        # It takes some connections, and a sender would wait for ever.
        assert any(not send(path, {"do": "complete"}) for _ in range(1000))
        assert is_taken(NAMES), "and is busy"
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"answered within 0\.5 s"):
            ask({}, 0.5)
        assert time.monotonic() - begun_s < 3.0
        made: list[Mailbox] = []
        later = threading.Timer(0.5, lambda: made.append(Mailbox(NAMES, echo)))
        later.start()
        assert says(), "by who has come while it was asked"
        later.join()
        made[0].close()
        frozen.close()


def test_the_answer_of_one_whose_name_was_taken_meanwhile_is_not_waited_for() -> None:
    goes_on = threading.Event()

    def slow(_message: Message) -> Message:
        goes_on.wait(20)
        return {"who": "former"}

    with mailbox(slow):
        found: list[Message] = []
        asking = threading.Thread(target=lambda: found.append(ask({}, 15.0)))
        asking.start()
        time.sleep(0.2)
        with mailbox(lambda _: {"who": "present"}):
            asking.join(10)
            assert [each["who"] for each in found] == ["present"]
        goes_on.set()


# --- the folder, and the end ------------------------------------------------------------------------------------------


def spoiled(place: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place / f"partq-{os.getuid()}"
    if how == "a file":
        path.write_text("")
    elif how == "a link":
        (place / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(place / "elsewhere")
    elif how == "a dead link":
        path.symlink_to(place / "elsewhere")
    elif how == "somebody else's":
        somebody = os.getuid() + 1
        notify.folder().rename(place / f"partq-{somebody}")
        monkeypatch.setattr(os, "getuid", lambda: somebody)
    else:
        notify.folder().chmod(int(how, 8))


@pytest.mark.parametrize("how", ["701", "710", "777", "a file", "a link", "a dead link", "somebody else's"])
def test_a_folder_that_others_may_use_is_refused(place: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoiled(place, how, monkeypatch)
    for use in (lambda: Mailbox(NAMES, echo), lambda: ask({})):
        with pytest.raises(Invalid, match=f"{place}/.* is not a folder that only this user may enter: remove it"):
            use()


def test_a_place_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    deep = place / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    for use in (lambda: Mailbox(NAMES, echo), lambda: ask({})):
        with pytest.raises(Invalid, match=r"no socket can be made at .*: set TMPDIR to a writable place whose path"):
            use()
    monkeypatch.setattr(tempfile, "tempdir", str(place / "not there"))
    with pytest.raises(Invalid, match=r"cannot be made .*: set TMPDIR to a writable place"):
        notify.folder()


def test_closing_ends_the_thread_and_removes_the_path() -> None:
    box = Mailbox(NAMES, echo)
    assert says()
    box.close()
    assert not Path(box.path).exists()
    wait_until(lambda: not box._thread.is_alive(), "end of the thread", wait_s=5)
    box.close()
    with pytest.raises(Unavailable):
        ask({"say": "hello"}, 0.1)
