"""Who has what in a group, kept in its documents: the state, a heartbeat per flow, a lease, and the ownership records
of seed 004. One implementation for Redis, objects and memory.

Every change is conditional and nothing is retried inside, beyond reading again what changed meanwhile. An answer that
did not come is `Unavailable`: whether the change took place is found out by reading (docs/architecture.md).
The state's body is opaque here (`codec` makes it).

What it costs, in calls (Redis: one round trip; objects: one request for each operation): a heartbeat is one call, the
swap of the heartbeat and a conditional read of the state. A flow that delivers looks at the state, by one conditional
read. A leader's look is one: the lease, a listing of heartbeats and a conditional read of the state. No document is
written by two processes in turn, except `leader` and `state` when the leader changes, so that no write meets a conflict
in ordinary times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.codec import encode_lease
from partq_spark.group.documents.api import (
    Announce,
    Audience,
    DocumentPlace,
    Documents,
    Found,
    Listed,
    Listing,
    Load,
    Reincarnated,
    Remove,
    Swap,
)
from partq_spark.group.model import GroupKey, Lease, OwnershipRecord
from partq_spark.group.ownership.encoding import (
    BEATS,
    LEADER,
    OWNERSHIP,
    STATE,
    LeaseDocument,
    Pulse,
    StateDocument,
    StateVersion,
    decode_leader,
    decode_ownership,
    encode_ownership,
    encode_version,
    lease_changed,
    only_group,
    ownership_name,
    state_changed,
)
from partq_spark.group.ownership.flows import DocumentRegister, Flows, Seen
from partq_spark.objects.api import UNCHANGED, Unchanged

_CLAIMS_AT_ONCE: Final = 1000
"""Redis does nothing else while a call runs; 1,000 claims take it some milliseconds."""

_TRIES: Final = 4
"""How often a renewal is sent: at first as the lease was seen last, then after it was read."""

_log = logging.getLogger("partq.flow")


class Ownership(Flows):
    """Safe for use by several threads. One object serves one user, a session or a coordinator with all of its groups.

    `effects` is for the times and claims of ownership records; `lock` makes locks.
    """

    def __init__(
        self,
        documents: Documents,
        effects: Effects | None = None,
        *,
        lock: Callable[[], AbstractContextManager[object]] = threading.Lock,
    ) -> None:
        super().__init__(documents, lock=lock)
        self._effects = effects if effects is not None else Effects()
        self._leases: dict[GroupKey, DocumentRegister[Lease]] = {}

    def __repr__(self) -> str:
        return f"Ownership({self._documents!r})"

    @property
    def url(self) -> str:
        """The store's address, free of secrets: what `--ownership` takes."""
        return self._documents.url

    @property
    def look_interval_s(self) -> float:
        """How often a waiting process may look for news without being a burden."""
        return self._documents.look_interval_s

    @property
    def lives(self) -> int:
        """How often this user met another life of the store, see `Documents.lives`."""
        return self._documents.lives

    def look_at_place(self) -> None:
        """Whether the documents still lie where they did; see `Documents.look_at_place`."""
        self._documents.look_at_place()

    def close(self) -> None:
        """Give back connections; the store is not used afterwards."""
        self._documents.close()

    def _lease(self, key: GroupKey) -> DocumentRegister[Lease]:
        found = self._leases.get(key)
        return found or self._leases.setdefault(key, DocumentRegister(self._documents, key, LEADER, decode_leader))

    # --- the group's state: changed by the leader ---------------------------------------------------------------------

    def read_state(self, key: GroupKey, *, known: str | None = None) -> StateDocument | Unchanged | None:
        """The state; `UNCHANGED` if its token is still `known`; None if there is none.

        A caller that names the version it knows gets a newer one, if a heartbeat has met it already, without another
        load, and then without age.
        """
        state = self._state(key)
        look = state.look()
        (found,) = self._documents.ask(key, Load(STATE, aged=True) if known is None else look.operation)
        seen = state.saw(look, found)
        if seen is None:
            return None
        token, body = seen.value
        if token == known:
            return UNCHANGED
        return StateDocument(token=token, body=body, age_s=found.age_s if isinstance(found, Found) else 0.0)

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        """Replace the state whose token is `expected` (None: there must be none), giving it `token`, a new random one.
        News for the group's flows.

        Raises `Conflict` if the condition did not hold, and nothing was changed.
        """
        state = self._state(key)
        seen: Seen[StateVersion] | None = None
        if expected is not None:
            seen = state.seen
            if seen is None or seen.value.token != expected:
                seen = state.read()
            if seen is None or seen.value.token != expected:
                raise state_changed(key, expected)
        written = StateVersion(token, body)
        if state.swap(seen, written, encode_version(token, body), Announce(Audience.FLOWS)) is None:
            raise state_changed(key, expected)

    # --- the lease ----------------------------------------------------------------------------------------------------

    def read_lease(self, key: GroupKey) -> LeaseDocument | None:
        """The lease."""
        register = self._lease(key)
        look = register.look()
        (found,) = self._documents.ask(key, Load(LEADER, aged=True))
        seen = register.saw(look, found)
        return LeaseDocument(lease=seen.value, age_s=found.age_s) if seen and isinstance(found, Found) else None

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        """Replace the lease that is still exactly at `expected` (token and beat; None: there is none) by one with a
        new token. Raises `Conflict`.
        """
        register = self._lease(key)
        found = register.seen
        if not _is_at(found, expected):
            found = register.read()
        if not _is_at(found, expected):
            raise lease_changed(key, "taking")
        if register.swap(found, lease, encode_lease(lease)) is None:
            raise lease_changed(key, "taking")

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        """Move the lease on to `lease.beat`, on condition that it has `lease.token` and a lower beat. Raises
        `Conflict` if it does not: somebody else leads, or the store has jumped back.
        """
        register, state = self._lease(key), self._state(key)
        look = state.look()
        found = register.seen
        for _ in range(_TRIES):
            # Read again where an earlier renewal came through whose answer was lost; it may come between, too.
            if found is None or not _may_renew(found.value, lease):
                found = register.read()
            if found is None or not _may_renew(found.value, lease):
                break
            answers = register.swap(found, lease, encode_lease(lease), Listing(BEATS), look.operation)
            if answers is not None:
                listed, answer = answers
                seen = state.saw(look, answer)
                return self._pulse(key, listed, None if seen is None else seen.value.token)
            found = None
        raise lease_changed(key, "renewing")

    def _pulse(self, key: GroupKey, listed: Listed, state_token: str | None) -> Pulse:
        hearts = self._hearts_in(key, listed)
        beats = dict(zip(hearts.owners, listed.tokens, strict=True))
        return Pulse(state_token=state_token, flows=hearts.records, beats=beats)

    def release_lease(self, key: GroupKey, token: str) -> None:
        """Give the lease up, so that another leads at once. Somebody else's is left alone."""
        register = self._lease(key)
        found = register.read()
        if found is not None and found.value.token == token:
            register.forget()
            self._documents.ask(key, Remove(LEADER, found.token))  # refused: it is somebody else's by now

    # --- who has what, for people and tools (seed 004) ----------------------------------------------------------------

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        """The record of every partition that was ever claimed."""
        (listed,) = self._documents.ask(key, Listing(OWNERSHIP))
        records = (decode_ownership(found, DocumentPlace(self._documents, key, found.name), key) for found in listed)
        return {record.partition: record for record in sorted(records, key=lambda record: record.partition)}

    def claim_ownership(self, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        """Write each record on condition that the stored one still has its `version` (empty: there is none).

        Returns those that were claimed, with their new versions; one that is missing from the answer was not, and an
        unknown outcome counts as not claimed (OWN-02). `modified` is set here, by this process's clock.
        """
        wanted = tuple(records)
        if not wanted:
            return {}
        key = only_group(wanted)
        claim = self._effects.token()
        modified = datetime.fromtimestamp(self._effects.time_us() / 1e6, UTC).isoformat(timespec="milliseconds")
        claimed: dict[int, OwnershipRecord] = {}
        for first in range(0, len(wanted), _CLAIMS_AT_ONCE):
            try:
                claimed |= self._claim(key, wanted[first : first + _CLAIMS_AT_ONCE], modified, claim)
            except Reincarnated:
                raise
            except Unavailable as error:
                _log.warning("group %s: %d partitions count as not claimed: %s", key, len(wanted) - first, error)
                break
        return claimed

    def _claim(
        self, key: GroupKey, wanted: Sequence[OwnershipRecord], modified: str, claim: str
    ) -> dict[int, OwnershipRecord]:
        swaps = [
            Swap(
                ownership_name(record.partition),
                encode_ownership(record, modified, claim),
                expected=record.version or None,
                optional=True,
            )
            for record in wanted
        ]
        answers = self._documents.ask(key, *swaps)
        return {
            record.partition: replace(record, version=token, modified=modified)
            for record, token in zip(wanted, answers, strict=True)
            if token is not None
        }

    # --- news ---------------------------------------------------------------------------------------------------------

    def announce(self, key: GroupKey) -> None:
        """Wake the coordinators and flows that wait for news of this group. With `HEAD` as the group: coordinators
        look at the queue's head, after it was altered or a group was rewound. A lost call costs time only.
        """
        self._documents.ask(key, Announce(Audience.COORDINATORS), Announce(Audience.FLOWS))

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        """Wait until something was announced or written, at most `timeout_s`; the groups concerned, empty when the
        time is over. None: it cannot be known, look at all of them. By one thread at a time; what happened between
        two calls is not lost.

        A store that was opened for one group serves a flow and hears of new states of that group. Otherwise it
        serves coordinators and hears of the flows of all groups. Both hear announcements.
        """
        return self._documents.wait(timeout_s)

    def drop_group(self, key: GroupKey) -> None:
        """Remove everything stored for a group that was deleted."""
        self._documents.drop(key)
        self._forget_group(key)
        self._leases.pop(key, None)


def _is_at(found: Seen[Lease] | None, lease: Lease | None) -> bool:
    """It is at this token and beat."""
    if found is None or lease is None:
        return found is None and lease is None
    return (found.value.token, found.value.beat) == (lease.token, lease.beat)


def _may_renew(found: Lease, lease: Lease) -> bool:
    """It is of the same term, and has not moved on."""
    return found.token == lease.token and found.beat < lease.beat
