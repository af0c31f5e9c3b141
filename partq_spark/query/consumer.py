"""The loop behind every consumer, with a group or without: what each batch delivers, and when it is acknowledged. No
pyspark, no threads. The rules that it keeps are those of `partq_spark.query`.

It decides nothing about who has which partition: its membership says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.claims import Claim, Position, View
from partq_spark.group.left_out import LOOK_S, KeyOrder, MissedPartitions
from partq_spark.group.membership import Membership
from partq_spark.group.model import GroupKey
from partq_spark.log import tree
from partq_spark.log.model import Head, at
from partq_spark.log.queue import open_queue
from partq_spark.query import offsets, planning
from partq_spark.query.acknowledgements import Acknowledgements, Announced, is_claimed, repetition
from partq_spark.query.limits import BatchLimits, Unacknowledged
from partq_spark.query.notify import Address
from partq_spark.query.offsets import BatchEnd, BatchSpan, Origins
from partq_spark.query.participant import Participant
from partq_spark.query.planning import BatchPlan, IdleLook, Spans
from partq_spark.query.settings import SourceOptions
from partq_spark.query.waiting import LEAST_S, AvailableNowTarget, Pace

T = TypeVar("T")

MAX_LOOKS: Final = 1000
"""At a state that changes each time that something is to be delivered; a rebalance changes it a few dozen times."""

_log = logging.getLogger("partq.flow")


class ConsumerLoop:
    """One query in one process. One call at a time: a caller with threads serialises them (`consumer_process`)."""

    def __init__(self, options: SourceOptions, effects: Effects, wait: Callable[[float], object]) -> None:
        """`wait` returns after that many seconds, or as soon as there are news of the group. Nothing is read or
        connected yet.
        """
        self.queue = queue = open_queue(options.target)
        self._options = options
        self._group = group = options.group
        self._manual_acks = options.manual_acks
        self._effects = effects
        self.participant = participant = Participant(queue, options, effects)
        self._store_retry = participant.store_retry
        self._target: AvailableNowTarget | None = None  # of Trigger.AvailableNow
        self._last: Announced | None = None
        self._missed: MissedPartitions | None = None
        if group is not None and not group.keep_offsets:
            key = GroupKey(queue.namespace, queue.name, group.name)
            self._missed = MissedPartitions(queue.store, key, lambda: participant.flow, self._effects)
        self._reached: dict[int, int] = {}
        name = group.name if group is not None else None
        self._order = KeyOrder(name, look_s=queue.store.look_interval_s, now_s=self._effects.now_s)
        self.acknowledgements = Acknowledgements(queue, options, participant, self._effects)
        self._origins = Origins(queue, options)
        self._wait = wait
        self.notify: str | None = None  # where the reader process listens
        self._idle: IdleLook | None = None
        self._woken = False
        self._pace = Pace(queue.store.look_interval_s, options.poll_interval_s, self._effects.now_s())

    @property
    def address(self) -> Address | None:
        """By which this machine finds the flow, once its name is known."""
        at, group, flow = self._options.target, self._group, self.participant.flow
        return Address(at.store, at.namespace, at.queue, group.name, flow) if group and flow else None

    @property
    def is_alive(self) -> bool:
        """The lease lasts under which the last batch was announced."""
        return self._last is not None and self.participant.is_alive(self._last.instance)

    # --- Spark's questions --------------------------------------------------------------------------------------------

    def fix_target(self) -> None:
        """AvailableNow: read up to where every partition of the queue ends now, and then end."""
        self._target = AvailableNowTarget(self.queue.refresh().next)

    def next_end(self, start: dict[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """The end of the batch that follows `start`, which is complete; `start` itself if there is nothing new.

        Looks for up to `pollInterval`. When this returns another end, its messages are announced and a flow's lease
        still lasts. `limited`: whether the configured limits count (spark-traps.md 13).

        Raises `Invalid` for an offset of another queue, group or flow, and if another live process has the flow's
        name; `Unavailable` if a store does not answer for `retryTimeout`; `Fenced` if another query took the group
        over (`ownership=none`); `ObjectMissing` for what was trimmed (`failOnDataLoss`).
        """
        asked_s = self._effects.now_s()
        before = self.participant.checked(start)
        is_first = before is None
        if before is None:
            before = self.participant.introduce()
            if not before.spans:
                return offsets.encode(before)
        member = self.participant.joined(before)
        idle, self._idle = self._idle, None
        idle_until_s: float | None = None
        if idle is not None and idle.start == start and not (self._woken or member.has_news):  # as far as is known
            idle_until_s = asked_s + self._pace.poll_s
            if asked_s - idle.at_s > self._pace.whole_look_s:
                self._wait_until_due(member, idle_until_s)  # a whole look follows, which looks at the log, too
            elif not self._wait_for_news(member, idle.plan, idle_until_s):
                self._idle = idle
                return start
        missed, refused = self._missed_by(before), 0
        while refused < MAX_LOOKS:
            view = self._store_retry.call(lambda: self._settled(member, before, before, missed))
            plan = self._planned(member, before, view, limited, missed)
            if plan.news or is_first:  # where a query begins is fixed at once, even if there is nothing to read
                if self._store_retry.call(partial(member.deliver, plan.news)):
                    return self._given(member, before, plan)
                refused += 1  # the state has changed: look again
                continue
            self._reached = plan.reached
            if self._target is not None:
                if self._waits_for_share(view, self._target):
                    continue
                self._store_retry.call(member.flush)  # the run's last batch (CHK-06)
                return start
            now_s = self._effects.now_s()
            idle_until_s = now_s + self._pace.poll_s if idle_until_s is None else idle_until_s
            idle = IdleLook(start, plan, now_s)
            if not self._wait_for_news(member, plan, idle_until_s):
                self._idle = idle if not plan.barred else None
                return start  # itself: a different text would be an empty batch (spark-traps.md 6)
        raise Unavailable(f"the state of the group of {self.participant.name} does not hold still: try again")

    def batch(self, start: dict[str, Any], end: dict[str, Any], plan: Callable[[Head, Spans], T], nothing: T) -> T:
        """What `planned_batch` makes of the spans that the batch up to `end` delivers; `nothing` if it delivers none.

        A batch that this process has just announced is delivered as it stands, unless a partition of it has moved on
        since (HAN-05). Such a batch, and one that is replayed, delivers what is still held at the epoch in `end`; what
        has moved on (its checkpoint has a higher epoch) is left out, because its new owner began at or before that
        point (HAN-10). Waits while that is in doubt. The lease is the last thing looked at. Raises as `next_end` does,
        and `Unavailable` if the doubt stays.
        """
        after = self.participant.checked(end, to_read=True)
        wanted = {p: span for p, span in after.spans.items() if span.start < span.to} if after is not None else {}
        if after is None or not wanted:
            return nothing
        for _ in range(MAX_LOOKS):
            if (last := self._last) is None or last.end != after or not self._is_still_mine(last):
                last = self._last = self._repeated(self.participant.checked(start), after, wanted)
                head = self.participant.fresh_head(after, complete=False)
                if last.spans:
                    self._origins.require(head, (after.origin,))
                    continue  # confirm it: a process may stand still anywhere
            if not (spans := self.acknowledgements.to_give(last.spans)):
                return nothing
            planned = plan(self.queue.head, spans)
            if self.participant.is_alive(last.instance):
                self._last = replace(last, planned=True)
                self.acknowledgements.given_out.add(spans)
                return planned
        raise Unavailable(f"{self.participant.name} loses its lease while it plans a batch: try again")

    def report(self) -> dict[str, Any] | None:
        """For the query's progress: queue, group, flow, and of each partition that it has epoch, end and lag."""
        if (view := self.participant.view) is None or self.queue.etag is None:
            return None
        ends, partitions = self.queue.head.next, {}
        for p, claim in view.claims.items():
            end = at(ends, p)
            partitions[str(p)] = {"epoch": claim.epoch, "end": end, "lag": end - self._reached.get(p, claim.position)}
        told = {"queue": self.queue.name, "flow": self.participant.flow, "partitions": partitions}
        return told if self._group is None else {**told, "group": self._group.name, "notify": self.notify}

    def wake(self) -> None:
        """There may be news of the group: the thread that waits looks at everything, and so does the next question."""
        self._woken = True

    # --- beside and after a batch -------------------------------------------------------------------------------------

    def look_while_busy(self, silent_s: float) -> None:
        """While Spark is busy with a batch: see a pause, write down what is due, give up what is lost; and leave the
        group if Spark's last question ended `maxPollInterval` ago. Raises as `next_end` does, `Unavailable` at once.
        """
        member = self.participant.bound_member()
        if member is None:
            return
        limit_s = self._group.max_poll_interval_s if self._group is not None else None
        if limit_s is not None and silent_s > limit_s:
            advice = "if it works, its maxPollInterval is too short, and all that it works on comes again"
            _log.warning("%s leaves: Spark has not asked for %.0f s; %s", self.participant.name, silent_s, advice)
            member.unbind()
            return
        self.participant.seen(member.observe())

    def complete(self, digest: str) -> None:
        """The listener's word: the batch up to the end with this digest is complete. Raises as `look_while_busy`."""
        last, member = self._last, self.participant.bound_member()
        if last is not None and member is not None and last.end.digest == digest:
            self.acknowledgements.complete(member, last.end)

    def stop(self) -> None:
        """Write down what is acknowledged and leave the group. Raises as the stores do; may be repeated."""
        if self.participant.member is not None:
            self.participant.member.unbind()

    # --- the next batch -----------------------------------------------------------------------------------------------

    def _settled(self, member: Membership, before: BatchEnd | None, reached: BatchEnd, missed: Collection[int]) -> View:
        """Look, then acknowledge what `before` has, and what was done up to `reached`, but for what it `missed`."""
        self._woken = False
        view = member.observe()
        if self._last is not None and self._last.instance != view.instance:
            # Another process of that name may have told the application meanwhile that it counts no more.
            self.acknowledgements.given_out.void_all()
        if before is not None:
            self.acknowledgements.complete(member, before)
        self.acknowledgements.leave_out(member, reached, view, missed)
        return self.participant.seen(view)

    def _missed_by(self, before: BatchEnd) -> frozenset[int]:
        """The partitions that the batch up to `before` left out, where the checkpoints do not say it."""
        missed = self._missed
        if missed is None or not before.spans:
            return frozenset()
        return self._store_retry.call(lambda: missed.of(before.digest))

    def _planned(
        self, member: Membership, before: BatchEnd, view: View, limited: bool, missed: Collection[int]
    ) -> BatchPlan:
        head = self.participant.fresh_head(before)
        self._pace.looked(self._effects.now_s())
        self._origins.require(head, planning.relied_on(before, view.claims))
        last, given_out = self._last, self.acknowledgements.given_out
        unread = last.spans if last is not None and last.end != before and not last.planned else {}
        bound = self._options.max_delivered_unacked
        unacknowledged = Unacknowledged(bound=bound, in_hand=member.in_hand()) if bound is not None else None

        def begin(claim: Claim) -> BatchSpan:
            if self._group is None:
                return planning.begin(before, claim)  # by Spark's word alone: nothing is ever marked
            p, reached = claim.partition, given_out.reached(claim.partition, claim.epoch)
            if self._manual_acks:
                mine = None if given_out.is_void(p) else unread.get(p)
                return planning.begin_manual(before, given_out.last(p), claim, unread=mine, reached=reached)
            return planning.begin(before, claim, unread=unread.get(p), reached=reached, missed=missed)

        return planning.planned_batch(
            head,
            view,
            before,
            begin=begin,
            mapping=member.mapping,
            waits=lambda reached: self._store_retry.call(
                lambda: self._order.waits(head, member.acknowledged, view.claims, reached)
            ),
            target=self._target.ends if self._target is not None else None,
            limits=BatchLimits(
                messages=self._options.max_messages if limited else None,
                bytes=self._options.max_bytes if limited else None,
                unacknowledged=unacknowledged,  # which holds with every trigger
            ),
            entries=lambda spans: tree.walk(tree.view(head, spans), self.queue.load_chunk),
            losses=tree.Losses(self._options.fail_on_data_loss, _log.warning),
            missed=missed,
        )

    def _given(self, member: Membership, before: BatchEnd, plan: BatchPlan) -> dict[str, Any]:
        self._reached = plan.reached
        end = before.followed_by(plan.all_spans, self._origins.of(self.queue.head, self._reached))
        self._last = Announced(end=end, spans=plan.filled, instance=member.instance)
        self.acknowledgements.begin(end)
        if skipped := {p: plan.spans[p] for p in plan.news.keys() - plan.filled.keys()}:
            # All of it was trimmed: it is never given out, so that nobody else would acknowledge it.
            self.acknowledgements.given_out.add(skipped)
            done = {p: Position(span.epoch, span.to) for p, span in skipped.items()}
            self._store_retry.call(partial(member.acknowledge, done))
        self._pace.news(self._effects.now_s())
        if self._target is not None:
            self._target.moves_on()
        return offsets.encode(end)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait_for_news(self, member: Membership, plan: BatchPlan, until_s: float) -> bool:
        """An idle look: True as soon as log or group may have something new, or what waits for others may go on."""
        head = self.queue.head
        look_s = self._effects.now_s() + max(LOOK_S, self.queue.store.look_interval_s)
        while self._pace.goes_on(until_s, self._effects.now_s()):
            if self._wait_until_due(member, until_s):
                return True
            if self._pace.due_in_s(self._effects.now_s()) > 0:
                continue
            fresh = self.queue.refresh()
            self._origins.follow(fresh)
            self._pace.looked(self._effects.now_s())
            if fresh is not head and (fresh.layout.generation != head.layout.generation or plan.may_go_on(fresh)):
                return True
            if plan.barred and self._effects.now_s() >= look_s:
                return True
        return False

    def _wait_until_due(self, member: Membership, until_s: float) -> bool:
        """Until the log is to be looked at, or until then; True as soon as there may be news of the group."""
        asked_s = self._effects.now_s()
        wait_s = min(self._pace.due_in_s(asked_s), until_s - asked_s)
        if wait_s >= LEAST_S:
            self._wait(wait_s)
        return self._woken or member.has_news or self._effects.now_s() - asked_s < 0.8 * wait_s

    def _waits_for_share(self, view: View, target: AvailableNowTarget) -> bool:
        """AvailableNow has nothing to read: whether that may still change, and a wait if so."""
        waits = target.is_waited_for(
            self.participant.name,
            view,
            self._reached,
            self.queue.head,
            session_timeout_s=self._options.session_timeout_s,
            now_s=self._effects.now_s(),
        )
        if waits:
            self._wait(LOOK_S)
        return waits

    # --- what of a batch is still the flow's --------------------------------------------------------------------------

    def _is_still_mine(self, last: Announced) -> bool:
        """A guard: everything that was announced, in the same instance's name, by a look at the group made now."""
        member = self.participant.bound_member()
        if member is None or member.instance != last.instance:
            return False
        view = self.participant.seen(self._store_retry.call(member.confirm))
        held = all(is_claimed(view, p, span.epoch) for p, span in last.spans.items())
        return held and self.participant.is_alive(last.instance)

    def _repeated(self, before: BatchEnd | None, after: BatchEnd, wanted: Spans) -> Announced:
        """Of `wanted` what is still this flow's, announced. With `ackMode=manual` nothing of what another process or
        instance has announced: it comes again in the next batches, in order with all that is not acknowledged.
        """
        member = self.participant.joined(after, complete=False)
        last = self._last if self._last is not None and self._last.end == after else None
        config = self.queue.head.config
        wait_s = config.rebalance_delay_s + config.max_handoff_time_s + 2 * self._options.session_timeout_s + LOOK_S
        until_s = self._effects.now_s() + wait_s
        while True:
            view = self._store_retry.call(lambda: self._settled(member, before, after, after.spans.keys()))
            announced = last.spans if last is not None and last.instance == view.instance else {}
            if self._manual_acks and not announced:
                _log.info("%s: what is not acknowledged comes again", self.participant.name)
                self.acknowledgements.given_out.void(wanted.keys())
                return Announced(end=after, spans={}, instance=member.instance)
            found = self._store_retry.call(partial(repetition, wanted, view, self.participant.checkpoint, announced))
            if not found.doubtful:
                ends = {
                    p: max(span.to, view.claims[p].position) for p, span in found.held.items() if p not in announced
                }
                if self._store_retry.call(partial(member.deliver, ends)):
                    if found.moved:
                        if self._missed is not None:
                            note = partial(self._missed.note, after.digest, found.moved, after.queue_id)
                            self._store_retry.call(note)
                        _log.warning(
                            "%s repeats a batch without partitions %s", self.participant.name, sorted(found.moved)
                        )
                    return Announced(end=after, spans=found.held, instance=member.instance)
            if self._effects.now_s() >= until_s:
                raise Unavailable(
                    f"{self.participant.name} has to repeat a batch, and for {wait_s:.0f} s nothing says "
                    f"whether partitions {sorted(found.doubtful)} are still its own: is a coordinator running? Start "
                    "the query again"
                )
            self._wait(LOOK_S)
