"""The reader process' local socket: who is found by a name, what is answered, and what cannot bring it down."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from partq_spark import errors, notify
from partq_spark.acknowledge import Acknowledger, InHand
from partq_spark.consuming.by_hand import GivenOut
from partq_spark.errors import Invalid, Unavailable
from partq_spark.flow.claims import Claim
from partq_spark.notify import PAGE, Address, Line, Mailbox, Message, tell
from partq_spark.offsets import Span
from tests.support.servers import ROOT, die_with_parent
from tests.support.spark import wait_until

NAMES = Address("file:///srv/queues", "default", "orders", "billing", "billing-1")
LARGE = 2**63 - 1

OTHER_PROCESS = """
import json, sys, time
from partq_spark.notify import Address, Mailbox
bound = sys.argv[2] == "bound"
box = Mailbox(Address(*json.loads(sys.argv[1])), lambda message: {"who": sys.argv[2], "bound": bound})
print(box.path, flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets of a test's own, with a short path."""
    made = Path(tempfile.mkdtemp(prefix="pq-"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    yield made
    shutil.rmtree(made)


@contextmanager
def mailbox(handle: Callable[[Message], Message | None], address: Address = NAMES) -> Iterator[Mailbox]:
    with closing(Mailbox(address, handle)) as made:
        yield made


@contextmanager
def process(kind: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another reader process under the name; it says whether it is `bound`."""
    command = [sys.executable, "-c", OTHER_PROCESS, json.dumps(list(NAMES)), kind]
    environ = {**os.environ, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from the main thread
    ) as made:
        assert made.stdout is not None
        try:
            yield made, Path(made.stdout.readline().strip())
        finally:
            made.kill()


def freeze(pid: int) -> None:
    """Returns when every thread has stopped, which takes a moment."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_until(
        lambda: all(each.read_text().rpartition(")")[2].split()[0] == "T" for each in tasks.glob("*/stat")), "stop", 5
    )


def older(path: str | Path, by_s: float = 10.0) -> None:
    """As if the socket had been made some time ago."""
    then_ns = time.time_ns() - int(by_s * 1e9)
    os.utime(path, ns=(then_ns, then_ns))


def echo(message: Message) -> Message:
    return {"heard": message["say"]}


def line(timeout_s: float = 5.0, address: Address = NAMES) -> Line:
    return Line(address, timeout_s=timeout_s)


@contextmanager
def asker() -> Iterator[socket.socket]:
    """Somebody with an address, who says whatever a test wants."""
    path = notify.folder() / "ask-by-hand"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))
        made.settimeout(5.0)
        yield made
    path.unlink()


# --- question and answer ----------------------------------------------------------------------------------------------


def test_a_question_is_answered_to_whoever_knows_the_names() -> None:
    with mailbox(echo):
        assert line().ask({"say": "hello"})["heard"] == "hello"
        assert line().ask({"say": [1, 2]})["heard"] == [1, 2]


def test_names_that_differ_in_anything_find_somebody_else() -> None:
    with mailbox(echo):
        for field in Address._fields:
            with pytest.raises(Unavailable):
                line(0.1, NAMES._replace(**{field: "other"})).ask({"say": "hello"})


def test_a_word_needs_no_answer() -> None:
    heard: list[Message] = []
    with mailbox(heard.append) as box:
        assert tell(box.path, {"do": "complete", "end": "digest"})
        wait_until(lambda: len(heard) == 1, "the word")
        assert heard == [{"v": 1, "do": "complete", "end": "digest"}]
    assert not tell(box.path, {"do": "complete"})
    assert not tell("/nowhere/at/all", {"do": "complete"})


@pytest.mark.parametrize("kind", ["Invalid", "Conflict", "Fenced", "Unavailable", "Corrupt", "ObjectMissing"])
def test_an_error_of_the_reader_is_raised_where_it_was_asked(kind: str) -> None:
    def handle(_message: Message) -> Message:
        raise getattr(errors, kind)("queue 'orders' is not there: make it")

    with mailbox(handle), pytest.raises(errors.PartqError, match="queue 'orders' is not there: make it") as caught:
        line().ask({"say": "hello"})
    assert type(caught.value).__name__ == kind


def test_a_long_error_stays_small() -> None:
    def handle(_message: Message) -> Message:
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

    def handle(_message: Message) -> Message:
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

        def handle(message: Message) -> Message:
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


# --- pages ------------------------------------------------------------------------------------------------------------


class Reader:
    """As `beside` answers, of a flow that has so many partitions, with the largest numbers there are."""

    def __init__(self, partitions: range, *, lost: frozenset[int] = frozenset()) -> None:
        self.given = GivenOut("0123456789abcdef")
        self.given.add({p: Span(LARGE, 0, LARGE, 0) for p in partitions})
        self.claims = {
            p: Claim(partition=p, epoch=LARGE, position=0, acknowledged=LARGE, redelivered_below=0, paused=False)
            for p in partitions
            if p not in lost
        }
        self.asked: list[Message] = []

    def __call__(self, message: Message) -> Message:
        self.asked.append(message)
        if message["do"] == "acknowledge":
            return {"still": sorted(map(int, message["p"])), "bound": True}
        return {**self.given.in_hand(self.claims, after=message["after"], most=PAGE), "bound": True}


def hand_of_reader() -> InHand:
    return Acknowledger(
        queue=NAMES.queue, group=NAMES.group, flow=NAMES.flow, store=NAMES.store, namespace=NAMES.namespace
    ).in_hand()


def test_a_flow_with_many_partitions_is_told_in_pages() -> None:
    reader = Reader(range(1000), lost=frozenset(range(50, 80)))
    with mailbox(reader):
        hand = hand_of_reader()
        assert sorted(hand.partitions) == [p for p in range(1000) if not 50 <= p < 80]
        assert hand.lost == frozenset(range(50, 80))
        assert len(reader.asked) == 42
        still = hand.acknowledge(dict.fromkeys(range(1000), 5))
        assert still == set(hand.partitions)
        pages = [message["p"] for message in reader.asked if message["do"] == "acknowledge"]
        assert {len(page) for page in pages[:-1]} == {PAGE}


def test_a_message_stays_below_what_every_system_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    encoded = notify._encoded

    def measured(message: Message) -> bytes:
        data = encoded(message)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(notify, "_encoded", measured)
    reader = Reader(range(999_900, 1_000_000))
    with mailbox(reader):
        hand_of_reader().acknowledge(dict.fromkeys(range(999_900, 1_000_000), LARGE))
    assert max(sizes) < 2048


def test_a_process_that_was_replaced_between_two_pages_is_asked_anew() -> None:
    former, present = Reader(range(30)), Reader(range(30), lost=frozenset({3}))
    present.given.process = "fedcba9876543210"
    turns: Iterator[Reader] = iter([former, present, present, present])

    def handle(message: Message) -> Message:
        return next(turns)(message)

    with mailbox(handle):
        hand = hand_of_reader()
    assert hand.process == "fedcba9876543210"
    assert hand.lost == {3}
    assert [message["after"] for message in present.asked] == [23, -1, 23]


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_a_killed_process_left_behind_is_passed_over_and_removed() -> None:
    with process("bound") as (killed, path):
        assert line().ask({})["who"] == "bound"
        killed.kill()
        killed.wait(10)
    assert path.is_socket()
    with mailbox(lambda _message: {"who": "me"}, NAMES._replace(flow="billing-2")):
        assert path.is_socket(), "one that has just been made may not answer yet"
    older(path)
    with pytest.raises(Unavailable):
        line(0.2).ask({})
    assert not path.exists()


def test_a_new_mailbox_removes_what_is_left_of_others_and_nothing_else() -> None:
    place = notify.folder()
    left = place / "ask-1-0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(left))
    (place / "notes.txt").write_text("not a socket")
    with mailbox(echo, NAMES._replace(group="shipping")) as living:
        older(left)
        older(place / "notes.txt")
        older(living.path)
        with mailbox(echo):
            assert line(address=NAMES._replace(group="shipping")).ask({"say": "hello"})["heard"] == "hello"
    assert not left.exists()
    assert (place / "notes.txt").exists()


@pytest.mark.parametrize("order", ["the bound one is older", "the bound one is newer"])
@pytest.mark.slow
def test_of_two_processes_the_bound_one_counts(order: str) -> None:
    with process("bound") as (_, bound), process("twin") as (_, twin):
        older(bound if order == "the bound one is older" else twin)
        for _ in range(3):
            assert line().ask({})["who"] == "bound"


@pytest.mark.slow
def test_of_two_processes_that_are_not_bound_the_newest_answers() -> None:
    with process("twin") as (_, path), mailbox(lambda _message: {"who": "me", "bound": False}):
        older(path)
        assert line().ask({})["who"] == "me"


@pytest.mark.parametrize("how", ["frozen", "busy"])
@pytest.mark.slow
def test_a_silent_process_does_not_hide_the_one_that_answers(how: str) -> None:
    """Frozen, it does not answer at all; busy with a store, it says so after a while."""
    with process("twin") as (twin, path), mailbox(lambda _message: {"who": "me", "bound": True}) as box:
        older(box.path)
        if how == "frozen":
            freeze(twin.pid)
        begun_s = time.monotonic()
        assert line(20.0).ask({})["who"] == "me"
        assert time.monotonic() - begun_s < 5.0
        assert path.is_socket()


@pytest.mark.slow
def test_a_busy_process_does_not_hide_the_one_that_is_bound() -> None:
    def busy(_message: Message) -> Message:
        raise Unavailable("the reader process waits for a store that does not answer: ask again later")

    with process("bound") as (_, path), mailbox(busy) as box:
        older(path)
        assert line().ask({})["who"] == "bound"
        older(box.path, by_s=20.0)
    with mailbox(busy), pytest.raises(Unavailable, match="waits for a store"):
        line().ask({})


@pytest.mark.slow
def test_a_process_that_reads_nothing_keeps_nobody_waiting() -> None:
    """Its queue is full after some messages, and whoever sends would wait for ever."""
    with process("bound") as (frozen, path):
        freeze(frozen.pid)
        for _ in range(100_000):
            if not tell(str(path), {"do": "complete"}):
                break
        else:
            pytest.fail("the queue takes everything")
        begun_s = time.monotonic()
        with pytest.raises(Unavailable):
            line(0.5).ask({})
        assert time.monotonic() - begun_s < 3.0


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
    def handle(message: Message) -> Message:
        if message["say"] == "break":
            raise ZeroDivisionError("a fault")
        return echo(message)

    with mailbox(handle):
        with caplog.at_level(logging.ERROR, "partq.flow"), pytest.raises(Unavailable, match="ZeroDivisionError"):
            line().ask({"say": "break"})
        assert line().ask({"say": "hello"})["heard"] == "hello"
    assert "a message to the reader was not dealt with" in caplog.text


def test_whoever_asked_may_be_gone_when_the_answer_comes() -> None:
    with mailbox(echo) as box:
        with asker() as gone:
            gone.sendto(b'{"v":1,"say":"hello"}', box.path)
        assert line().ask({"say": "hello"})["heard"] == "hello"


# --- the folder, and the end ------------------------------------------------------------------------------------------


def test_the_folder_is_for_this_user_alone() -> None:
    assert stat.S_IMODE(notify.folder().stat().st_mode) == 0o700


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


def test_closing_while_a_message_is_dealt_with_ends_the_thread_after_it() -> None:
    busy, go_on = threading.Event(), threading.Event()

    def handle(_message: Message) -> Message:
        busy.set()
        go_on.wait(10.0)
        return {}

    box = Mailbox(NAMES, handle)
    assert tell(box.path, {})
    assert busy.wait(5.0)
    box.close()
    go_on.set()
    wait_until(lambda: not box._thread.is_alive(), "end of the thread", wait_s=5)
