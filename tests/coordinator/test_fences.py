"""What a fence believes of records and checkpoints: one table. And that what is wrong with one fails that one alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from threading import current_thread, main_thread
from typing import Any, Final

import pytest

from coordinator.core.actions import Fence
from coordinator.core.events import CheckpointAhead, FenceStuck, PartitionDrained, PartitionFenced
from coordinator.fence_retries import MOST_WORDS, STUCK_AFTER_S, FenceRetries
from coordinator.fences import Carried, carry_out, side_by_side
from coordinator.observe import Validity, drained
from partq_spark.base.errors import Conflict, Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.model import Delivery, FlowRecord, GroupSettings, GroupState, Owner, Partition, Phase
from partq_spark.objects.memory import MemoryStore
from tests.coordinator.runtimes import KEY, Lines

HIM, HEIR, OTHER = Owner("a", "a1"), Owner("b", "b1"), Owner("c", "c1")
ENDS: Final = (100, 200, 300)
HERE: Final = Validity(queue_id="q", incarnation="i")
RECORD: Final = FlowRecord(flow="a", instance="a1", queue_id="q", incarnation="i", bound=True, session_timeout_s=5.0)
SAID: Final = replace(RECORD, deliveries={0: Delivery(epoch=2, delivered=10, acknowledged=4)})
FENCE: Final = Fence(partition=0, owner=HIM, owner_epoch=2, to=HEIR, epoch=3, reports_lost=False, reason="")
LOST: Final = replace(FENCE, reports_lost=True)
FIRST: Final = replace(FENCE, owner=None, owner_epoch=0, epoch=1)
NOBODYS: Final = replace(FENCE, partition=3, to=None)
ALL: Final = ENDS[0]


class Stage:
    """Checkpoints in memory, of which partition 0 is his at epoch 2, and what was told."""

    def __init__(self, *, his: bool = True) -> None:
        self.objects = MemoryStore(clock=lambda: 0.0, rng=Random(1))
        self.checkpoints = CheckpointStore(self.objects, KEY, "q")
        self.log = Lines()
        if his:
            self.checkpoints.fence(0, to=HIM, epoch=2, start=0, delivered=None)

    def carry_out(self, *fences: Fence, records: dict[str, FlowRecord] | None = None, **rest: Any) -> Carried:
        given: dict[str, Any] = {
            "checkpoints": self.checkpoints,
            "starts": {},
            "finished": {},
            "ends": lambda: ENDS,
            "is_asked_for": lambda: True,
            "run": lambda each, work: [each(item) for item in work],
        }
        return carry_out(fences, key=KEY, validity=HERE, records=records or {}, log=self.log, **{**given, **rest})

    def mark(self, partition: int = 0) -> Checkpoint:
        found = self.checkpoints.read(partition)
        assert found is not None
        return found


@pytest.mark.parametrize(
    ("fence", "record", "below"),
    [
        pytest.param(FENCE, SAID, 10, id="his record says it"),
        pytest.param(FENCE, replace(SAID, instance="a2", former=("a1",)), 10, id="the record of his next instance"),
        pytest.param(FENCE, RECORD, 0, id="he delivered nothing"),
        pytest.param(FENCE, replace(RECORD, instance="a2", former=("a1",)), 0, id="nor did his next instance"),
        pytest.param(FENCE, replace(RECORD, instance="a2"), ALL, id="a record that began anew says nothing"),
        pytest.param(FENCE, None, ALL, id="no record says nothing"),
        pytest.param(FENCE, replace(SAID, queue_id="former"), ALL, id="nor one of a former queue"),
        pytest.param(FENCE, replace(SAID, incarnation="former"), ALL, id="nor one of an old copy of the store"),
        pytest.param(replace(FENCE, owner_epoch=1), replace(SAID, instance="a9"), ALL, id="nor one of another epoch"),
        pytest.param(LOST, SAID, 10, id="reports were lost and made again"),
        pytest.param(LOST, RECORD, ALL, id="reports were lost"),
        pytest.param(replace(LOST, owner=OTHER), SAID, ALL, id="the state has forgotten who has it"),
        pytest.param(replace(LOST, owner_epoch=1), SAID, ALL, id="the state has forgotten at which epoch"),
    ],
)
def test_what_counts_as_delivered(fence: Fence, record: FlowRecord | None, below: int) -> None:
    stage = Stage()
    done = stage.carry_out(fence, records={"a": record} if record is not None else {})
    assert done.events == [PartitionFenced(partition=0, epoch=3, owner=HEIR)]
    assert (stage.mark().owner, stage.mark().redelivered_below) == (HEIR, below)
    assert done.redelivered == below
    assert stage.log == []


@pytest.mark.parametrize(
    ("record", "lost", "is_drained"),
    [
        (SAID, False, False),  # six are in hand
        (replace(SAID, deliveries={0: Delivery(epoch=2, delivered=10, acknowledged=10)}), True, True),
        (RECORD, False, True),
        (RECORD, True, False),
        (replace(RECORD, instance="a2", former=("a1",)), False, True),
        (replace(RECORD, instance="a2"), False, False),  # it began anew: that says nothing
        (None, False, False),
    ],
)
def test_a_paused_partition_is_drained_only_by_its_owners_record(
    record: FlowRecord | None, lost: bool, is_drained: bool
) -> None:
    pause = Partition(partition=0, phase=Phase.PAUSED, epoch=2, owner=HIM, to=HEIR, deadline_s=1.0, reports_lost=lost)
    state = GroupState(queue_id="q", incarnation="i", settings=GroupSettings(), partitions={0: pause})
    found = drained(state, {"a": record} if record is not None else {}, HERE)
    assert list(found) == ([PartitionDrained(partition=0, epoch=2)] if is_drained else [])


@pytest.mark.conformance("OWN-04")
def test_after_a_rewind_that_the_owner_did_not_know_of_everything_counts_as_delivered() -> None:
    """A store that has forgotten whose it was; the record may be of before."""
    stage = Stage()
    held = stage.mark()
    stage.checkpoints.update_checkpoint(held, 8)
    stage.checkpoints.rewind(0, 5, fence=True, delivered=8)
    rewound = stage.mark()
    stage.carry_out(replace(LOST, owner=None, owner_epoch=rewound.epoch, epoch=9), records={"a": SAID})
    assert (stage.mark().offset, stage.mark().redelivered_below) == (5, ALL)


@pytest.mark.parametrize("lost", [False, True])
def test_what_nobody_had_begins_where_the_group_does(lost: bool) -> None:
    stage = Stage(his=False)
    done = stage.carry_out(*(replace(FIRST, partition=n, reports_lost=lost) for n in (0, 1)), starts={1: 7})
    assert done.redelivered == 0
    marks = [stage.mark(number) for number in (0, 1)]
    assert [(each.offset, each.redelivered_below, each.epoch) for each in marks] == [(0, 0, 1), (7, 0, 1)]


def test_of_what_comes_again_only_what_follows_the_offset_is_counted() -> None:
    stage = Stage()
    stage.checkpoints.update_checkpoint(stage.mark(), 4)
    assert stage.carry_out(FENCE, records={"a": SAID}).redelivered == 6
    # What was marked and is acknowledged since does not come again.
    stage.checkpoints.update_checkpoint(stage.mark(), 50)
    again = replace(FENCE, owner=HEIR, owner_epoch=3, to=OTHER, epoch=4)
    assert stage.carry_out(again, records={"b": replace(RECORD, flow="b", instance="b1")}).redelivered == 0
    nobodys = replace(FENCE, owner=OTHER, owner_epoch=4, to=None, epoch=5)
    assert stage.carry_out(nobodys).redelivered == 0, "it comes to nobody"


@pytest.mark.conformance("RES-02")
@pytest.mark.parametrize(("to", "finished", "offset"), [(None, {0: 9}, 9), (None, {}, 0), (HEIR, {0: 9}, 0)])
def test_a_removed_partition_that_is_let_go_at_its_end_says_so(
    to: Owner | None, finished: dict[int, int], offset: int
) -> None:
    """Also where offsets are not kept; for a flow it stays where it was, and where nobody finished it, too."""
    stage = Stage()
    stage.carry_out(replace(FENCE, to=to), records={"a": RECORD}, finished=finished)
    assert stage.mark().offset == offset


@pytest.mark.conformance("LOS-01")
def test_the_same_epoch_again_is_for_the_same_flow_alone() -> None:
    stage, back = Stage(), Owner("a", "a2")
    done = stage.carry_out(replace(FENCE, to=back, epoch=2), records={"a": SAID})
    assert done.events == [PartitionFenced(partition=0, epoch=2, owner=back)]
    assert (stage.mark().owner, stage.mark().epoch, stage.mark().redelivered_below) == (back, 2, 10)
    ahead = stage.carry_out(replace(FENCE, to=HEIR, epoch=2), records={"a": SAID})
    assert ahead.events == [CheckpointAhead(partition=0, epoch=2)]
    higher = stage.carry_out(replace(FENCE, owner=back, owner_epoch=1, epoch=1), records={"a": SAID})
    assert higher.events == [CheckpointAhead(partition=0, epoch=2)]
    assert stage.mark().owner == back


@pytest.mark.conformance("OWN-03")
def test_a_checkpoint_that_is_not_the_former_owners_is_replaced_only_if_the_state_still_asks_for_it() -> None:
    """A leader whose state was lost meanwhile: the next one gave the partition to somebody, at a lower epoch."""
    for asked_for in (False, True):
        stage = Stage()
        done = stage.carry_out(replace(FENCE, owner=OTHER, epoch=7), is_asked_for=lambda asked=asked_for: asked)
        assert stage.mark().owner == (HEIR if asked_for else HIM)
        assert list(map(type, done.failed.values())) == ([] if asked_for else [Conflict])
        assert len(done.events) == asked_for
    stage = Stage()
    stage.carry_out(FENCE, records={"a": SAID}, is_asked_for=lambda: pytest.fail("his is his: nobody has to ask"))
    assert stage.mark().owner == HEIR


@pytest.mark.parametrize("told", [(), (1,)])
def test_what_is_wrong_with_a_checkpoint_fails_its_own_fence_alone(told: tuple[int, ...]) -> None:
    """Before it is known what was delivered, or when it is written. What was said before is said in a low voice."""
    stage = Stage(his=False)
    stage.objects.swap(stage.checkpoints.name_of(1), {"offset": "nonsense"}, expected=None)
    swap = stage.objects.swap

    def refused(name: str, *arguments: Any, **named: Any) -> Any:
        if name == stage.checkpoints.name_of(2):
            raise Unavailable("no answer")
        return swap(name, *arguments, **named)

    vars(stage.objects)["swap"] = refused
    lost = [replace(LOST, partition=number) for number in range(3)]
    done = stage.carry_out(*lost, told=told)
    assert done.events == [PartitionFenced(partition=0, epoch=3, owner=HEIR)]
    assert done.redelivered == ALL, "up to the log's end, where nobody knows better"
    assert list(done.failed) == [1, 2]
    assert [level for level, *_ in stage.log] == ["debug" if told else "warning", "warning"]
    first, second = stage.log.of("fence_failed")
    assert (first["partition"], second["partition"]) == (1, 2)
    assert stage.checkpoints.name_of(1) in str(first["reason"])


def test_many_are_carried_out_by_threads_and_one_alone_without() -> None:
    with ThreadPoolExecutor(2) as threads:
        run = side_by_side(threads)
        for count in range(4):
            found = list(run(lambda n: (n + 1, current_thread() is main_thread()), range(count)))
            assert found == [(n + 1, count == 1) for n in range(count)]


@pytest.mark.parametrize(
    ("error", "at_s", "stuck", "said"),
    [
        (Unavailable("no answer"), 0.0, (), None),
        (Unavailable("no answer"), STUCK_AFTER_S, (), "no answer"),
        (Conflict("another was faster"), 0.0, (), None),
        (Corrupt("damaged"), 0.0, (), "damaged"),
        (Invalid("no: " + "and \n so on " * 1000), 0.0, (), ("no: " + "and so on " * 1000)[:MOST_WORDS]),
        (Corrupt("damaged"), 0.0, (3,), None),
        (None, 0.0, (), None),
    ],
)
def test_what_becomes_of_a_fence_that_failed(
    error: PartqError | None, at_s: float, stuck: tuple[int, ...], said: str | None
) -> None:
    retries = FenceRetries(0.1, 5.0)
    failed = {3: error} if error is not None else {}
    retries.tried([NOBODYS], {3: Unavailable("first")} if at_s else {}, stuck, 0.0)
    events = retries.tried([NOBODYS], failed, stuck, at_s)
    assert events == ([FenceStuck(partition=3, epoch=3, reason=said)] if said is not None else [])
    assert (retries.due([NOBODYS], at_s) == [NOBODYS]) == (error is None)
    assert retries.next_s([NOBODYS], at_s) == pytest.approx(0.0 if error is None else 0.2 if at_s else 0.1)
    retries.forget()
    assert retries.due([NOBODYS], at_s) == [NOBODYS]
