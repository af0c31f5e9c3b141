"""What becomes of fences: what a checkpoint that is not as the state has it leads to, and that what is wrong with one
fails that one alone. What a fence makes of a checkpoint is in `tests/group/test_checkpoints.py`.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any, Final

import pytest

from coordinator.acting import MOST_WORDS, STUCK_AFTER_S, Carried, Fences
from coordinator.core.events import CheckpointAhead, Event, FenceStuck, PartitionFenced
from coordinator.logs import Log
from partq_spark.base.effects import in_a_row
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import UNBOUNDED, Checkpoint, Owner, Partition, Phase
from tests.coordinator.runtimes import KEY, Lines
from tests.support.memory_store import MemoryStore

HIM, HEIR, OTHER = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")
FENCE: Final = Partition(partition=0, phase=Phase.FENCING, owner=HIM, epoch=2, to=HEIR, to_epoch=3)
FIRST: Final = replace(FENCE, owner=None, epoch=0, to_epoch=1)
NOBODYS: Final = replace(FENCE, partition=3, to=None)


class Stage:
    """Checkpoints in memory, of which partition 0 is his at epoch 2, and what was told."""

    def __init__(self, *, his: bool = True) -> None:
        self.objects = MemoryStore(clock=lambda: 0.0, rng=Random(1))
        self.checkpoints = CheckpointStore(self.objects, KEY, "q")
        self.now_s = 0.0
        self.log = Lines()
        self.fences = Fences(first_s=0.1, most_s=5.0, now_s=lambda: self.now_s, log=Log("c"), run=in_a_row)
        if his:
            self.checkpoints.fence(0, to=HIM, epoch=2, start=0)

    def write(self, offset: int | None, may_reach: int) -> None:
        """By its owner."""
        held = self.mark()
        marked = held.redelivered_below
        self.checkpoints.write(held, offset=offset, may_reach=may_reach, marked=marked, origin=None, swap=False)

    def carry_out(self, *fences: Partition, **rest: Any) -> list[Carried]:
        given: dict[str, Any] = {"starts": {}, "finished": {}, "is_asked_for": lambda: True, **rest}
        return self.fences.carry_out(fences, checkpoints=self.checkpoints, **given)

    def mark(self, partition: int = 0) -> Checkpoint:
        found = self.checkpoints.read(partition)
        assert found is not None
        return found


@pytest.mark.conformance("HAN-02")
def test_what_may_have_been_delivered_comes_again_marked_and_is_counted() -> None:
    stage, drained = Stage(), replace(FENCE, drained=True)
    stage.write(4, 10)
    assert stage.carry_out(drained) == [(None, 0)], "what was drained waits while its checkpoint is open"
    assert stage.fences.due([drained]) == [drained], "it has not failed"
    done = stage.carry_out(FENCE)
    assert done == [(PartitionFenced(partition=0, epoch=3, owner=HEIR), 6)]
    assert (stage.mark().owner, stage.mark().redelivered_below) == (HEIR, 10)
    stage.write(50, 50)
    done = stage.carry_out(replace(FENCE, owner=HEIR, epoch=3, to=OTHER, to_epoch=4))
    assert [each.marked for each in done] == [0], "what was acknowledged since does not come again"
    stage.write(50, 60)
    nobodys = stage.carry_out(replace(FENCE, owner=OTHER, epoch=4, to=None, to_epoch=5))
    assert [each.marked for each in nobodys] == [0], "it comes to nobody"
    assert stage.log.all == []


def test_no_more_messages_are_counted_than_there_are() -> None:
    """An idle owner had a reserve, and the checkpoint of partition 1 was deleted: everything is marked."""
    stage = Stage()
    stage.write(10, 70)
    stage.checkpoints = CheckpointStore(stage.objects, KEY, "q", ends=(12, 5))
    done = stage.carry_out(FENCE, replace(FENCE, partition=1))
    assert [each.marked for each in done] == [2, 5]
    assert (stage.mark(0).redelivered_below, stage.mark(1).redelivered_below) == (70, UNBOUNDED)


@pytest.mark.parametrize("known", [False, True])
def test_what_nobody_had_begins_where_the_group_does(known: bool) -> None:
    """One that somebody had, and whose checkpoint is gone, was deleted: all of it may have been delivered."""
    stage = Stage(his=False)
    fences = [replace(FENCE if known else FIRST, partition=number) for number in (0, 1)]
    stage.carry_out(*fences, starts={1: 7})
    below = UNBOUNDED if known else 0
    assert [(each.offset, each.redelivered_below) for each in map(stage.mark, (0, 1))] == [(0, below), (7, below)]


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize(("to", "finished", "reach"), [(None, {0: 9}, 9), (None, {}, 20), (HEIR, {0: 9}, 20)])
def test_a_removed_partition_let_go_at_its_end_is_done(to: Owner | None, finished: dict[int, int], reach: int) -> None:
    """For a flow it stays as it was, and where nobody finished it, too."""
    stage = Stage()
    stage.write(9, 20)
    stage.carry_out(replace(FENCE, to=to), finished=finished)
    assert (stage.mark().offset, stage.mark().redelivered_below) == (9, reach)


@pytest.mark.conformance("LOS-01")
def test_the_same_epoch_again_is_for_the_same_flow_alone() -> None:
    stage, back = Stage(), Owner("a", "a2")
    stage.write(0, 10)
    done = stage.carry_out(replace(FENCE, to=back, to_epoch=2))
    assert [each.event for each in done] == [PartitionFenced(partition=0, epoch=2, owner=back)]
    assert (stage.mark().owner, stage.mark().epoch, stage.mark().redelivered_below) == (back, 2, 10)
    ahead = stage.carry_out(replace(FENCE, to_epoch=2))
    assert ahead == [(CheckpointAhead(partition=0, epoch=2), 0)]
    higher = stage.carry_out(replace(FENCE, owner=back, epoch=1, to_epoch=1))
    assert higher == ahead
    assert stage.mark().owner == back


@pytest.mark.conformance("OWN-03")
def test_a_checkpoint_that_is_not_the_former_owners_is_replaced_only_if_the_state_still_asks_for_it() -> None:
    """A leader whose state was lost meanwhile: the next one gave the partition to somebody, at a lower epoch."""
    for asked_for in (False, True):
        stage = Stage()
        fence = replace(FENCE, owner=OTHER, to_epoch=7)
        done = stage.carry_out(fence, is_asked_for=lambda asked=asked_for: asked)
        assert stage.mark().owner == (HEIR if asked_for else HIM)
        assert [each.event is not None for each in done] == [asked_for]
        assert len(stage.log.of("fence_failed")) == (not asked_for)
    stage = Stage()
    stage.carry_out(FENCE, is_asked_for=lambda: pytest.fail("his is his: nobody has to ask"))
    assert stage.mark().owner == HEIR


@pytest.mark.parametrize("told", ["", "damaged"])
def test_what_is_wrong_with_a_checkpoint_fails_its_own_fence_alone(told: str) -> None:
    """When it is read, or when it is written. What was said before is said in a low voice."""
    stage = Stage(his=False)
    stage.objects.swap(stage.checkpoints.name_of(1), {"offset": "nonsense"}, expected=None)
    swap = stage.objects.swap

    def refused(name: str, *arguments: Any, **named: Any) -> Any:
        if name == stage.checkpoints.name_of(2):
            raise Unavailable("no answer")
        return swap(name, *arguments, **named)

    vars(stage.objects)["swap"] = refused
    fences = [replace(FIRST, partition=0), replace(FIRST, partition=1, stuck=told), replace(FIRST, partition=2)]
    done = [each.event for each in stage.carry_out(*fences)]
    assert done[::2] == [PartitionFenced(partition=0, epoch=1, owner=HEIR), None]
    assert (done[1] is None) == bool(told)
    assert stage.fences.due(fences) == fences[:1]
    assert [level for level, *_ in stage.log.all] == ["debug" if told else "warning", "warning"]
    first, second = stage.log.of("fence_failed")
    assert (first["partition"], second["partition"]) == (1, 2)
    assert stage.checkpoints.name_of(1) in str(first["reason"])


@pytest.mark.parametrize(
    ("error", "at_s", "stuck", "said"),
    [
        (Unavailable("no answer"), 0.0, "", None),
        (Unavailable("no answer"), STUCK_AFTER_S, "", "no answer"),
        (Conflict("another was faster"), 0.0, "", None),
        (Corrupt("damaged"), 0.0, "", "damaged"),
        (Invalid("no: " + "and \n so on " * 1000), 0.0, "", ("no: " + "and so on " * 1000)[:MOST_WORDS]),
        (Corrupt("damaged"), 0.0, "damaged", None),
        (None, 0.0, "", None),
    ],
)
def test_what_becomes_of_a_fence_that_failed(
    error: PartqError | None, at_s: float, stuck: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, fence = Stage(), replace(NOBODYS, stuck=stuck)

    def tried(problem: PartqError | None) -> Event | None:
        def fails(*_: object, **__: object) -> Checkpoint:
            if problem is not None:
                raise problem
            return stage.mark()

        monkeypatch.setattr(stage.checkpoints, "fence", fails)
        (done,) = stage.carry_out(fence)
        return done.event

    if at_s:
        tried(Unavailable("first"))
        stage.now_s = at_s
    event = tried(error)
    if error is not None:
        assert event == (FenceStuck(partition=3, epoch=3, reason=said) if said is not None else None)
    assert (stage.fences.due([fence]) == [fence]) == (error is None)
    assert stage.fences.next_s([fence]) == pytest.approx(0.0 if error is None else 0.2 if at_s else 0.1)
    stage.fences.forget()
    assert stage.fences.due([fence]) == [fence]
