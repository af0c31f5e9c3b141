"""Several reader processes under one name: which one counts, and that no dead or silent one hides it. And what does not
fit into one message is asked and told in pages.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partq_spark.base.errors import Unavailable
from partq_spark.client.acknowledge import Acknowledger, InHand
from partq_spark.group.claims import Claim
from partq_spark.query import notify
from partq_spark.query.manual import GivenOut
from partq_spark.query.notify import PAGE, Datagram, send
from partq_spark.query.offsets import BatchSpan
from tests.query.notify.test_mailbox import NAMES, echo, line, mailbox
from tests.support.servers import ROOT, die_with_parent
from tests.support.waiting import wait_until

OTHER_PROCESS = """
import json, sys, time
from partq_spark.query.notify import Address, Mailbox
bound = sys.argv[2] == "bound"
box = Mailbox(Address(*json.loads(sys.argv[1])), lambda message: {"who": sys.argv[2], "bound": bound})
print(box.path, flush=True)
time.sleep(60)
"""


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
    def busy(_message: Datagram) -> Datagram:
        raise Unavailable("the reader process waits for a store that does not answer: ask again later")

    with process("bound") as (_, path), mailbox(busy) as box:
        older(path)
        assert line().ask({})["who"] == "bound"
        older(box.path, by_s=20.0)
    with mailbox(busy), pytest.raises(Unavailable, match="waits for a store"):
        line().ask({})


@pytest.mark.slow
def test_a_process_that_reads_nothing_keeps_nobody_waiting() -> None:
    """Its queue is full after some messages, and a sender would wait for ever."""
    with process("bound") as (frozen, path):
        freeze(frozen.pid)
        for _ in range(100_000):
            if not send(str(path), {"do": "complete"}):
                break
        else:
            pytest.fail("the queue takes everything")
        begun_s = time.monotonic()
        with pytest.raises(Unavailable):
            line(0.5).ask({})
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

    def __call__(self, message: Datagram) -> Datagram:
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

    def measured(message: Datagram) -> bytes:
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

    def handle(message: Datagram) -> Datagram:
        return next(turns)(message)

    with mailbox(handle):
        hand = hand_of_reader()
    assert hand.process == "fedcba9876543210"
    assert hand.lost == {3}
    assert [message["after"] for message in present.asked] == [23, -1, 23]
