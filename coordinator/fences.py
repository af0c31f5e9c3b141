"""Carrying out fences: which checkpoints are rewritten, and for whom.

Only the effect lives here. The state that asks for the fences was written before (`runtime`). The sidecar carries out
the fences of a group side by side, simulations one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.core.events import CheckpointAhead, Event, PartitionFenced
from coordinator.logs import Log
from partq_spark.base.errors import Conflict, PartqError
from partq_spark.base.side_by_side import RunAll
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore, FenceRefused, NotDrained
from partq_spark.group.model import Partition


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """What became of some fences: as events; by partition, what was in the way of the others; and how many messages
    were marked for those who got a partition, because they may come again. What waits until its owner closes it is in
    neither.
    """

    events: list[Event] = field(default_factory=list)
    failed: dict[int, PartqError] = field(default_factory=dict)
    marked: dict[int, int] = field(default_factory=dict)


def carry_out(
    fences: Sequence[Partition],
    *,
    checkpoints: CheckpointStore,
    starts: Mapping[int, int],
    finished: Mapping[int, int],
    is_asked_for: Callable[[], bool],
    run: RunAll,
    log: Log,
    told: Container[int] = (),
) -> Carried:
    """Fence these partitions for their `to`, side by side if `run` does so: what is wrong with one checkpoint does not
    touch the others. An unknown outcome is no event: the state still asks for the fence, and a fence recognises its own
    repetition. `told`: of these it was said before.

    `finished`: removed partitions that the group is done with, and where they end. A later look finds that in its
    checkpoint, also where offsets are not kept. `is_asked_for` reads whether the store still has the state that asks
    for these fences, and is asked only where a checkpoint is not the former owner's.
    """
    done = Carried()

    def one(fence: Partition) -> None:
        number, start = fence.partition, starts.get(fence.partition, 0)
        try:
            fenced = checkpoints.fence(
                number,
                to=fence.to,
                epoch=fence.to_epoch,
                # The same epoch again is only for the same flow, back as another instance (LOS-01).
                replaces=fence.owner if fence.to_epoch == fence.epoch else None,
                start=start,
                known_epoch=fence.epoch,
                drained=fence.drained,
                finished=finished.get(number, 0) if fence.to is None else 0,
                confirm=lambda found: _confirm(fence, found, is_asked_for),
            )
        except FenceRefused as error:
            done.events.append(CheckpointAhead(partition=number, epoch=error.epoch))
        except NotDrained:
            pass
        except PartqError as error:
            done.failed[number] = error
            level = "debug" if number in told else "warning"
            log(level, "fence_failed", partition=number, reason=str(error))
        else:
            done.events.append(PartitionFenced(partition=number, epoch=fence.to_epoch, owner=fence.to))
            if fence.to is not None and fenced.offset is not None:
                done.marked[number] = max(fenced.redelivered_below - fenced.offset, 0)

    run(one, fences)
    return done


def _confirm(fence: Partition, found: Checkpoint | None, is_asked_for: Callable[[], bool]) -> None:
    """A guard: a checkpoint that is not the former owner's may be the next leader's. Its state says so then, for it was
    written first; and what it still writes makes this fence's swap fail. Where the store has lost the state that asks
    for this fence, the next leader's epochs need not be above it.
    """
    here = (found.owner, found.epoch) if found is not None else (None, 0)
    if here != (fence.owner, fence.epoch) and not is_asked_for():
        raise Conflict("the group's state is another one now, and does not ask for this fence")
