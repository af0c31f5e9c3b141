"""A world whose queue changes its partition count while it is used, and an oracle that remembers every message.

The oracle knows nothing of layouts but their counts: for a message it looks at all that were published before it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from partq_spark.log import admin
from partq_spark.log.partitioner import partition_of
from tests.query.world import Query, World


class Message(NamedTuple):
    """One message; `among` is the queue's partition count when it was published, `layout` the how-manieth that was."""

    number: int
    key: str
    layout: int
    among: int
    partition: int
    offset: int


class Resizing(World):
    """A world in which every message has a key, and whose queries are watched."""

    def __init__(self, *, partitions: int = 2, delay_s: float = 0.0, handoff_s: float = 3.0) -> None:
        super().__init__(partitions=partitions, delay_s=delay_s, handoff_s=handoff_s)
        self.messages: list[Message] = []
        self.at: dict[tuple[int, int], Message] = {}
        self.counts = [partitions]
        self.first: dict[int, int] = {}  # by message number, the delivery that was its first
        self._deliveries = 0

    # --- what happens

    def publish_keys(self, keys: Sequence[str]) -> None:
        following = list(self.queue.refresh().next)
        super().publish_keys(keys)
        for key in keys:
            partition = partition_of(key.encode(), self.counts[-1])
            made = Message(
                len(self.messages), key, len(self.counts) - 1, self.counts[-1], partition, following[partition]
            )
            self.messages.append(made)
            self.at[partition, following[partition]] = made
            following[partition] += 1
        assert list(self.queue.refresh().next) == following

    def alter(self, partitions: int) -> None:
        """Another partition count, as the command line does it."""
        admin.alter_queue(self.open_queue(), partitions=partitions)
        if partitions != self.counts[-1]:
            self.counts.append(partitions)
        self.group_facts()

    def watched(self, query: Query) -> Query:
        """Every batch of this query is judged when it is delivered."""
        query.during = lambda: self.judge(query)
        return query

    # --- what must hold

    def acknowledged(self, partition: int) -> int:
        """By the checkpoint alone."""
        return self.offset(partition) or 0

    def judge(self, query: Query) -> None:
        """RES-03: whatever comes for the first time comes after all older messages of its key, and those that lie in
        other partitions are acknowledged.
        """
        for row in query.batches[-1].rows:
            message = self.at[row.partition, row.offset]
            for older in self.messages[: message.number]:
                if older.key != message.key or message.number in self.first:
                    continue
                assert older.number in self.first, f"{message} was delivered, and not {older}"
                assert older.partition == row.partition or self.acknowledged(older.partition) > older.offset, (
                    f"{message} was delivered before {older} was acknowledged"
                )
            self._deliveries += 1
            self.first.setdefault(message.number, self._deliveries)

    def may_come(self, partition: int, position: int) -> bool:
        """RES-03, pair by pair: whether the next message of a partition need not wait for anything."""
        message = self.at.get((partition, position))
        return message is not None and not any(
            older.layout < message.layout
            and older.partition != partition
            and (older.partition - partition) % math.gcd(older.among, message.among) == 0
            and self.acknowledged(older.partition) <= older.offset
            for older in self.messages
        )

    def all_delivered(self, *queries: Query) -> bool:
        rows = Counter((row.partition, row.offset) for query in queries for row in query.rows)
        return all((each.partition, each.offset) in rows for each in self.messages)

    def all_acknowledged(self) -> bool:
        return all(self.acknowledged(p) == end for p, end in enumerate(self.queue.refresh().next))
