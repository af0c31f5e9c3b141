"""A group of many flows, made up: what the page draws when there is much of everything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

from partq import CoordinatorView, FlowView, GroupView, HandoffView, PartitionStatus, PartitionView, RebalanceStatus


def crowd(turn: int, *, partitions: int = 200, flows: int = 50, silent: str = "") -> GroupView:
    """The group at one look. From look to look every number changes, some partitions come to another flow, and some
    are on their way.
    """
    names = [f"stream-{number:02}" for number in range(flows)]
    owners = [names[(number + (turn if number % 10 == 0 else 0)) % flows] for number in range(partitions)]

    def partition(number: int) -> PartitionView:
        made = PartitionView(
            partition=number,
            status=PartitionStatus.READY,
            flow=owners[number],
            epoch=turn,
            acknowledged=1000 * turn,
            delivered=1000 * turn + 50,
            end=1000 * turn + 50 + number * 7 % 900,
            handoff=None,
            reason="",
            lag_s=turn * 0.1 + number,
        )
        if number % 10 != 5:
            return made
        to = names[(number + 7) % flows]
        return replace(
            made,
            status=PartitionStatus.PAUSED,
            handoff=HandoffView(to=to, remaining_s=3 - turn % 3, waiting_for=50),
            reason=f"paused: waits for 50 messages of flow {made.flow}, {3 - turn % 3:.1f} s left, then goes to {to}",
        )

    return GroupView(
        namespace="default",
        queue="orders",
        group="billing",
        rebalance_status=RebalanceStatus.REBALANCING,
        rebalance_deadline_s=None,
        scale_status="Ready",
        partitions=tuple(map(partition, range(partitions))),
        flows=tuple(
            FlowView(
                flow=name,
                active=True,
                bound=True,
                partitions=tuple(number for number, owner in enumerate(owners) if owner == name),
                last_seen_s=(turn * 7 + number) % 20 / 10,
                silent=name == silent,
            )
            for number, name in enumerate(names)
        ),
        coordinator=CoordinatorView(leader="coordinator-1", age_s=0.3),
    )


@contextmanager
def watching(
    *_: object, ownership: str | None = None, partitions: int = 200, flows: int = 50, silent: str = ""
) -> Iterator[Callable[[], GroupView]]:
    """In place of `Queue.watching`: no store is asked."""
    turns = count(1)
    yield lambda: crowd(next(turns), partitions=partitions, flows=flows, silent=silent)
