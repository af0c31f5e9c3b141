"""What the checkpoints say against what the state says: a state from nothing, and the differences as events."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from coordinator.core.events import CheckpointAhead, Event, PartitionFenced
from partq_spark.group.model import Flow, GroupSettings, GroupState, Owner, Partition, Phase, RebalanceStatus


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointMark:
    """What a partition's checkpoint says of its ownership. `owner` None: nobody."""

    epoch: int
    owner: Owner | None


_NO_MARK = CheckpointMark(epoch=0, owner=None)  # there is no checkpoint: never fenced


def initial_state(
    *,
    queue_id: str,
    settings: GroupSettings,
    partitions: Iterable[int],
    checkpoints: Mapping[int, CheckpointMark],
    session_timeout_s: float,
    now_s: float,
) -> GroupState:
    """The state of a group that has none: new, or lost with Redis. Owners in the checkpoints count as Unbound for
    `session_timeout_s` plus the rebalance delay, so that flows that still live can come back with their mapping.

    `checkpoints` may lack partitions (never fenced, or damaged: the fence will find that its epoch is too low once it
    can be read) and may have more than `partitions` (numbers that were removed).
    """
    numbers = sorted(set(partitions))
    group: dict[int, Partition] = {}
    flows: dict[str, Flow] = {}
    for number in numbers:
        mark = checkpoints.get(number, _NO_MARK)
        if mark.owner is None:
            group[number] = Partition(partition=number, epoch=mark.epoch)
            continue
        group[number] = Partition(partition=number, phase=Phase.OWNED, epoch=mark.epoch, owner=mark.owner)
        name, instance = mark.owner
        flows.setdefault(name, Flow(name=name, instance=instance, bound=False, since=0))
    return GroupState(
        queue_id=queue_id,
        settings=settings,
        partitions=group,
        flows=flows,
        retired={number: mark.epoch for number, mark in sorted(checkpoints.items()) if number not in group},
        status=RebalanceStatus.HOLDDOWN if flows else RebalanceStatus.READY,
        holddown_until_s=now_s + session_timeout_s + settings.rebalance_delay_s if flows else None,
    )


def differences(
    state: GroupState, checkpoints: Mapping[int, CheckpointMark], damaged: Container[int] = ()
) -> tuple[Event, ...]:
    """Events that bring the state in line with the checkpoints, to be fed to `decide` in order when a leader adopts.

    `PartitionFenced` for a fence that is in place already, `CheckpointAhead` for what the state does not
    explain. A checkpoint that is behind (lower epoch than the state's, or missing where the state names an owner)
    counts as unexplained too. Partitions that the state does not have are left to `QueueAltered.epochs`. What is
    `damaged` says nothing: the state stands.
    """
    events = (
        _difference(partition, checkpoints.get(number, _NO_MARK))
        for number, partition in state.partitions.items()
        if number not in damaged
    )
    return tuple(event for event in events if event is not None)


def _difference(partition: Partition, mark: CheckpointMark) -> Event | None:
    if partition.phase is Phase.FREE:
        # One that is behind harms nobody: the next fence goes above both.
        explained = mark.owner is None and mark.epoch <= partition.epoch
    elif partition.phase is not Phase.FENCING:
        explained = mark == CheckpointMark(epoch=partition.epoch, owner=partition.owner)
    elif mark == CheckpointMark(epoch=partition.to_epoch, owner=partition.to):
        return PartitionFenced(partition=partition.partition, epoch=mark.epoch, owner=mark.owner)
    elif partition.to_epoch == partition.epoch:
        explained = mark == CheckpointMark(epoch=partition.epoch, owner=partition.owner)
    else:
        # Still the owner's, or an earlier fence has landed that was given up since: the pending one goes above.
        explained = mark.epoch < partition.to_epoch
    if explained:
        return None
    return CheckpointAhead(partition=partition.partition, epoch=max(mark.epoch, partition.epoch))
