"""What a leader writes when there is time: ownership records for people and tools (OWN-02), and the removal of records
of flows that are gone and of binds that did not come to their end. Nobody decides anything by it: the state and the
checkpoints decide. So it may lag, and is tried again when it fails.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import Final

from coordinator.logs import Log
from coordinator.observe import Records
from partq_spark.base.errors import PartqError
from partq_spark.group.model import GroupKey, GroupState, Owner, OwnershipRecord, Phase
from partq_spark.group.ownership import Ownership, Reincarnated

UNNAMED_S: Final = 10.0
"""Between the two looks of a term at records that no heartbeat names: a bind writes its heartbeat one call after its
record. Should that one come later still, its flow binds anew.
"""


class Bookkeeping:
    """Of one group in one process."""

    def __init__(self, store: Ownership, key: GroupKey, log: Log) -> None:
        self._store = store
        self._key = key
        self._log = log
        self._claimed: dict[int, OwnershipRecord] | None = None  # the ownership records, as far as they are known
        self._followed: str | None = None  # the token of the state that they agree with
        self._gone: dict[Owner, None] = {}
        self._unnamed: Collection[Owner] | None = None  # records that no heartbeat named at the term's first look
        self._unnamed_due_s = -math.inf

    @property
    def gone(self) -> Collection[Owner]:
        """Flows that were let go, and whose records are still to be removed."""
        return self._gone.keys()

    def let_go(self, owners: Iterable[Owner]) -> None:
        """The group has no use for their records any more."""
        self._gone.update(dict.fromkeys(owners))

    def forget(self, *, term: bool = False) -> None:
        """Another leader may have claimed since; in a new term, it may also have removed records."""
        self._claimed = self._followed = None
        if term:
            self._gone.clear()
            self._unnamed, self._unnamed_due_s = None, -math.inf

    def catch_up(self, state: GroupState, token: str, records: Records | None, now_s: float) -> None:
        """Claim what changed hands, and remove the records of flows that are gone; once in a term, also those that
        nobody names. Again if it fails.

        What is removed from the store is removed from `records` too. Raises `Reincarnated`.
        """
        try:
            self._claim(state, token)
            for owner in list(self._gone):
                known = state.flows.get(owner.flow)
                is_gone = known is None or known.instance != owner.instance
                if is_gone and not self._store.forget_flow(self._key, *owner, state_token=token):
                    return  # another one wrote the state: the next step sees it too, and adopts the group anew
                record = records.flows.get(owner.flow) if records is not None else None
                if records is not None and record is not None and record.instance == owner.instance:
                    del records.flows[owner.flow]  # what is remembered must not bring it back
                del self._gone[owner]
            if now_s >= self._unnamed_due_s:
                self._remove_unnamed(state, now_s)
        except Reincarnated:
            raise
        except PartqError as error:
            self._log("warning", "tidying_failed", group=str(self._key), reason=str(error))

    def _remove_unnamed(self, state: GroupState, now_s: float) -> None:
        """What was there without a heartbeat at both looks, and is not the state's, is nobody's."""
        found = self._store.unnamed_records(self._key)
        if self._unnamed is None:
            self._unnamed, self._unnamed_due_s = found, now_s + UNNAMED_S if found else math.inf
            return
        known = {Owner(name, flow.instance) for name, flow in state.flows.items()}
        self._store.remove_records(self._key, found.intersection(self._unnamed) - known)
        self._unnamed_due_s = math.inf

    def _claim(self, state: GroupState, token: str) -> None:
        """Ownership records as `state` has it. The next call begins with a listing if this one fails."""
        if token == self._followed:
            return
        known, self._claimed = self._claimed, None
        if known is None:
            known = dict(self._store.list_ownership(self._key))
        wanted = [record for record in self._wanted(state, known) if _differs(record, known.get(record.partition))]
        claimed = self._store.claim_ownership(wanted) if wanted else {}
        if len(claimed) < len(wanted):
            return  # a condition did not hold, or nobody knows: list them again
        self._claimed, self._followed = {**known, **claimed}, token

    def _wanted(self, state: GroupState, known: dict[int, OwnershipRecord]) -> list[OwnershipRecord]:
        owners: dict[int, tuple[Owner | None, int]] = {
            number: (partition.owner, partition.epoch)
            for number, partition in state.partitions.items()
            if partition.phase is not Phase.FENCING and (partition.epoch or number in known)
        }
        for number, epoch in state.retired.items():
            if number in known and number not in state.partitions:
                owners[number] = (None, epoch)
        return [
            OwnershipRecord(
                key=self._key,
                partition=number,
                owner=owner,
                epoch=epoch,
                version=known[number].version if number in known else "",
                modified="",
            )
            for number, (owner, epoch) in owners.items()
        ]


def _differs(wanted: OwnershipRecord, known: OwnershipRecord | None) -> bool:
    return known is None or (wanted.owner, wanted.epoch) != (known.owner, known.epoch)
