"""One group, step by step: lead, observe, decide, write, act. No policy of its own: that is `coordinator.core`'s.

The order that everything rests on is *state before effect*. `_write` is the only place that changes a group's state; it
returns a `Written`, and `_fence`, the only effect that others depend on, takes one. So a coordinator may be killed at
any instruction: the next leader finds in the state what was to be done, and does it again.

All that is not certain (a swap that failed or whose answer was lost, a state that another one wrote, a store that lives
anew) ends the same way: this leader drops what it knows and adopts the group anew. No threads, clocks or chance in
here: they come as arguments, so that a simulation runs several of these side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from coordinator.acting import Bookkeeping, Fences
from coordinator.core.events import Event, PartitionDrained, Tick, Told
from coordinator.core.invariants import violations
from coordinator.core.machine import decide
from coordinator.heads import GroupFacts
from coordinator.leadership import Leadership, timers_of
from coordinator.logs import Log
from coordinator.measuring import Handoffs
from coordinator.reconciliation import Reconciliation, RemovedPartitions, flow_events, is_without_flows, leftovers
from coordinator.settings import Settings
from partq_spark.base.effects import Effects, Retry, RunAll, in_a_row
from partq_spark.base.errors import Conflict, PartqError
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.codec import encode_state
from partq_spark.group.model import FlowRecord, GroupKey, GroupState, Partition
from partq_spark.group.ownership import Ownership, Pulse, Reincarnated, Seen
from partq_spark.objects.api import Unchanged

_ROUNDS = 8
"""Of one step. A bind at delay 0 takes three: fence, take in, look once more."""

_FENCES_AT_ONCE = 250
"""Between two renewals of the lease: a few seconds with Azure's latency and the default number of threads."""


@dataclass(frozen=True)
class Written:
    """A state that is in the store, written by this leader under `token`."""

    state: GroupState
    token: str


class _AdoptAgain(Exception):
    """What this leader knew no longer holds; the text says why."""


class GroupRuntime:
    """The coordinator of one group in one process. One call at a time."""

    def __init__(
        self,
        key: GroupKey,
        *,
        store: Ownership,
        checkpoints: Callable[[GroupFacts], CheckpointStore],
        facts_now: Callable[[], GroupFacts],
        settings: Settings,
        effects: Effects | None = None,
        run: RunAll = in_a_row,
    ) -> None:
        """`checkpoints` makes the store of a group with these facts; `facts_now` reads the head now, where it must not
        be an old one that says what the queue is; `run` may do fences, and look at checkpoints, side by side.
        """
        self.key = key
        self._store = store
        self._make_checkpoints = checkpoints
        self._facts_now = facts_now
        self._settings = settings
        self._effects = effects or Effects()
        self._run = run
        self._now_s = self._effects.now_s
        self._log = log = Log(settings.name, group=str(key))
        self._leadership = Leadership(store, key, settings=settings, effects=self._effects, log=log)
        self._term = 0
        self._written: Written | None = None
        self._flows: Mapping[str, Seen[FlowRecord]] = {}  # as the last look showed them
        self._removed = RemovedPartitions(checkpoints, self._now_s)
        self._bookkeeping = Bookkeeping(store, key, log)
        self._drains: dict[int, tuple[object, float]] = {}  # paused partitions that were looked at: what for, and when
        self._reconciliation = Reconciliation(key, checkpoints, self._now_s, log)
        self._fences = Fences(
            first_s=settings.handoff_look_s, most_s=settings.retry_most_s, now_s=self._now_s, log=log, run=run
        )
        self._adopting = Retry(first_s=2 * settings.handoff_look_s, most_s=settings.retry_most_s, least=0.0)
        self.handoffs = Handoffs()
        """What became of them so far, for metrics."""

    @property
    def state(self) -> GroupState | None:
        """The state as this leader wrote it last; None if it does not lead, or has to adopt. Another thread may ask:
        while a swap is on its way it is the former state.
        """
        written = self._written
        return written.state if written is not None else None

    @property
    def flows(self) -> Mapping[str, FlowRecord]:
        """What the flows said at the last look. Another thread may ask."""
        return {name: beat.value for name, beat in self._flows.items()}

    @property
    def leading(self) -> bool:
        """Whether this process held the lease when it last looked."""
        return self._leadership.held

    @property
    def stuck(self) -> str:
        """What is wrong with the first partition that is stuck, for people; empty if none is."""
        state = self.state
        partitions = state.partitions.values() if state is not None else ()
        stuck = (f"group {self.key}, partition {each.partition}: {each.stuck}" for each in partitions if each.stuck)
        return next(stuck, "")

    # --- the step -----------------------------------------------------------------------------------------------------

    def step(self, facts: GroupFacts) -> float:
        """One look, and everything that follows from it; returns the seconds until the next one is due, if no news come
        earlier. `facts`: the group as the queue's head had it lately.

        Raises `Unavailable`, `Corrupt`, `Invalid`, when a store does; the group is then adopted anew by the next step.
        """
        try:
            return self._step(facts)
        except (_AdoptAgain, Conflict, Reincarnated) as error:
            self._forget(str(error))
            self._adopting.failed(self._now_s())
            return self._adopting.pause_s(self._now_s(), self._effects.uniform) or 0.0
        except BaseException as error:
            self._forget(f"{type(error).__name__}: {error}")
            raise

    def release(self) -> None:
        """Give up the lease, so that another coordinator leads at once. Raises as the store does."""
        written, self._written = self._written, None
        if written is not None and self._leadership.timers.deadlines_s:
            # The timers go with the lease: what remains of them is left behind in the state itself.
            with suppress(Conflict):  # another one leads, and knows better
                self._write(written.state, (), written.token)
            self._written = None
        self._leadership.release()

    def drop(self) -> None:
        """The group was deleted: remove what the ownership store has of it, if this process leads it."""
        self._written = None
        if self._leadership.held:
            self._store.drop_group(self.key)
            self._log("info", "group_dropped", reason="its queue or group was deleted")

    def _step(self, facts: GroupFacts) -> float:
        if self._written is not None and facts.queue_id != self._written.state.queue_id:
            facts = self._confirmed()
            if facts.queue_id != self._written.state.queue_id:
                self._forget("the queue is another one")
        pulse = self._leadership.look()
        if self._term != self._leadership.terms:
            self._term = self._leadership.terms
            self._bookkeeping.forget(term=True)
            self._fences.forget()
            self.handoffs.forget()
            self._forget("a new term")
        if pulse is None or (self._written is None and is_without_flows(pulse)):
            return self._settings.renewal_s
        self._flows = pulse.flows
        if self._written is not None and pulse.state_token != self._written.token:
            self._forget("another coordinator wrote the state")
        written = self._written
        facts = self._confirmed() if written is None else self._whole(facts)
        if written is None:
            written = self._adopt(facts)
        for _ in range(_ROUNDS):
            before = written
            written = self._decide(written, self._observe(written, facts, pulse))
            fences = self._fences.due(written.state.pending)
            if fences:
                written = self._decide(written, self._fence(written, fences[:_FENCES_AT_ONCE], facts))
            if len(fences) > _FENCES_AT_ONCE:
                break  # the lease wants to be renewed
            if written is before:
                self._adopting.succeeded()
                self._bookkeeping.catch_up(written.state, written.token)
                return self._next_s(written.state)
        return 0.0

    def _next_s(self, state: GroupState) -> float:
        """Until the next look: soon where something is waited for, else about once a second."""
        wait_s = self._settings.renewal_s
        if state.next_deadline_s is not None:
            wait_s = min(wait_s, state.next_deadline_s - self._now_s())
        if state.paused:
            wait_s = min(wait_s, self._settings.handoff_look_s)
        retry_s = self._fences.next_s(state.pending)
        return max(0.0, min(wait_s, max(self._settings.handoff_look_s, retry_s)))

    def _forget(self, reason: str) -> None:
        """Keep nothing that was read: the next step adopts the group anew."""
        if self._written is not None:
            self._log("warning", "adopting_again", reason=reason)
        self._written = None
        self._drains.clear()
        self._removed.forget()
        self._bookkeeping.forget()

    # --- lead: adopt what is there ------------------------------------------------------------------------------------

    def _adopt(self, facts: GroupFacts) -> Written:
        """Read everything, and write the state under a new token: from then on a former leader's swaps fail."""
        known = [record.session_timeout_s for record in self.flows.values()]
        found = self._reconciliation.adopt(
            self._store,
            facts,
            timers=self._leadership.timers,
            session_timeout_s=max([self._settings.assumed_session_timeout_s, *known]),
        )
        # A look more, after the state was read: a leader that came since makes either this renewal or the swap fail.
        # Else a leader that slept before it read the state would take it from its successor.
        self._leadership.look()
        self.handoffs.adopted(found.state)
        written = self._write(found.state, found.told, found.token)
        status = found.state.status.value
        self._log(found.level, "group_adopted", status=status, reason=found.reason)
        return written

    # --- observe ------------------------------------------------------------------------------------------------------

    def _observe(self, written: Written, facts: GroupFacts, pulse: Pulse) -> Iterable[Event]:
        """What has happened since the state was written."""
        state = written.state
        events = list(self._reconciliation.look(state, facts, self._confirmed))
        self._bookkeeping.let_go(leftovers(state, pulse.flows))
        events.extend(flow_events(state, pulse.flows, gone=self._bookkeeping.gone, heartbeats=self._leadership.flows))
        events.extend(self._drained(written, facts))
        if state.next_deadline_s is not None and state.next_deadline_s <= self._now_s():
            events.append(Tick())
        return events

    def _drained(self, written: Written, facts: GroupFacts) -> Iterator[Event]:
        """Paused partitions whose owner has nothing in hand: their checkpoints say so. They are looked at once the
        pause is written, when their owner says that it has closed something, and else about once a second.
        """
        now_s, due = self._now_s(), list[Partition]()
        for each in written.state.paused:
            beat = self._flows.get(each.owner.flow) if each.owner is not None else None
            why = each.epoch, each.to, beat.value.closes if beat is not None else 0
            known, looked_s = self._drains.get(each.partition, (None, 0.0))
            if known != why or now_s - looked_s >= self._settings.renewal_s:
                self._drains[each.partition] = why, now_s
                due.append(each)
            if len(due) == _FENCES_AT_ONCE:
                break
        checkpoints, queue_id = self._make_checkpoints(facts), written.state.queue_id

        def is_closed(each: Partition) -> bool:
            try:
                found = checkpoints.read(each.partition)
            except PartqError:
                return False  # its fence will say so, and the others do not wait for it
            return found is not None and found.is_of(queue_id, each.owner, each.epoch) and not found.is_open

        for each, closed in zip(due, self._run(is_closed, due), strict=True):
            if closed:
                yield PartitionDrained(partition=each.partition, epoch=each.epoch)

    def _confirmed(self) -> GroupFacts:
        """The facts as they are now. Those of a step may be some seconds old, and a former leader may have acted on
        newer ones: what it added must not be taken for removed.
        """
        return self._whole(self._facts_now())

    def _whole(self, facts: GroupFacts) -> GroupFacts:
        """The facts with the removed partitions that are not delivered to their end yet."""
        return self._removed.with_unfinished(facts)

    # --- decide, write, act -------------------------------------------------------------------------------------------

    def _decide(self, written: Written, events: Iterable[Event]) -> Written:
        """Feed the events to the core and write what comes out; the very same `written` if nothing changed."""
        state = written.state
        told: list[Told] = []
        for event in events:
            state, more = decide(state, event, self._now_s())
            told.extend(more)
        if state is written.state:
            return written
        let_go = [flow.owner for name, flow in written.state.flows.items() if name not in state.flows]
        written = self._write(state, told, written.token)
        self._bookkeeping.let_go(let_go)
        return written

    def _write(self, state: GroupState, told: Sequence[Told], expected: str | None) -> Written:
        """Put `state` in place of the one at `expected`. The only place where a group's state changes.

        Nothing of it may be acted on, or told, before the answer is there. Raises `Conflict`, `Unavailable` (nobody
        knows), and `_AdoptAgain` for a state that must not be; whoever calls it forgets then what was written before.
        """
        broken = violations(state)
        if broken:
            self._log("error", "state_refused", reason="; ".join(broken[:5]))
            raise _AdoptAgain(f"a decision was against the invariants: {broken[0]}")
        token = self._effects.token()
        now_s = self._now_s()
        self._store.swap_state(self.key, encode_state(state, now_s), token=token, expected=expected)
        self._written = Written(state, token)
        self._leadership.timers = timers_of(state, token)
        for each in told:
            level = "error" if each.event == "partition_stuck" else "info"
            self._log(level, each.event, **each.facts)
        self.handoffs.told(told, now_s)
        return self._written

    def _fence(self, written: Written, fences: Sequence[Partition], facts: GroupFacts) -> list[Event]:
        """Carry out what the written state waits for; what became of it, as events."""
        done = self._fences.carry_out(
            fences,
            checkpoints=self._make_checkpoints(facts),
            starts=facts.starts,
            finished=self._removed.finished(facts),
            is_asked_for=lambda: isinstance(self._store.read_state(self.key, known=written.token), Unchanged),
        )
        self.handoffs.redelivered += sum(each.marked for each in done)
        return [each.event for each in done if each.event is not None]
