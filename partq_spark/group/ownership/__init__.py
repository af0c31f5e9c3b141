"""Who has what in a group that several share, and who lives, kept in the group's documents: the state, a heartbeat per
flow, a lease, and the ownership records of seed 004. One implementation for Redis and objects, and how a
program opens it. Importing this package imports neither Redis' client nor any SDK.

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

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Corrupt, Invalid
from partq_spark.base.json_documents import check_sealed, sealed
from partq_spark.group.codec import encode_lease
from partq_spark.group.documents import (
    Announce,
    Audience,
    Documents,
    Found,
    Listing,
    Load,
    ObjectDocuments,
    Reincarnated,
    Remove,
    Swap,
)
from partq_spark.group.documents.urls import PASSWORD, USERNAME, parse_ownership
from partq_spark.group.model import GroupKey, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership.flows import DocumentRegister, Flows, checked_flow
from partq_spark.group.ownership.versions import (
    BEATS,
    HEAD,
    LEADER,
    OWNERSHIP,
    STATE,
    Pulse,
    Seen,
    StateDocument,
    decode_leader,
    encode_version,
    read_fields,
)
from partq_spark.objects import ObjectStore
from partq_spark.objects.api import UNCHANGED, Unchanged

__all__ = [
    "HEAD",
    "Ownership",
    "Pulse",
    "Reincarnated",
    "Seen",
    "StateDocument",
    "import_client",
    "open_ownership",
]

_CLAIMS_AT_ONCE: Final = 1000
"""Redis does nothing else while a call runs; 1,000 claims take it some milliseconds."""


class Ownership(Flows):
    """Safe for use by several threads. One object serves one user, a session or a coordinator with all of its groups.

    `documents` tell where all of it lies, how often to look, and which life of the store this is; `effects` is for the
    times and claims of ownership records.
    """

    def __init__(self, documents: Documents, effects: Effects | None = None) -> None:
        super().__init__(documents)
        self._effects = effects if effects is not None else Effects()

    def close(self) -> None:
        """Give back connections; the store is not used afterwards."""
        self.documents.close()

    def _lease(self, key: GroupKey) -> DocumentRegister[Lease]:
        return self._register(key, LEADER, decode_leader)

    # --- the group's state: changed by the leader ---------------------------------------------------------------------

    def read_state(
        self, key: GroupKey, *, known: str | None = None, aged: bool = False
    ) -> StateDocument | Unchanged | None:
        """The state; `UNCHANGED` if its token is still `known`; None if there is none. `aged`: its age is of interest.

        A caller gets a version that a heartbeat has met already without another load.
        """
        state = self._state(key)
        last = state.seen
        (answer,) = self.documents.ask(key, Load(STATE, aged=True) if aged else state.look(last))
        seen = state.saw(answer, last)
        if seen is None:
            return None
        return UNCHANGED if seen.value.token == known else seen.value._replace(age_s=seen.age_s)

    def swap_state(self, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        """Replace the state whose token is `expected` (None: there must be none), giving it `token`, a new random one.
        News for the group's flows.

        Raises `Conflict` if the condition did not hold, and nothing was changed.
        """

        def is_there(seen: Seen[StateDocument] | None) -> bool:
            return expected == (None if seen is None else seen.value.token)

        written, news = StateDocument(token, body), Announce(Audience.FLOWS)
        if self._state(key).swap_where(is_there, written, encode_version(token, body), news) is None:
            was = "no state" if expected is None else f"token {expected}"
            raise Conflict(
                f"state of group {key} is not at {was} any more: read it again, and the lease, before changing it"
            )

    # --- the lease ----------------------------------------------------------------------------------------------------

    def read_lease(self, key: GroupKey, *, aged: bool = False) -> Seen[Lease] | None:
        """The lease. `aged`: its age is of interest."""
        (found,) = self.documents.ask(key, Load(LEADER, aged=aged))
        return self._lease(key).saw(found, None)

    def take_lease(self, key: GroupKey, lease: Lease, *, expected: Lease | None) -> None:
        """Replace the lease that is still exactly at `expected` (token and beat; None: there is none) by one with a
        new token. Raises `Conflict`.
        """

        def is_there(found: Seen[Lease] | None) -> bool:
            if found is None or expected is None:
                return found is None and expected is None
            return (found.value.token, found.value.beat) == (expected.token, expected.beat)

        if self._lease(key).swap_where(is_there, lease, encode_lease(lease)) is None:
            raise _lease_changed(key, "taking")

    def renew_lease(self, key: GroupKey, lease: Lease) -> Pulse:
        """Move the lease on to `lease.beat`, on condition that it has `lease.token` and a lower beat. Raises
        `Conflict` if it does not: somebody else leads, or the store has jumped back. A flow whose heartbeat is damaged
        counts as gone.
        """

        def is_mine(found: Seen[Lease] | None) -> bool:
            return found is not None and found.value.token == lease.token and found.value.beat < lease.beat

        state = self._state(key)
        known = state.seen
        looks = Listing(BEATS), state.look(known)
        # Tried again where an earlier renewal came through whose answer was lost; it may come between, too.
        answers = self._lease(key).swap_where(is_mine, lease, encode_lease(lease), *looks)
        if answers is None:
            raise _lease_changed(key, "renewing")
        listed, answer = answers
        seen, flows = state.saw(answer, known), self._flows_in(key, listed).beats
        return Pulse(state_token=None if seen is None else seen.value.token, flows=flows)

    def release_lease(self, key: GroupKey, token: str) -> None:
        """Give the lease up, so that another leads at once. Somebody else's is left alone."""
        register = self._lease(key)
        found = register.read()
        if found is not None and found.value.token == token:
            register.seen = None
            self.documents.ask(key, Remove(LEADER, found.token))  # refused: it is somebody else's by now

    # --- who has what, for people and tools (seed 004) ----------------------------------------------------------------

    def list_ownership(self, key: GroupKey) -> Mapping[int, OwnershipRecord]:
        """The record of every partition that was ever claimed."""
        (listed,) = self.documents.ask(key, Listing(OWNERSHIP))
        records = (
            _decode_record(each, self.documents.where(key, f"{OWNERSHIP}/{each.name}"), key.group) for each in listed
        )
        return {record.partition: record for record in sorted(records, key=lambda record: record.partition)}

    def claim_ownership(self, key: GroupKey, records: Iterable[OwnershipRecord]) -> Mapping[int, OwnershipRecord]:
        """Write each record on condition that the stored one still has its `version` (empty: there is none).

        Returns those that were claimed, with their new versions and `modified` by this process's clock; one that is
        missing from the answer was not. Nor is any where no answer comes, until they are listed (OWN-02).
        """
        claim = self._effects.token()
        modified = datetime.fromtimestamp(self._effects.time_us() / 1e6, UTC).isoformat(timespec="milliseconds")
        wanted = [replace(record, modified=modified) for record in records]
        claimed: dict[int, OwnershipRecord] = {}
        for first in range(0, len(wanted), _CLAIMS_AT_ONCE):
            some = wanted[first : first + _CLAIMS_AT_ONCE]
            swaps = [
                Swap(f"{OWNERSHIP}/{each.partition}", _encode_record(key, each, claim), each.version or None)
                for each in some
            ]
            for each, token in zip(some, self.documents.ask(key, *swaps), strict=True):
                if token is not None:
                    claimed[each.partition] = replace(each, version=token)
        return claimed

    # --- news ---------------------------------------------------------------------------------------------------------

    def announce(self, key: GroupKey) -> None:
        """Wake the coordinators and flows that wait for news of this group. With `HEAD` as the group: coordinators
        look at the queue's head, after it was altered or a group was rewound. A lost call costs time only.
        """
        self.documents.ask(key, Announce(Audience.COORDINATORS), Announce(Audience.FLOWS))

    def wait_news(self, timeout_s: float) -> frozenset[GroupKey] | None:
        """Wait until something was announced or written, at most `timeout_s`; the groups concerned, empty when the
        time is over. None: it cannot be known, look at all of them. By one thread at a time; what happened between
        two calls is not lost.

        A store that was opened for one group serves a flow and hears of new states of that group. Otherwise it
        serves coordinators and hears of the flows of all groups. Both hear announcements.
        """
        return self.documents.wait(timeout_s)

    def drop_group(self, key: GroupKey) -> None:
        """Remove everything stored for a group that was deleted."""
        self.documents.drop(key)
        self._said.pop(key, None)
        for place in list(self._registers):  # other groups' threads change it meanwhile
            if place[0] == key:
                self._registers.pop(place, None)


def _lease_changed(key: GroupKey, doing: str) -> Conflict:
    """The lease is not where the caller expected it."""
    return Conflict(f"lease of group {key} is not where it was expected when {doing} it: read it before leading")


def _encode_record(key: GroupKey, record: OwnershipRecord, claim: str) -> dict[str, str]:
    """The fields of seed 004, and a checksum. The version is the document's token; `claim`, a random one, tells the
    values of one call from those of every other.
    """
    fields = {
        **key._asdict(),
        "partition": str(record.partition),
        "epoch": str(record.epoch),
        "modified": record.modified,
        "claim": claim,
    }
    if record.owner is not None:
        fields |= {"flow": checked_flow(record.owner.flow), "instance": checked_flow(record.owner.instance)}
    return sealed(fields)


def _decode_record(found: Found, where: str, group: str) -> OwnershipRecord:
    """As read. Raises `Corrupt`, also for one that belongs elsewhere."""
    fields = read_fields(found.value)
    check_sealed(fields, where, "remove it, it is written anew")
    try:
        partition = int(fields["partition"])
        if (fields["group"], str(partition)) != (group, found.name):
            raise ValueError("it lies in another's place")
        return OwnershipRecord(
            partition=partition,
            owner=Owner(fields["flow"], fields["instance"]) if "flow" in fields else None,
            epoch=int(fields["epoch"]),
            version=found.token,
            modified=fields["modified"],
        )
    except (KeyError, ValueError):
        raise Corrupt(f"{where} has metadata that partq did not write: remove it, it is written anew") from None


# --- opening it -------------------------------------------------------------------------------------------------------


def open_ownership(
    url: str,
    *,
    store: ObjectStore | None = None,
    group: GroupKey | None = None,
    environ: Mapping[str, str] = os.environ,
    around: Callable[[Documents], Documents] = lambda documents: documents,
) -> Ownership:
    """The ownership kept at `redis://host:port/db`, `rediss://host:port/db?ssl_ca_certs=/path/ca.pem`, or `store`,
    which keeps it as objects in the given `store`, the one with the queues. In Redis its id tells its groups from those
    of other stores; the first process that uses Redis with a store gives it one.

    A flow names its `group`, and then waits only for news of that group's state; a coordinator does not. User and
    password of Redis come from PARTQ_REDIS_USERNAME and PARTQ_REDIS_PASSWORD in `environ`. Its calls are bounded
    (`RedisClient`); objects take what their store takes, so give one that does not try again for long
    (`open_store(url, retry_timeout_s=0)`).

    `around` may put something in between that counts calls.

    Nothing is connected yet, except that Redis' package is imported. Raises `Invalid` for any other URL, for one that
    carries a user or password, and where Redis' package is not installed.
    """
    parsed = parse_ownership(url)
    if parsed is None:
        if store is None:
            raise Invalid("ownership 'store' is kept beside the queue, and no store was given: name one with --store")
        return Ownership(around(ObjectDocuments(store)))
    username, password = environ.get(USERNAME, ""), environ.get(PASSWORD, "")
    if username and not password:
        raise Invalid(f"ownership {parsed}: {USERNAME} is set and {PASSWORD} is not: set both, or none")
    try:
        from partq_spark.group.documents.redis import RedisDocuments
        from partq_spark.group.documents.redis_client import RedisClient
    except ModuleNotFoundError as error:
        raise Invalid(
            f"ownership {parsed} needs the package {error.name}: install it with `pip install partq[redis]`"
        ) from None
    if store is None:
        raise Invalid(f"ownership {parsed} tells stores apart, and no store was given: name one with --store")
    client = RedisClient(parsed, username=username, password=password)
    return Ownership(around(RedisDocuments(client, store, group=group)))


def import_client(url: str) -> None:
    """Import what `open_ownership` will need: Redis' package takes a tenth of a second, which another thread may spare
    the first who joins. A wrong URL or a missing package is for `open_ownership` to tell.
    """
    with suppress(Invalid, ImportError):
        if parse_ownership(url) is not None:
            import partq_spark.group.documents.redis  # noqa: F401
