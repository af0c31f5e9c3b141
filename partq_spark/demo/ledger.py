"""What the coordinator's log says of the mapping: which flows join and which fall silent, which partitions move, and
how long each was paused. Pure: log lines in, changes out.

What the acts wait for is read from `status`. This is not: `status` tells how a group is, and a handoff of 0.2 s begins
and ends between two looks at it. Which partitions moved, why, and for how long each was paused is in the log alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

NOBODY: Final = "nobody"


class MoveKind(StrEnum):
    """How a partition came to its flow."""

    FIRST = "first"  # nobody had it
    HANDOFF = "handoff"  # paused, drained, then handed over
    FORCED = "forced"  # the same, but what its flow had in hand took longer than max-handoff-time
    LOST = "lost"  # its flow is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PartitionMove:
    """One partition that has a new owner. `paused_ms`: from the pause to the new owner, None where there was none."""

    partition: int
    before: str | None
    after: str | None
    kind: MoveKind
    paused_ms: int | None
    at_ms: int  # Unix time


@dataclass(frozen=True, kw_only=True, slots=True)
class Joined:
    """A flow is bound."""

    flow: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowGone:
    """A flow's heartbeat stood still for its session timeout, or it left."""

    flow: str
    left: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """What moved at once."""

    moves: tuple[PartitionMove, ...]


Change = Joined | FlowGone | Moved


@dataclass(kw_only=True, slots=True)
class _Way:
    """A partition on its way."""

    before: str | None
    paused_at_ms: int | None = None
    forced: bool = False


@dataclass(kw_only=True)
class Ledger:
    """The mapping as the log has it so far. `heed` each line; a change is returned when it is complete."""

    owners: dict[int, str | None] = field(default_factory=dict)
    bound: list[str] = field(default_factory=list)
    moves: list[PartitionMove] = field(default_factory=list)  # all that there were
    _under_way: dict[int, _Way] = field(default_factory=dict)
    _arrived: list[PartitionMove] = field(default_factory=list)

    @property
    def held(self) -> set[int]:
        """Partitions that nothing is delivered from: on their way, or without a bound flow."""
        alone = {partition for partition, owner in self.owners.items() if owner not in self.bound}
        return alone | set(self._under_way)

    def heed(self, line: Mapping[str, Any]) -> list[Change]:
        """One line of the log, decoded. Lines that say nothing about the mapping change nothing."""
        match line.get("event"):
            case "flow_bound":
                if line["flow"] in self.bound:
                    return []  # a new instance in the place of the former one
                self.bound.append(line["flow"])
                return [Joined(flow=line["flow"])]
            case "flow_expired" | "flow_unbound":
                self.bound = [flow for flow in self.bound if flow != line["flow"]]
                return [FlowGone(flow=line["flow"], left=line["event"] == "flow_unbound")]
            case "pause":
                partition = line["partition"]
                self._under_way[partition] = _Way(before=self.owners.get(partition), paused_at_ms=_ms(line["time"]))
            case "resume":
                self._under_way.pop(line["partition"], None)
            case "fence":
                way = self._under_way.setdefault(line["partition"], _Way(before=self.owners.get(line["partition"])))
                way.forced = way.forced or "max-handoff-time" in line["reason"]
            case "assign":
                self._assign(line)
        return self._complete()

    def _assign(self, line: Mapping[str, Any]) -> None:
        partition, at_ms = line["partition"], _ms(line["time"])
        way = self._under_way.pop(partition, None) or _Way(before=self.owners.get(partition))
        after = None if line["flow"] == NOBODY else line["flow"]
        self.owners[partition] = after
        if after == way.before:
            return  # the same flow once more, as a new instance
        paused_ms = None if way.paused_at_ms is None else at_ms - way.paused_at_ms
        move = PartitionMove(
            partition=partition,
            before=way.before,
            after=after,
            kind=_kind(way, self.bound),
            paused_ms=paused_ms,
            at_ms=at_ms,
        )
        self._arrived.append(move)
        self.moves.append(move)

    def _complete(self) -> list[Change]:
        if self._under_way or not self._arrived:
            return []
        moved = Moved(moves=tuple(sorted(self._arrived, key=lambda move: move.partition)))
        self._arrived = []
        return [moved]


def _kind(way: _Way, bound: list[str]) -> MoveKind:
    if way.before is None:
        return MoveKind.FIRST
    if way.before not in bound:
        return MoveKind.LOST
    return MoveKind.FORCED if way.forced else MoveKind.HANDOFF


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)
