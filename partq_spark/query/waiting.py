"""How a query waits: it goes on trying while a store does not answer, up to `retryTimeout`, instead of failing at once;
and while it has nothing to do it looks for news, soon after some, seldom when there were none for a while.

A look costs about as much as waking up for it, and so does a question of Spark's; 17 looks a second keep an idle reader
process at about one percent of a core, and news that come after a pause wait 30 ms on average.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from partq_spark.base.effects import Backoff, Effects, Retry
from partq_spark.base.errors import Unavailable
from partq_spark.group.claims import Standing, View
from partq_spark.log.model import Head, at

T = TypeVar("T")

POLL_S: Final = 0.1
"""The default of pollInterval, unless the store may not be looked at so often."""

MOST_REASONS: Final = 5
"""Of one trouble, that are told."""

LEAST_S: Final = 0.001  # less is no wait
IDLE_LOOK_S: Final = 0.5
_IDLE_LOOKS: Final = 4
"""An idle flow relies on being told of news of its group for so long, and for so many looks at its log."""

_SELDOM_S: Final = 0.06
_PART_OF_IDLE: Final = 0.02  # after a second without news a look every 20 ms

_log = logging.getLogger("partq.flow")


class StoreRetry:
    """Calls again what is unavailable, with growing pauses. Trouble that spans several calls is one trouble."""

    def __init__(self, limit_s: float, effects: Effects, what: str) -> None:
        self._limit_s = limit_s
        self._effects = effects.while_awake()
        self._what = what

    def call(self, call: Callable[[], T]) -> T:
        """What `call` returns. Raises its `Unavailable` when `limit_s` is over, anything else at once."""
        retry = Retry(first_s=0.05, most_s=1.0, timeout_s=self._limit_s)
        backoff = Backoff(retry, self._effects)
        said: set[str] = set()  # what cannot be reached at first may answer later that it refuses the user
        while True:
            try:
                result = call()
            except Unavailable as error:
                if str(error) not in said and len(said) < MOST_REASONS:
                    said.add(str(error))
                    _log.warning("%s: nothing is delivered until the store answers again: %s", self._what, error)
                backoff.pause(error, tried_s=error.tried_s)  # the store's own tries are part of the same trouble
            else:
                if retry.failures:
                    _log.warning("%s: the store answers again, going on", self._what)
                return result


class Pace:
    """One reader's. `store_look_s` is how often its store may be looked at, `poll_interval_s` the option."""

    def __init__(self, store_look_s: float, poll_interval_s: float | None, now_s: float) -> None:
        self._store_look_s = store_look_s
        self.poll_s = poll_interval_s if poll_interval_s is not None else max(POLL_S, store_look_s)
        self.whole_look_s = max(IDLE_LOOK_S, _IDLE_LOOKS * store_look_s)
        self._news_s = self._looked_s = now_s

    def news(self, now_s: float) -> None:
        """There was something to read."""
        self._news_s = now_s

    def looked(self, now_s: float) -> None:
        """The log was looked at."""
        self._looked_s = now_s

    def look_s(self, now_s: float) -> float:
        """From one look to the next; an option that asks for less time is heeded."""
        seldom_s = max(self._store_look_s, min(_SELDOM_S, _PART_OF_IDLE * (now_s - self._news_s)))
        return min(seldom_s, max(self.poll_s, LEAST_S))

    def due_in_s(self, now_s: float) -> float:
        """The wait until the next look: one that is late is made at once, and none comes early (decision 0025)."""
        due_s = self._looked_s + self.look_s(now_s) - now_s
        return due_s if due_s >= LEAST_S else 0.0

    def goes_on(self, until_s: float, now_s: float) -> bool:
        """Whether who waits until then, and has just looked, goes on: to the next look, or to the end without one where
        that is far. To wake up a moment later, only to say that nothing has come, costs as much as a look.
        """
        return until_s - now_s >= max(LEAST_S, min(self.due_in_s(now_s), self.look_s(now_s) / 2))


# --- up to where a run reads ------------------------------------------------------------------------------------------

# Trigger.AvailableNow in a group that others share: up to where to read, and how long to wait for a share.
#
# The target is every partition's end when the run began. A flow that has nothing yet waits for its share, for a
# rebalance delay, max-handoff-time and session timeout at most; so does one with messages left in partitions that are
# held back.


class AvailableNowTarget:
    """One run's target: partition → end. Partitions that come later are not in it."""

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends: Mapping[int, int] = dict(enumerate(ends))
        self._late_s: float | None = None  # when the wait for messages is over
        self._unanswered_s: float | None = None  # when the wait for a coordinator's answer is over

    def moves_on(self) -> None:
        """There was something to read: a later wait is a new one."""
        self._late_s = self._unanswered_s = None

    def is_waited_for(
        self, flow: str, view: View, reached: Mapping[int, int], head: Head, *, session_timeout_s: float, now_s: float
    ) -> bool:
        """Nothing can be delivered now: whether `flow` goes on waiting. `reached`: how far it is with each partition.
        What is left when it has waited long enough goes to the log. Raises `Unavailable` if it was never answered.

        To wait for messages and to wait for an answer are two waits: a flow that was answered and is then forgotten
        (its coordinator died, its heartbeat was lost) has not waited for its new answer yet.
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
            return False
        if self._unanswered_s is not None:
            if now_s < self._unanswered_s:
                return True
            raise Unavailable(
                f"no coordinator has answered {flow}: start one with `partq coordinator run`, or read the group alone "
                "with ownership=none"
            )
        if now_s < self._late_s:
            return True
        left = self.left(view, reached, head)
        _log.warning("%s ends without waiting longer for its partitions; %d messages are left", flow, left)
        return False

    def left(self, view: View, reached: Mapping[int, int], head: Head) -> int:
        """Messages up to the target that the flow has not read of its partitions."""
        return sum(max(min(self.ends.get(p, 0), at(head.next, p)) - reached.get(p, 0), 0) for p in view.claims)
