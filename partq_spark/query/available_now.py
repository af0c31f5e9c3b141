"""Trigger.AvailableNow in a group that others share: up to where to read, and how long to wait for a share. Pure.

The target is every partition's end when the run began. A flow that has nothing yet waits for its share, for a rebalance
delay, max-handoff-time and session timeout at most; so does one with messages left in partitions that are held back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from partq_spark.base.errors import Unavailable
from partq_spark.group.claims import Standing, View
from partq_spark.log.model import Head, at


class Outlook(StrEnum):
    """What a flow with nothing to read does."""

    WAIT = "wait"
    DONE = "done"
    UNANSWERED = "unanswered"  # it has waited long enough, and no coordinator has said what it has
    LATE = "late"  # it has waited long enough for what is held back, or for acknowledgements that make room


class AvailableNowTarget:
    """One run's target: partition → end. Partitions that come later are not in it."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends: Mapping[int, int] = dict(enumerate(ends))
        self._late_s: float | None = None  # when the wait for messages is over
        self._unanswered_s: float | None = None  # when the wait for a coordinator's answer is over

    def moves_on(self) -> None:
        """There was something to read: a later wait is a new one."""
        self._late_s = self._unanswered_s = None

    def outlook(
        self, view: View, reached: Mapping[int, int], head: Head, *, session_timeout_s: float, now_s: float
    ) -> Outlook:
        """Nothing can be delivered now. `reached`: how far the flow is with each partition.

        To wait for messages and to wait for an answer are two waits: a flow that was answered and is then forgotten
        (its coordinator died, its record was lost) has not waited for its new answer yet.
        """
        config = head.config
        over_s = now_s + config.rebalance_delay_s + config.max_handoff_time_s + session_timeout_s
        if self._late_s is None:
            self._late_s = over_s
        if view.standing is Standing.UNANSWERED:
            if self._unanswered_s is None:
                self._unanswered_s = over_s
        else:
            self._unanswered_s = None
        nothing_yet = not view.claims and view.standing is not Standing.STANDBY
        if not nothing_yet and self.left(view, reached, head) == 0:
            self.moves_on()  # while others go on it may lose what it has: that is another wait
            return Outlook.DONE
        if self._unanswered_s is not None:
            return Outlook.WAIT if now_s < self._unanswered_s else Outlook.UNANSWERED
        return Outlook.WAIT if now_s < self._late_s else Outlook.LATE

    def last_word(self, outlook: Outlook, flow: str, view: View, reached: Mapping[int, int], head: Head) -> str | None:
        """What is to be logged of a `flow` that waits no longer. Raises `Unavailable` if it was never answered."""
        if outlook is Outlook.UNANSWERED:
            raise Unavailable(
                f"no coordinator has answered {flow}: start one with `partq coordinator run`, or read the group alone "
                "with ownership=none"
            )
        if outlook is not Outlook.LATE:
            return None
        left = self.left(view, reached, head)
        return f"{flow} ends without waiting longer for its partitions; {left} messages are left"

    def left(self, view: View, reached: Mapping[int, int], head: Head) -> int:
        """Messages up to the target that the flow has not read of its partitions."""
        return sum(max(min(self.ends.get(p, 0), at(head.next, p)) - reached.get(p, 0), 0) for p in view.claims)
