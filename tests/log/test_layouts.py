"""Where messages lie: which partition a key belongs to, against what Spark SQL itself says; and what changes of the
partition count mean for the order of keys: random histories against an oracle that remembers all, and corners.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partq_spark.base.errors import Invalid
from partq_spark.log import layouts
from partq_spark.log.layouts import LayoutWait, resized, without_trimmed_layouts
from partq_spark.log.model import Head
from partq_spark.log.partitioner import partition_of, partitions_of, xxh64_column
from tests.log.queues import empty_head
from tests.support.properties import examples

KEYS = 24  # a key is its hash here: it lies in partition `key % count`


class Message(NamedTuple):
    """One message; `number` is its place in the order of publishing."""

    number: int
    layout: int
    partition: int
    offset: int
    key: int


@dataclass
class History:
    """A queue and one group of consumers, with every message ever published. The head is changed by the code under
    test; what may be delivered is worked out here, from the messages alone.
    """

    head: Head
    counts: list[int]
    messages: list[Message] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)  # delivered up to here
    done: dict[int, int] = field(default_factory=dict)  # acknowledged up to here
    delivered: list[Message] = field(default_factory=list)

    # --- what happens

    def publish(self, keys: Sequence[int]) -> None:
        following = list(self.head.next)
        for key in keys:
            partition = key % self.counts[-1]
            layout = len(self.counts) - 1
            self.messages.append(Message(len(self.messages), layout, partition, following[partition], key))
            following[partition] += 1
        self.head = replace(self.head, next=tuple(following), sequence=self.head.sequence + 1)

    def resize(self, count: int) -> None:
        before = self.head
        self.head = replace(resized(before, count), sequence=before.sequence + 1)
        if count != self.counts[-1]:
            self.counts.append(count)
            assert self.head.layout.begin == (*before.next, *[0] * count)[:count], "numbers go on where they were"
        assert len(self.head.next) == len(self.head.earliest) == max(self.counts)
        self.check_layouts()

    def deliver(self, most: int) -> None:
        """What the code under test allows, and not more than `most` messages of each partition."""
        for partition, wait in self.compared().items():
            end = self.head.next[partition] if wait is None else wait.until
            for message in self.of(partition):
                if self.reached[partition] <= message.offset < min(end, self.reached[partition] + most):
                    self.check_key(message)
                    self.delivered.append(message)
            self.reached[partition] = max(self.reached[partition], min(end, self.reached[partition] + most))

    def acknowledge(self, partition: int, most: int) -> None:
        number = partition % len(self.head.next)
        self.done[number] = min(self.done.get(number, 0) + most, self.position(number))

    def trim(self, partition: int, rows: int) -> None:
        number = partition % len(self.head.next)
        earliest = list(self.head.earliest)
        earliest[number] = min(earliest[number] + rows, self.head.next[number])
        self.head = without_trimmed_layouts(replace(self.head, earliest=tuple(earliest)))
        self.reached[number] = max(self.position(number), earliest[number])
        self.check_layouts()

    # --- what must hold

    def position(self, partition: int) -> int:
        return self.reached.setdefault(partition, self.head.earliest[partition])

    def of(self, partition: int) -> list[Message]:
        return [message for message in self.messages if message.partition == partition]

    def is_left(self, message: Message) -> bool:
        """Neither acknowledged nor trimmed."""
        q = message.partition
        return message.offset >= max(self.done.get(q, 0), self.head.earliest[q])

    def blockers(self, layout: int, partition: int) -> dict[int, int]:
        """RES-03, pair by pair: what a message published under `layout` into `partition` waits for."""
        found: dict[int, int] = {}
        for old in self.messages:
            if old.layout < layout and old.partition != partition and self.is_left(old):
                modulus = math.gcd(self.counts[old.layout], self.counts[layout])
                if old.partition % modulus == partition % modulus:
                    found[old.partition] = max(found.get(old.partition, 0), old.offset + 1)
        return found

    def expected(self, partition: int) -> tuple[int, dict[int, int]] | None:
        """Up to where it may be delivered, and what it waits for."""
        reached = self.position(partition)
        for message in self.of(partition):
            if message.offset >= reached and (blockers := self.blockers(message.layout, partition)):
                return message.offset, blockers
        # What is published next, if the queue still has the partition.
        present = len(self.counts) - 1
        if partition < self.counts[present] and (blockers := self.blockers(present, partition)):
            return self.head.next[partition], blockers
        return None

    def compared(self) -> Mapping[int, LayoutWait | None]:
        """The waits of all partitions, by the code under test, after comparing them with the oracle's."""
        every = range(len(self.head.next))
        known = layouts.concerned(self.head)
        reached = {p: self.position(p) for p in every}
        found = layouts.waits(self.head, {p: self.done[p] for p in known if p in self.done}, reached)
        told = {p: (wait.until, wait.waits_for) for p, wait in found.items()}
        assert {p: told.get(p) for p in every} == {p: self.expected(p) for p in every}
        left = {m.partition for m in self.messages if self.is_left(m)}
        assert layouts.partitions_for(self.head, self.done) == tuple(
            p for p in every if p < self.counts[-1] or p in left
        )
        for wait in found.values():
            for q, end in wait.waits_for.items():
                assert layouts.passes_milestone(self.head, q, end - 1, end), "what is waited for is a milestone"
        assert layouts.blocking(found) == {q for wait in found.values() for q in wait.waits_for}
        for alike, ends in layouts.grouped_waits(found):
            for p in alike:
                assert {q: end for q, end in ends.items() if q != p} == found[p].waits_for
        if any(found.values()):
            assert layouts.head_scale_status(self.head, self.done) != "Ready"
        return {p: found.get(p) for p in every}

    def check_layouts(self) -> None:
        """Kept are those of which a message can be read, and the present one."""
        left = {m.layout for m in self.messages if m.offset >= self.head.earliest[m.partition]}
        assert [each.generation for each in self.head.layouts] == sorted({*left, len(self.counts) - 1})
        assert without_trimmed_layouts(self.head) is self.head
        assert resized(self.head, self.counts[-1]) is self.head

    def check_key(self, message: Message) -> None:
        """Key by key: what was published before is acknowledged, or comes before it in its own partition."""
        for old in self.messages[: message.number]:
            if old.key == message.key and self.is_left(old):
                assert old.partition == message.partition, f"{message} was delivered before {old} was acknowledged"


counts = st.integers(1, 12)
partitions = st.integers(0, 11)
rows = st.tuples(partitions, st.integers(1, 6))
steps = st.one_of(
    st.tuples(st.just("publish"), st.tuples(st.lists(st.integers(0, KEYS - 1), min_size=1, max_size=8))),
    st.tuples(st.just("resize"), st.tuples(counts)),
    st.tuples(st.just("deliver"), st.tuples(st.integers(1, 4))),
    st.tuples(st.just("acknowledge"), rows),
    st.tuples(st.just("trim"), rows),
)


@pytest.mark.conformance("RES-02")
@pytest.mark.conformance("RES-03")
@pytest.mark.conformance("RES-04")
@examples(400)
@given(begin=counts, history=st.lists(steps, min_size=3, max_size=40))
def test_partitions_wait_for_what_shares_keys_with_them(begin: int, history: list[tuple[str, tuple[Any, ...]]]) -> None:
    world = History(empty_head(begin), [begin])
    for step, of_what in history:
        getattr(world, step)(*of_what)
    world.compared()
    # Consumers that go on come to the end of everything: nothing is lost, nothing waits for ever.
    for _ in range(len(world.counts)):
        world.deliver(len(world.messages))
        for partition in range(len(world.head.next)):
            world.acknowledge(partition, len(world.messages))
    assert all(world.reached[p] == end for p, end in enumerate(world.head.next))
    assert len(set(world.delivered)) == len(world.delivered)
    assert layouts.head_scale_status(world.head, world.done) == "Ready"
    assert layouts.partitions_for(world.head, world.done) == tuple(range(world.counts[-1]))


# --- corners ----------------------------------------------------------------------------------------------------------


def grown(head: Head, rows: Mapping[int, int]) -> Head:
    """`head` with so many more messages in some partitions."""
    return replace(head, next=tuple(end + rows.get(p, 0) for p, end in enumerate(head.next)))


def test_too_many_counts_with_messages_are_refused_with_what_to_trim() -> None:
    head = empty_head(1)
    for number in range(layouts.MOST_LAYOUTS - 1):
        head = resized(grown(head, {0: 1}), 2 if number % 2 == 0 else 1)
    assert len(head.layouts) == layouts.MOST_LAYOUTS
    head = grown(head, {0: 1})
    with pytest.raises(Invalid, match=r"31|32") as refused:
        resized(head, 3)
    assert "--before-offsets '{\"0\": 1}'" in str(refused.value)
    trimmed = replace(head, earliest=(1, 0))
    assert len(resized(trimmed, 3).layouts) == layouts.MOST_LAYOUTS


# --- the partition of a key -------------------------------------------------------------------------------------------


# Printed by Spark 4.3.0: xxhash64(key), and pmod(xxhash64(key), 7).
SPARK_SAYS = [
    ("", -7444071767201028348, 3),
    ("key 1", 911313546284094928, 2),
    ("订单-北京-0042", -4445477014196292668, 1),
    ("\U0001f6b2 bike", 360120404006435757, 6),
    ("\x00", -8959994473701255385, 5),
    ("é" * 127 + "x", 6891010188444382093, 2),  # 255 bytes in 128 characters
    ("abcdefgh" * 4, 7672564337819487975, 1),  # 32 bytes: the hash's long form begins
    ("k" * 31, -6687355316768463964, 3),
    ("k" * 33, 6278079195063646626, 5),
]


def placed(keys: Sequence[bytes | None], partitions: int, seed: str = "seed", first_row: int = 0) -> list[int]:
    column = partitions_of(pa.array(keys, pa.binary()), partitions, seed, first_row)
    assert column.type == pa.uint16()
    return [int(each) for each in column.to_pylist()]


@pytest.mark.conformance("DIS-01")
@pytest.mark.parametrize(("key", "digest", "of_7"), SPARK_SAYS)
def test_a_key_goes_where_spark_sql_says(key: str, digest: int, of_7: int) -> None:
    assert partition_of(key.encode(), 7) == of_7
    for partitions in (1, 7, 8, 1000):
        expected = digest % partitions  # as pmod
        assert partition_of(key.encode(), partitions) == expected
        assert placed([key.encode()], partitions) == [expected]


@pytest.mark.conformance("DIS-03")
def test_messages_without_a_key_spread_over_all_partitions_and_are_placed_again_where_they_were() -> None:
    column: list[bytes | None] = [None, b"key", None, b""] * 100
    first = placed(column, 16, seed="query/7/task-3")
    assert placed(column, 16, seed="query/7/task-3") == first
    assert first not in (placed(column, 16, seed=seed) for seed in ("query/7/task-4", "query/8/task-3"))
    found = Counter(placed([None] * 16_000, 16))
    assert sorted(found) == list(range(16))
    assert min(found.values()) > 850  # of 1000 expected each; the standard deviation is 31
    assert max(found.values()) < 1150


@pytest.mark.conformance("DIS-01")
@pytest.mark.parametrize("lengths", [*([n] for n in range(32)), [5, 6], [0, 8], [*range(32)], [31, 32, 255]], ids=str)
def test_a_long_column_is_placed_as_each_key_alone(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """At once where numpy is there, and without it; also beside one that is null."""
    source = random.Random(str(lengths))
    keys = [source.randbytes(source.choice(lengths)) for _ in range(4_000)]
    expected = [partition_of(key, 1000) for key in keys]
    # A slice: the column's bytes do not begin where its buffer does.
    column = pa.array([b"before", *keys, b"after"], pa.binary()).slice(1, len(keys))
    assert xxh64_column(column, 42) is not None
    assert placed([None, *keys[:9]], 1000)[1:] == expected[:9]
    assert partitions_of(column, 1000, "seed", 0).to_pylist() == expected
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert xxh64_column(column, 42) is None
    assert partitions_of(column, 1000, "seed", 0).to_pylist() == expected
