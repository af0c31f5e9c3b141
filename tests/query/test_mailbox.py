"""The reader process' local socket: who is found by a name, what is answered and how long is waited for it; which of
several processes under one name counts; what is no message cannot bring it down; what does not fit into one message is
told in pages; and its folder, which is for one user alone.
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
from partq_spark.client.acknowledge import Acknowledger
from partq_spark.group.claims import Claim
from partq_spark.query import notify
from partq_spark.query.manual import GivenOut
from partq_spark.query.notify import PAGE, Address, Datagram, Mailbox, Requester, send
from partq_spark.query.offsets import BatchSpan
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
def mailbox(handle: Callable[[Datagram], Datagram | None], address: Address = NAMES) -> Iterator[Mailbox]:
    """A mailbox that deals with its messages by `handle`."""
    with closing(Mailbox(address, handle)) as made:
        yield made


def echo(message: Datagram) -> Datagram:
    """Answers with what was said."""
    return {"heard": message["say"]}


def busy(_message: Datagram) -> Datagram:
    raise Unavailable("the reader process waits for a store that does not answer: ask again later")


def ask(message: Datagram, timeout_s: float = 5.0, address: Address = NAMES) -> Datagram:
    """What the readers that are there under the names answer."""
    return Requester(address, timeout_s=timeout_s).ask(message)


def says(text: str = "hello", address: Address = NAMES) -> bool:
    return bool(ask({"say": text}, address=address)["heard"] == text)


@contextmanager
def silent(name: str) -> Iterator[socket.socket]:
    """Somebody with an address who reads nothing by himself, as a process that is frozen. What he leaves behind is
    what a killed process does.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(notify.folder() / name))
        made.settimeout(5.0)
        yield made


def older(path: str | Path, by_s: float = 10.0) -> None:
    """As if the socket had been made some time ago."""
    then_ns = time.time_ns() - int(by_s * 1e9)
    os.utime(path, ns=(then_ns, then_ns))


# --- questions and answers --------------------------------------------------------------------------------------------


def test_names_that_differ_in_anything_find_somebody_else() -> None:
    with mailbox(echo):
        for field in Address._fields:
            with pytest.raises(Unavailable):
                ask({"say": "hello"}, 0.1, NAMES._replace(**{field: "other"}))


def test_a_word_needs_no_answer() -> None:
    heard: list[Datagram] = []
    with mailbox(heard.append) as box:
        assert send(box.path, {"do": "complete", "end": "digest"})
        wait_until(lambda: len(heard) == 1, "the word")
        assert heard == [{"v": 1, "do": "complete", "end": "digest"}]
    assert not send(box.path, {"do": "complete"})
    assert not send("/nowhere/at/all", {"do": "complete"})


def strange(kind: str) -> Datagram:
    return {"error": kind, "message": "later"}


ERRORS = [errors.Invalid, errors.Conflict, errors.Fenced, errors.Unavailable, errors.Corrupt, errors.ObjectMissing]
TOLD: list[tuple[Exception | Datagram, type[Exception], str]] = [
    *((error("queue 'orders' is not there"), error, "^queue 'orders' is not there$") for error in ERRORS),
    (Invalid("x" * 100_000), Invalid, "^x{500,1500}$"),
    (ZeroDivisionError("a fault"), Unavailable, "could not deal with it.*ZeroDivisionError"),
    (KeyError("say"), Invalid, r"malformed \(KeyError\('say'\)\)"),
    *((strange(kind), Unavailable, "^later$") for kind in ("Strange", "annotations", "getattr")),
    ({"v": 2}, Invalid, "answer is not of version 1"),
]


@pytest.mark.parametrize(("told", "error", "words"), TOLD)
def test_an_error_of_the_reader_is_raised_where_it_was_asked_and_the_mailbox_lives_on(
    told: Exception | Datagram, error: type[Exception], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    def handle(message: Datagram) -> Datagram:
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
    assert list(notify.folder().iterdir()) == [], "the asker's own socket is gone"
    made: list[Mailbox] = []
    later = threading.Timer(0.5, lambda: made.append(Mailbox(NAMES, echo)))
    later.start()
    try:
        assert says()
    finally:
        later.join()
        made[0].close()


def test_the_late_answer_to_an_earlier_question_is_not_taken() -> None:
    with silent("late") as late:

        def handle(message: Datagram) -> Datagram:
            # Before the answer comes others: to a question of another time, one that is no answer at all.
            (own,) = notify.folder().glob("ask-*")
            for wrong in (b'{"v":1,"n":"00000000","heard":"x"}', b'{"v":1,"heard":"x"}', b'{"n":[]}', b"[]", b"{"):
                late.sendto(wrong, str(own))
            return echo(message)

        with mailbox(handle):
            assert says("now")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", None),
        *((data, "malformed") for data in (b"\xff\xfe", b"{", b"[1]", b"[" * 20_000, b"x" * 60_000)),
        (b'{"v":2,"n":"a","say":"hello"}', "not of version 1: use one partq for reader and application"),
        (b'{"n":"a","say":"hello"}', "not of version 1: use one partq"),
    ],
)
def test_what_is_no_message_is_answered_and_the_mailbox_lives_on(data: bytes, words: str | None) -> None:
    with mailbox(echo) as box:
        with silent("somebody") as somebody, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as nobody:
            somebody.sendto(data, box.path)
            nobody.sendto(data, box.path)  # has no address to answer to
            if words is not None:
                answer = json.loads(somebody.recv(65536))
                assert answer["error"] == "Invalid"
                assert words in answer["message"]
                assert answer["n"] == ("a" if b'"n"' in data else None)
            somebody.sendto(b'{"v":1,"say":"hello"}', box.path)  # and is gone when the answer comes
        assert says()


# --- several under one name -------------------------------------------------------------------------------------------


def test_what_killed_processes_left_behind_is_passed_over_and_removed_and_nothing_else() -> None:
    place = notify.folder()
    dead, other, notes = place / f"{NAMES.stem}-1-0", place / "ask-1-0", place / "notes.txt"
    for path in (dead, other):
        with silent(path.name):
            pass
    notes.write_text("not a socket")
    with mailbox(echo, OTHER) as living:
        assert dead.is_socket(), "one that has just been made may not answer yet"
        for path in (dead, other, notes, Path(living.path)):
            older(path)
        with pytest.raises(Unavailable):
            ask({}, 0.2)
        assert not dead.exists(), "who asks removes what does not answer"
        with mailbox(echo):
            assert says(address=OTHER)
    assert list(place.iterdir()) == [notes], "and a new mailbox what is left of others"


@pytest.mark.parametrize("is_older", [True, False])
def test_of_two_processes_the_bound_one_counts_and_a_busy_one_does_not_hide_it(is_older: bool) -> None:
    with mailbox(lambda _: {"who": "bound", "bound": True}) as bound:
        for other in (lambda _: {"who": "twin", "bound": False}, busy):
            with mailbox(other) as twin:
                older(bound.path if is_older else twin.path)
                older(twin.path if is_older else bound.path, by_s=0)
                for _ in range(3):
                    assert ask({})["who"] == "bound"
    with mailbox(busy), pytest.raises(Unavailable, match="waits for a store"):
        ask({})


def test_a_silent_process_neither_hides_the_one_that_answers_nor_keeps_anybody_waiting() -> None:
    with silent(f"{NAMES.stem}-1-0") as frozen:
        with mailbox(lambda _message: {"who": "me", "bound": True}) as box:
            older(box.path)
            begun_s = time.monotonic()
            assert ask({}, 20.0)["who"] == "me"
            assert time.monotonic() - begun_s < 5.0
        # Its queue is full after some messages, and a sender would wait for ever.
        assert any(not send(frozen.getsockname(), {"do": "complete"}) for _ in range(100_000))
        begun_s = time.monotonic()
        with pytest.raises(Unavailable, match=r"answered within 0\.5 s"):
            ask({}, 0.5)
        assert time.monotonic() - begun_s < 3.0


# --- pages ------------------------------------------------------------------------------------------------------------


LARGE = 2**63 - 1


class Reader:
    """As `beside` answers, of a flow that has so many partitions, with the largest numbers there are."""

    def __init__(self, partitions: range, *, lost: frozenset[int] = frozenset()) -> None:
        self.given = GivenOut("0123456789abcdef")
        self.given.add({p: BatchSpan(LARGE, 0, LARGE, 0) for p in partitions})
        self.claims = {
            p: Claim(partition=p, epoch=LARGE, position=0, acknowledged=LARGE, redelivered_below=0, paused=False)
            for p in partitions
            if p not in lost
        }
        self.asked: list[Datagram] = []
        self.sizes: list[int] = []

    def __call__(self, message: Datagram) -> Datagram:
        self.asked.append(message)
        if message["do"] == "acknowledge":
            answer: Datagram = {"still": sorted(map(int, message["p"])), "bound": True}
        else:
            answer = {**self.given.in_hand(self.claims, after=message["after"], most=PAGE), "bound": True}
        self.sizes += [len(notify._encoded(each)) for each in (message, answer)]
        return answer


ACKNOWLEDGER = Acknowledger(
    queue=NAMES.queue, group=NAMES.group, flow=NAMES.flow, store=NAMES.store, namespace=NAMES.namespace
)


def test_a_flow_with_many_partitions_is_told_in_pages_that_every_system_takes() -> None:
    partitions = range(999_000, 1_000_000)
    reader = Reader(partitions, lost=frozenset(partitions[50:80]))
    with mailbox(reader):
        hand = ACKNOWLEDGER.in_hand()
        assert hand.lost == frozenset(partitions[50:80])
        assert set(hand.partitions) == {*partitions} - hand.lost
        assert len(reader.asked) == 42
        assert hand.acknowledge(dict.fromkeys(partitions, LARGE)) == set(hand.partitions)
    pages = [message["p"] for message in reader.asked if message["do"] == "acknowledge"]
    assert {len(page) for page in pages[:-1]} == {PAGE}
    assert max(reader.sizes) < 2048


def test_a_process_that_was_replaced_between_two_pages_is_asked_anew() -> None:
    former, present = Reader(range(30)), Reader(range(30), lost=frozenset({3}))
    present.given.process = "fedcba9876543210"
    turns = [present, present, present, former]

    def handle(message: Datagram) -> Datagram:
        return turns.pop()(message)

    with mailbox(handle):
        hand = ACKNOWLEDGER.in_hand()
    assert hand.process == "fedcba9876543210"
    assert hand.lost == {3}
    assert [message["after"] for message in present.asked] == [23, -1, 23]


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
def test_a_folder_that_is_not_this_users_alone_is_refused(
    place: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
