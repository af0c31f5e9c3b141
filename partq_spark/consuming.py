"""The flow behind a streaming query: what each micro-batch delivers, and when it is acknowledged. No pyspark, no
threads.

Spark keeps a query's progress in offsets, the group keeps ownership outside every query, and this is where the two
meet. Four rules make it safe. An offset says by itself what its batch reads, so that a replay needs no other knowledge.
What is about to be delivered is announced before the offset is given away, on condition that the group's state has not
changed. The offset that Spark starts from is the acknowledgement, of exactly those partitions whose epoch in it is the
one held now. And ownership alone never changes the offset: only messages do.

The very first offset of a query has nothing but the flow's name. It costs an empty batch, and whatever happens after it
the query finds its own partitions again; the group never hears of a name that a crash could still make forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeVar

from partq_spark import flow_planning, offsets
from partq_spark.errors import Invalid, Unavailable
from partq_spark.flow.checkpoints import CheckpointStore
from partq_spark.flow.claims import Position, Standing, View
from partq_spark.flow.effects import Effects
from partq_spark.flow.membership import Membership
from partq_spark.flow_planning import Plan, Spans
from partq_spark.log import tree
from partq_spark.log.model import Head, at
from partq_spark.log.queue import Queue
from partq_spark.offsets import BatchEnd
from partq_spark.options import SourceOptions
from partq_spark.patience import Patience

T = TypeVar("T")

BIND_WAIT_S: Final = 5.0
"""For a coordinator's answer. A flow that got none looks on at every trigger."""

MAX_LOOKS: Final = 1000
"""At a state that changes each time that something is to be delivered; a rebalance changes it a few dozen times."""

POLL_S: Final = 0.1  # the default of pollInterval, unless the store may not be looked at so often
IDLE_LOOK_S: Final = 0.025  # at log and group, or as seldom as the store wants it
_LOOK_S: Final = 0.1  # while something is waited for
_log = logging.getLogger("partq.flow")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Announced:
    """An end that was given to Spark, what its batch delivers, and the instance in whose name that was announced."""

    raw: dict[str, Any]
    end: BatchEnd
    spans: Spans
    instance: str | None


class Consumer:
    """One query's flow in one process. `join` makes its membership from a name, when that is known.

    One call at a time: whoever has threads serialises them (`group_reader`).
    """

    def __init__(
        self,
        queue: Queue,
        options: SourceOptions,
        *,
        create_group: Callable[[], None],
        join: Callable[[str, str], tuple[Membership, CheckpointStore]],
        effects: Effects | None = None,
    ) -> None:
        """`create_group` makes the group in the head, or warns if it is there and begins elsewhere; `join` takes a
        flow's name and the queue's id. Nothing is read yet.
        """
        self.queue = queue
        if options.group is None:
            raise Invalid("a query without a group is no flow: give the option group")
        self._options = options
        self._group = options.group
        # Nobody listens for the heartbeat of a query that has the group to itself.
        self._session_timeout_s = 0.0 if self._group.ownership == "none" else self._group.session_timeout_s
        self._create_group = create_group
        self._join = join
        self._effects = effects if effects is not None else Effects()
        self._patience = Patience(
            options.target.retry_timeout_s, self._effects, f"group {self._group.name!r} of {queue}"
        )
        self._flow = self._group.flow
        self._member: Membership | None = None
        self._checkpoints: CheckpointStore | None = None
        self._target: Mapping[int, int] | None = None  # of Trigger.AvailableNow
        self._settle_until_s: float | None = None  # AvailableNow waits for its partitions no longer than this
        self._last: _Announced | None = None
        self._view: View | None = None
        self._reached: dict[int, int] = {}
        self._asked_s = self._effects.now_s()

    @property
    def member(self) -> Membership | None:
        """The flow's membership, once its name is known."""
        return self._member

    # --- Spark's questions --------------------------------------------------------------------------------------------

    def fix_target(self) -> None:
        """AvailableNow: read up to where every partition of the queue ends now, and then end."""
        self._target = dict(enumerate(self.queue.refresh().next))
        self._settle_until_s = None

    def next_end(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """The end of the batch that follows `start`, which is complete; `start` itself if there is nothing new.

        Looks for up to `pollInterval`. When this returns another end, its messages are announced and the flow's lease
        still lasts. `limited`: whether the configured limits count (spark-traps 13).

        Raises `Invalid` for an offset of another queue, group or flow, and if another live process has the flow's
        name; `Unavailable` if a store does not answer for `retryTimeout`; `Fenced` if another query took the group
        over (`ownership=none`); `ObjectMissing` for what was trimmed (`failOnDataLoss`).
        """
        self._asked_s = self._effects.now_s()
        before = self._checked(start)
        if before is None:
            return self._introduce()
        member = self._joined(before)
        refused = 0
        idle_until_s: float | None = None
        while refused < MAX_LOOKS:
            view = self._patience.try_for(lambda: self._settled(member, before))
            plan = self._planned(member, before, view, limited)
            if plan.news:
                if self._patience.try_for(partial(member.deliver, plan.news)):
                    return self._given(member, before, plan)
                refused += 1  # the state has changed: look again
                continue
            self._note_reached(plan)
            if self._target is not None:
                if self._waits_for_share(member, view):
                    continue
                self._patience.try_for(member.flush)  # the run's last batch (CHK-06)
                return start
            now_s = self._effects.now_s()
            idle_until_s = now_s + self._poll_interval_s if idle_until_s is None else idle_until_s
            if not self._wait_for_news(member, plan, idle_until_s):
                return start  # itself: a different text would be an empty batch (spark-traps 6)
        raise Unavailable(f"the state of group {self._group.name!r} of {self.queue} does not hold still: try again")

    def batch(self, start: dict[str, Any], end: dict[str, Any], plan: Callable[[Head, Spans], T], nothing: T) -> T:
        """What `plan` makes of the spans that the batch up to `end` delivers; `nothing` if it delivers none.

        A batch that this process has just planned is delivered as it stands. One that is replayed delivers what is
        still held at the epoch in `end`; what has moved on (its checkpoint has a higher epoch) is left out, because
        its new owner began at or before that point (HAN-10). Waits while that is in doubt. The lease is the last
        thing looked at. Raises as `next_end` does, and `Unavailable` if the doubt stays.
        """
        self._asked_s = self._effects.now_s()
        after = self._checked(end)
        wanted = {p: span for p, span in after.spans.items() if span.start < span.to} if after is not None else {}
        if after is None or not wanted:
            return nothing
        for _ in range(MAX_LOOKS):
            last = self._last
            if last is not None and last.raw == end and self._is_alive(last.instance):
                head = self.queue.head
            else:
                last = self._last = self._replayed(self._checked(start), end, after, wanted)
                head = self._fresh_head(after)
            planned = plan(head, last.spans) if last.spans else nothing
            if self._is_alive(last.instance):
                return planned
        raise Unavailable(f"flow {self._flow!r} of {self.queue} loses its lease while it plans a batch: try again")

    def report(self) -> dict[str, Any] | None:
        """For the query's progress: the flow, and of each of its partitions epoch, end and lag in messages."""
        if self._view is None or self.queue.etag is None:
            return None
        following = self.queue.head.next
        partitions = {
            str(p): {
                "epoch": claim.epoch,
                "end": at(following, p),
                "lag": at(following, p) - self._reached.get(p, claim.position),
            }
            for p, claim in self._view.claims.items()
        }
        return {"flow": self._flow, "partitions": partitions, "notify": None}

    # --- beside and after a batch -------------------------------------------------------------------------------------

    def look_beside(self) -> None:
        """While Spark is busy with a batch: see a pause, write down what is due, give up what is lost; and leave the
        group if Spark has not asked for `maxPollInterval`. Raises as `next_end` does, `Unavailable` at once.
        """
        member = self._member
        if member is None or not member.is_bound:
            return
        limit_s = self._group.max_poll_interval_s
        silent_s = self._effects.now_s() - self._asked_s
        if limit_s is not None and silent_s > limit_s:
            _log.warning(
                "flow %s leaves %s: Spark has not asked for %.0f s (maxPollInterval)", self._flow, self.queue, silent_s
            )
            member.unbind()
            return
        self._seen(member.observe())

    def stop(self) -> None:
        """Write down what is acknowledged and leave the group. Raises as the stores do; may be repeated."""
        if self._member is not None:
            self._member.unbind()

    # --- who this is --------------------------------------------------------------------------------------------------

    def _introduce(self) -> dict[str, Any]:
        """The first offset: the group is there, the flow has its name, and nobody has been told yet."""
        self._create_group()
        if self._flow is None:
            self._flow = f"flow-{self._effects.token()}"
        return offsets.encode(
            BatchEnd(queue_id=self.queue.head.queue_id, group=self._group.name, flow=self._flow, spans={})
        )

    def _checked(self, raw: dict[str, Any]) -> BatchEnd | None:
        """An offset of this group and flow; adopts the flow's name. Raises `Invalid`."""
        end = offsets.decode(raw)
        if end is None:
            return None
        offsets.require_same_group(end, self._group.name, self._group.flow)
        self._flow = end.flow
        return end

    def _joined(self, known: BatchEnd) -> Membership:
        """The membership, bound; presenting what this flow had according to `known` (FLO-07)."""
        if self._member is None or self._checkpoints is None:
            head = self._fresh_head(known)
            if self._group.name not in head.groups:
                self._create_group()  # somebody deleted it
            self._member, self._checkpoints = self._join(self._flow or "", head.queue_id)
        member = self._member
        if not member.is_bound:
            mapping = {partition: span.epoch for partition, span in known.spans.items()}
            bound = self._patience.try_for(lambda: member.bind(mapping, wait_s=BIND_WAIT_S))
            self._seen(bound.view)
            if not bound.answered:
                _log.warning(
                    "no coordinator has answered flow %s of %s for %.0f s: is one running (partq coordinator run)?",
                    self._flow,
                    self.queue,
                    BIND_WAIT_S,
                )
        return member

    def _is_alive(self, instance: str | None) -> bool:
        """A guard: nobody can have taken this instance for gone. Another thread may have begun a new one meanwhile."""
        member = self._member
        return member is not None and member.instance == instance is not None and member.lease_left_s() > 0

    # --- the next batch -----------------------------------------------------------------------------------------------

    def _settled(self, member: Membership, before: BatchEnd | None) -> View:
        """Look, and acknowledge what `before` has: after the look, which may have claimed what `before` speaks of."""
        done = {p: Position(span.epoch, span.to) for p, span in before.spans.items()} if before is not None else {}
        view = member.observe()
        member.acknowledge(done)
        self._seen(view)
        return view

    def _seen(self, view: View) -> None:
        for partition, epoch in view.lost.items():
            _log.info("flow %s of %s gave up partition %d (epoch %d)", self._flow, self.queue, partition, epoch)
        for update in view.updates:
            _log.info("flow %s of %s is %s now", self._flow, self.queue, "active" if update.active else "inactive")
        self._view = view

    def _fresh_head(self, known: BatchEnd) -> Head:
        head = self.queue.refresh()
        offsets.require_same_queue(known, head.queue_id, str(self.queue))
        return head

    def _planned(self, member: Membership, before: BatchEnd, view: View, limited: bool) -> Plan:
        head = self._fresh_head(before)
        announced = self._last.end if self._last is not None and self._last.end != before else None
        return flow_planning.plan(
            head,
            view,
            before,
            announced=announced,
            mapping=member.mapping,
            target=self._target,
            keeps_offsets=self._group.keep_offsets,
            limits=flow_planning.limits(self._options, member.room(), limited),
            entries=lambda spans: tree.walk(tree.view(head, spans), self.queue.load_chunk),
            fail_on_data_loss=self._options.fail_on_data_loss,
            warn=_log.warning,
        )

    def _given(self, member: Membership, before: BatchEnd, plan: Plan) -> dict[str, Any]:
        end = replace(before, spans=plan.all_spans)
        raw = offsets.encode(end)
        self._last = _Announced(raw=raw, end=end, spans=plan.filled, instance=member.instance)
        self._note_reached(plan)
        self._settle_until_s = None
        return raw

    def _note_reached(self, plan: Plan) -> None:
        self._reached = {p: span.to for p, span in plan.all_spans.items()}

    # --- waiting ------------------------------------------------------------------------------------------------------

    @property
    def _poll_interval_s(self) -> float:
        given_s = self._options.poll_interval_s
        return given_s if given_s is not None else max(POLL_S, self.queue.store.look_interval_s)

    def _wait_for_news(self, member: Membership, plan: Plan, until_s: float) -> bool:
        """An idle look: True as soon as log or group may have something new."""
        head = self.queue.head
        look_s = max(IDLE_LOOK_S, self.queue.store.look_interval_s)
        while (left_s := until_s - self._effects.now_s()) > 0:
            asked_s, wait_s = self._effects.now_s(), min(look_s, left_s)
            self._patience.try_for(partial(member.wait_news, wait_s))
            if member.has_news or self._effects.now_s() - asked_s < 0.8 * wait_s:
                return True
            fresh = self.queue.refresh()
            if fresh is not head and any(at(fresh.next, p) > span.to for p, span in plan.spans.items()):
                return True
        return False

    def _waits_for_share(self, member: Membership, view: View) -> bool:
        """AvailableNow has nothing to read: whether partitions may still come, and a wait if so.

        At first for an answer; later for partitions that are paused with messages left, which come back or move on.
        """
        now_s, head = self._effects.now_s(), self.queue.head
        if self._settle_until_s is None:
            config = head.config
            wait_s = config.rebalance_delay_s + config.max_handoff_time_s + self._session_timeout_s
            self._settle_until_s = now_s + wait_s
        target = self._target or {}
        left = any(self._reached.get(p, 0) < min(target.get(p, 0), at(head.next, p)) for p in view.claims)
        nothing_yet = not view.claims and view.standing is not Standing.STANDBY
        if not nothing_yet and not left:
            return False
        if now_s >= self._settle_until_s:
            if view.standing is Standing.UNANSWERED:
                raise Unavailable(
                    f"no coordinator has answered flow {self._flow!r} of {self.queue}: start one with `partq "
                    "coordinator run`, or read the group alone with ownership=none"
                )
            _log.warning("flow %s of %s ends without waiting longer for its partitions", self._flow, self.queue)
            return False
        self._patience.try_for(partial(member.wait_news, _LOOK_S))
        return True

    # --- a batch that comes again -------------------------------------------------------------------------------------

    def _replayed(self, before: BatchEnd | None, end: dict[str, Any], after: BatchEnd, wanted: Spans) -> _Announced:
        """Of `wanted` what is still this flow's, announced."""
        member = self._joined(after)
        config = self.queue.head.config
        wait_s = config.rebalance_delay_s + config.max_handoff_time_s + 2 * self._session_timeout_s + _LOOK_S
        until_s = self._effects.now_s() + wait_s
        while True:
            view = self._patience.try_for(lambda: self._settled(member, before))
            held = {p: span for p, span in wanted.items() if self._is_held(view, p, span.epoch)}
            moved = {p for p in wanted if p not in held and self._has_moved_on(p, wanted[p].epoch)}
            doubtful = sorted(wanted.keys() - held.keys() - moved)
            if not doubtful:
                ends = {p: max(span.to, view.claims[p].position) for p, span in held.items()}
                if self._patience.try_for(partial(member.deliver, ends)):
                    if moved:
                        _log.warning(
                            "flow %s of %s repeats a batch without partitions %s, which have moved on",
                            self._flow,
                            self.queue,
                            sorted(moved),
                        )
                    return _Announced(raw=end, end=after, spans=held, instance=member.instance)
            if self._effects.now_s() >= until_s:
                raise Unavailable(
                    f"flow {self._flow!r} of {self.queue} has to repeat a batch, and for {wait_s:.0f} s nothing says "
                    f"whether partitions {doubtful} are still its own: is a coordinator running? Start the query again"
                )
            self._patience.try_for(partial(member.wait_news, _LOOK_S))

    def _is_held(self, view: View, partition: int, epoch: int) -> bool:
        """A guard: the partition is claimed, at exactly this epoch, and nothing holds it back."""
        claim = view.deliverable.get(partition)
        return claim is not None and claim.epoch == epoch

    def _has_moved_on(self, partition: int, epoch: int) -> bool:
        """A guard: the checkpoint has a higher epoch."""
        checkpoints = self._checkpoints
        if checkpoints is None:
            return False
        found = self._patience.try_for(lambda: checkpoints.read(partition))
        return found is not None and found.epoch > epoch
