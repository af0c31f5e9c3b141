"""What surrounds the core in the model check: checkpoints, fences in flight, one message per partition.

Everything here is written from the rules of the stores and the sessions, without a look at what the core believes:

- A flow may deliver a partition while the state says that exactly this instance owns it, and the checkpoint says so.
- An acknowledgement counts while the checkpoint has the flow and epoch that delivered, however late it comes.
- A fence that was asked for once may land at any time after, any number of times, by whichever leader. It is refused by
  an epoch that is higher, and by its own one unless the former instance of the same flow has it.
- Every partition has one message that is next. A flow that delivers what was delivered before must be told by the
  checkpoint that it is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.core.actions import Fence
from coordinator.core.events import Event, PartitionDrained, Tick
from coordinator.core.invariants import broken_by_change
from partq_spark.group.model import GroupState, Owner, Partition, Phase


class Entry(NamedTuple):
    """What a flow's record says of a partition: this instance delivered the next message, at this epoch."""

    owner: Owner
    epoch: int


class Asked(NamedTuple):
    """A fence that was asked for."""

    to: Owner | None
    epoch: int
    owner: Owner | None
    owner_epoch: int


class Around(NamedTuple):
    """What is true of one partition outside the state. `epoch` and `owner` are the checkpoint's."""

    epoch: int = 0
    owner: Owner | None = None
    delivered: bool = False  # somebody has delivered the next message
    marked: bool = False  # the checkpoint says that the next message may have been delivered
    entry: Entry | None = None  # its owner has delivered it and not acknowledged it
    fences: tuple[Asked, ...] = ()  # in flight, and able to change something


class Wrong(Exception):
    """Something that must never be is."""


def asked(fence: Fence) -> Asked:
    """A fence as it flies."""
    return Asked(to=fence.to, epoch=fence.epoch, owner=fence.owner, owner_epoch=fence.owner_epoch)


def can_land(around: Around, fence: Asked) -> bool:
    """Whether the fence would change the checkpoint; one that is in place already changes nothing."""
    if fence.epoch != around.epoch:
        return fence.epoch > around.epoch
    return fence.epoch == fence.owner_epoch and fence.to != around.owner == fence.owner


def land(around: Around, fence: Asked) -> Around:
    """The fence lands: the checkpoint names `to`, and what the former owner had in hand is marked."""
    entry = around.entry
    in_hand = (
        entry is not None
        and fence.owner is not None
        and entry.owner.flow == fence.owner.flow
        and entry.epoch == fence.owner_epoch
    )
    after = around._replace(epoch=fence.epoch, owner=fence.to, marked=around.marked or in_hand)
    return after._replace(fences=tuple(other for other in after.fences if can_land(after, other)))


def may_deliver(partition: Partition, around: Around) -> bool:
    """Whether the owner may deliver the next message, and has not done so."""
    return (
        partition.phase is Phase.OWNED
        and around.owner == partition.owner
        and around.epoch == partition.epoch
        and around.owner is not None
        and around.entry != Entry(around.owner, around.epoch)
    )


def deliver(around: Around) -> Around:
    """The owner delivers the next message."""
    if around.delivered and not around.marked:
        raise Wrong("a message is delivered again without being marked")
    assert around.owner is not None
    return around._replace(delivered=True, entry=Entry(around.owner, around.epoch))


def can_acknowledge(around: Around) -> bool:
    """Whether an acknowledgement of the message that is in somebody's hand would be accepted."""
    entry, owner = around.entry, around.owner
    return entry is not None and owner is not None and owner.flow == entry.owner.flow and around.epoch == entry.epoch


def acknowledge(around: Around) -> Around:
    """The next message is another one, which nobody has seen."""
    return around._replace(delivered=False, marked=False, entry=None)


def is_drained(partition: Partition, around: Around) -> bool:
    """What a leader sees in the owner's record: nothing in hand at the owner's epoch."""
    entry = around.entry
    return (
        entry is None
        or partition.owner is None
        or entry.owner.flow != partition.owner.flow
        or entry.epoch != partition.epoch
    )


def wrongs(partition: Partition | int | None, around: Around) -> Iterator[str]:
    """What must be true of a partition and its checkpoint together. An int: the epoch at which it was retired."""
    if partition is None:
        return
    if isinstance(partition, int):
        if around.epoch > partition or around.owner is not None or around.fences:
            yield f"retired at epoch {partition} while its checkpoint is {around}"
        return
    mark = (around.epoch, around.owner)
    if partition.phase is Phase.FENCING:
        if around.epoch > partition.to_epoch or any(fence.epoch > partition.to_epoch for fence in around.fences):
            yield f"the fence that is asked for is not the highest: {partition}, {around}"
        if mark == (partition.to_epoch, partition.to):
            return
        wanted = Asked(partition.to, partition.to_epoch, partition.owner, partition.epoch)
        if wanted not in around.fences:
            yield f"nobody asked for the fence that is waited for, or it cannot land: {partition}, {around}"
    else:
        if mark != (partition.epoch, partition.owner):
            yield f"the state and the checkpoint name different owners: {partition}, {around}"
        if around.fences:
            yield f"a fence is in flight that nobody waits for: {partition}, {around}"


# --- what every step of the core must keep, whatever led to it --------------------------------------------------------


def check_pending(before: GroupState, after: GroupState, fences: list[Fence]) -> None:
    """A leader that knows only the state asks for exactly the fences that were asked for when it was decided."""
    for number, partition in after.partitions.items():
        if partition is before.partitions.get(number):
            continue
        found = [asked(fence) for fence in fences if fence.partition == number]
        former = before.partitions.get(number)
        if partition.phase is Phase.FENCING:
            wanted = Asked(partition.to, partition.to_epoch, partition.owner, partition.epoch)
            same = former is not None and (former.phase, former.to, former.to_epoch) == (
                Phase.FENCING,
                partition.to,
                partition.to_epoch,
            )
            if found[-1:] != ([] if same else [wanted]):
                raise Wrong(f"asked for {found} where the state waits for {wanted}")
        elif found:
            raise Wrong(f"asked for {found} where the state has {partition}")


def check_step(before: GroupState, after: GroupState, event: Event, now_s: float) -> None:
    """Epochs only grow, an epoch has one flow, and a living flow loses nothing before it is drained or in time."""
    for sentence in broken_by_change(before, after):
        raise Wrong(sentence)
    for number, was in before.partitions.items():
        now = after.partitions.get(number)
        if now is None or now is was:
            continue
        taken = was.phase in {Phase.OWNED, Phase.PAUSED} and now.phase is Phase.FENCING and not now.removed
        if taken and was.owner is not None and (now.to is None or now.to.flow != was.owner.flow):
            flow = after.flows.get(was.owner.flow)
            lives = flow is not None and flow.bound and Owner(flow.name, flow.instance) == was.owner
            drained = isinstance(event, PartitionDrained) and event.partition == number
            late = isinstance(event, Tick) and was.deadline_s is not None and was.deadline_s <= now_s
            if lives and (was.phase is Phase.OWNED or not (drained or late)):
                raise Wrong(f"{was} became {now} by {event}: taken before it was drained or its time was over")
