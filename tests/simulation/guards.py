"""The guards of ownership, each with a way to switch it off: the negative controls of the simulation.

One is missing on purpose: the entry that a claim makes in the flow's record (decision 0016). Without it nothing goes
wrong, because announcing a delivery makes the entry before anything is delivered.

A guard is off in here and nowhere else. If the checker does not notice, it could not notice a bug there either.
`python -m tests.simulation.guards --seeds N` prints the first seed that notices each.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from coordinator import fences, runtime
from coordinator.core.actions import Action
from coordinator.core.events import Event
from coordinator.core.machine import pending
from coordinator.failure_detector import FailureDetector
from coordinator.heads import GroupFacts
from coordinator.observe import Records
from coordinator.removed_partitions import RemovedPartitions
from coordinator.runtime import GroupRuntime, Written
from partq_spark.group.binding import Life
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.documents.api import Listing
from partq_spark.group.documents.memory import MemoryServer
from partq_spark.group.holdings import FlowHoldings
from partq_spark.group.key_order import KeyOrder
from partq_spark.group.model import Delivery, GroupKey, GroupState, Lease
from partq_spark.group.ownership import Ownership, Pulse
from partq_spark.group.ownership.encoding import BEATS
from partq_spark.group.ownership.flows import Flows, _merged
from partq_spark.group.session import Session
from tests.simulation.plan import KINDS
from tests.simulation.queue import Head
from tests.simulation.world import run_seed
from tests.support import guards
from tests.support.guards import Finding
from tests.support.judge import Violation


@dataclass(frozen=True, kw_only=True, slots=True)
class Guard(guards.Guard):
    """One thing that stands between a fault and two owners, a lost message or a wrong mark."""

    kinds: tuple[str, ...] = KINDS  # of trouble in which it is needed


def first_finding(guard: Guard, seeds: Iterable[int]) -> Finding | None:
    """Run seeds with the guard off until one ends with a `Violation`: another error is a mistake in its place."""

    def play(seed: int) -> None:
        if KINDS[seed % len(KINDS)] in guard.kinds:
            run_seed(seed, conditional=guard.conditional)

    return guards.search(guard, seeds, play, noticed=Violation)


# --- what stands in a guard's place -----------------------------------------------------------------------------------


def _always(*_: object, **__: object) -> bool:
    return True


def _nothing(*_: object) -> None:
    return None


def _never(*_: object, **__: object) -> bool:
    return False


def _renews_any_lease() -> AbstractContextManager[object]:
    """A leader never learns that another one has taken its place."""

    def renew_lease(store: Ownership, key: GroupKey, _: Lease) -> Pulse:
        state = store._state(key)
        look = state.look()
        listed, answer = store._documents.ask(key, Listing(BEATS), look.operation)
        seen = state.saw(look, answer)
        return store._pulse(key, listed, None if seen is None else seen.value.token)

    return patch.object(Ownership, "renew_lease", renew_lease)


def _swaps_any_state() -> AbstractContextManager[object]:
    real = Ownership.swap_state

    def swap_state(store: Ownership, key: GroupKey, body: bytes, *, token: str, expected: str | None) -> None:
        found = store._state(key).read()
        real(store, key, body, token=token, expected=found.value.token if found is not None else None)

    return patch.object(Ownership, "swap_state", swap_state)


def _delivers_in_any_state() -> AbstractContextManager[object]:
    def deliver(
        flows: Flows, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        flows._write(key, flow, instance, lambda record: _merged(record, deliveries))
        return True

    return patch.object(Flows, "deliver", deliver)


def _knows_one_life() -> AbstractContextManager[object]:
    """A restart of the store is not noticed."""
    setter = MemoryServer.__dict__["incarnation"].fset
    return patch.object(MemoryServer, "incarnation", property(lambda _: "always", setter))


def _fences_first() -> AbstractContextManager[object]:
    """The fences of a decision are carried out, and then it is written."""
    stack = ExitStack()
    real_step, real_write = GroupRuntime.step, GroupRuntime._write
    facts: dict[int, GroupFacts] = {}

    def step(group: GroupRuntime, now: GroupFacts) -> float:
        facts[id(group)] = now
        return real_step(group, now)

    def write(
        group: GroupRuntime,
        state: GroupState,
        actions: Sequence[Action],
        expected: str | None,
        events: Sequence[Event] = (),
    ) -> Written:
        before = {(each.partition, each.epoch) for each in pending(group.state)} if group.state is not None else set()
        early = [each for each in pending(state) if (each.partition, each.epoch) not in before]
        if early:
            group._fence(Written(state, expected or ""), early, facts[id(group)])
        return real_write(group, state, actions, expected, events)

    stack.enter_context(patch.object(GroupRuntime, "step", step))
    stack.enter_context(patch.object(GroupRuntime, "_write", write))
    return stack


def _announces_nothing() -> AbstractContextManager[object]:
    """The record learns of deliveries only when they are acknowledged."""
    real = Flows.deliver

    def deliver(
        flows: Flows, key: GroupKey, flow: str, instance: str, deliveries: Mapping[int, Delivery], *, state_token: str
    ) -> bool:
        less = {number: replace(entry, delivered=entry.acknowledged) for number, entry in deliveries.items()}
        return real(flows, key, flow, instance, less, state_token=state_token)

    return patch.object(Flows, "deliver", deliver)


class _AnyToken(str):
    __slots__ = ()

    def __eq__(self, _: object) -> bool:
        return True

    def __ne__(self, _: object) -> bool:
        return False

    __hash__ = str.__hash__


def _drains_by_old_records() -> AbstractContextManager[object]:
    """Records that were read before the pause was written count too."""
    real = Records

    def records(flows: Any, _: str, version: str, read_s: float) -> Any:
        return real(flows, _AnyToken("any"), version, read_s)

    return patch.object(runtime, "Records", records)


def _adopts_without_a_look() -> AbstractContextManager[object]:
    """Whether the lease is still held is not asked after the state was read."""
    real = GroupRuntime._adopt

    def adopt(group: GroupRuntime, facts: GroupFacts, incarnation: str) -> Written:
        with patch.object(group._leadership, "look", _nothing):
            return real(group, facts, incarnation)

    return patch.object(GroupRuntime, "_adopt", adopt)


def _counts_the_way_as_silence() -> AbstractContextManager[object]:
    """A heartbeat is taken to stand still until the answer is there, however long that was on its way."""
    real = FailureDetector.look

    def look(watch: FailureDetector[Any], values: Mapping[Any, Hashable], *, asked_s: float, heard_s: float) -> bool:
        return real(watch, values, asked_s=heard_s, heard_s=heard_s)

    return patch.object(FailureDetector, "look", look)


def _hears_of_no_rewind() -> AbstractContextManager[object]:
    """The counter in the head means nothing to coordinators."""
    real = Head.facts
    return patch.object(Head, "facts", lambda head: replace(real(head), rewinds=0))


def _waits_for_nothing() -> AbstractContextManager[object]:
    """What came after a changed partition count is delivered at once."""
    return patch.object(KeyOrder, "waits", lambda *_: {})


def _takes_delivered_for_acknowledged() -> AbstractContextManager[object]:
    """Others' keys wait only until a flow's own messages were handed out."""

    def written(hand: FlowHoldings, partitions: Iterable[int]) -> dict[int, int]:
        return {p: hand.by_partition[p].delivered for p in partitions if hand.has_claimed((p,))}

    return patch.object(FlowHoldings, "written", written)


def _takes_removed_for_finished() -> AbstractContextManager[object]:
    """A partition goes as soon as the queue does not have it any more."""
    return patch.object(RemovedPartitions, "_unfinished", lambda *_: [])


def _lives_for_ever() -> AbstractContextManager[object]:
    return patch.object(Life, "is_alive", lambda life, _: not life.ended)


GUARDS = (
    Guard(name="epoch equality", off=lambda: patch.object(FlowHoldings, "is_same_epoch", _always)),
    Guard(name="one's own name in the checkpoint", off=lambda: patch.object(Session, "_names_me", _always)),
    Guard(name="lease token", off=_renews_any_lease),
    Guard(name="self-fencing", off=_lives_for_ever, first=318),
    Guard(name="condition of the fence", off=nullcontext, conditional=False),
    Guard(name="state before effect", off=_fences_first),
    Guard(name="incarnation", off=_knows_one_life, kinds=("amnesia",), first=66),
    Guard(
        name="the lease is still held after the state was read",
        off=_adopts_without_a_look,
        kinds=("freezes",),
        first=108,
    ),
    Guard(
        name="silence is what was observed",
        off=_counts_the_way_as_silence,
        kinds=("network", "freezes", "amnesia"),
        first=1056,
    ),
    Guard(name="announced before delivered", off=_announces_nothing),
    Guard(name="delivered in the state that was seen", off=_delivers_in_any_state, first=132),
    Guard(name="condition of the state", off=_swaps_any_state),
    Guard(name="drained by records read after the pause", off=_drains_by_old_records, first=930),
    Guard(name="a fence only at a higher epoch", off=lambda: patch.object(CheckpointStore, "_may_fence", _always)),
    Guard(name="only the owner moves a checkpoint", off=lambda: patch.object(CheckpointStore, "_is_held", _always)),
    Guard(
        name="lost reports count as all delivered", off=lambda: patch.object(fences, "_is_unknown", _never), first=48
    ),
    Guard(name="an earlier layout is waited for", off=_waits_for_nothing),
    Guard(name="what is waited for is acknowledged", off=_takes_delivered_for_acknowledged, first=96),
    Guard(name="a removed partition is delivered to its end", off=_takes_removed_for_finished),
    Guard(name="rewinds are counted in the head", off=_hears_of_no_rewind, kinds=("anything", "crashes"), first=324),
)


if __name__ == "__main__":
    sys.exit(guards.main(GUARDS, first_finding, seeds=2000))
