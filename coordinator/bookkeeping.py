"""What a leader writes when there is time: ownership records for people and tools (OWN-02), and the removal of flows
that are gone. Nobody decides anything by it: the state and the checkpoints decide. So it may lag, and is tried again
when it fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from coordinator.logs import Log
from partq_spark.base.errors import PartqError
from partq_spark.group.model import GroupKey, GroupState, Owner, OwnershipRecord, Phase
from partq_spark.group.ownership import Ownership, Reincarnated


class Bookkeeping:
    """Of one group in one process."""

    def __init__(self, store: Ownership, key: GroupKey, log: Log) -> None:
        self._store = store
        self._key = key
        self._log = log
        self._claimed: dict[int, OwnershipRecord] | None = None  # the ownership records, as far as they are known
        self._followed: str | None = None  # the token of the state that they agree with
        self._gone: dict[Owner, None] = {}

    @property
    def gone(self) -> Collection[Owner]:
        """Flows that were let go, and whose heartbeats are still to be removed."""
        return self._gone.keys()

    def let_go(self, owners: Iterable[Owner]) -> None:
        """The group has no use for them any more."""
        self._gone.update(dict.fromkeys(owners))

    def forget(self, *, term: bool = False) -> None:
        """Another leader may have claimed since; in a new term, it may also have removed records."""
        self._claimed = self._followed = None
        if term:
            self._gone.clear()

    def catch_up(self, state: GroupState, token: str) -> None:
        """Claim what changed hands, and remove flows that are gone. Again if it fails. Raises `Reincarnated`."""
        try:
            self._claim(state, token)
            for owner in list(self._gone):
                known = state.flows.get(owner.flow)
                is_gone = known is None or known.instance != owner.instance
                if is_gone and not self._store.forget_flow(self._key, *owner, state_token=token):
                    return  # another one wrote the state: the next step sees it too, and adopts the group anew
                del self._gone[owner]
        except Reincarnated:
            raise
        except PartqError as error:
            self._log("warning", "tidying_failed", reason=str(error))

    def _claim(self, state: GroupState, token: str) -> None:
        """Ownership records as `state` has it. The next call begins with a listing if this one fails."""
        if token == self._followed:
            return
        known, self._claimed = self._claimed, None
        if known is None:
            known = dict(self._store.list_ownership(self._key))
        owners: dict[int, tuple[Owner | None, int]] = {
            number: (partition.owner, partition.epoch)
            for number, partition in state.partitions.items()
            if partition.phase is not Phase.FENCING and (partition.epoch or number in known)
        }
        owners |= {number: (None, epoch) for number, epoch in state.retired.items() if number in known}
        wanted = [
            OwnershipRecord(
                partition=number,
                owner=owner,
                epoch=epoch,
                version=known[number].version if number in known else "",
            )
            for number, (owner, epoch) in owners.items()
            if number not in known or (known[number].owner, known[number].epoch) != (owner, epoch)
        ]
        claimed = self._store.claim_ownership(self._key, wanted) if wanted else {}
        if len(claimed) < len(wanted):
            return  # a condition did not hold: list them again
        self._claimed, self._followed = {**known, **claimed}, token
