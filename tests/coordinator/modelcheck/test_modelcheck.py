"""Breadth-first through every interleaving of the real core with the world around it, and the way back to quiet.

Two things are shown. Safety: nothing of `world.wrongs`, of the core's invariants and of `steps` is ever broken.
Progress: from every state that was found, timers and fences alone (no flow does anything any more) lead to Ready with
nothing on its way but what is stuck, whose fences never land; for that each state has one successor `onwards`, and
following it must end.

`scripts/model-check` explores a million states, the tests here some thousands. What these are worth:
`tests/power/guards.toml` takes one guard of the core out after the other (`core: ...`), and each is found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pytest

from coordinator.core import machine
from coordinator.core.events import (
    CheckpointMark,
    Event,
    FenceStuck,
    FlowBound,
    FlowExpired,
    PartitionDrained,
    PartitionFenced,
    QueueAltered,
    Tick,
    differences,
)
from coordinator.core.invariants import violations
from partq_spark.group.model import AccessType, GroupState, Partition, Phase, RebalanceStatus
from tests.coordinator.modelcheck import world as outside
from tests.coordinator.modelcheck.world import (
    NAMES,
    SETTINGS,
    Around,
    Kept,
    World,
    Wrong,
    check_step,
    kept,
    world_of,
    wrongs,
)

STUCK = "damaged"


class Move(NamedTuple):
    """One thing that may happen in a world, and the world after it."""

    what: object
    after: World


class Failure(AssertionError):
    """Something wrong was reached; the message has the way there."""


@dataclass(kw_only=True, slots=True)
class Explorer:
    """Explores groups of `flows` names and at most `partitions` partitions, from the empty group of all of them."""

    flows: int
    partitions: int
    limit: int
    complete: bool = False
    transitions: int = 0
    depth: int = 0
    longest_way_to_ready: int = 0
    _ids: dict[Kept, int] = field(default_factory=dict)
    _found: list[Kept] = field(default_factory=list)
    _parents: list[int | None] = field(default_factory=list)
    _now: int = 0

    # --- the search ---------------------------------------------------------------------------------------------------

    def run(self) -> Explorer:
        """Explore to the end or to the limit, then check the way to Ready. Raises `Failure`."""
        try:
            self._search()
            self._lead_back()
        except (Wrong, ValueError, KeyError) as wrong:
            raise Failure(f"{wrong}\n{self._way(self._now)}") from wrong
        return self

    @property
    def states(self) -> int:
        """So many were found, each checked."""
        return len(self._found)

    def _search(self) -> None:
        for access in AccessType:
            empty = GroupState(
                queue_id="q",
                settings=SETTINGS[access],
                partitions={number: Partition(partition=number) for number in range(self.partitions)},
            )
            self._add(kept(World(empty, (Around(),) * self.partitions)), None)
        current, layer_end = 0, self.states
        while current < self.states < self.limit:
            if current == layer_end:
                self.depth, layer_end = self.depth + 1, self.states
            self._now = current
            for move in self.moves(world_of(self._found[current])):
                self._add(kept(move.after), current)
                self.transitions += 1
            current += 1
        self.complete = current == self.states

    def _add(self, after: Kept, parent: int | None) -> int:
        known = self._ids.get(after)
        if known is not None:
            return known
        broken = (*violations(world_of(after).state), *(wrong for part in after.parts for wrong in wrongs(*part)))
        if broken:
            raise Wrong(broken[0])
        self._ids[after] = self.states
        self._found.append(after)
        self._parents.append(parent)
        return self._ids[after]

    def _lead_back(self) -> None:
        """From every state that was found timers and fences alone lead to a quiet one; also from those at the border,
        by states that are found on the way.
        """
        steps: dict[int, int] = {}  # that lead from a state to a quiet one
        for start in range(self.states):
            path: dict[int, None] = {}
            current: int | None = start
            while current is not None and current not in steps:
                if current in path:
                    raise Wrong("timers and fences alone lead in a circle, never to Ready")
                path[current] = None
                self._now = current
                move = self._onward(world_of(self._found[current]))
                current = None if move is None else self._add(kept(move.after), current)
            after = -1 if current is None else steps[current]
            steps |= {state: after + step for step, state in enumerate(reversed(path), start=1)}
            self.longest_way_to_ready = max(self.longest_way_to_ready, steps[start])

    # --- what may happen ----------------------------------------------------------------------------------------------

    def moves(self, world: World) -> Iterator[Move]:
        """Everything that may happen next."""
        yield from self._flows(world)
        yield from self._reports(world)
        yield from self._outside(world)
        yield from self._alterations(world)

    def _onward(self, world: World) -> Move | None:
        """What happens without any flow: a fence lands or is reported, or time passes. None: Ready, all is quiet."""
        state, around = world
        for number, partition in state.partitions.items():
            if partition.phase is Phase.FENCING and not partition.stuck:
                at = around[number]
                if (at.epoch, at.owner) == (partition.to_epoch, partition.to):
                    return self._event(world, self._fenced(number, at))
                wanted = outside.asked(partition)
                if wanted in at.fences:
                    if outside.is_held_up(at, wanted):
                        continue  # until its time is over
                    return self._around(world, number, outside.land(at, wanted), "the fence lands")
                raise Wrong(f"partition {number} waits for a fence that cannot land: {partition}, {at}")
        due_s = state.next_deadline_s
        if due_s is None:
            if state.status is not RebalanceStatus.READY:
                raise Wrong(f"nothing leads out of {state}")
            return None
        return self._event(world, Tick(), now_s=due_s)

    def _flows(self, world: World) -> Iterator[Move]:
        """Flows bind, with and without what they had, come back as new instances before they were missed, and go."""
        state = world.state
        for name in NAMES[: self.flows]:
            flow = state.flows.get(name)
            mapping = {
                number: partition.epoch
                for number, partition in state.partitions.items()
                if partition.owner is not None and partition.owner.flow == name
            }
            yield self._event(world, FlowBound(flow=name, instance=f"{name}9"))
            if mapping:
                yield self._event(world, FlowBound(flow=name, instance=f"{name}9", mapping=mapping))
            if flow is not None and flow.bound:
                yield self._event(world, FlowExpired(flow=name, instance=flow.instance))

    def _reports(self, world: World) -> Iterator[Move]:
        """A leader reports what it sees in checkpoints, be it asked for or not."""
        state, around = world
        for number, partition in state.partitions.items():
            at = around[number]
            if partition.phase in {Phase.OWNED, Phase.PAUSED} and outside.is_drained(partition, at):
                drained = PartitionDrained(partition=number, epoch=partition.epoch)
                if partition.phase is Phase.PAUSED:
                    yield self._event(world, drained)
                else:
                    self._changes_nothing(state, drained)
            if at.epoch:
                fenced = self._fenced(number, at)
                if partition.phase is Phase.FENCING and (at.epoch, at.owner) == (partition.to_epoch, partition.to):
                    yield self._event(world, fenced)
                else:
                    self._changes_nothing(state, fenced)
            if partition.phase is Phase.FENCING and not partition.stuck:
                yield self._event(world, FenceStuck(partition=number, epoch=partition.to_epoch, reason=STUCK))
        due_s = state.next_deadline_s
        if due_s is not None:
            yield self._event(world, Tick(), now_s=due_s)
        self._new_leader(state, around)

    def _outside(self, world: World) -> Iterator[Move]:
        """Messages are delivered and acknowledged, fences land: no event of the core."""
        state, around = world
        for number, at in enumerate(around):
            partition = state.partitions.get(number)
            if partition is not None and outside.may_deliver(partition, at):
                yield self._around(world, number, outside.deliver(at), "a message is delivered")
            for after in outside.writes(at):
                yield self._around(world, number, after, "the owner writes the checkpoint")
            for fence in at.fences:
                if outside.can_land(at, fence) and not outside.is_held_up(at, fence):
                    yield self._around(world, number, outside.land(at, fence), "a fence lands")

    def _alterations(self, world: World) -> Iterator[Move]:
        state = world.state
        present = tuple(number for number, partition in state.partitions.items() if not partition.removed)
        for count in range(1, self.partitions + 1):
            wanted = tuple(range(count))
            if wanted != present:
                epochs = {number: at.epoch for number, at in enumerate(world.around) if at.epoch}
                yield self._event(world, QueueAltered(settings=state.settings, partitions=wanted, epochs=epochs))
        for access in AccessType:
            if access is not state.settings.access_type:
                yield self._event(world, QueueAltered(settings=SETTINGS[access], partitions=present))

    # --- one step -----------------------------------------------------------------------------------------------------

    @staticmethod
    def _fenced(number: int, around: Around) -> PartitionFenced:
        return PartitionFenced(partition=number, epoch=around.epoch, owner=around.owner)

    @staticmethod
    def _around(world: World, number: int, after: Around, what: str) -> Move:
        changed = list(world.around)
        changed[number] = after
        return Move((what, (f"partition {number}", after)), World(world.state, tuple(changed)))

    @staticmethod
    def _changes_nothing(state: GroupState, event: Event) -> None:
        after, told = machine.decide(state, event, 0.0)
        if after is not state or told:
            raise Wrong(f"{event} was not asked for and changed {state} to {after}")

    @staticmethod
    def _new_leader(state: GroupState, around: tuple[Around, ...]) -> None:
        """A leader that adopts sees nothing that the state does not explain, and goes on with `pending`."""
        marks = {number: CheckpointMark(epoch=at.epoch, owner=at.owner) for number, at in enumerate(around) if at.epoch}
        for event in differences(state, marks):
            if not isinstance(event, PartitionFenced):
                raise Wrong(f"a new leader would see {event}")

    def _event(self, world: World, event: Event, now_s: float = 0.0) -> Move:
        before = world.state
        after, told = machine.decide(before, event, now_s)
        around = world.around
        if after.partitions is not before.partitions:
            known = {number: outside.asked(each) for number, each in before.partitions.items()}
            new = [each for each in after.pending if outside.asked(each) != known.get(each.partition)]
            around = _asked(around, new)
            check_step(before, after, event, now_s)
        return Move((event, told), World(after, around))

    # --- the way to a state -------------------------------------------------------------------------------------------

    def _way(self, state: int) -> str:
        """What led to a state, step by step."""
        path = [state]
        while (parent := self._parents[path[0]]) is not None:
            path.insert(0, parent)
        lines = []
        for before, after in pairwise(path):
            moves = self.moves(world_of(self._found[before]))
            lines += [_words(move.what) for move in moves if kept(move.after) == self._found[after]][:1]
        world = world_of(self._found[state])
        return "\n".join([*lines, f"state: {world.state}", *[f"around {n}: {at}" for n, at in enumerate(world.around)]])


def _words(what: object) -> str:
    if not isinstance(what, tuple):
        return str(what)
    event, told = what
    return "\n    ".join([str(event), *map(str, told)])


def _asked(around: tuple[Around, ...], fences: list[Partition]) -> tuple[Around, ...]:
    changed = list(around)
    for fence in fences:
        at = changed[fence.partition]
        changed[fence.partition] = at._replace(fences=(*at.fences, outside.asked(fence)))
    return tuple(changed)


@pytest.mark.conformance("REB-15", "HAN-09")
@pytest.mark.parametrize("flows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_partition_to_the_end(flows: int) -> None:
    result = Explorer(flows=flows, partitions=1, limit=8000).run()
    assert result.complete
    assert result.states > 700
    assert result.longest_way_to_ready <= 6


@pytest.mark.slow
@pytest.mark.conformance("REB-15", "DIS-05")
@pytest.mark.parametrize(("flows", "partitions"), [(2, 2), (3, 2), (3, 3)])
def test_the_beginning_of_larger_groups(flows: int, partitions: int) -> None:
    result = Explorer(flows=flows, partitions=partitions, limit=4000).run()
    assert result.states >= 4000
    assert result.longest_way_to_ready <= 15


def main() -> int:
    """0: everything holds. 1: something does not, and the way there was printed."""
    parser = argparse.ArgumentParser(
        prog="model-check", description="Explores every interleaving of the decision core."
    )
    parser.add_argument("--flows", type=int, default=3, help="names of flows (default 3)")
    parser.add_argument("--partitions", type=int, default=3, help="partitions, of which some go and come (default 3)")
    parser.add_argument("--states", type=int, default=1_000_000, help="stop after so many (default 1,000,000)")
    options = parser.parse_args()
    try:
        found = Explorer(flows=options.flows, partitions=options.partitions, limit=options.states).run()
    except Failure as failure:
        print(f"model-check: BROKEN\n{failure}", file=sys.stderr)  # noqa: T201 # a command prints
        return 1
    extent = "all there are" if found.complete else "not all there are"
    print(  # noqa: T201 # a command prints
        f"model-check: {found.states:,} states ({extent}), {found.transitions:,} transitions, depth {found.depth}: "
        "safe in every state; from each timers and fences alone lead to Ready, in at most "
        f"{found.longest_way_to_ready} steps"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
