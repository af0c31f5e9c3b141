"""What a seed draws before a query writes into queues: how its application writes, where its rows come from, how many
faults strike, and whether anything happens to it that the sink has to refuse.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, NamedTuple

KINDS: Final = (
    "stream",
    "fan-out",
    "typed",
    "one write",  # foreachBatch: a batch write with txnAppId
    "two queues",  # foreachBatch: two of them, under one txnAppId
    "two applications",  # foreachBatch: two of them to one queue, each with a txnAppId of its own
    "jobs",  # batch jobs with txnAppId and txnVersion, without a query
    "stream",
    "fan-out",
    "two writes",  # foreachBatch: two of them to one queue, under one txnAppId: the second one is refused
)
TOPICS: Final = ("a/1", "a/2", "b/1")
QUEUES: Final = {"orders": ("a/>",), "audit": ("b/*", "a/2"), "rest": (">",)}
"""What each queue attracts, where rows have topics."""
_ATTRACTED: Final = {"orders": ("a/1", "a/2"), "audit": ("b/1", "a/2"), "rest": TOPICS}


class Row(NamedTuple):
    """A row of the source. Rows that are equal are equal messages."""

    key: str | None
    number: int
    topic: str
    drawn: int = 0  # what a `rand()` of the application gave


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """`healthy`: Spark's checkpoint is what it should be and tries of a batch have the same rows or fewer, so nothing
    may be refused. `grouped`: the source is a group, whose partitions move on or are rewound between two tries.
    """

    seed: int
    kind: str
    healthy: bool
    grouped: bool
    headers: bool
    compression: str
    partitions: int
    triggers: int  # in which something may happen
    most_rows: int  # of a source partition in a batch
    unstable: float  # how often a row of a batch is another one in its next try
    faults: float  # of the store, in each call
    late: float  # of swaps: they take effect later, if they still can
    crashes: float  # in each call
    cut_off: float  # the process ends between the sink's commit and Spark's
    events: float  # something happens to a queue, at each chance

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Most of everything at random; the number decides how the application writes."""
        rng = random.Random(f"sink {seed}")
        kind = kind_of(seed)
        healthy = kind != "two writes" and rng.random() < 0.5
        return cls(
            seed=seed,
            kind=kind,
            healthy=healthy,
            grouped=rng.random() < 0.5,
            headers=kind == "stream" and rng.random() < 0.3,
            compression=rng.choice(("none", "none", "lz4")),
            partitions=rng.randint(1, 4),
            triggers=rng.randint(3, 8),
            most_rows=rng.choice((1, 3, 8)),
            unstable=0.0 if healthy else rng.choice((0.0, 0.0, 0.1)),
            faults=rng.choice((0.0, 0.0, 0.01, 0.04)),
            late=rng.choice((0.0, 0.0, 0.15)),
            crashes=rng.choice((0.0, 0.01, 0.03)),
            cut_off=rng.choice((0.1, 0.3)),
            events=rng.choice((0.1, 0.3, 0.6)),
        )


def kind_of(seed: int) -> str:
    """How the seed's application writes."""
    return KINDS[seed % len(KINDS)]


def attracts(queue: str, row: Row) -> bool:
    """Whether a queue gets a row by its topic."""
    return row.topic in _ATTRACTED[queue]
