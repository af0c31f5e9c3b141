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
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused
from partq_spark.group.model import Owner
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


def fence(to: Owner | None, epoch: int, start: int | None = None, delivered: int | None = None, **more: Any) -> Act:
    return lambda stage: stage.checkpoints.fence(0, to=to, epoch=epoch, start=start, delivered=delivered, **more)


def acknowledge(owner: Owner, offset: int, *, known: int = -1) -> Act:
    """`known`: from the last that it knows of its checkpoint, or from an earlier one."""
    return lambda stage: stage.checkpoints.update_checkpoint(stage.held[owner][known], offset)


def deliver(owner: Owner) -> Act:
    return lambda stage: stage.checkpoints.deliver(stage.held[owner][-1])


def leave(owner: Owner, offset: int, delivered: int) -> Act:
    return lambda stage: stage.checkpoints.leave(stage.held[owner][-1], offset=offset, delivered=delivered)


def rewind(offset: int, **more: Any) -> Act:
    return lambda stage: stage.checkpoints.rewind(0, offset, **more).after


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
        for found in (stage.checkpoints.read(0), stage.checkpoints.list_checkpoints()[0]):
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
        *(OWNED, acknowledge(A1, 15), keeps(acknowledge(A1, 15, known=0)), keeps(acknowledge(A1, 12, known=0))),
        *(acknowledge(A1, 17, known=0), is_at(1, A1, 17)),
    ],
    "who lost a partition and has it back is another owner": [
        *(OWNED, fence(B1, 2), fence(A1, 3), refused(Fenced, acknowledge(A1, 11, known=0)), acknowledge(A1, 12)),
    ],
    "a fence between reading and writing wins": [
        *(
            OWNED,
            refused(Fenced, meanwhile(fence(B1, 2, delivered=20), acknowledge(A1, 20)), unchanged=False),
            is_at(2, B1, 10, 20),
        ),
    ],
    "a deleted checkpoint is nobody's": [OWNED, delete, refused(Fenced, acknowledge(A1, 11), "is gone")],
    "one from a listing is not written to": [
        *(OWNED, lambda stage: stage.held.update({A1: [stage.checkpoints.list_checkpoints()[0]]})),
        refused(Invalid, acknowledge(A1, 15), "read it first"),
    ],
    # --- an owner that has the group to itself ------------------------------------------------------------------------
    "that somebody delivers is written once, and ends with a rewind": [
        *(OWNED, deliver(A1), has(delivering=True), keeps(deliver(A1)), acknowledge(A1, 15)),
        *(rewind(2, fence=True, delivered=18), has(delivering=False)),
    ],
    "who leaves takes back neither an acknowledgement nor a mark": [
        *(fence(A1, 1, 0, 7), deliver(A1), acknowledge(A1, 5, known=1), leave(A1, 3, 6), is_at(1, A1, 5, 7)),
        has(delivering=False),
    ],
    "who leaves marks what it did not acknowledge": [
        *(fence(A1, 1, 0), deliver(A1), leave(A1, 3, 6), is_at(1, A1, 3, 6)),
        *(fence(A2, 1, 0, replaces=A1), leave(A2, 9, 9), is_at(1, A2, 9, 6)),
        *(delete, fence(B1, 2, 0), leave(B1, 6, 6), is_at(2, B1, 6)),
    ],
    # --- the coordinator fences ---------------------------------------------------------------------------------------
    "a fence keeps the offset and the marks": [
        *(OWNED, is_at(1, A1, 10), acknowledge(A1, 30), fence(B1, 2, 5, 50), is_at(2, B1, 30, 50)),
        *(fence(None, 5, 5, 40), is_at(5, None, 30, 50)),
    ],
    "without offsets the fence alone is kept": [
        *(fence(A1, 1), is_at(1, A1, None), fence(B1, 2, delivered=9), is_at(2, B1, None, 9)),
        *(refused(Fenced, acknowledge(A1, 3)), fence(B1, 3, 4), is_at(3, B1, 4, 9)),
    ],
    "a fence recognises its own repetition, which may know less": [
        *(OWNED, fence(B1, 2, delivered=15), acknowledge(B1, 12)),
        *(keeps(fence(B1, 2, delivered=15)), keeps(fence(B1, 2, delivered=99)), is_at(2, B1, 12, 15)),
    ],
    "a fence for nobody is not content with a rewind that looks like it": [
        # A1 did not know yet, and delivered up to 30 before it is fenced at the epoch that the rewind took.
        *(OWNED, acknowledge(A1, 15), rewind(5, fence=True, delivered=20), is_at(2, None, 5, 20)),
        *(fence(None, 2, delivered=30), is_at(2, None, 5, 30), keeps(fence(None, 2, delivered=30))),
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
        *(meanwhile(fence(A2, 4, delivered=33), fence(B1, 5, delivered=20)), is_at(5, B1, 10, 33)),
    ],
    "an acknowledgement that races a fence is kept": [
        *(OWNED, meanwhile(acknowledge(A1, 18), fence(B1, 2, delivered=20)), is_at(2, B1, 18, 20)),
    ],
    "what is finished moves forward": [
        *(fence(A1, 1, 8), fence(None, 2, 0, finished=5), is_at(2, None, 8)),
        *(fence(None, 3, 0, finished=12), is_at(3, None, 12)),
    ],
    "what was rewound meanwhile is not finished": [
        *(fence(A1, 1, 8), rewind(2, fence=True, delivered=8), fence(None, 3, 0, finished=8), is_at(3, None, 2, 8)),
    ],
    "without an owner and an offset it is void, unless it is marked": [
        *(fence(None, 1), has(is_void=True), fence(None, 2, delivered=5), has(is_void=False)),
    ],
    # --- a former queue, or a former group, of the same name ----------------------------------------------------------
    "a former queue's checkpoint counts as absent, but its epoch continues": [
        *(of_group(0, fence(A1, 6, 100, 120), "ffff"), of_group(0, is_at(6, None, None))),
        *(refused(FenceRefused, fence(A1, epoch, 0, replaces=A1), epoch=6) for epoch in (1, 6)),
        *(refused(FenceRefused, fence(None, 6, 0)), fence(A1, 7, 3), is_at(7, A1, 3)),
        of_group(0, refused(Fenced, acknowledge(A1, 130, known=0)), "ffff"),
    ],
    "of a former group nothing counts but its epoch, which is over": [
        *(of_group(FORMER, fence(A1, 4, 0, 9)), acknowledge(A1, 5), of_group(PRESENT, is_at(5, None, None))),
        *(has(is_void=True), *(refused(FenceRefused, fence(A1, e, 0, replaces=A1), epoch=5) for e in (4, 5))),
        *(fence(B1, 6, 77), is_at(6, B1, 77)),
    ],
    "who belongs to the former group cannot write once the new one has": [
        *(of_group(FORMER, fence(A1, 4, 0, 9)), acknowledge(A1, 5), of_group(PRESENT, fence(B1, 6, 77))),
        *(
            of_group(FORMER, refused(Fenced, act, "was made again since"))
            for act in (acknowledge(A1, 6), deliver(A1), leave(A1, 6, 9), fence(A1, 99, 0), rewind(0, fence=True))
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
        of_group(FORMER, fence(A1, 4, 0, 9)),
        refused(Fenced, meanwhile(of_group(PRESENT, fence(B1, 6, 77)), acknowledge(A1, 8)), unchanged=False),
        of_group(PRESENT, is_at(6, B1, 77)),
    ],
    # --- a person takes it back ---------------------------------------------------------------------------------------
    "rewinding says what comes again and takes a new epoch": [
        *(OWNED, acknowledge(A1, 30), fence(None, 2), rewind(12), is_at(3, None, 12, 30)),
        refused(Fenced, acknowledge(A1, 40)),
    ],
    "rewinding is refused while a flow owns the partition": [
        *(OWNED, acknowledge(A1, 30), refused(Conflict, rewind(12), r"flow a's .* stop that flow first")),
        *(rewind(12, fence=True, delivered=44), is_at(2, None, 12, 44), refused(Fenced, acknowledge(A1, 40))),
    ],
    "a rewind that took the partition from somebody shows until it is given away": [
        *(OWNED, acknowledge(A1, 30), has(rewound=False), rewind(20, fence=True, delivered=44), has(rewound=True)),
        *(rewind(12, delivered=99), has(rewound=True), is_at(3, None, 12, 44)),  # nobody had it meanwhile
        *(fence(B1, 4), has(rewound=False), fence(None, 5), rewind(11), has(rewound=False)),
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
def test_a_checkpoint_is_written_by_its_owner_a_coordinator_or_a_person(
    stage: Stage, acts: list[Act], loss: Loss | None
) -> None:
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
    stage.play(OWNED, fence(to, 1 if to == A2 else 2, delivered=12, replaces=A1))
    late = refused(Fenced, acknowledge(A1, 99), r"checkpoint/0 is .* not flow a's \(instance 1111\) at epoch 1")
    stage.play(late, late, is_at(1 if to == A2 else 2, to, 10, 12))
