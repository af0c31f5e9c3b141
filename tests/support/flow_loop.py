"""A flow in plain Python over one `Session`, for tests of sessions and coordinators that need no Spark.

Programs use `partq.Consumer`. The test reads and handles; this loop binds, beats, asks before it delivers, and
acknowledges afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group.claims import Claim, Position, View
from partq_spark.group.heartbeat import HeartbeatThread, Liveness, Sign
from partq_spark.group.key_order import LOOK_S, KeyOrder
from partq_spark.group.session import Session
from partq_spark.log.groups import removed, require_ownership
from partq_spark.log.model import Head, at

M = TypeVar("M")
_log = logging.getLogger("partq.flow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Generic[M]):
    """Messages of one partition in order, `[begin, end)`, one for each offset. Those below `redelivered_below` may have
    come before.
    """

    partition: int
    begin: int
    end: int
    messages: Sequence[M]
    redelivered_below: int = 0

    def up_to(self, offset: int) -> Batch[M] | None:
        """What of it lies before `offset`; None if nothing does."""
        if self.end <= offset:
            return self
        if offset <= self.begin:
            return None
        return replace(self, end=offset, messages=self.messages[: offset - self.begin])


def run_flow(
    session: Session,
    poll: Callable[[Claim], Batch[M] | None],
    handle: Callable[[Batch[M]], None],
    *,
    keep_on: Callable[[], bool],
    head: Callable[[], Head] | None = None,
    bind_wait_s: float = 5.0,
    idle_s: float = 0.1,
    liveness: Liveness | None = None,
) -> None:
    """Be a flow for as long as `keep_on()`; leave the group at the end, also after an error.

    `poll` reads what follows a claim's `position`, None if there is nothing yet; `handle` deals with it. When `handle`
    returns, its batch is acknowledged. A batch may come again (never silently: see `redelivered_below`), so `handle`
    should be idempotent. `head` reads the queue's head, now: with it every key keeps its order when the partition count
    is changed, because what `poll` gives is cut where it has to wait for other partitions (RES-03); and a group that is
    shared in another way than by this session's ownership is refused, at once and whenever that changes.

    A store that does not answer is asked again every `idle_s` seconds until `keep_on` ends it; nothing is delivered
    meanwhile. While the process that `liveness` follows is frozen nothing is delivered either, and
    once it is gone the loop ends (LOS-06, LOS-07). Raises what `handle`, `poll`, `head` and `Session.bind` raise, and
    `Invalid` for a group that is shared otherwise.
    """
    limit = _Limit(session, head) if head is not None else None
    line = liveness if liveness is not None else Liveness(parent=None)
    try:
        if limit is not None:
            limit.look()
        if not session.bind(wait_s=bind_wait_s).answered:
            _log.warning(
                "no coordinator has answered flow %s of group %s in %g s: it waits; does the group exist, and does"
                " `partq coordinator run` run for this store, namespace and ownership?",
                session.flow,
                session.key,
                bind_wait_s,
            )
        with HeartbeatThread(session.beat, session.settings.beat_interval_s, line, name=session.flow) as heartbeat:
            while keep_on():
                heartbeat.check()
                look = line.look()
                if look.sign is Sign.GONE:
                    _log.warning("flow %s of group %s ends: %s", session.flow, session.key, look.reason)
                    return
                if look.sign is Sign.FROZEN:  # a look at the group could begin a new instance in its name
                    time.sleep(idle_s)
                    continue
                try:
                    if not _turn(session, poll, handle, limit):
                        session.wait_news(idle_s)
                except Unavailable as error:
                    _log.warning("flow %s waits: %s", session.flow, error)
                    time.sleep(idle_s)
    finally:
        session.unbind()


class _Limit:
    """Up to where partitions may be delivered now."""

    def __init__(self, session: Session, head: Callable[[], Head]) -> None:
        self._session = session
        self._head = head
        self._order = KeyOrder(session.key.group, look_s=LOOK_S, now_s=time.monotonic)

    def look(self) -> Head:
        """The head, by which the group is still shared as this flow does."""
        head = self._head()
        name = self._session.key.group
        if name not in head.groups:
            raise Invalid(removed(self._session.key, f"flow {self._session.flow!r} ends"))
        require_ownership(head, name, self._session.ownership)
        return head

    def ends(self, view: View) -> Mapping[int, int]:
        """Nothing beyond the head that was looked at: what came after it may be of another layout already."""
        head = self.look()
        reached = {partition: claim.position for partition, claim in view.deliverable.items()}
        waits = self._order.waits(head, self._session, view.claims, reached)
        return {p: min(at(head.next, p), waits[p].until) if p in waits else at(head.next, p) for p in reached}


def _turn(
    session: Session,
    poll: Callable[[Claim], Batch[M] | None],
    handle: Callable[[Batch[M]], None],
    limit: _Limit | None,
) -> bool:
    """One look at everything; whether there was something to do.

    Each batch is announced just before it is handled: what was announced and then not handled would be left out.
    """
    view = session.observe()
    busy = False
    ends = limit.ends(view) if limit is not None else None
    for claim in view.deliverable.values():
        if ends is not None and ends[claim.partition] <= claim.position:
            continue
        batch = poll(claim)
        if batch is not None and ends is not None:
            batch = batch.up_to(ends[claim.partition])
        if batch is None:
            continue
        busy = True
        if not session.deliver({claim.partition: batch.end}):
            break  # the state has changed: look again
        handle(batch)
        session.acknowledge({claim.partition: Position(claim.epoch, batch.end)})
    return busy
