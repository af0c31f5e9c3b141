"""Checkpoints: who may write them and which way they move, as acts of owners, coordinators and people; what they look
like on every store; and answers that are lost, which are settled by reading, in bounded tries.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any, Literal, TypeVar

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Conflict, Fenced, Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import CheckpointStore, FenceRefused, NotDrained
from partq_spark.group.model import UNBOUNDED, Checkpoint, Owner
from partq_spark.objects.api import ObjectStore
from tests.group.ownership.conftest import KEY
from tests.objects.conftest import memory_store
from tests.support.way import Way

QUEUE_ID = "00aa00aa00aa00aa"
TIME_US = 1_795_000_000_000_000
A1, A2, B1 = Owner("a", "1111"), Owner("a", "2222"), Owner("b", "3333")
FORMER, PRESENT = 3, 8
"""Sequence numbers of the head that a group and the next one of its name were made with."""

T = TypeVar("T")
Loss = Literal["request", "answer", "late"]


class Lossy(Way):
    """A store whose next swaps get lost as `losses` says: before they took place, after, or to take place later."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.calls: Counter[str] = Counter()
        self.losses: deque[Loss] = deque()
        self.every_second: Loss | None = None
        self.before_swap: deque[Callable[[], object]] = deque()  # what somebody else does just then
        self.late: deque[Callable[[], object]] = deque()

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self.calls[kind] += 1
        if kind != "swap":
            return effect()
        if self.before_swap:
            self.before_swap.popleft()()
        loss = self.losses.popleft() if self.losses else self.every_second if self.calls["swap"] % 2 else None
        if loss is None:
            return effect()
        if loss == "answer":
            effect()
        elif loss == "late":
            self.late.append(effect)
        raise Unavailable(f"swap of {name}: {loss} lost (test)")


def checkpoints_in(
    store: ObjectStore, queue_id: str = QUEUE_ID, since: int = 0, clock: Callable[[], int] = lambda: TIME_US
) -> CheckpointStore:
    """As one process sees them, without real pauses."""
    effects = Effects(sleep=lambda _: None, time_us=clock)
    return CheckpointStore(store, KEY, queue_id, since=since, effects=effects)


class Stage:
    """One partition's checkpoint, and what its owners remember of it."""

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = Lossy(memory_store() if store is None else store)
        self.checkpoints = checkpoints_in(self.store, clock=count(TIME_US).__next__)
        self.held: dict[Owner | None, list[Checkpoint]] = {}

    def play(self, *acts: Act) -> None:
        """What each gives is what is there then."""
        for act in acts:
            given = act(self)
            if isinstance(given, Checkpoint):
                assert given == self.checkpoints.read(0)
                self.held.setdefault(given.owner, []).append(given)


Act = Callable[[Stage], object]


@pytest.fixture
def stage() -> Stage:
    return Stage()


def fence(to: Owner | None, epoch: int, start: int | None = None, **more: Any) -> Act:
    return lambda stage: stage.checkpoints.fence(0, to=to, epoch=epoch, start=start, **more)


def write(owner: Owner, offset: int | None, may_reach: int, *, known: int = -1) -> Act:
    """`known`: from the last that it knows of its checkpoint, or from an earlier one."""

    def written(stage: Stage) -> Checkpoint:
        held = stage.held[owner][known]
        below = held.redelivered_below
        return stage.checkpoints.write(held, offset=offset, may_reach=may_reach, marked=below, origin=None, swap=False)

    return written


def announce(owner: Owner, may_reach: int) -> Act:
    """It acknowledges nothing more."""
    return lambda stage: write(owner, stage.held[owner][-1].offset, may_reach)(stage)


def acknowledge(owner: Owner, offset: int, *, known: int = -1) -> Act:
    """It announces nothing more."""
    return lambda stage: write(owner, offset, stage.held[owner][known].may_reach, known=known)(stage)


def close(owner: Owner, offset: int) -> Act:
    """It has nothing in hand."""
    return write(owner, offset, offset)


def rewind(offset: int) -> Act:
    return lambda stage: stage.checkpoints.rewind(0, offset).after


def delete(stage: Stage) -> None:
    stage.store.store.delete(stage.checkpoints.name_of(0))


def refused(
    error: type[PartqError], act: Act, match: str | None = None, *, epoch: int | None = None, unchanged: bool = True
) -> Act:
    """And nothing is changed, but by others."""

    def refuse(stage: Stage) -> None:
        name = stage.checkpoints.name_of(0)
        before = stage.store.store.load(name)
        with pytest.raises(error, match=match) as caught:
            act(stage)
        assert not unchanged or stage.store.store.load(name) == before
        if epoch is not None:
            assert isinstance(caught.value, FenceRefused)
            assert caught.value.epoch == epoch

    return refuse


def meanwhile(other: Act, act: Act) -> Act:
    """`other` happens, by another process, between the reading and the writing of `act`."""

    def both(stage: Stage) -> object:
        away = Stage(stage.store.store)
        away.held = stage.held
        stage.store.before_swap.append(lambda: other(away))
        return act(stage)

    return both


def keeps(act: Act) -> Act:
    """It succeeds, and changes nothing."""

    def kept(stage: Stage) -> object:
        name = stage.checkpoints.name_of(0)
        before, given = stage.store.store.load(name), act(stage)
        assert stage.store.store.load(name) == before
        return given

    return kept


def of_group(since: int, act: Act, queue_id: str = QUEUE_ID) -> Act:
    """From here on by who belongs to this one of the groups, or queues, of the name."""

    def there(stage: Stage) -> object:
        stage.checkpoints = checkpoints_in(stage.store, queue_id, since)
        return act(stage)

    return there


def is_at(epoch: int, owner: Owner | None, offset: int | None, below: int = 0) -> Act:
    """Read alone, and listed."""
    return has(epoch=epoch, owner=owner, offset=offset, redelivered_below=below)


def has(**expected: object) -> Act:
    def look(stage: Stage) -> None:
        for found in (stage.checkpoints.read(0), stage.checkpoints.list_readable()[0][0]):
            assert {name: getattr(found, name) for name in expected} == expected

    return look


OWNED = fence(A1, 1, 10)

HISTORIES: dict[str, list[Act]] = {
    # --- the owner moves forward --------------------------------------------------------------------------------------
    "a checkpoint only moves forward": [
        *(OWNED, acknowledge(A1, 15), keeps(acknowledge(A1, 15)), keeps(acknowledge(A1, 14))),
        *(keeps(acknowledge(A1, 0)), is_at(1, A1, 15)),
    ],
    "an owner's knowledge may be behind its own writes: they are merged": [
        *(OWNED, acknowledge(A1, 15), acknowledge(A1, 15, known=0), acknowledge(A1, 12, known=0), is_at(1, A1, 15)),
        *(acknowledge(A1, 17, known=0), is_at(1, A1, 17)),
    ],
    "it is open while its owner may have something in hand": [
        *(OWNED, has(is_open=False), announce(A1, 40), has(is_open=True, may_reach=40), keeps(announce(A1, 40))),
        *(acknowledge(A1, 30), has(is_open=True), close(A1, 30), has(is_open=False, may_reach=30)),
    ],
    "who lost a partition and has it back is another owner": [
        *(OWNED, fence(B1, 2), fence(A1, 3), refused(Fenced, acknowledge(A1, 11, known=0)), acknowledge(A1, 12))
    ],
    "a fence between reading and writing wins": [
        *(OWNED, announce(A1, 20)),
        *(refused(Fenced, meanwhile(fence(B1, 2), acknowledge(A1, 20)), unchanged=False), is_at(2, B1, 10, 20)),
    ],
    "a deleted checkpoint is nobody's, and all of it may have been delivered": [
        *(OWNED, delete, refused(Fenced, acknowledge(A1, 11), "is gone")),
        *(fence(B1, 2, 5, known_epoch=1), is_at(2, B1, 5, UNBOUNDED)),
    ],
    "one from a listing is not written to": [
        *(OWNED, lambda stage: stage.held.update({A1: [stage.checkpoints.list_readable()[0][0]]})),
        refused(Invalid, acknowledge(A1, 15), "read it first"),
    ],
    # --- the coordinator fences ---------------------------------------------------------------------------------------
    "a fence keeps the offset and marks what may have been delivered": [
        *(OWNED, is_at(1, A1, 10), announce(A1, 50), acknowledge(A1, 30), fence(B1, 2, 5), is_at(2, B1, 30, 50)),
        *(announce(B1, 40), fence(None, 5, 5), is_at(5, None, 30, 50)),
    ],
    "what was closed leaves no marks": [OWNED, announce(A1, 50), close(A1, 30), fence(B1, 2), is_at(2, B1, 30)],
    "a drained fence waits until it is closed": [
        *(OWNED, announce(A1, 20), refused(NotDrained, fence(B1, 2, drained=True))),
        *(close(A1, 12), fence(B1, 2, drained=True), is_at(2, B1, 12)),
    ],
    "a drained fence meets a raise that comes between its look and its swap": [
        *(OWNED, refused(NotDrained, meanwhile(announce(A1, 20), fence(B1, 2, drained=True)), unchanged=False)),
        *(fence(B1, 2), is_at(2, B1, 10, 20)),
    ],
    "without offsets everything is marked that was in hand": [
        *(fence(A1, 1), is_at(1, A1, None), write(A1, None, UNBOUNDED), has(is_open=True), fence(B1, 2)),
        *(is_at(2, B1, None, UNBOUNDED), refused(Fenced, acknowledge(A1, 3))),
    ],
    "without offsets one that is closed says how far it was": [
        *(fence(A1, 1), write(A1, None, 9), has(is_open=False), fence(B1, 2), is_at(2, B1, None, 9))
    ],
    "a fence recognises its own repetition": [
        *(OWNED, announce(A1, 15), fence(B1, 2), acknowledge(B1, 12), keeps(fence(B1, 2)), is_at(2, B1, 12, 15))
    ],
    "a fence never goes back": [
        fence(A1, 2, 10),
        refused(FenceRefused, fence(B1, 1, 0), epoch=2),
        refused(FenceRefused, fence(B1, 2, 0), epoch=2),  # the same epoch, another flow
        refused(FenceRefused, fence(B1, 2, 0, replaces=A1), epoch=2),
        refused(FenceRefused, fence(A2, 2, 0), epoch=2),  # nobody said that this instance takes that one's place
        refused(FenceRefused, fence(A2, 2, 0, replaces=B1), epoch=2),
        refused(FenceRefused, fence(None, 2, 0), epoch=2),
        refused(FenceRefused, fence(None, 2, 0, replaces=A1), epoch=2),
    ],
    "a leader that slept does not give a partition back to a former instance": [
        *(fence(B1, 1, 10), fence(A1, 2), fence(A2, 2, replaces=A1)),
        *(refused(FenceRefused, fence(A1, 2)), refused(FenceRefused, fence(A1, 2, replaces=B1))),
    ],
    "fences that race end with the highest epoch": [
        *(OWNED, refused(FenceRefused, meanwhile(fence(A2, 3), fence(B1, 2)), epoch=3, unchanged=False)),
        *(meanwhile(fence(A2, 4), fence(B1, 5)), is_at(5, B1, 10)),
    ],
    "what its owner writes while it is fenced is kept": [
        *(OWNED, announce(A1, 20), meanwhile(acknowledge(A1, 18), fence(B1, 2)), is_at(2, B1, 18, 20)),
        *(meanwhile(announce(B1, 40), fence(A1, 3)), is_at(3, A1, 18, 40)),
    ],
    "of what is finished nothing is left above its end": [
        *(fence(A1, 1, 8), announce(A1, 20), fence(None, 2, 0, finished=8), is_at(2, None, 8, 8), has(may_reach=8))
    ],
    "what was rewound meanwhile is not finished": [
        *(fence(A1, 1, 8), rewind(2), fence(None, 3, 0, finished=8), is_at(3, None, 2, 8))
    ],
    "without an owner and an offset it is void, unless it is marked": [
        *(fence(None, 1), has(is_void=True), fence(A1, 2), write(A1, None, 5), fence(None, 3), has(is_void=False))
    ],
    # --- a former queue, or a former group, of the same name ----------------------------------------------------------
    "a former queue's checkpoint counts as absent, but its epoch continues": [
        *(of_group(0, fence(A1, 6, 100), "ffff"), announce(A1, 120), of_group(0, is_at(6, None, None))),
        *(refused(FenceRefused, fence(A1, epoch, 0, replaces=A1), epoch=6) for epoch in (1, 6)),
        *(refused(FenceRefused, fence(None, 6, 0)), fence(A1, 7, 3), is_at(7, A1, 3)),
        of_group(0, refused(Fenced, acknowledge(A1, 130, known=0)), "ffff"),
    ],
    "of a former group nothing counts but its epoch, which is over": [
        *(of_group(FORMER, fence(A1, 4, 0)), announce(A1, 9), of_group(PRESENT, is_at(5, None, None))),
        *(has(is_void=True), *(refused(FenceRefused, fence(A1, e, 0, replaces=A1), epoch=5) for e in (4, 5))),
        *(fence(B1, 6, 77), is_at(6, B1, 77)),
    ],
    "who belongs to the former group cannot write once the new one has": [
        *(of_group(FORMER, fence(A1, 4, 0)), announce(A1, 9), of_group(PRESENT, fence(B1, 6, 77))),
        *(
            of_group(FORMER, refused(Fenced, act, "was made again since"))
            for act in (acknowledge(A1, 6), announce(A1, 12), fence(A1, 99, 0), rewind(0))
        ),
    ],
    "a first fence of the former group that lands between a look and a swap of the new one": [
        of_group(
            PRESENT,
            refused(FenceRefused, meanwhile(of_group(FORMER, fence(A1, 1, 3)), fence(B1, 1, 77)), unchanged=False),
        ),
        *(fence(B1, 3, 77), is_at(3, B1, 77)),
    ],
    "one that was asleep with the etag in hand fails": [
        of_group(FORMER, fence(A1, 4, 0)),
        refused(Fenced, meanwhile(of_group(PRESENT, fence(B1, 6, 77)), acknowledge(A1, 8)), unchanged=False),
        of_group(PRESENT, is_at(6, B1, 77)),
    ],
    # --- a person takes it back ---------------------------------------------------------------------------------------
    "rewinding says what comes again and takes a new epoch": [
        *(OWNED, acknowledge(A1, 30), fence(None, 2), rewind(12), is_at(3, None, 12, 30)),
        refused(Fenced, acknowledge(A1, 40)),
    ],
    "a rewind takes the partition from its owner": [
        *(OWNED, announce(A1, 44), acknowledge(A1, 30)),
        *(rewind(12), is_at(2, None, 12, 44), refused(Fenced, acknowledge(A1, 40))),
        *(keeps(fence(None, 2)), rewind(5), is_at(3, None, 5, 44)),
    ],
    "rewinding only goes back, and needs an offset": [
        *(refused(Invalid, rewind(0), "nothing to rewind"), fence(None, 1)),
        *(refused(Invalid, rewind(0), "nothing to rewind"), fence(None, 2, 30)),
        *(refused(Invalid, rewind(offset), "give an offset from 0 to 30") for offset in (-1, 31)),
    ],
}


@pytest.mark.conformance("CHK-04", "CHK-05")
@pytest.mark.parametrize("loss", [None, "request", "answer", "late"])
@pytest.mark.parametrize("acts", HISTORIES.values(), ids=HISTORIES.keys())
def test_a_checkpoint_is_of_its_owner_coordinator_or_a_person(stage: Stage, acts: list[Act], loss: Loss | None) -> None:
    """Also where every second swap is lost, which is settled by reading. One that comes late finds another ETag, or
    that the checkpoint was deleted.
    """
    stage.store.every_second = loss
    stage.play(*acts)
    for late in stage.store.late:
        with pytest.raises(Conflict) if delete not in acts else suppress(Conflict):
            late()


@pytest.mark.conformance("CHK-05")
@pytest.mark.parametrize("to", [B1, A2, None])
def test_who_lost_a_partition_changes_nothing_however_late(stage: Stage, to: Owner | None) -> None:
    stage.play(OWNED, announce(A1, 12), fence(to, 1 if to == A2 else 2, replaces=A1))
    late = refused(Fenced, acknowledge(A1, 99), r"checkpoint/0 is .* not flow a's \(instance 1111\) at epoch 1")
    stage.play(late, late, is_at(1 if to == A2 else 2, to, 10, 12))
