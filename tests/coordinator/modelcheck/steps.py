"""What every step of the core must keep, whatever led to it: epochs, owners, and the fences that were asked for."""

from __future__ import annotations

from coordinator.core.actions import Fence
from coordinator.core.events import Event, PartitionDrained, Tick
from partq_spark.group.model import GroupState, Owner, Phase
from tests.coordinator.modelcheck import world as outside
from tests.coordinator.modelcheck.world import Wrong


def check_pending(before: GroupState, after: GroupState, fences: list[Fence]) -> None:
    """A leader that knows only the state asks for exactly the fences that were asked for when it was decided."""
    for number, partition in after.partitions.items():
        if partition is before.partitions.get(number):
            continue
        found = [outside.asked(fence) for fence in fences if fence.partition == number]
        former = before.partitions.get(number)
        if partition.phase is Phase.FENCING:
            wanted = outside.Asked(partition.to, partition.to_epoch, partition.owner, partition.epoch)
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
    for number, was in before.partitions.items():
        now = after.partitions.get(number)
        if now is was:
            continue
        if now is None:
            if after.retired.get(number, -1) < max(was.epoch, was.to_epoch):
                raise Wrong(f"{was} was retired at {after.retired.get(number)}")
            continue
        if now.epoch < was.epoch or (
            now.epoch == was.epoch
            and now.owner != was.owner
            and (now.owner is None or was.owner is None or now.owner.flow != was.owner.flow)
        ):
            raise Wrong(f"{was} became {now}")
        if was.phase is Phase.FENCING is now.phase and now.to_epoch < was.to_epoch:
            raise Wrong(f"{was} became {now}")
        taken = was.phase in {Phase.OWNED, Phase.PAUSED} and now.phase is Phase.FENCING and not now.removed
        if taken and was.owner is not None and (now.to is None or now.to.flow != was.owner.flow):
            flow = after.flows.get(was.owner.flow)
            lives = flow is not None and flow.bound and Owner(flow.name, flow.instance) == was.owner
            drained = isinstance(event, PartitionDrained) and event.partition == number
            late = isinstance(event, Tick) and was.deadline_s is not None and was.deadline_s <= now_s
            if lives and (was.phase is Phase.OWNED or not (drained or late)):
                raise Wrong(f"{was} became {now} by {event}: taken before it was drained or its time was over")
    for number, epoch in before.retired.items():
        back = after.partitions.get(number)
        if (after.retired.get(number, -1) if back is None else back.epoch) < epoch:
            raise Wrong(f"partition {number}, retired at epoch {epoch}, does not continue: {back}")
