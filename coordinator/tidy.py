"""What a leader does when there is time: ownership records, and the removal of records of flows that are gone.

Nobody depends on any of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coordinator.logs import Log
from coordinator.ownership_records import OwnershipRecords
from coordinator.records import Records
from partq_spark.base.errors import PartqError
from partq_spark.group.model import GroupKey, GroupState, Owner
from partq_spark.group.ownership import Ownership, Reincarnated


class Tidying:
    """Of one group in one process."""

    def __init__(self, store: Ownership, key: GroupKey, log: Log) -> None:
        self._store = store
        self._key = key
        self._log = log
        self._ownership = OwnershipRecords(store, key)
        self._gone: dict[Owner, None] = {}

    @property
    def gone(self) -> Collection[Owner]:
        """Flows that were let go, and whose records are still to be removed."""
        return self._gone.keys()

    def let_go(self, owners: Iterable[Owner]) -> None:
        """The group has no use for their records any more."""
        self._gone.update(dict.fromkeys(owners))

    def forget(self, *, term: bool = False) -> None:
        """Somebody else may have claimed since; in a new term of office, also have removed records."""
        self._ownership.forget()
        if term:
            self._gone.clear()

    def tidy(self, state: GroupState, token: str, records: Records | None) -> None:
        """Ownership records (seed 004), and records of flows that are gone. Again if it fails: neither decides.

        What is removed from the store is removed from `records` too. Raises `Reincarnated`.
        """
        try:
            self._ownership.follow(state, token)
            for owner in list(self._gone):
                if owner.flow not in state.flows and not self._store.forget_flow(self._key, *owner, state_token=token):
                    return  # somebody else wrote the state: the next step sees it too, and adopts the group anew
                record = records.flows.get(owner.flow) if records is not None else None
                if records is not None and record is not None and record.instance == owner.instance:
                    del records.flows[owner.flow]  # what is remembered must not bring it back
                del self._gone[owner]
        except Reincarnated:
            raise
        except PartqError as error:
            self._log("warning", "tidying_failed", group=str(self._key), reason=str(error))
