"""The ownership records of seed 004, kept in step with the group's state for people and tools (OWN-02).

Nobody decides anything by them: the state and the checkpoints do. So they may lag, and are written when there is time.
"""

from __future__ import annotations

from partq_spark.group.model import GroupKey, GroupState, Owner, OwnershipRecord, Phase
from partq_spark.group.ownership import Ownership


class OwnershipRecords:
    """What was claimed for one group by this process, as far as it knows."""

    def __init__(self, store: Ownership, key: GroupKey) -> None:
        self._store = store
        self._key = key
        self._known: dict[int, OwnershipRecord] | None = None
        self._followed: str | None = None  # the token of the state that the records agree with

    def forget(self) -> None:
        """Somebody else may have claimed since."""
        self._known = self._followed = None

    def follow(self, state: GroupState, token: str) -> None:
        """Claim whatever changed hands. Raises as the store does; the next call then begins with a listing."""
        if token == self._followed:
            return
        known, self._known = self._known, None
        if known is None:
            known = dict(self._store.list_ownership(self._key))
        wanted = [record for record in self._wanted(state, known) if _differs(record, known.get(record.partition))]
        claimed = self._store.claim_ownership(wanted) if wanted else {}
        if len(claimed) < len(wanted):
            return  # a condition did not hold, or nobody knows: list them again
        self._known, self._followed = {**known, **claimed}, token

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
