"""What became of a group's handoffs, and for how long nothing flowed: counted as a leader writes one state after the
other. Nobody decides by it.

A handoff begins when a partition of one flow is paused, or fenced for another flow, and ends when that flow has it, or
when it stays where it was. A partition that nobody had is no handoff, nor is one whose flow comes back. How it went is
what the core told of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from coordinator.core.events import NOBODY, Told
from coordinator.core.handoff import Cause
from partq_spark.base.metrics import Distribution, Histogram, Metric
from partq_spark.group.model import GroupState, Phase

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


_OUTCOMES: Final = {
    Cause.DRAINED: Outcome.DRAINED,
    Cause.DEADLINE: Outcome.FORCED,
    Cause.MOVE: Outcome.FORCED,  # max-handoff-time is 0
    Cause.LOST: Outcome.LOST,
    Cause.GIVE: Outcome.LOST,
}
"""By why the partition was fenced."""


@dataclass(slots=True)
class _Begun:
    """A handoff under way. `at_s` None: a former leader began it, nobody here knows when. `outcome` None: nothing came
    of it yet.
    """

    at_s: float | None
    outcome: Outcome | None = None


class Handoffs:
    """Of one group in one process; used by one thread at a time, and read by any."""

    def __init__(self) -> None:
        self._begun: dict[int, _Begun] = {}
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

    def adopted(self, state: GroupState) -> None:
        """What was under way when this leader adopted the group."""
        for number, each in state.partitions.items():
            if each.phase is Phase.PAUSED:
                self._begun[number] = _Begun(None)
            elif each.phase is Phase.FENCING and each.owner and each.to and each.owner.flow != each.to.flow:
                self._begun[number] = _Begun(None, Outcome.OTHER)

    def told(self, told: Iterable[Told], now_s: float) -> None:
        """What followed from a decision."""
        for each in told:
            match each.event:
                case "pause":
                    self._begun[each.partition or 0] = _Begun(now_s)
                case "fence" | "force":
                    self._fenced(each, now_s)
                case "resume" | "assign":
                    begun = self._begun.pop(each.partition or 0, None)
                    if begun is not None and each.flow != NOBODY:
                        self._end(begun, Outcome.KEPT if each.event == "resume" else begun.outcome, now_s)

    def _fenced(self, told: Told, now_s: float) -> None:
        number = told.partition or 0
        if told.flow is None or told.to in (NOBODY, told.flow):
            self._begun.pop(number, None)  # from nobody, to nobody, or to the same flow
            return
        begun = self._begun.setdefault(number, _Begun(now_s))
        # Another receiver changes nothing about the pause.
        if begun.outcome is None or told.event == "force" or told.cause is Cause.AHEAD:
            begun.outcome = _OUTCOMES.get(told.cause, Outcome.OTHER) if told.cause else Outcome.OTHER

    def _end(self, begun: _Begun, outcome: Outcome | None, now_s: float) -> None:
        self._ended[outcome or Outcome.OTHER] += 1
        if begun.at_s is not None:
            self._pause.observe(now_s - begun.at_s)
