"""One group, step by step: lead, observe, decide, write, act. No policy of its own: that is `coordinator.core`'s.

The order that everything rests on is *state before effect*. `_write` is the only place that changes a group's state; it
returns a `Written`, and `_fence`, the only effect that others depend on, takes one. So a coordinator may be killed at
any instruction: the next leader finds in the state what was to be done, and does it again.

Whatever is not certain (a swap that failed or whose answer was lost, a state that somebody else wrote, a store that was
restarted) ends the same way: this leader drops what it knows and adopts the group anew. No threads, clocks or chance in
here: they come as arguments, so that a simulation runs several of these side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from coordinator.adopt import Timers, adopt, altered, timers_of
from coordinator.claims import OwnershipRecords
from coordinator.core.actions import Action, Fence
from coordinator.core.events import CheckpointAhead, Event, FlowExpired, PartitionFenced, QueueAltered, Tick
from coordinator.core.invariants import violations
from coordinator.core.machine import decide, next_deadline, pending
from coordinator.effects_pool import Run, in_a_row
from coordinator.facts import GroupFacts
from coordinator.life import Life
from coordinator.logs import Log, silent
from coordinator.observe import Setting, binds, drained, entry_of, is_reliable, leftovers
from coordinator.tell import tell_action, tell_event
from coordinator.watch import Stillness
from partq_spark.errors import Conflict, Corrupt, Unavailable
from partq_spark.flow.checkpoints import CheckpointStore, FenceRefused
from partq_spark.flow.codec import encode_state
from partq_spark.flow.effects import Effects
from partq_spark.flow.model import FlowRecord, GroupKey, GroupState, Lease, Owner, Phase
from partq_spark.flow.stores.api import OwnershipStore, Pulse, Reincarnated

_ROUNDS = 8
"""Of one step. A bind at delay 0 takes three: fence, take in, look once more."""

_LEASE = "lease"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """Seconds, all by this process' clock; `conf/coordinator.toml` explains them."""

    lease_timeout_s: float = 5.0
    renewal_s: float = 1.0
    handoff_look_s: float = 0.05
    frozen_after_s: float = 3.0
    assumed_session_timeout_s: float = 10.0
    retry_most_s: float = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What a step came to. `next_s`: seconds until the next one is due, if no news come earlier."""

    leading: bool
    next_s: float


@dataclass(frozen=True, slots=True)
class Written:
    """A state that is in the store, written by this leader under `token`."""

    state: GroupState
    token: str


@dataclass(frozen=True, slots=True)
class _Records:
    """The flows' records. `token`: of the state that was in the store before they were asked for; `version`: of the
    look before that.
    """

    flows: dict[str, FlowRecord]
    token: str
    version: str
    read_s: float


class _AdoptAgain(Exception):
    """What this leader knew no longer holds; the text says why."""


class GroupRuntime:
    """The coordinator of one group in one process. One call at a time."""

    def __init__(
        self,
        key: GroupKey,
        *,
        store: OwnershipStore,
        life: Life,
        checkpoints: Callable[[str], CheckpointStore],
        ends: Callable[[str], Sequence[int]],
        name: str,
        timing: Timing | None = None,
        effects: Effects | None = None,
        run: Run = in_a_row,
        log: Log = silent,
    ) -> None:
        """`checkpoints` makes the checkpoint store for a queue id; `ends` reads the log's end of every partition of the
        queue with this id, now; `life` is shared by all groups that use `store`; `run` may do fences side by side.
        """
        self.key = key
        self._store = store
        self._life = life
        self._make_checkpoints = checkpoints
        self._ends = ends
        self._name = name
        self._timing = timing or Timing()
        self._effects = effects or Effects()
        self._run = run
        self._log = log
        self._lease: Lease | None = None  # held, as this process last knew
        self._claimed_lease: Lease | None = None  # asked for; whether it was granted is not known yet
        self._rival = Stillness(self._timing.frozen_after_s)
        self._flows = Stillness(self._timing.frozen_after_s)
        self._timers = Timers()
        self._written: Written | None = None
        self._setting = Setting(queue_id="", incarnation="")
        self._records: _Records | None = None
        self._gone: dict[Owner, None] = {}  # let go, their records still to be removed
        self._ownership = OwnershipRecords(store, key)
        self._failed_fences = 0
        self._again = 0  # steps in a row that ended with adopting again
        self._incarnation = ""

    @property
    def state(self) -> GroupState | None:
        """The state as this leader wrote it; None if it does not lead, or has to adopt."""
        return self._written.state if self._written is not None else None

    @property
    def leading(self) -> bool:
        """Whether this process held the lease when it last looked."""
        return self._lease is not None

    # --- the step -----------------------------------------------------------------------------------------------------

    def step(self, facts: GroupFacts) -> Step:
        """One look, and everything that follows from it. `facts`: the group as the queue's head had it lately.

        Raises `Unavailable`, `Corrupt`, `Invalid`, when a store does; the group is then adopted anew by the next step.
        """
        try:
            return self._step(facts)
        except (_AdoptAgain, Conflict, Reincarnated) as error:
            if isinstance(error, Reincarnated):
                self._life.lost(self._incarnation)
            self._forget(str(error))
            self._again += 1
            most_s = min(self._timing.handoff_look_s * 2 ** min(self._again, 10), self._timing.retry_most_s)
            return Step(leading=self.leading, next_s=self._effects.uniform(0.0, most_s))
        except BaseException as error:
            self._forget(f"{type(error).__name__}: {error}")
            raise

    def release(self) -> None:
        """Give up the lease, so that another coordinator leads at once. Raises as the store does."""
        lease, self._lease, self._written = self._lease or self._claimed_lease, None, None
        if lease is not None:
            self._store.release_lease(self.key, lease.token)

    def drop(self) -> None:
        """The group was deleted: remove what the ownership store has of it, if this process leads it."""
        if self._lease is not None:
            self._store.drop_group(self.key)
            self._log("info", "group_dropped", group=str(self.key), reason="its queue or group was deleted")
        self._lease = self._written = None

    def _step(self, facts: GroupFacts) -> Step:
        incarnation = self._incarnation = self._life.ask()
        if self._written is not None and self._setting != Setting(queue_id=facts.queue_id, incarnation=incarnation):
            self._forget("the queue is another one, or the ownership store was restarted")
        pulse = self._lead()
        if pulse is None:
            return Step(leading=False, next_s=self._timing.renewal_s)
        if self._written is not None and pulse.state_token != self._written.token:
            self._forget("somebody else wrote the state")
        written = self._written or self._adopt(facts, incarnation)
        for _ in range(_ROUNDS):
            before = written
            written = self._decide(written, self._observe(written, facts, pulse))
            fences = pending(written.state)
            if fences:
                written = self._decide(written, self._fence(written, fences, facts))
            if written is before:
                self._again = 0
                self._tidy(written)
                return Step(leading=True, next_s=self._next_s(written.state))
        return Step(leading=True, next_s=0.0)

    def _next_s(self, state: GroupState) -> float:
        """Until the next look: soon where something is waited for, else about once a second."""
        wait_s = self._timing.renewal_s
        due_s = next_deadline(state)
        if due_s is not None:
            wait_s = min(wait_s, due_s - self._effects.now_s())
        if any(each.phase in (Phase.PAUSED, Phase.FENCING) for each in state.partitions.values()):
            retry_s = self._timing.handoff_look_s * 2 ** min(self._failed_fences, 10)
            wait_s = min(wait_s, max(self._timing.handoff_look_s, min(retry_s, self._timing.retry_most_s)))
        return max(0.0, wait_s)

    def _forget(self, reason: str) -> None:
        """Keep nothing that was read: the next step adopts the group anew."""
        if self._written is not None:
            self._log("warning", "adopting_again", group=str(self.key), reason=reason)
        self._written = self._records = None
        self._ownership.forget()

    # --- the lease ----------------------------------------------------------------------------------------------------

    def _lead(self) -> Pulse | None:
        """Renew the lease, and look; or watch it, and take it once it stands still. None: somebody else leads."""
        if self._lease is None and not self._take():
            return None
        lease = self._lease
        if lease is None:
            return None
        now_s = self._effects.now_s()
        lease = replace(
            lease,
            beat=lease.beat + 1,
            timers=self._timers.remaining_s(now_s),
            state_token=self._timers.state_token,
        )
        # Kept before the answer is known: a beat that was sent and got lost must not be sent again.
        self._lease = lease
        try:
            pulse = self._store.renew_lease(self.key, lease)
        except Conflict as error:
            self._lease = None
            self._log("warning", "lease_lost", group=str(self.key), reason=str(error))
            raise
        values: dict[str, tuple[str, int] | None] = dict.fromkeys(self._written.state.flows if self._written else ())
        values.update((name, (beat.instance, beat.count)) for name, beat in pulse.beats.items())
        if self._flows.look(values, self._now_s()):
            reason = f"this leader did not look for more than {self._timing.frozen_after_s:g} s"
            self._log("warning", "all_flows_granted", group=str(self.key), reason=reason)
        return pulse

    def _take(self) -> bool:
        """Take the lease if it is free, ours, or stood still for its time-out."""
        document = self._store.read_lease(self.key)
        found = document.lease if document is not None else None
        claimed, self._claimed_lease = self._claimed_lease, None
        if claimed is not None and found is not None and found.token == claimed.token:
            self._lead_with(found, "the answer to taking it had been lost")
            return True
        now_s = self._now_s()
        self._rival.look({} if found is None else {_LEASE: (found.token, found.beat)}, now_s)
        if found is not None and self._rival.still_s(_LEASE, now_s) < self._timing.lease_timeout_s:
            return False
        # The former leader's timers stay in the lease until this one has adopted the group: it may die before.
        lease = Lease(
            token=self._effects.token(),
            name=self._name,
            beat=0,
            timers={} if found is None else found.timers,
            state_token="" if found is None else found.state_token,
        )
        self._claimed_lease = lease
        try:
            self._store.take_lease(self.key, lease, expected=found)
        except Conflict:
            self._claimed_lease = None
            return False  # another one was faster
        self._lead_with(lease, "it was free" if found is None else f"{found.name} was silent")
        return True

    def _lead_with(self, lease: Lease, reason: str) -> None:
        """Begin a term: every flow gets a full period, and runs no risk for what the former leader saw."""
        now_s = self._now_s()
        self._lease, self._claimed_lease = lease, None
        self._rival = Stillness(self._timing.frozen_after_s)
        self._flows = Stillness(self._timing.frozen_after_s)
        self._timers = Timers(
            state_token=lease.state_token,
            deadlines_s={name: now_s + remaining_s for name, remaining_s in lease.timers.items()},
        )
        self._gone.clear()
        self._forget("a new term")
        self._log("info", "lease_taken", group=str(self.key), reason=reason)

    # --- state before effect ------------------------------------------------------------------------------------------

    def _write(self, state: GroupState, actions: Sequence[Action], expected: str | None) -> Written:
        """Put `state` in place of the one at `expected`. The only place where a group's state changes.

        Nothing of it may be acted on before this has returned. Raises `Conflict`, `Unavailable` (nobody knows), and
        `_AdoptAgain` for a state that must not be.
        """
        broken = violations(state)
        if broken:
            self._log("error", "state_refused", group=str(self.key), reason="; ".join(broken[:5]))
            raise _AdoptAgain(f"a decision was against the invariants: {broken[0]}")
        token = self._effects.token()
        now_s = self._now_s()
        self._written = None  # until the answer is there, nothing is known
        self._store.swap_state(self.key, encode_state(state, now_s), token=token, expected=expected)
        self._written = Written(state, token)
        self._timers = timers_of(state, token)
        for action in actions:
            tell_action(self._log, self.key, action)
        self._announce()
        return self._written

    def _announce(self) -> None:
        try:
            self._store.announce(self.key)
        except Reincarnated:
            raise
        except Unavailable:
            pass  # costs time only: flows learn of the state with their next heartbeat

    def _fence(self, written: Written, fences: Sequence[Fence], facts: GroupFacts) -> list[Event]:
        """Carry out what the written state waits for; what became of it, as events. An unknown outcome is no event:
        the state still asks for it, and the fence recognises its own repetition.
        """
        # Records that were read before the state was written may lack deliveries; later ones cannot.
        records = self._read_records(written, version="")
        checkpoints = self._make_checkpoints(facts.queue_id)
        unknown = {fence.partition for fence in fences if self._is_unknown(fence, records.flows, checkpoints)}
        ends = self._ends(facts.queue_id) if unknown else ()

        def one(fence: Fence) -> Event | None:
            try:
                checkpoints.fence(
                    fence.partition,
                    to=fence.to,
                    epoch=fence.epoch,
                    # The same epoch again is only for the same flow, back as another instance (LOS-01).
                    replaces=fence.owner if fence.epoch == fence.owner_epoch else None,
                    start=facts.starts.get(fence.partition, 0),
                    delivered=ends[fence.partition]
                    if fence.partition in unknown
                    else self._delivered(fence, records.flows),
                )
            except FenceRefused as error:
                return CheckpointAhead(partition=fence.partition, epoch=error.epoch)
            except (Conflict, Unavailable, Corrupt) as error:
                self._log("warning", "fence_failed", group=str(self.key), partition=fence.partition, reason=str(error))
                return None
            return PartitionFenced(partition=fence.partition, epoch=fence.epoch, owner=fence.to)

        events = [event for event in self._run(one, fences) if event is not None]
        self._failed_fences = 0 if len(events) == len(fences) else self._failed_fences + 1
        return events

    def _is_unknown(self, fence: Fence, records: dict[str, FlowRecord], checkpoints: CheckpointStore) -> bool:
        """Whether nobody knows how much was delivered: then it may be everything there is."""
        if fence.reports_lost:
            found = checkpoints.read(fence.partition)
            here = (found.owner.flow if found.owner else None, found.epoch) if found is not None else (None, 0)
            if here != (fence.owner.flow if fence.owner else None, fence.owner_epoch):
                return True  # somebody had it whom the state has forgotten
        if fence.owner is None:
            return False
        record = records.get(fence.owner.flow)
        if entry_of(record, fence.partition, fence.owner_epoch, self._setting) is not None:
            return False
        return fence.reports_lost or not is_reliable(record, self._setting)

    def _delivered(self, fence: Fence, records: dict[str, FlowRecord]) -> int | None:
        """How far the owner said that it delivered the partition; None: nothing at its epoch."""
        record = records.get(fence.owner.flow) if fence.owner is not None else None
        entry = entry_of(record, fence.partition, fence.owner_epoch, self._setting)
        return entry.delivered if entry is not None else None

    # --- adopt, observe, decide ---------------------------------------------------------------------------------------

    def _adopt(self, facts: GroupFacts, incarnation: str) -> Written:
        """Read everything, and write the state under a new token: from then on a former leader's swaps fail."""
        self._setting = Setting(queue_id=facts.queue_id, incarnation=incarnation)
        self._records = None
        found = adopt(
            self._store,
            self.key,
            self._make_checkpoints(facts.queue_id),
            facts=facts,
            incarnation=incarnation,
            timers=self._timers,
            session_timeout_s=self._timing.assumed_session_timeout_s,
            now_s=self._now_s,
        )
        written = self._write(found.state, found.actions, found.token)
        self._log("info", "group_adopted", group=str(self.key), status=found.state.status.value, reason=found.reason)
        return written

    def _observe(self, written: Written, facts: GroupFacts, pulse: Pulse) -> Iterable[Event]:
        """What has happened since the state was written."""
        state = written.state
        events: list[Event] = []
        if altered(state, facts):
            known = self._make_checkpoints(facts.queue_id).list_checkpoints()
            epochs = {number: each.epoch for number, each in known.items()}
            events.append(QueueAltered(settings=facts.settings, partitions=facts.partitions, epochs=epochs))
        records = self._records
        if records is None or self._must_read(written, records, pulse):
            records = self._read_records(written, version=pulse.records_version)
        for owner in leftovers(state, records.flows, self._setting):
            self._gone[owner] = None
        events.extend(binds(state, records.flows, self._setting, self._gone))
        events.extend(self._expired(state, records.flows))
        if records.token == written.token:
            events.extend(drained(state, records.flows, self._setting))
        due_s = next_deadline(state)
        if due_s is not None and due_s <= self._now_s():
            events.append(Tick())
        return events

    def _must_read(self, written: Written, records: _Records, pulse: Pulse) -> bool:
        """Whether the records may have something new to say. Acknowledgements move the version all the time, and in
        quiet times only who comes and goes is of interest: then once per renewal is enough.
        """
        paused = any(each.phase is Phase.PAUSED for each in written.state.partitions.values())
        if paused and records.token != written.token:
            return True
        if records.version == pulse.records_version:
            return False
        if paused or self._now_s() - records.read_s >= self._timing.renewal_s:
            return True
        return any(
            name not in records.flows or records.flows[name].instance != beat.instance
            for name, beat in pulse.beats.items()
        )

    def _read_records(self, written: Written, version: str) -> _Records:
        flows = dict(self._store.read_flows(self.key))
        if self._life.value != self._setting.incarnation:
            # Another group's look may have acknowledged a restart in between: these may be the records of an old copy.
            raise _AdoptAgain("the ownership store was restarted")
        self._records = _Records(flows, written.token, version, self._now_s())
        return self._records

    def _expired(self, state: GroupState, records: dict[str, FlowRecord]) -> Iterable[Event]:
        """Flows whose heartbeat stood still for their session timeout, by this leader's clock."""
        now_s = self._now_s()
        for name, flow in sorted(state.flows.items()):
            record = records.get(name)
            if not flow.bound or record is None or record.instance != flow.instance or not record.bound:
                continue
            if self._flows.still_s(name, now_s) >= record.session_timeout_s:
                yield FlowExpired(flow=name, instance=flow.instance)

    def _decide(self, written: Written, events: Iterable[Event]) -> Written:
        """Feed the events to the core and write what comes out; the very same `written` if nothing changed."""
        state = written.state
        actions: list[Action] = []
        for event in events:
            after, more = decide(state, event, self._now_s())
            if after is not state or more:
                tell_event(self._log, self.key, event)
            state = after
            actions.extend(more)
        if state is written.state:
            return written
        let_go = [Owner(name, flow.instance) for name, flow in written.state.flows.items() if name not in state.flows]
        written = self._write(state, actions, written.token)
        self._gone.update(dict.fromkeys(let_go))
        return written

    def _now_s(self) -> float:
        return self._effects.now_s()

    # --- what nobody depends on ---------------------------------------------------------------------------------------

    def _tidy(self, written: Written) -> None:
        """Ownership records for people and tools (seed 004), and records of flows that are gone. Again next time if it
        fails: neither decides anything.
        """
        try:
            self._ownership.follow(written.state, written.token)
            for owner in list(self._gone):
                if owner.flow not in written.state.flows:
                    self._store.forget_flow(self.key, owner.flow, owner.instance)
                record = self._records.flows.get(owner.flow) if self._records is not None else None
                if self._records is not None and record is not None and record.instance == owner.instance:
                    del self._records.flows[owner.flow]  # what is remembered must not bring it back
                del self._gone[owner]
        except Reincarnated:
            raise
        except (Conflict, Unavailable) as error:
            self._log("warning", "tidying_failed", group=str(self.key), reason=str(error))
