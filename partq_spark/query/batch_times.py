"""How long a flow's micro-batches take until they are acknowledged, where that is too long for a handoff. Pure.

A handoff waits for max-handoff-time and no longer: of batches that take more, what is in hand comes again elsewhere,
marked. That is allowed, and costs; so the log and `partq status` say it, and which setting changes it.
"""

from __future__ import annotations

from typing import Final

SAY_AGAIN_S: Final = 60.0


class BatchTimes:
    """The times of one flow's batches, each from the end that was given out to its acknowledgement."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._given_s: float | None = None
        self._said_s: float | None = None
        self.remark = ""  # for people, as long as it is so

    def given(self, now_s: float) -> None:
        """A batch begins."""
        self._given_s = now_s

    def acknowledged(self, now_s: float, max_handoff_time_s: float) -> str | None:
        """It is complete. Returns what is to be logged, if it is time to say something."""
        if self._given_s is None:
            return None
        took_s, self._given_s = now_s - self._given_s, None
        if max_handoff_time_s <= 0 or took_s <= max_handoff_time_s:  # 0 means: never wait for anybody
            self.remark = ""
            return None
        self.remark = f"acknowledges after {took_s:.1f} s, max-handoff-time is {max_handoff_time_s:g} s"
        if self._said_s is not None and now_s - self._said_s < SAY_AGAIN_S:
            return None
        self._said_s = now_s
        return (
            f"its micro-batches are acknowledged after {took_s:.1f} s, longer than max-handoff-time "
            f"({max_handoff_time_s:g} s): a handoff does not wait for them, and what they hold comes again, marked "
            f"redelivered. Raise it (`partq queue alter {self._queue} --max-handoff-time S`), take less per batch "
            "(maxMessagesPerTrigger), or shorten the trigger or install the listener (partq_spark.register(spark))"
        )
