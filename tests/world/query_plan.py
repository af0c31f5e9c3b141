"""How the streaming queries of a world are used, as data: how they share, how Spark triggers them, what their
application does with a batch, and what befalls them and their Spark checkpoints.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

SINKS: Final = (
    "stream",  # the partq sink
    "fan-out",  # to the queues that attract the rows' topics
    "one write",  # foreachBatch: a batch write with txnAppId
    "two queues",  # foreachBatch: two of them, under one txnAppId
    "two applications",  # foreachBatch: two of them to one queue, each with a txnAppId of its own
    "two writes",  # foreachBatch: two of them to one queue, under one txnAppId: the second one is refused
)
NOWHERE: Final = "nowhere"
"""The application keeps to itself what it does with its rows."""

RESULTS: Final = "results"
COPIES: Final = "copies"
REST: Final = "rest"
TOPICS: Final = ("a/1", "a/2", "b/1")
SUBSCRIPTIONS: Final[Mapping[str, Sequence[str]]] = {RESULTS: ("a/>",), COPIES: ("b/*", "a/2"), REST: (">",)}
"""What each queue attracts, where rows have topics."""
_ATTRACTED: Final = {RESULTS: ("a/1", "a/2"), COPIES: ("b/1", "a/2"), REST: TOPICS}
STYLES: Final = ("batch", "late", "sequences", "never")
"""How an application acknowledges by hand."""

TO_QUERIES: Final = (
    "stop",
    "kill",
    "kill the driver",
    "kill the reader",
    "freeze",
    "freeze the driver",
    "freeze the reader",
    "restore",  # it is killed, and starts again on an older copy of its Spark checkpoint
    "logs cut",  # it is killed by a power failure, and the newest entries of Spark's logs are gone
    "twin",  # it freezes, and is started elsewhere on the same Spark checkpoint
    "successor",  # another query takes its place, with a Spark checkpoint of its own
    "ack mode",  # it starts again with the other ackMode
    "ownership",  # it starts again and has forgotten its ownership
)
HARMING: Final = ("restore", "logs cut", "twin")
"""After these a sink may have to refuse a batch."""


def queues_of(sink: str) -> Sequence[str]:
    """Which queues a query writes into."""
    return {"nowhere": (), "fan-out": tuple(SUBSCRIPTIONS), "two queues": (RESULTS, COPIES)}.get(sink, (RESULTS,))


def topic_of(key: str | None) -> str:
    """Of all messages with this key."""
    return TOPICS[zlib.crc32((key or "").encode()) % len(TOPICS)]


def attracts(queue: str, key: str | None) -> bool:
    """Whether a queue gets a message by the topic of its key."""
    return topic_of(key) in _ATTRACTED[queue]


@dataclass(frozen=True, kw_only=True)
class Mode:
    """How the group is used. Without a name there is none."""

    shared: bool = True
    keeps: bool = True
    by_hand: bool = False
    grouped: bool = True

    @property
    def options(self) -> dict[str, str]:
        """What every query of it is given, beside its group's name."""
        found = {"checkpoints": "store" if self.keeps else "none", "ackMode": "manual" if self.by_hand else "auto"}
        return found if self.grouped else {}


MODES: Final[Mapping[str, Mode]] = {
    "auto shared": Mode(),
    "by hand shared": Mode(by_hand=True),
    "auto shared without offsets": Mode(keeps=False),
    "auto alone": Mode(shared=False),
    "by hand alone": Mode(shared=False, by_hand=True),
    "auto alone without offsets": Mode(shared=False, keeps=False),
    "no group": Mode(shared=False, keeps=False, grouped=False),
}


@dataclass(frozen=True, kw_only=True)
class QueryPlan:
    """Of all queries of a world. Chances are those of each batch, as long as not all is calm."""

    mode: str = "auto shared"
    sink: str = "stream"
    loads: int = 1
    trigger: str = "processing"  # or available, once
    interval_s: float = 0.0
    pause_s: float = 1.0  # from its end to its next start
    fails: float = 0.0
    looks_again: float = 0.0  # at its rows, as they were planned
    scans_again: float = 0.0  # a self-union, which plans each of its parts
    freezes: float = 0.0  # while Spark plans a batch
    cut_off: float = 0.0  # the driver dies between the sink's commit and Spark's
    tasks: int = 2
    tasks_again: float = 0.0  # of each task: a second attempt
    unstable: float = 0.0  # how often a row is another one in its next try
    listener: bool = False
    logs_every: int = 1  # asyncProgressTracking: so many batches are written down at a time
    style: str = "batch"
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def how(self) -> Mode:
        return MODES[self.mode]

    @property
    def lasts_s(self) -> float:
        """How much longer than a consumer's a batch may be on its way, and a query may be away, when all is calm."""
        return 4 * (self.pause_s + 2.0) if self != QueryPlan() else 0.0

    @classmethod
    def draw(cls, rng: random.Random, number: int, *, sinks: bool) -> Self:
        """`number` decides how the group is used, and how the sink. `sinks`: what is written is what it is about."""
        mode = list(MODES)[number % len(MODES)]
        how = MODES[mode]
        sink = SINKS[number % len(SINKS)] if sinks else rng.choice((NOWHERE, NOWHERE, "stream"))
        trigger = rng.choice(("processing", "processing", "processing", "available", "once"))
        logs_every = 3 if sink == NOWHERE and trigger == "processing" and rng.random() < 0.15 else 1
        loads = 2 if sink == NOWHERE and mode in ("auto shared", "no group") and rng.random() < 0.3 else 1
        return cls(
            mode=mode,
            sink=sink,
            loads=loads,
            trigger=trigger,
            interval_s=rng.choice((0.0, 0.0, 1.0, 3.0)),
            pause_s=rng.choice((0.3, 1.0, 6.0)),
            fails=rng.choice((0.0, 0.1, 0.3)),
            looks_again=rng.choice((0.0, 0.3)),
            scans_again=rng.choice((0.0, 0.3)),
            freezes=rng.choice((0.0, 0.0, 0.1)),
            cut_off=rng.choice((0.1, 0.3)) if sinks else rng.choice((0.0, 0.1)),
            tasks=rng.randint(1, 3),
            tasks_again=rng.choice((0.0, 0.1)),
            unstable=rng.choice((0.0, 0.0, 0.0, 0.1)) if sinks else 0.0,
            listener=rng.random() < 0.4,
            logs_every=logs_every,
            style=rng.choice(STYLES),
            options=_options(rng, how, loads),
        )


def _options(rng: random.Random, how: Mode, loads: int) -> dict[str, str]:
    options = {"startingOffsets": "earliest", "pollInterval": rng.choice(("500ms", "2s"))}
    if how.keeps:
        options["checkpointInterval"] = rng.choice(("0s", "1s", "5s"))
    if how.shared and rng.random() < (0.4 if how.by_hand else 0.2):
        # Longer than the pollInterval of all loads together (docs/options.md), or they leave in turns for ever.
        options["maxPollInterval"] = f"{3 * loads}s"
    if rng.random() < 0.3:
        options["maxDeliveredUnackedMsgsPerFlow"] = rng.choice(("4", "20"))
    return options
