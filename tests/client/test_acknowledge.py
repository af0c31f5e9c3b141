"""Key sequences: what may be acknowledged, compared with what is plainly right; and what is void."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import SpanSubject
from partq_spark.client.acknowledge import Acknowledger, Held, KeySequences
from partq_spark.query.acknowledgements import RoundPosition
from partq_spark.query.notify import Address, Message, Requester


class Reader(Requester):
    """The asking end of a flow that is known: it answers what `Beside` would."""

    def __init__(self) -> None:
        super().__init__(Address("", "", "", "", ""), timeout_s=0.0)
        self.process = "first"
        self.partitions: dict[int, Held] = {}
        self.lost: set[int] = set()
        self.told: list[dict[int, tuple[int, int]]] = []

    def deliver(self, *partitions: int, epoch: int = 1, to: int = 1000) -> None:
        self.partitions |= {p: Held(epoch, 0, to) for p in partitions}
        self.lost.difference_update(partitions)

    def lose(self, *partitions: int) -> None:
        for partition in partitions:
            del self.partitions[partition]
            self.lost.add(partition)

    def ask(self, message: Message) -> Message:
        if message["do"] == "in_hand":
            held: Mapping[str, Any] = {str(p): list(each) for p, each in self.partitions.items()}
            return {"process": self.process, "p": held, "lost": sorted(self.lost)}
        told = {int(p): RoundPosition(*position) for p, position in message["p"].items()}
        self.told.append({p: (position.epoch, position.offset) for p, position in told.items()})
        current = self.partitions if message["process"] == self.process else {}
        rounds = {p: (held.epoch, held.round) for p, held in current.items()}
        return {"still": [p for p, position in told.items() if rounds.get(p) == (position.epoch, position.round)]}


class Asking(Acknowledger):
    """Without a socket."""

    def __init__(self, reader: Reader) -> None:
        self._line = reader
        self._where = SpanSubject("orders")


@pytest.fixture
def reader() -> Reader:
    made = Reader()
    made.deliver(0, 1)
    return made


@pytest.fixture
def sequences(reader: Reader) -> KeySequences:
    made = KeySequences(Asking(reader))
    made.begin()
    return made


def see(sequences: KeySequences, partition: int, *keys: str | None, first: int = 0) -> None:
    for offset, key in enumerate(keys, first):
        sequences.seen(partition, offset, key)


# --- what may be acknowledged -----------------------------------------------------------------------------------------


def positions(messages: Iterable[tuple[str | None, bool]]) -> int:
    """By brute force: the most messages from the beginning of which each one's sequence has an end among all."""
    seen = list(messages)

    def is_dealt_with(at: int) -> bool:
        key, _ = seen[at]
        return key is None or any(other == key and ends for other, ends in seen[at:])

    return max(end for end in range(len(seen) + 1) if all(is_dealt_with(at) for at in range(end)))


messages = st.tuples(st.sampled_from([None, "a", "b", "c", ""]), st.booleans())
"""A key, and whether its sequence ends with this message."""


batches = st.tuples(st.integers(1, 6), st.booleans(), st.sets(st.integers(0, 2), max_size=2))
"""So many messages come at once; whether by another reader process, and which partitions at another epoch."""


@pytest.mark.conformance("SEQ-01")
@given(
    st.lists(st.lists(messages, max_size=14), min_size=1, max_size=3).map(lambda each: dict(enumerate(each))),
    st.lists(batches, max_size=8),
)
def test_everything_before_the_first_open_sequence_is_acknowledged_and_nothing_else(
    there: dict[int, list[tuple[str | None, bool]]], planned: list[tuple[int, bool, set[int]]]
) -> None:
    """What another process or epoch has is void, and comes again from what was acknowledged; the others go on."""
    reader = Reader()
    sequences = KeySequences(Asking(reader))
    first, reached, epochs = (dict.fromkeys(there, value) for value in (0, 0, 1))  # `first`: what was acknowledged

    def seen(p: int) -> list[tuple[str | None, bool]]:
        return there[p][first[p] : reached[p]]

    for size, is_other_process, moved in [*planned, (100, False, set())]:
        void = {p for p in there if seen(p) and (is_other_process or p in moved)}
        for p in void:
            first[p] = reached[p] = first[p] + positions(seen(p))
        reader.process += "'" * is_other_process
        batch = {p: there[p][at : at + size] for p, at in reached.items()}
        for p, some in batch.items():
            epochs[p] += p in moved
            reader.deliver(p, epoch=epochs[p], to=reached[p] + len(some))
        assert sequences.begin() == void
        for p, some in batch.items():
            for offset, (key, ends) in enumerate(some, reached[p]):
                sequences.seen(p, offset, key)
                if ends:
                    sequences.complete(p, key)
            reached[p] += len(some)
        reader.told.clear()
        sequences.acknowledge()
        told = {p: (epochs[p], first[p] + positions(seen(p))) for p in there if seen(p)}
        assert reader.told == ([told] if told else [])


# --- what moves on ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("SEQ-01")
def test_what_moves_on_while_its_batch_is_under_way_is_no_error(reader: Reader, sequences: KeySequences) -> None:
    """Its rows were planned before, and are in the batch: they count for nothing, and their keys are forgotten."""
    see(sequences, 1, "b")
    reader.lose(0)
    assert sequences.begin() == frozenset()
    see(sequences, 0, "a", None)
    see(sequences, 1, "b", first=1)
    sequences.complete(0, "a")
    sequences.complete(1, "b")
    assert sequences.acknowledge() == {1}
    assert reader.told == [{1: (1, 2)}]
    reader.deliver(0, epoch=1)  # it comes back, whatever the epoch
    assert sequences.begin() == {0}


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_nothing_works_before_a_batch_has_begun(reader: Reader) -> None:
    sequences = KeySequences(Asking(reader))
    for use in (lambda: sequences.seen(0, 0, "a"), sequences.acknowledge):
        with pytest.raises(Invalid, match=r"no micro-batch has begun: call begin\(\) first"):
            use()


def test_a_batch_that_did_not_begin_is_noticed(reader: Reader) -> None:
    reader = Reader()
    reader.deliver(0, to=2)
    sequences = KeySequences(Asking(reader))
    sequences.begin()
    see(sequences, 0, "a", "a")
    reader.deliver(0, 1, to=4)  # the next batch, without begin()
    for partition, offset in ((0, 2), (1, 0)):
        with pytest.raises(Invalid, match=rf"offset {offset} of partition {partition} is not in hand: call begin\(\)"):
            sequences.seen(partition, offset, "a")


@pytest.mark.conformance("API-05")
def test_a_hand_from_before_a_partition_was_given_out_anew_does_not_count(reader: Reader) -> None:
    hand = Asking(reader).in_hand()
    reader.partitions[0] = Held(1, 0, 1000, round=1)
    assert hand.acknowledge({0: 5, 1: 5}) == {1}
    assert Asking(reader).in_hand().acknowledge({0: 5}) == {0}
