"""Who leads a group: taking the lease, renewing it, watching another leader's, and the timers that go with it. Nothing
here knows what a leader does.

The lease keeps two coordinators from working against each other; it is not what makes them safe. That is the state's
token: a new leader writes the state first, and from then on the former leader's swaps fail.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from coordinator.logs import Log
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict
from partq_spark.group.model import GroupKey, GroupState, Lease
from partq_spark.group.ownership import Ownership, Pulse

_LEASE = "lease"
_HOLDDOWN = "holddown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timers:
    """What runs, as deadlines by this process' clock, and the state that it belongs to."""

    state_token: str = ""
    deadlines_s: Mapping[str, float] = field(default_factory=dict)

    def remaining_s(self, now_s: float) -> dict[str, float]:
        """As a lease carries them."""
        return {name: round(max(0.0, at_s - now_s), 3) for name, at_s in self.deadlines_s.items()}


def timers_of(state: GroupState, token: str) -> Timers:
    """The timers that run in `state`."""
    deadlines_s = {
        str(number): partition.deadline_s
        for number, partition in state.partitions.items()
        if partition.deadline_s is not None
    }
    if state.holddown_until_s is not None:
        deadlines_s[_HOLDDOWN] = state.holddown_until_s
    return Timers(state_token=token, deadlines_s=deadlines_s)


def with_timers(state: GroupState, timers: Timers) -> GroupState:
    """`state` with deadlines that were known more lately than its own. A name that is missing changes nothing."""
    partitions = {
        number: replace(partition, deadline_s=timers.deadlines_s.get(str(number), partition.deadline_s))
        if partition.deadline_s is not None
        else partition
        for number, partition in state.partitions.items()
    }
    until_s = state.holddown_until_s
    if until_s is not None:
        until_s = timers.deadlines_s.get(_HOLDDOWN, until_s)
    return replace(state, partitions=partitions, holddown_until_s=until_s)


class Leadership:
    """This process' part in leading one group.

    `timers` are those of the state that was written last, or, at the beginning of a term, those of the former leader.
    `flows` times the flows' heartbeats; a new term begins with a new one, so that everybody has a full period.
    `terms` counts the terms of this process.
    """

    def __init__(self, store: Ownership, key: GroupKey, *, settings: Settings, effects: Effects, log: Log) -> None:
        self._store = store
        self._key = key
        self._settings = settings
        self._effects = effects
        self._log = log
        self._lease: Lease | None = None  # held, as this process last knew
        self._asked: Lease | None = None  # asked for; whether it was granted is not known yet
        self._rival = FailureDetector(settings.frozen_after_s)
        self.flows = FailureDetector(settings.frozen_after_s)
        self.timers = Timers()
        self.terms = 0

    @property
    def held(self) -> bool:
        """Whether this process held the lease when it last looked."""
        return self._lease is not None

    def look(self) -> Pulse | None:
        """Renew the lease, and look; or watch it, and take it once it stands still. None: another one leads.
        Raises `Conflict` when the lease was lost.
        """
        lease = self._lease if self._lease is not None else self._take()
        if lease is None:
            return None
        lease = replace(
            lease,
            beat=lease.beat + 1,
            timers=self.timers.remaining_s(self._effects.now_s()),
            state_token=self.timers.state_token,
        )
        # Kept before the answer is known: a beat that was sent and got lost must not be sent again.
        self._lease = lease
        asked_s = self._effects.now_s()
        try:
            pulse = self._store.renew_lease(self._key, lease)
        except Conflict as error:
            self._lease = None
            self._log("warning", "lease_lost", reason=str(error))
            raise
        # A new instance does not inherit the silence of the former: its first heartbeat has another token.
        values = {flow: beat.token for flow, beat in pulse.flows.items()}
        if self.flows.look(values, asked_s=asked_s, heard_s=self._effects.now_s()):
            reason = f"this leader did not look for more than {self._settings.frozen_after_s:g} s"
            self._log("warning", "all_flows_granted", reason=reason)
        return pulse

    def release(self) -> None:
        """Give up the lease, so that another coordinator leads at once. Raises as the store does."""
        lease, self._lease, self._asked = self._lease or self._asked, None, None
        if lease is not None:
            self._store.release_lease(self._key, lease.token)

    def _take(self) -> Lease | None:
        """Take the lease if it is free, was granted already, or stood still for its time-out."""
        asked_s = self._effects.now_s()
        seen = self._store.read_lease(self._key)
        found = seen.value if seen is not None else None
        asked, self._asked = self._asked, None
        if asked is not None and found is not None and found.token == asked.token:
            return self._begin(found, "the answer to taking it had been lost")
        values = {} if found is None else {_LEASE: (found.token, found.beat)}
        self._rival.look(values, asked_s=asked_s, heard_s=self._effects.now_s())
        if found is not None and self._rival.still_s(_LEASE) < self._settings.lease_timeout_s:
            return None
        # The former leader's timers stay in the lease until this one has adopted the group: it may die before.
        lease = Lease(
            token=self._effects.token(),
            name=self._settings.name,
            beat=0,
            timers={} if found is None else found.timers,
            state_token="" if found is None else found.state_token,
        )
        self._asked = lease
        try:
            self._store.take_lease(self._key, lease, expected=found)
        except Conflict:
            self._asked = None
            return None  # another one was faster
        return self._begin(lease, "it was free" if found is None else f"{found.name} was silent")

    def _begin(self, lease: Lease, reason: str) -> Lease:
        now_s = self._effects.now_s()
        self._lease, self._asked = lease, None
        self._rival = FailureDetector(self._settings.frozen_after_s)
        self.flows = FailureDetector(self._settings.frozen_after_s)
        self.timers = Timers(
            state_token=lease.state_token,
            deadlines_s={name: now_s + remaining_s for name, remaining_s in lease.timers.items()},
        )
        self.terms += 1
        self._log("info", "lease_taken", leader=self._settings.name, reason=reason)
        return lease


# --- how long something has stood still -------------------------------------------------------------------------------

# How long something has stood still, by the clock of the process that looks (OWN-05). Pure: the time is an argument.
#
# A flow's heartbeat gets another version with every beat, the lease of another coordinator counts. No timestamps of
# others are read: what counts is how long ago this process saw the value change, and a process that did not look cannot
# know. Nothing here knows what a flow is, and what follows from its silence.


_LATE_LOOK_S: Final = 1.0
"""What a late look counts: little of the shortest session timeout, 5 s."""


class FailureDetector:
    """Remembers when each watched value was last seen to change.

    What counts is what was really observed: from the time when the answer came that showed the value for the first
    time, to the time before the last look was sent that showed it still. An answer that was long on its way, or a
    watcher that did other things since, makes nobody silent.

    When the watcher itself did not look for more than `frozen_after_s` seconds, it was stopped, its machine slept, or
    the store was away, and then the watched could not move either: of all that time at most a second counts. It counts
    for something, so that what is only ever looked at late is found silent in the end.
    """

    def __init__(self, frozen_after_s: float) -> None:
        self._frozen_after_s = frozen_after_s
        self._asked_s = 0.0
        self._heard_s: float | None = None
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def look(self, values: Mapping[str, Hashable], *, asked_s: float, heard_s: float) -> bool:
        """Take in what the store showed: the clock before it was asked, and after the answer came.

        Names that are missing are forgotten. True if this look came so late that the time before it hardly counts.
        """
        gap_s = 0.0 if self._heard_s is None else heard_s - self._heard_s
        late = gap_s > self._frozen_after_s
        uncounted_s = gap_s - min(_LATE_LOOK_S, self._frozen_after_s / 3) if late else 0.0
        self._asked_s, self._heard_s = asked_s, heard_s
        seen, fresh = self._seen, dict[str, tuple[Hashable, float]]()
        self._seen = fresh
        for name, value in values.items():
            before = seen.get(name)
            since_s = before[1] + uncounted_s if before is not None and before[0] == value else heard_s
            fresh[name] = (value, since_s)
        return late

    def still_s(self, name: str) -> float:
        """For how many seconds the value was seen not to change; 0.0 for a name that is not watched."""
        seen = self._seen.get(name)
        return 0.0 if seen is None else max(0.0, self._asked_s - seen[1])
