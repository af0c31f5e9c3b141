"""What does not fit into one message is asked and told in pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partq_spark.client.acknowledge import Acknowledger, InHand
from partq_spark.group.claims import Claim
from partq_spark.query import notify
from partq_spark.query.manual import GivenOut
from partq_spark.query.notify import PAGE, Datagram
from partq_spark.query.offsets import BatchSpan
from tests.query.notify.mailboxes import NAMES, mailbox

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
