"""What surrounds the core in the model check: checkpoints, fences in flight, one message per partition; and one name
for all states that differ only in names.

What surrounds it is written from the rules of the stores and the sessions, without a look at what the core believes:

- A flow raises the checkpoint that names it, whatever the state says by then; it delivers while it is raised and the
  state says that exactly this instance owns the partition. It closes it when it has nothing in hand.
- An acknowledgement counts while the checkpoint has the flow and epoch that delivered, however late it comes.
- A fence that was asked for once may land at any time after, any number of times, by whichever leader. It is refused by
  an epoch that is higher, and by its own one unless the former instance of the same flow has it; a drained one by a
  checkpoint that is open. It marks what may have been delivered.
- Every partition has one message that is next. A flow that delivers what was delivered before must be told by the
  checkpoint that it is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from coordinator.core.events import Event, PartitionDrained, Tick
from partq_spark.group.model import (
    AccessType,
    Flow,
    GroupSettings,
    GroupState,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)


class Asked(NamedTuple):
    """A fence that was asked for."""

    to: Owner | None
    epoch: int
    owner: Owner | None
    owner_epoch: int
    drained: bool = False


class Around(NamedTuple):
    """What is true of one partition outside the state. `epoch`, `owner` and `is_open` are the checkpoint's."""

    epoch: int = 0
    owner: Owner | None = None
    is_open: bool = False  # its owner may have delivered the next message
    delivered: bool = False  # somebody has delivered the next message
    marked: bool = False  # the checkpoint says that the next message may have been delivered
    in_hand: bool = False  # its owner has delivered it and not acknowledged it
    fences: tuple[Asked, ...] = ()  # in flight, and able to change something


class Wrong(Exception):
    """Something that must never be is."""


def asked(partition: Partition) -> Asked:
    """The fence that a partition waits for, as it flies."""
    return Asked(partition.to, partition.to_epoch, partition.owner, partition.epoch, partition.drained)


def can_land(around: Around, fence: Asked) -> bool:
    """Whether the fence would change the checkpoint, now or once it is closed; one that is in place changes nothing."""
    if fence.epoch != around.epoch:
        return fence.epoch > around.epoch
    return fence.epoch == fence.owner_epoch and fence.to != around.owner == fence.owner


def is_held_up(around: Around, fence: Asked) -> bool:
    """A drained fence waits until the checkpoint is closed."""
    return fence.drained and around.is_open


def land(around: Around, fence: Asked) -> Around:
    """The fence lands: the checkpoint names `to`, and what the former owner may have delivered is marked."""
    marked = around.marked or around.is_open
    after = around._replace(epoch=fence.epoch, owner=fence.to, marked=marked, in_hand=False)
    return after._replace(fences=tuple(other for other in after.fences if can_land(after, other)))


def may_deliver(partition: Partition, around: Around) -> bool:
    """Whether the owner may deliver the next message, and has not done so."""
    is_its = around.owner is not None and (around.owner, around.epoch) == (partition.owner, partition.epoch)
    return partition.phase is Phase.OWNED and is_its and around.is_open and not around.in_hand


def deliver(around: Around) -> Around:
    """The owner delivers the next message."""
    if around.delivered and not around.marked:
        raise Wrong("a message is delivered again without being marked")
    return around._replace(delivered=True, in_hand=True)


def writes(around: Around) -> Iterator[Around]:
    """What the owner may write: it raises, acknowledges what it has in hand (then the next message is another one,
    which nobody has seen), or closes.
    """
    if around.owner is None:
        return
    if not around.is_open:
        yield around._replace(is_open=True)
    elif around.in_hand:
        yield around._replace(delivered=False, marked=False, in_hand=False)
    else:
        yield around._replace(is_open=False)


def is_drained(partition: Partition, around: Around) -> bool:
    """What a leader sees in the checkpoint: its owner has nothing in hand."""
    return not around.is_open and (around.owner, around.epoch) == (partition.owner, partition.epoch)


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
        if asked(partition) not in around.fences:
            yield f"nobody asked for the fence that is waited for, or it cannot land: {partition}, {around}"
    else:
        if mark != (partition.epoch, partition.owner):
            yield f"the state and the checkpoint name different owners: {partition}, {around}"
        if around.fences:
            yield f"a fence is in flight that nobody waits for: {partition}, {around}"


# --- what every step of the core must keep, whatever led to it --------------------------------------------------------


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


# --- one name for all that differ only in names -----------------------------------------------------------------------

# What is renamed: flows (by age, then by where they appear first), their instances, epochs (by their order, for each
# partition by itself) and timers (they all are "set"). Nothing in the core looks at more than equality and order of
# these, and a new epoch is above all. Partitions keep their numbers, because plans go by them.

DELAY_S: Final = 1.0
"""Both timers of the model. Time stands at 0 while events happen; a timer fires when it moves on."""

NAMES: Final = "abcdefgh"
SETTINGS: Final = {
    access: GroupSettings(rebalance_delay_s=DELAY_S, max_handoff_time_s=DELAY_S, access_type=access)
    for access in AccessType
}

Held = Partition | int | None
"""A partition of the state, or the epoch at which it was retired, or None: there never was one."""


class World(NamedTuple):
    """A state and what surrounds each partition number."""

    state: GroupState
    around: tuple[Around, ...]


class Kept(NamedTuple):
    """A world without its names: equal for all that differ in nothing else."""

    status: RebalanceStatus
    trigger: bool
    altered: bool
    access: AccessType
    flows: tuple[Flow, ...]
    parts: tuple[tuple[Held, Around], ...]


class _Names:
    """New names in the order in which old ones are met."""

    def __init__(self) -> None:
        self.flows: dict[str, str] = {}
        self.owners: dict[Owner, Owner] = {}

    def flow(self, old: str) -> str:
        return self.flows.setdefault(old, NAMES[len(self.flows)])

    def of(self, owner: Owner) -> Owner:
        """Of one that the state names."""
        if owner not in self.owners:
            flow = self.flow(owner.flow)
            self.owners[owner] = Owner(flow, f"{flow}{sum(each.flow == flow for each in self.owners.values())}")
        return self.owners[owner]


def kept(world: World) -> Kept:
    """What is kept of this world and of all that differ from it only in names."""
    state, around = world
    parts = [_what_counts(_held(state, number), at) for number, at in enumerate(around)]
    names = _Names()
    bound = sorted((flow for flow in state.flows.values() if flow.bound), key=lambda flow: flow.since)
    flows = [(names.of(Owner(flow.name, flow.instance)), True) for flow in bound]
    holders = set()
    for held, _ in parts:
        if isinstance(held, Partition):
            for owner in filter(None, (held.owner, held.to)):
                if owner.flow not in names.flows:
                    known = state.flows.get(owner.flow)
                    if known is None:
                        raise Wrong(f"{owner.flow} has partitions and is not known")
                    flows.append((names.of(Owner(known.name, known.instance)), False))
                names.of(owner)
            holders.add(held.holder)
    active = {names.of(owner) for owner in holders if owner is not None}
    return Kept(
        state.status,
        state.trigger,
        state.altered,
        state.settings.access_type,
        # `updates` decides nothing.
        tuple(
            Flow(name=of.flow, instance=of.instance, bound=bound, since=age * bound, active=bound and of in active)
            for age, (of, bound) in enumerate(flows, start=1)
        ),
        tuple(_renamed(held, at, names) for held, at in parts),
    )


def world_of(found: Kept) -> World:
    """A world of which this is kept."""
    parts = {number: held for number, (held, _) in enumerate(found.parts)}
    state = GroupState(
        queue_id="q",
        settings=SETTINGS[found.access],
        partitions={number: held for number, held in parts.items() if isinstance(held, Partition)},
        flows={flow.name: flow for flow in found.flows},
        retired={number: held for number, held in parts.items() if isinstance(held, int)},
        status=found.status,
        holddown_until_s=DELAY_S if found.status is RebalanceStatus.HOLDDOWN else None,
        trigger=found.trigger,
        altered=found.altered,
        binds=len(found.flows),
    )
    return World(state, tuple(around for _, around in found.parts))


def _held(state: GroupState, number: int) -> Held:
    return state.partitions.get(number, state.retired.get(number))


@cache
def _what_counts(held: Held, around: Around) -> tuple[Held, Around]:
    """Leaves out what can have no influence any more, and numbers epochs by their order."""
    fences = _fences(held, around)
    epochs = {0, around.epoch, *(fence.epoch for fence in fences), *(fence.owner_epoch for fence in fences)}
    if isinstance(held, int):
        epochs.add(held)
    elif held is not None:
        epochs |= {held.epoch, held.to_epoch}
    rank = {epoch: number for number, epoch in enumerate(sorted(epochs))}
    if isinstance(held, int):
        held_now: Held = rank[held]
    elif held is not None:
        deadline_s = None if held.deadline_s is None else DELAY_S
        held_now = replace(held, epoch=rank[held.epoch], to_epoch=rank[held.to_epoch], deadline_s=deadline_s)
    else:
        held_now = None
    return held_now, around._replace(
        epoch=rank[around.epoch],
        owner=None if _between(around.epoch, held) else around.owner,
        delivered=around.delivered and not around.marked,  # what is marked may be delivered again
        fences=tuple(
            fence._replace(
                to=None if _between(fence.epoch, held) else fence.to,
                epoch=rank[fence.epoch],
                owner_epoch=rank[fence.owner_epoch],
            )
            for fence in fences
        ),
    )


def _renamed(held: Held, around: Around, names: _Names) -> tuple[Held, Around]:
    """An instance that the state does not name is told from others only within its own partition, because nothing ever
    compares it with those of other partitions.
    """
    strangers: dict[Owner, Owner] = {}

    def of(owner: Owner | None) -> Owner | None:
        if owner is None or owner in names.owners:
            return owner and names.owners[owner]
        flow = names.flow(owner.flow)
        return strangers.setdefault(owner, Owner(flow, f"{flow}-{len(strangers)}"))

    if isinstance(held, Partition):
        held = replace(held, owner=of(held.owner), to=of(held.to))
    return held, around._replace(
        owner=of(around.owner),
        fences=tuple(fence._replace(to=of(fence.to), owner=of(fence.owner)) for fence in around.fences),
    )


def _fences(held: Held, around: Around) -> list[Asked]:
    """The fences in flight that can make a difference. Of those that were given up since, each of which can only take
    the checkpoint from the former owner, one is like another; the one with the highest epoch stands for them.
    """
    fences = {fence for fence in around.fences if can_land(around, fence)}
    ordered = sorted(fences, key=lambda fence: (fence.epoch, str(fence.to), str(fence.owner)))
    given_up = [fence for fence in ordered if _between(fence.epoch, held)]
    stand = [] if _between(around.epoch, held) else given_up[-1:]
    return [fence for fence in ordered if fence not in given_up or fence in stand]


def _between(epoch: int, held: Held) -> bool:
    """An epoch that was passed over while the partition is being fenced. Whose it is is never looked at again."""
    return isinstance(held, Partition) and held.phase is Phase.FENCING and held.epoch < epoch < held.to_epoch


def broken_by_change(before: GroupState, after: GroupState) -> Iterator[str]:
    """What must not happen between one state and a later one: epochs go back, numbers are forgotten, a new owner at an
    old epoch.
    """
    for number, old in before.partitions.items():
        new = after.partitions.get(number)
        if new is None:
            if after.retired.get(number, -1) < max(old.epoch, old.to_epoch if old.phase is Phase.FENCING else 0):
                yield f"partition {number} was retired below its epoch"
            continue
        if new.epoch < old.epoch or (new.phase is Phase.FENCING is old.phase and new.to_epoch < old.to_epoch):
            yield f"partition {number} went back from epoch {old.epoch} to {new.epoch}"
        if new.epoch == old.epoch and new.owner != old.owner and not _same_flow(new.owner, old.owner):
            yield f"partition {number} changed its owner within epoch {new.epoch}"
    for number, epoch in before.retired.items():
        partition = after.partitions.get(number)
        if (after.retired.get(number, -1) if partition is None else partition.epoch) < epoch:
            yield f"partition {number} was retired at epoch {epoch} and does not continue from there"
    if after.binds < before.binds:
        yield f"binds went back from {before.binds} to {after.binds}"


def _same_flow(one: Owner | None, other: Owner | None) -> bool:
    return one is not None and other is not None and one.flow == other.flow
