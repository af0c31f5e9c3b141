"""Which flow should have which partition: every partition has a flow, balance, then least movement (seed 002).

Pure arithmetic on numbers of partitions: nothing here knows phases, epochs, time or load (REB-12).
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from partq_spark.group.model import Owner


@dataclass(frozen=True, kw_only=True, slots=True)
class Move:
    """One partition goes from a bound flow to another one."""

    partition: int
    giver: Owner
    receiver: Owner


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """`given`: who gets the partitions that no bound flow has (seed 002, step 2). `moves`: the handoffs (step 5)."""

    given: Sequence[tuple[int, Owner]]
    moves: Sequence[Move]


def planned_assignment(
    *,
    live: Sequence[Owner],
    held: Mapping[Owner, Sequence[int]],
    unheld: Sequence[int],
    reluctant: Container[int] = (),
    exclusive: bool = False,
) -> Assignment:
    """Spread the partitions over `live`, the bound flows from the oldest to the newest (at least one).

    `held`: partitions of each of them, in order; `unheld`: those of nobody, or of flows that are gone. A flow's
    `reluctant` partitions are moved only where it has no others. Ties go to the oldest flow.
    """
    if exclusive:
        chosen = max(live, key=lambda owner: len(held.get(owner, ())))  # max keeps the first, the oldest, of equals
        return Assignment(
            given=[(number, chosen) for number in unheld],
            moves=[
                Move(partition=number, giver=owner, receiver=chosen)
                for owner in live
                if owner != chosen
                for number in held.get(owner, ())
            ],
        )
    fewest = [(len(held.get(owner, ())), age, owner) for age, owner in enumerate(live)]
    heapq.heapify(fewest)
    given: list[tuple[int, Owner]] = []
    for number in unheld:
        count, age, owner = fewest[0]
        given.append((number, owner))
        heapq.heapreplace(fewest, (count + 1, age, owner))
    return Assignment(given=given, moves=_even_out(fewest, held, reluctant))


def _even_out(
    fewest: list[tuple[int, int, Owner]], held: Mapping[Owner, Sequence[int]], reluctant: Container[int]
) -> list[Move]:
    """Seed 002, steps 4 to 6: one partition from the flow with most to the flow with fewest, until they differ by one.

    Both heaps keep entries whose count has changed since; they are recognised by that and dropped when they surface.
    Partitions that were just given are never moved: the flow that got one was among those with the fewest.
    """
    counts = {owner: count for count, _, owner in fewest}
    most = [(-count, age, owner) for count, age, owner in fewest]
    heapq.heapify(most)
    stocks: dict[Owner, list[int]] = {}
    moves: list[Move] = []
    while True:
        while -most[0][0] != counts[most[0][2]]:
            heapq.heappop(most)
        while fewest[0][0] != counts[fewest[0][2]]:
            heapq.heappop(fewest)
        if -most[0][0] - fewest[0][0] <= 1:
            return moves
        _, giver_age, giver = most[0]
        _, receiver_age, receiver = fewest[0]
        if giver not in stocks:
            stocks[giver] = sorted(held[giver], key=lambda number: (number not in reluctant, number))
        moves.append(Move(partition=stocks[giver].pop(), giver=giver, receiver=receiver))
        counts[giver] -= 1
        counts[receiver] += 1
        heapq.heapreplace(most, (-counts[giver], giver_age, giver))
        heapq.heapreplace(fewest, (counts[receiver], receiver_age, receiver))
        # the giver also becomes one of fewer, the receiver one of more
        heapq.heappush(fewest, (counts[giver], giver_age, giver))
        heapq.heappush(most, (-counts[receiver], receiver_age, receiver))
