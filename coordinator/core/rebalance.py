"""When a group is rebalanced: rebalance delay, holddown, standby take-over, and the steps of seed 002 once it starts.

`look` judges a state by what it shows, whatever led to it, so that nothing has to be remembered about what happened
during a rebalance (REB-14). Who gets what is arithmetic (`planned_assignment`); how a partition gets there, `handoff`.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from coordinator.core.draft import Draft, Holdings, is_in_handoff
from coordinator.core.handoff import Cause, Step
from partq_spark.group.model import AccessType, GroupSettings, Owner, Phase, RebalanceStatus


def need(holdings: Holdings, settings: GroupSettings) -> str | None:
    """Why this group has to be rebalanced, in words; None: it is as it should be."""
    held, live = holdings.held, holdings.live
    lost = holdings.lost
    if lost:
        return f"{_names(lost)} not bound; Unbound partitions: {sum(len(held[owner]) for owner in lost)}"
    if not live:
        return None  # nobody has anything, and nobody wants anything
    if holdings.unheld:
        return f"{len(holdings.unheld)} partitions have no flow"
    if settings.access_type is AccessType.EXCLUSIVE:
        return f"{_names(list(held))} share a queue that is exclusive" if len(held) > 1 else None
    idle = holdings.idle
    if idle and len(held) < holdings.total:
        return f"{_names(idle)} waiting for a share"
    counts = [len(numbers) for numbers in held.values()]
    if counts and max(counts) - min(counts) > 1:
        return f"the flows have from {min(counts)} to {max(counts)} partitions"
    return None


def look(draft: Draft) -> None:
    """Judge a group in which no rebalance runs: after a bind or unbind in Ready, or when a rebalance has ended."""
    holdings = draft.holdings()
    if holdings.live and not holdings.held:
        # LOS-05: nothing is taken from anybody, so there is nothing to wait for.
        _map(
            draft,
            holdings,
            planned_assignment(live=holdings.live, held={}, unheld=holdings.unheld, exclusive=_exclusive(draft)),
        )
        return _ready(draft, "nobody has any partition")
    at_once = bool(holdings.live) and (
        draft.altered or bool(holdings.unheld) or (_exclusive(draft) and len(holdings.held) > 1)
    )
    if not at_once and _take_over(draft, holdings):
        holdings = draft.holdings()
    reason = need(holdings, draft.settings)
    if reason is None:
        return _ready(draft, "every partition has a bound flow" if holdings.live else "no flow is bound")
    if at_once or draft.settings.rebalance_delay_s <= 0:
        return start(draft, holdings, reason)
    return draft.set_status(RebalanceStatus.HOLDDOWN, reason, until_s=draft.now_s + draft.settings.rebalance_delay_s)


def look_in_holddown(draft: Draft) -> None:
    """REB-06: back to Ready if everything is as it should be before the delay has ended; else the timer runs on."""
    if need(draft.holdings(), draft.settings) is None:
        _ready(draft, "every partition has a bound flow again, and no flow waits for a share")


def end_if_done(draft: Draft) -> None:
    """A rebalance has ended when no partition is on its way; what came meanwhile is judged now (REB-14)."""
    if draft.status is RebalanceStatus.REBALANCING and not is_in_handoff(draft):
        look(draft)


def start(draft: Draft, holdings: Holdings, reason: str) -> None:
    """Steps 2 to 6 of seed 002, all handoffs side by side (REB-16). Step 1 is done when partitions are altered.

    `holdings` are the draft's, as they are now: the caller has just judged by them.
    """
    draft.set_status(RebalanceStatus.REBALANCING, reason)
    if holdings.live:
        _spread(draft, holdings)
    else:
        for owner in holdings.lost:
            for number in holdings.held[owner]:
                draft.step(number, Step.FENCE, Cause.RELEASE, f"{owner.flow} is lost and no flow is bound")
    if not is_in_handoff(draft):
        _ready(draft, "nothing has to move")


def _spread(draft: Draft, holdings: Holdings) -> None:
    unheld = sorted([*holdings.unheld, *(number for owner in holdings.lost for number in holdings.held[owner])])
    plan = planned_assignment(
        live=holdings.live,
        held=holdings.held,
        unheld=unheld,
        reluctant={number for number, p in draft.partitions.items() if p.phase is Phase.FENCING},
        exclusive=_exclusive(draft),
    )
    _map(draft, holdings, plan)
    draft.tell()  # step 3 comes before step 5
    at_once = draft.settings.max_handoff_time_s <= 0
    deadline_s = draft.now_s + draft.settings.max_handoff_time_s
    for move in plan.moves:
        reason = f"balance: {move.giver.flow} has more partitions than {move.receiver.flow}"
        if at_once or draft.partitions[move.partition].phase is Phase.FENCING:
            draft.step(move.partition, Step.FENCE, Cause.MOVE, reason, to=move.receiver)
        else:
            draft.step(move.partition, Step.PAUSE, Cause.MOVE, reason, to=move.receiver, deadline_s=deadline_s)


def _map(draft: Draft, holdings: Holdings, plan: Assignment) -> None:
    nobodys = set(holdings.unheld)
    for number, owner in plan.given:
        reason = "it had no flow" if number in nobodys else "its flow is lost"
        draft.step(number, Step.FENCE, Cause.GIVE, reason, to=owner)


def _take_over(draft: Draft, holdings: Holdings) -> bool:
    """REB-04: the whole set of a lost flow goes to one standby at once. A flow that waits for a share is no standby."""
    lost, idle = holdings.lost, holdings.idle
    if not lost or not idle or (not _exclusive(draft) and len(holdings.held) < holdings.total):
        return False
    for owner, standby in zip(lost, idle, strict=False):
        for number in holdings.held[owner]:
            reason = f"standby {standby.flow} takes over from {owner.flow}"
            draft.step(number, Step.FENCE, Cause.GIVE, reason, to=standby)
    return True


def _ready(draft: Draft, reason: str) -> None:
    draft.set_status(RebalanceStatus.READY, reason)


def _exclusive(draft: Draft) -> bool:
    return draft.settings.access_type is AccessType.EXCLUSIVE


def _names(owners: list[Owner]) -> str:
    """At most three names: reasons end up in logs."""
    names = [owner.flow for owner in owners]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- which flow should have which partition ---------------------------------------------------------------------------

# Which flow should have which partition: every partition has a flow, balance, then least movement (seed 002).
#
# Pure arithmetic on numbers of partitions: nothing here knows phases, epochs, time or load (REB-12).


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
