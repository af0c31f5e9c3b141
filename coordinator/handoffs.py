"""What became of a group's handoffs, and for how long nothing flowed: counted as a leader writes one state after the
other. Nobody decides by it.

A handoff begins when a partition of one flow is paused, or fenced for another flow, and ends when that flow has it, or
when it stays where it was. A partition that nobody had is no handoff, nor is one whose flow comes back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from partq_spark.base.metrics import Distribution, Histogram, Metric
from partq_spark.group.claims import flow_of
from partq_spark.group.model import GroupState, Partition, Phase

PAUSE: Final = Metric(
    name="partq_group_handoff_pause_seconds",
    kind="histogram",
    help="For how long a partition that changed hands got no new messages.",
    labels=("namespace", "queue", "group"),
    bounds=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Outcome(StrEnum):
    """How a handoff ended."""

    DRAINED = "drained"  # all that was delivered was acknowledged in time
    FORCED = "forced"  # max-handoff-time was over: what was not acknowledged comes again, marked
    LOST = "lost"  # its owner was lost: the same
    KEPT = "kept"  # the receiver was lost, it stayed with its owner
    OTHER = "other"  # its checkpoint said something else, or it was fenced for a third flow


class Begun(NamedTuple):
    """A handoff under way. `at_s` None: a former leader began it, nobody here knows when."""

    at_s: float | None
    outcome: Outcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """A handoff that is over, and the pause that it was, where that is known."""

    partition: int
    outcome: Outcome
    pause_s: float | None


class Handoffs:
    """Of one group in one process; used by one thread at a time, and read by any."""

    def __init__(self) -> None:
        self._begun: dict[int, Begun] = {}
        self._ended = dict.fromkeys(Outcome, 0)
        self._pause = Histogram(PAUSE)
        self.redelivered = 0
        """Messages that come again, marked, because their partition was given on before they were acknowledged."""

    @property
    def ended(self) -> dict[Outcome, int]:
        """How many have ended, by outcome."""
        return dict(self._ended)

    def pause(self) -> Distribution:
        """Of those that have ended."""
        return self._pause.distribution()

    def forget(self) -> None:
        """Another leader may have ended what was under way."""
        self._begun.clear()

    def wrote(self, before: GroupState | None, after: GroupState, drained: Collection[int], now_s: float) -> None:
        """`after` was written in place of `before` (None: it was adopted), `drained` having told of these."""
        for ended in follow(self._begun, before, after, drained, now_s):
            self._ended[ended.outcome] += 1
            if ended.pause_s is not None:
                self._pause.observe(ended.pause_s)


def follow(
    begun: dict[int, Begun], before: GroupState | None, after: GroupState, drained: Collection[int], now_s: float
) -> list[Ended]:
    """What has ended between two states; `begun` is what is under way, and is brought up to date."""
    ended: list[Ended] = []
    for number, partition in after.partitions.items():
        was = before.partitions.get(number) if before is not None else None
        if was is partition:
            continue
        known = begun.pop(number, None)
        if partition.phase is Phase.OWNED:
            if known is not None:
                outcome = Outcome.KEPT if was is not None and was.phase is Phase.PAUSED else known.outcome
                pause_s = None if known.at_s is None else now_s - known.at_s
                ended.append(Ended(partition=number, outcome=outcome, pause_s=pause_s))
        elif _is_moving(partition):
            first = known or Begun(now_s if before is not None else None, Outcome.OTHER)
            begun[number] = first._replace(outcome=_outcome(first, was, partition, after, drained, now_s))
    for number in begun.keys() - after.partitions.keys():
        del begun[number]
    return ended


def _is_moving(partition: Partition) -> bool:
    """From one flow to another."""
    if partition.phase is Phase.PAUSED:
        return True
    owner, to = partition.owner, partition.to
    return partition.phase is Phase.FENCING and owner is not None and to is not None and owner.flow != to.flow


def _outcome(
    begun: Begun, was: Partition | None, now: Partition, state: GroupState, drained: Collection[int], now_s: float
) -> Outcome:
    """What it will have been, as far as it has come."""
    if was is None or was.phase is Phase.FENCING or now.phase is Phase.PAUSED:
        return begun.outcome
    if now.partition in drained:
        return Outcome.DRAINED
    if now.owner is None or flow_of(state, now.owner) is None:
        return Outcome.LOST
    if was.phase is Phase.PAUSED and was.deadline_s is not None and was.deadline_s > now_s:
        return Outcome.OTHER
    return Outcome.FORCED
