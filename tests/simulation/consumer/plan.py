"""What a seed draws before an application runs. Numbers only."""

from __future__ import annotations

import random
from dataclasses import dataclass

KINDS = ("loops", "threads", "rounds", "signals", "everything")
OPERATIONS = {
    "loops": ["publish", "publish", "loop", "loop", "loop", "go_on", "poll", "pause", "reopen"],
    "threads": ["publish", "publish", "poll", "beside", "three", "abandon", "abandon", "cancel", "cancel", "pause"],
    "rounds": ["publish", "publish", "poll", "poll", "acknowledge", "acknowledge", "give_back", "worker", "pause"],
    "signals": ["publish", "publish", "poll", "poll", "poll", "loop", "acknowledge", "pause"],
}
"""What an application does of each kind; the last kind does everything."""
OPERATIONS["everything"] = [
    *OPERATIONS["loops"],
    *OPERATIONS["threads"],
    *OPERATIONS["rounds"],
    "later",
    "outage",
    "stop",
]


def kind_of(seed: int) -> str:
    """What the application does most."""
    return KINDS[seed % len(KINDS)]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a seed draws before anything runs."""

    seed: int
    kind: str
    manual: bool
    partitions: int
    max_messages: int
    way_us: int
    signals: float  # that a call meets one
    switches: float  # that a call lets other threads in, somewhere
    operations: int

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """The kind by the seed's number, the rest at random."""
        rng = random.Random(f"consumer {seed}")
        kind = kind_of(seed)
        return cls(
            seed=seed,
            kind=kind,
            manual=kind == "rounds" or (kind not in ("loops", "threads") and rng.random() < 0.5),
            partitions=rng.choice((1, 1, 2, 3)),
            max_messages=rng.choice((2, 4, 10)),
            way_us=rng.choice((0, 0, 1000, 20_000)),
            signals={"signals": 0.5, "everything": 0.15}.get(kind, 0.0),
            switches=0.0 if kind in ("loops", "signals") else rng.choice((0.0, 0.3, 0.6)),
            operations=rng.randint(6, 30),
        )
