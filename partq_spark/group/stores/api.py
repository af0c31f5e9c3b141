"""The ownership store as coordinator and flows see it: a group's state, a record and a heartbeat per flow, a lease.

Only the contract lives here. Every change is conditional; nothing is retried inside. An answer that did not come is
`Unavailable`: whether the change took place is found out by reading (design, "One principle"). Every call is bounded
in time. The state's body is opaque here (`codec` makes it), so that a store never needs to understand it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from partq_spark.base.errors import Unavailable
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Lease, OwnershipRecord
from partq_spark.objects.api import Unchanged

HEAD: Final = "_head"
"""In place of a group in what is announced: the queue's head has changed. No group has a name with this beginning."""


class Reincarnated(Unavailable):
    """The ownership store was restarted since it was last asked for its incarnation: ask again, then bind or lead anew
    from what the checkpoints say. Nothing was changed.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDocument:
    """One version of a group's state. `age_s` is how long ago it was written, by the store's own clock, for people."""

    token: str
    body: bytes
    age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Beat:
    """A flow's heartbeat: it lives while `count` moves. `age_s` is by the store's own clock, for people."""

    instance: str
    count: int
    age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseDocument:
    """The lease as stored. `age_s` is how long ago it was renewed, by the store's own clock, for people."""

    lease: Lease
    age_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """What a leader sees in one look, cheap enough for every second and every group.

    `records_version` changes whenever any flow's record changes (bind, claim, delivery, acknowledgement, unbind), so
    that records are read only when there is something new.
    """

    state_token: str | None
    records_version: str
    beats: Mapping[str, Beat]


class OwnershipStore(Protocol):
    """Implementations are safe for use by several threads. One object serves one user, a session or a coordinator with
    all of its groups, because what it knows of the store's incarnation is that user's.
    """

    @property
    def url(self) -> str:
        """The store's address, free of secrets: what `--ownership` takes."""

    @property
    def look_interval_s(self) -> float:
        """How often a waiting process may look for news without being a burden."""

    def incarnation(self) -> str:
        """Names the store's present life: another value means that it was restarted or replaced and may have lost
        changes or have jumped back in time. Asked of the server whenever a connection was made anew, so that a call
        that follows a restart never answers with the old value. Constant where that cannot happen.

        Every other call that reaches a new incarnation before `incarnation` has been called again raises
        `Reincarnated` and does nothing, so that nobody acts on what he knew before.
        """

    # --- the group's state: changed by the leader ---------------------------------------------------------------------

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        """The state; `UNCHANGED` if its token is still `known`; None if there is none."""

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        """Replace the state whose token is `expected` (None: there must be none), giving it `token`, a new random one.
        News for the group's flows.

        Raises `Conflict` if the condition did not hold, and nothing was changed.
        """

    # --- flow records: each written by its flow alone -----------------------------------------------------------------

    def read_flows(self, key: GroupKey) -> Mapping[str, FlowRecord]:
        """All records of the group, by flow name."""

    def read_flow(self, key: GroupKey, flow: str) -> tuple[FlowRecord, Beat] | None:
        """One flow's record and heartbeat."""

    def read_beats(self, key: GroupKey) -> Mapping[str, Beat]:
        """All heartbeats of the group, by flow name, in one call: for people and tools. A leader renews."""

    def bind(self, key: GroupKey, record: FlowRecord, *, replaces: Beat | None) -> None:
        """Write `record` (bound, with a new instance) and start its heartbeat at 0; news for the coordinator.

        Allowed where there is no record of that name, or its heartbeat is still exactly at `replaces` (instance and
        count), also if its flow has unbound: whoever takes over a name must have watched that the former instance is
        still, and has put the deliveries to be kept into `record` as they were at that heartbeat. Raises `Conflict`
        otherwise, and nothing was changed. Repeating a bind whose answer was lost succeeds and changes nothing. Whoever
        binds has no `note` yet, whatever `record` says.
        """

    def beat(self, key: GroupKey, flow: str, instance: str) -> str | None:
        """One heartbeat, one round trip: moves the count; returns the state's token (None: no state).

        Raises `Fenced` if the record is no longer this instance's, was forgotten or is not bound.
        """

    def deliver(
        self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        """Store `deliveries` (merged by partition), on condition that the state's token is still `state_token`.

        False: the state has changed, nothing may be delivered, look again. What makes a handoff safe is this: when
        True was returned, whoever swaps in a later state and then reads the records sees these deliveries. Counts as
        a heartbeat. Raises as `beat` does. After `Unavailable` the deliveries may be in the record: a flow that does
        not deliver them after all says so with `report`.
        """

    def report(self, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery]) -> None:
        """Store `deliveries` (merged by partition) whatever the state is: acknowledgements, or less than was
        announced. News for the coordinator. Partitions not in `deliveries` stay. Counts as a heartbeat. Raises as
        `beat` does.

        A `deliver` or `report` that was held up on its way until a later one of the same process had arrived changes
        nothing: it would undo what was said since.
        """

    def note(self, key: GroupKey, flow: str, instance: str, text: str) -> None:
        """Put `text` (at most 200 printable characters; empty: nothing) into the record, for people. Counts as a
        heartbeat. No news: nobody decides by it. Raises as `beat` does, and `Invalid` for any other text; one that was
        overtaken by a later call changes nothing.
        """

    def unbind(self, key: GroupKey, flow: str, instance: str) -> None:
        """Mark the record as not bound; news for the coordinator. Another instance's record is left alone."""

    def forget_flow(self, key: GroupKey, flow: str, instance: str, *, state_token: str) -> bool:
        """Remove the record and heartbeat of this instance: by the leader, when no partition names the flow. A record
        of another instance is left alone.

        False: the state's token is not `state_token` any more, and nothing was done: who leads by now may have given
        the flow partitions again.
        """

    # --- the lease ----------------------------------------------------------------------------------------------------

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        """The lease."""

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        """Replace the lease that is still exactly at `expected` (token and beat; None: there is none) by one with a
        new token. Raises `Conflict`.
        """

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        """Move the lease on to `lease.beat`, on condition that it has `lease.token` and a lower beat. Raises
        `Conflict` if it does not: somebody else leads, or the store has jumped back.
        """

    def release_lease(self, key: GroupKey, token: str) -> None:
        """Give the lease up, so that another leads at once. Somebody else's is left alone."""

    # --- who has what, for people and tools (seed 004) ----------------------------------------------------------------

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        """The record of every partition that was ever claimed."""

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        """Write each record on condition that the stored one still has its `version` (empty: there is none).

        Returns those that were claimed, with their new versions; one that is missing from the answer was not, and an
        unknown outcome counts as not claimed (OWN-02). `modified` is set by the store.
        """

    # --- news ---------------------------------------------------------------------------------------------------------

    def announce(self, key: GroupKey) -> None:
        """Wake whoever waits for news of this group, coordinators and flows. With `HEAD` as the group: coordinators
        look at the queue's head, after it was altered or a group was rewound. A lost call costs time only."""

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        """Wait until something was announced or written, at most `timeout_s`; the groups concerned, empty when the
        time is over. None: it cannot be known, look at all of them. By one thread at a time; what happened between
        two calls is not lost.

        A store that was opened for one group serves a flow and hears of new states of that group. Otherwise it
        serves coordinators and hears of the flows' records of all groups. Both hear announcements.
        """

    def drop_group(self, key: GroupKey) -> None:
        """Remove everything stored for a group that was deleted."""

    def close(self) -> None:
        """Give back connections; the store is not used afterwards."""
