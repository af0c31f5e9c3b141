"""One name for all states that differ only in names: states as whole numbers, small enough for millions of them.

What is renamed: flows (by age, then by where they appear first), their instances, epochs (by their order, for each
partition by itself) and timers (they all are "set"). Nothing in the core looks at more than equality and order of
these, and a new epoch is above all. Partitions keep their numbers, because plans go by them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import NamedTuple

from coordinator.core.invariants import violations
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
from tests.coordinator.modelcheck.world import Around, Asked, Entry, Wrong, can_land, wrongs

DELAY_S = 1.0
"""Both timers of the model. Time stands at 0 while events happen; a timer fires when it moves on."""

NAMES = "abcdefgh"
SETTINGS = {
    access: GroupSettings(rebalance_delay_s=DELAY_S, max_handoff_time_s=DELAY_S, access_type=access)
    for access in AccessType
}
_BITS = 16

Held = Partition | int | None
"""A partition of the state, or the epoch at which it was retired, or None: there never was one."""


class World(NamedTuple):
    """A state and what surrounds each partition number."""

    state: GroupState
    around: tuple[Around, ...]


class _Head(NamedTuple):
    """Everything of a state but its partitions."""

    status: RebalanceStatus
    trigger: bool
    altered: bool
    access: AccessType
    flows: tuple[Flow, ...]


class _Pair(NamedTuple):
    """A partition and what surrounds it, as it came, with the owners that have to be renamed in it."""

    number: int
    held: Held
    around: Around
    named: tuple[Owner, ...]  # by the state
    strangers: tuple[Owner, ...]  # by the checkpoint, entries and fences alone


class _Names:
    """New names in the order in which old ones are met.

    An instance that the state does not name is told from others only within its own partition, because nothing ever
    compares it with those of other partitions.
    """

    __slots__ = ("_flows", "_instances", "_owners")

    def __init__(self) -> None:
        self._flows: dict[str, str] = {}
        self._instances: dict[str, int] = {}
        self._owners: dict[Owner, Owner] = {}

    def flow(self, old: str) -> str:
        new = self._flows.get(old)
        if new is None:
            new = self._flows[old] = NAMES[len(self._flows)]
        return new

    def knows_flow(self, old: str) -> bool:
        return old in self._flows

    def of(self, owner: Owner) -> Owner:
        """Of one that the state names."""
        new = self._owners.get(owner)
        if new is None:
            flow = self.flow(owner.flow)
            index = self._instances.get(flow, 0)
            self._instances[flow] = index + 1
            new = self._owners[owner] = Owner(flow, f"{flow}{index}")
        return new

    def of_stranger(self, owner: Owner) -> Owner | str:
        """Of one that may be outside the state: then only its flow has a name of its own."""
        return self._owners.get(owner) or self.flow(owner.flow)


class Codec:
    """Gives every world its number and back. Keeps each part of a state once, under a number of its own."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._heads: dict[_Head, int] = {}
        self._head_list: list[tuple[_Head, dict[str, Flow]]] = []
        self._chunks: dict[tuple[Held, Around], int] = {}
        self._chunk_list: list[tuple[Held, Around]] = []
        self._pairs: dict[tuple[Held, Around], _Pair] = {}
        self._chunk_pairs: dict[tuple[int, int], _Pair] = {}  # by the identity of a chunk's parts, which stay
        self._renamed: dict[tuple[int, tuple[Owner | str, ...]], int] = {}

    def number(self, world: World) -> int:
        """The number of this world and of all that differ from it only in names."""
        state, around = world
        pairs = [self._pair(_held(state, number), at) for number, at in enumerate(around)]
        names = _Names()
        bound = sorted((flow for flow in state.flows.values() if flow.bound), key=_since)
        flows = [(names.of(Owner(flow.name, flow.instance)), True) for flow in bound]
        for pair in pairs:
            for owner in pair.named:
                if not names.knows_flow(owner.flow):
                    known = state.flows.get(owner.flow)
                    if known is None:
                        raise Wrong(f"{owner.flow} has partitions and is not known")
                    flows.append((names.of(Owner(known.name, known.instance)), False))
                names.of(owner)
        packed = 0
        holders = set()
        for pair in pairs:
            key = (pair.number, tuple(names.of_stranger(owner) for owner in (*pair.named, *pair.strangers)))
            chunk = self._renamed.get(key)
            if chunk is None:
                chunk = self._renamed[key] = self._chunk_number(_rename(pair, names))
            packed = packed << _BITS | chunk
            if isinstance(pair.held, Partition):
                holders.add(pair.held.to if pair.held.phase is Phase.FENCING else pair.held.owner)
        active = {names.of(owner) for owner in holders if owner is not None}
        head = _Head(
            state.status,
            state.trigger,
            state.altered,
            state.settings.access_type,
            tuple([_flow(owner, bound, owner in active, age) for age, (owner, bound) in enumerate(flows, start=1)]),
        )
        return self._head_number(head) << _BITS * self._partitions | packed

    def _pair(self, held: Held, around: Around) -> _Pair:
        pair = self._chunk_pairs.get((id(held), id(around)))
        if pair is None:
            pair = self._pairs.get((held, around))
            if pair is None:
                pair = self._pairs[held, around] = _pair(len(self._pairs), held, around)
        return pair

    def _head_number(self, head: _Head) -> int:
        number = self._heads.get(head)
        if number is None:
            number = self._heads[head] = len(self._head_list)
            self._head_list.append((head, {flow.name: flow for flow in head.flows}))
        return number

    def _chunk_number(self, chunk: tuple[Held, Around]) -> int:
        number = self._chunks.get(chunk)
        if number is None:
            for wrong in wrongs(*chunk):
                raise Wrong(wrong)
            number = self._chunks[chunk] = len(self._chunk_list)
            if number >> _BITS:
                raise OverflowError(f"more than {number} different partitions")
            self._chunk_list.append(chunk)
            self._chunk_pairs[id(chunk[0]), id(chunk[1])] = self._pair(*chunk)
        return number

    def world(self, number: int) -> World:
        """A world that has this number. Equal parts of two worlds are the same objects."""
        chunks = []
        for _ in range(self._partitions):
            chunks.append(self._chunk_list[number & (1 << _BITS) - 1])
            number >>= _BITS
        chunks.reverse()
        head, flows = self._head_list[number]
        partitions, retired = {}, {}
        for index, (held, _) in enumerate(chunks):
            if isinstance(held, Partition):
                partitions[index] = held
            elif held is not None:
                retired[index] = held
        state = GroupState(
            queue_id="q",
            incarnation="1",
            settings=SETTINGS[head.access],
            partitions=partitions,
            flows=flows,
            retired=retired,
            status=head.status,
            holddown_until_s=DELAY_S if head.status is RebalanceStatus.HOLDDOWN else None,
            trigger=head.trigger,
            altered=head.altered,
            binds=len(flows),
        )
        return World(state, tuple([around for _, around in chunks]))

    def check(self, number: int) -> None:
        """The core's own invariants."""
        for sentence in violations(self.world(number).state):
            raise Wrong(sentence)


def _since(flow: Flow) -> int:
    return flow.since


@cache
def _flow(owner: Owner, bound: bool, active: bool, age: int) -> Flow:
    """What tells flows apart in a head. `updates` decides nothing."""
    return Flow(
        name=owner.flow, instance=owner.instance, bound=bound, since=age if bound else 0, active=active and bound
    )


def _held(state: GroupState, number: int) -> Held:
    partition = state.partitions.get(number)
    return partition if partition is not None else state.retired.get(number)


def _pair(index: int, held: Held, around: Around) -> _Pair:
    """Leaves out what can have no influence any more, and numbers epochs by their order."""
    entry = around.entry if around.entry is not None and _matters(around.entry, held, around) else None
    fences = _fences(held, around)
    epochs = {around.epoch, *(fence.epoch for fence in fences), *(fence.owner_epoch for fence in fences)}
    if entry is not None:
        epochs.add(entry.epoch)
    if isinstance(held, int):
        epochs.add(held)
    elif held is not None:
        epochs |= {held.epoch, held.to_epoch}
    epochs.discard(0)
    rank = {epoch: number for number, epoch in enumerate(sorted(epochs), start=1)}
    rank[0] = 0
    after: Held = held
    named: list[Owner] = []
    if isinstance(held, int):
        after = rank[held]
    elif held is not None:
        deadline_s = None if held.deadline_s is None else DELAY_S
        after = replace(held, epoch=rank[held.epoch], to_epoch=rank[held.to_epoch], deadline_s=deadline_s)
        named = [owner for owner in (held.owner, held.to) if owner is not None]
    around = Around(
        epoch=rank[around.epoch],
        owner=None if _between(around.epoch, held) else around.owner,
        delivered=around.delivered,
        marked=around.marked,
        entry=None if entry is None else entry._replace(epoch=rank[entry.epoch]),
        fences=tuple(
            Asked(
                to=None if _between(fence.epoch, held) else fence.to,
                epoch=rank[fence.epoch],
                owner=fence.owner,
                owner_epoch=rank[fence.owner_epoch],
            )
            for fence in fences
        ),
    )
    strangers = [around.owner, entry.owner if entry else None]
    for fence in around.fences:
        strangers += [fence.to, fence.owner]
    outside = dict.fromkeys(owner for owner in strangers if owner is not None and owner not in named)
    return _Pair(index, after, around, tuple(dict.fromkeys(named)), tuple(outside))


def _rename(pair: _Pair, names: _Names) -> tuple[Held, Around]:
    new: dict[Owner, Owner] = {}
    for owner in (*pair.named, *pair.strangers):
        name = names.of_stranger(owner)
        new[owner] = name if isinstance(name, Owner) else Owner(name, f"{name}-{len(new)}")

    def of(owner: Owner | None) -> Owner | None:
        return None if owner is None else new[owner]

    held, around = pair.held, pair.around
    if isinstance(held, Partition):
        held = replace(held, owner=of(held.owner), to=of(held.to))
    entry = around.entry
    return held, around._replace(
        owner=of(around.owner),
        entry=None if entry is None else Entry(new[entry.owner], entry.epoch),
        fences=tuple(fence._replace(to=of(fence.to), owner=of(fence.owner)) for fence in around.fences),
    )


def _fences(held: Held, around: Around) -> list[Asked]:
    """The fences in flight that can make a difference. Of those that were given up since, each of which can only take
    the checkpoint from the former owner, one is like another; the one with the highest epoch stands for them.
    """
    fences = sorted({fence for fence in around.fences if can_land(around, fence)}, key=_by_epoch)
    given_up = [fence for fence in fences if _between(fence.epoch, held)]
    if not given_up:
        return fences
    kept = [] if _between(around.epoch, held) else given_up[-1:]
    return [fence for fence in fences if fence not in given_up or fence in kept]


def _by_epoch(fence: Asked) -> tuple[int, str, str]:
    return fence.epoch, str(fence.to), str(fence.owner)


def _between(epoch: int, held: Held) -> bool:
    """An epoch that was passed over while the partition is being fenced. Whose it is is never looked at again."""
    return isinstance(held, Partition) and held.phase is Phase.FENCING and held.epoch < epoch < held.to_epoch


def _matters(entry: Entry, held: Held, around: Around) -> bool:
    """Whether a fence or an acknowledgement may still look at this entry."""
    if around.owner is not None and (entry.owner.flow, entry.epoch) == (around.owner.flow, around.epoch):
        return True
    if around.marked or not isinstance(held, Partition) or held.owner is None:
        return False
    return (entry.owner.flow, entry.epoch) == (held.owner.flow, held.epoch)
