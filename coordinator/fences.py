"""Carrying out fences: which checkpoints are rewritten, and what of the former owner's work they have to remember.

Only the effect lives here. The state that asks for the fences was written before (`runtime`). The sidecar carries out
the fences of a group side by side, simulations one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coordinator.core.actions import Fence
from coordinator.core.events import CheckpointAhead, Event, PartitionFenced
from coordinator.logs import Log
from coordinator.observe import Validity, entry_of, is_whole
from partq_spark.base.errors import Conflict, PartqError
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused
from partq_spark.group.model import FlowRecord, GroupKey

A = TypeVar("A")
B = TypeVar("B")


class RunAll(Protocol):
    """`map` over some work; the answers come in the order of the work."""

    def __call__(self, each: Callable[[A], B], work: Sequence[A], /) -> Iterable[B]: ...


def in_a_row(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
    """One after the other, in the calling thread."""
    return [each(item) for item in work]


def side_by_side(threads: Executor) -> RunAll:
    """As many at once as `threads` has; a single piece of work is done at once, without another thread."""

    def run(each: Callable[[A], B], work: Sequence[A], /) -> list[B]:
        return in_a_row(each, work) if len(work) <= 1 else list(threads.map(each, work))

    return run


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """What became of some fences: as events; by partition, what was in the way of the others; and how many messages
    were marked for those who got a partition, because they come again.
    """

    events: list[Event]
    failed: dict[int, PartqError]
    redelivered: int


def carry_out(
    fences: Sequence[Fence],
    *,
    key: GroupKey,
    validity: Validity,
    records: Mapping[str, FlowRecord],
    checkpoints: CheckpointStore,
    starts: Mapping[int, int],
    finished: Mapping[int, int],
    ends: Callable[[], Sequence[int]],
    is_asked_for: Callable[[], bool],
    run: RunAll,
    log: Log,
    told: Container[int] = (),
) -> Carried:
    """Fence, side by side if `run` does so: what is wrong with one checkpoint does not touch the others. An unknown
    outcome is no event: the state still asks for the fence, and a fence recognises its own repetition. `told`: of these
    it was said before.

    `finished`: removed partitions that the group is done with, and where they end. A later
    look finds that in its checkpoint, also where offsets are not kept.

    `records` were read after the state that asks for these fences was written: later ones cannot have more. `ends`
    reads the log's end of every partition, and is asked only where nobody knows what was delivered. `is_asked_for`
    reads whether the store still has the state that asks for these fences, and is asked only where a checkpoint is not
    the former owner's.
    """

    failed: dict[int, PartqError] = {}
    redelivered: dict[int, int] = {}

    def fail(fence: Fence, error: PartqError) -> None:
        failed[fence.partition] = error
        level = "debug" if fence.partition in told else "warning"
        log(level, "fence_failed", group=str(key), partition=fence.partition, reason=str(error))

    def is_unknown(fence: Fence) -> bool | None:  # None: it has failed already
        try:
            return _is_unknown(fence, records, validity, checkpoints)
        except PartqError as error:
            fail(fence, error)
            return None

    answers = dict(zip((fence.partition for fence in fences), run(is_unknown, fences), strict=True))
    unknown = {partition for partition, answer in answers.items() if answer}
    log_ends = ends() if unknown else ()

    def delivered(fence: Fence) -> int | None:
        if fence.partition in unknown:
            return log_ends[fence.partition] if fence.partition < len(log_ends) else None
        record = records.get(fence.owner.flow) if fence.owner is not None else None
        entry = entry_of(record, fence.partition, fence.owner_epoch, validity)
        return entry.delivered if entry is not None else None

    def one(fence: Fence) -> Event | None:
        try:
            fenced = checkpoints.fence(
                fence.partition,
                to=fence.to,
                epoch=fence.epoch,
                # The same epoch again is only for the same flow, back as another instance (LOS-01).
                replaces=fence.owner if fence.epoch == fence.owner_epoch else None,
                start=starts.get(fence.partition, 0),
                delivered=delivered(fence),
                finished=finished.get(fence.partition, 0) if fence.to is None else 0,
                confirm=lambda found: _confirm(fence, found, is_asked_for),
            )
        except FenceRefused as error:
            return CheckpointAhead(partition=fence.partition, epoch=error.epoch)
        except PartqError as error:
            fail(fence, error)
            return None
        if fence.to is not None:
            begin = fenced.offset if fenced.offset is not None else starts.get(fence.partition, 0)
            redelivered[fence.partition] = max(fenced.redelivered_below - begin, 0)
        return PartitionFenced(partition=fence.partition, epoch=fence.epoch, owner=fence.to)

    known = [fence for fence in fences if answers[fence.partition] is not None]
    events = [event for event in run(one, known) if event is not None]
    return Carried(events=events, failed=failed, redelivered=sum(redelivered.values()))


def _confirm(fence: Fence, found: Checkpoint | None, is_asked_for: Callable[[], bool]) -> None:
    """A guard: a checkpoint that is not the former owner's may be the next leader's. Its state says so then, for it was
    written first; and what it still writes makes this fence's swap fail. Where the store has lost the state that asks
    for this fence, the next leader's epochs need not be above it.
    """
    here = (found.owner, found.epoch) if found is not None else (None, 0)
    if here != (fence.owner, fence.owner_epoch) and not is_asked_for():
        raise Conflict("the group's state is another one now, and does not ask for this fence")


def _is_unknown(
    fence: Fence, records: Mapping[str, FlowRecord], validity: Validity, checkpoints: CheckpointStore
) -> bool:
    """Whether nobody knows how much was delivered: then it may be everything there is."""
    if fence.reports_lost:
        found = checkpoints.read(fence.partition)
        here = (found.owner.flow if found.owner else None, found.epoch) if found is not None else (None, 0)
        if here != (fence.owner.flow if fence.owner else None, fence.owner_epoch):
            return True  # an owner that the state has forgotten had it
        if found is not None and found.rewound:
            return True  # its owner went on for a while after the rewind
    if fence.owner is None:
        return False
    record = records.get(fence.owner.flow)
    if entry_of(record, fence.partition, fence.owner_epoch, validity) is not None:
        return False
    return fence.reports_lost or not is_whole(record, fence.owner, validity)
