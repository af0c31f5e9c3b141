"""What a seed draws before anything runs: who takes part, what is configured, which faults strike. Numbers only."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from partq_spark.group.model import AccessType, GroupSettings
from tests.simulation.links import Rates
from tests.support.scheduler import SECOND_US

MOST_OFFSET_S = 600.0  # two clocks differ by up to 20 minutes
MOST_DRIFT = 0.00005


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowPlan:
    """One flow identity and the consumer behind it.

    `keeps`: what it has and how far it is survives a restart (Spark's checkpoint). `holds`: it acknowledges a batch
    only when it is done with the next one. `work_us`: about so long for one
    batch. `life_us`: it is stopped in good order after so long, and started again after `pause_us`; 0: never.
    """

    name: str
    keeps: bool
    holds: bool
    work_us: int
    batch: int
    begins_us: int
    life_us: int
    pause_us: int
    twin: bool  # now and then somebody starts a second process under this name
    deserter: bool  # killed, it is not started again


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole world. Times are true time, in which the faults stop at `calm_us`."""

    seed: int
    kind: str
    objects: bool  # the ownership store is made of objects
    coordinators: int
    coordinator_life_us: int  # the first coordinator is stopped in good order after so long; 0: never
    partitions: int
    flows: tuple[FlowPlan, ...]
    settings: GroupSettings
    settings_later: GroupSettings
    altered_us: int  # when the queue is altered; 0: never
    resizes: tuple[tuple[int, int], ...]  # when the queue gets another partition count, and which
    session_timeout_s: float
    beat_s: float
    checkpoint_s: float
    lease_timeout_s: float
    renewal_s: float
    publish_us: int  # about so long between two publishes
    calm_us: int
    rates: Rates
    losses: tuple[tuple[int, str], ...]  # when the ownership store forgets, and how
    rewinds_us: tuple[int, ...]  # when somebody takes a partition back to an earlier offset
    restart_us: tuple[int, int]  # how long a process that was killed is gone
    skewed: bool

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Most of everything at random; the seed's number decides which kind of trouble prevails."""
        rng = random.Random(f"plan {seed}")
        kind = KINDS[seed % len(KINDS)]
        timeout_s = rng.choice((2.0, 3.0, 5.0))
        count = rng.randint(2, 5)
        calm_us = rng.randint(12, 25) * SECOND_US
        delay_s, handoff_s = rng.choice((0.0, 0.5, 1.0, 3.0)), rng.choice((0.0, 0.3, 1.0, 2.0))
        settings = GroupSettings(
            rebalance_delay_s=delay_s,
            max_handoff_time_s=handoff_s,
            access_type=AccessType.EXCLUSIVE if rng.random() < 0.07 else AccessType.NON_EXCLUSIVE,
        )
        partitions = rng.randint(2, 6)
        altered = rng.random() < 0.2
        level = rng.choice((0.3, 1.0, 2.0))
        plan = cls(
            seed=seed,
            kind=kind,
            objects=rng.random() < 0.25,
            coordinators=rng.choice((1, 2, 2, 3)),
            coordinator_life_us=rng.choice((0, 0, rng.randint(2 * SECOND_US, calm_us))),
            partitions=partitions,
            flows=tuple(_flow(rng, number, calm_us) for number in range(count)),
            settings=settings,
            settings_later=replace(
                settings,
                rebalance_delay_s=rng.choice((0.0, delay_s)),
                access_type=rng.choice((AccessType.NON_EXCLUSIVE, AccessType.NON_EXCLUSIVE, AccessType.EXCLUSIVE)),
            ),
            altered_us=rng.randint(2 * SECOND_US, calm_us) if altered else 0,
            resizes=_resizes(rng, partitions, calm_us) if rng.random() < 0.2 else (),
            session_timeout_s=timeout_s,
            beat_s=timeout_s / rng.choice((3, 4)),
            checkpoint_s=rng.choice((0.0, 0.3, 1.0)),
            lease_timeout_s=rng.choice((1.5, 3.0)),
            renewal_s=rng.choice((0.4, 1.0)),
            publish_us=rng.choice((SECOND_US // 5, SECOND_US)),
            calm_us=calm_us,
            rates=Rates(
                request_lost=0.001 * level,
                answer_lost=0.002 * level,
                late=0.002 * level,
                slow=0.002 * level,
                crash=0.0005 * level,
                freeze=0.0005 * level,
                way_us=rng.choice((300, 1500, 8000)),
                timeout_us=rng.choice((SECOND_US // 2, 2 * SECOND_US)),
            ),
            losses=(),
            rewinds_us=(),
            restart_us=rng.choice(((SECOND_US // 20, SECOND_US), (SECOND_US // 20, 12 * SECOND_US))),
            skewed=rng.random() < 0.9,
        )
        return KINDS_OF[kind](plan, rng)


def _resizes(rng: random.Random, partitions: int, calm_us: int) -> tuple[tuple[int, int], ...]:
    """Up, down and back, some of them one right after the other."""
    counts = [rng.choice((partitions, rng.randint(1, 8), min(2 * partitions, 8))) for _ in range(rng.randint(1, 4))]
    begin_us, found = rng.randint(SECOND_US, calm_us // 2), []
    for count in counts:
        found.append((begin_us, count))
        begin_us += rng.choice((0, SECOND_US // 3, rng.randint(SECOND_US, calm_us // 4)))
    return tuple(found)


def _flow(rng: random.Random, number: int, calm_us: int) -> FlowPlan:
    stays = rng.random() < 0.6
    keeps = rng.random() < 0.5
    return FlowPlan(
        name=f"f{number}",
        keeps=keeps,
        holds=not keeps and rng.random() < 0.3,
        work_us=rng.choice((SECOND_US // 100, SECOND_US // 5, SECOND_US, 4 * SECOND_US)),
        batch=rng.choice((3, 10, 50)),
        begins_us=rng.choice((0, 0, rng.randint(0, calm_us // 2))),
        life_us=0 if stays else rng.randint(SECOND_US, calm_us),
        pause_us=rng.choice((SECOND_US // 10, 3 * SECOND_US, 15 * SECOND_US)),
        twin=rng.random() < 0.15,
        deserter=number > 0 and rng.random() < 0.15,
    )


# --- kinds of trouble -------------------------------------------------------------------------------------------------


def _peace(plan: Plan, rng: random.Random) -> Plan:
    """Comings and goings alone: handoffs are to drain, nothing is to be marked for nothing."""
    return replace(plan, rates=Rates(way_us=plan.rates.way_us))


def _anything(plan: Plan, rng: random.Random) -> Plan:
    return replace(plan, losses=_losses(plan, rng, rng.choice((0, 0, 1))), rewinds_us=_rewinds(plan, rng))


def _network(plan: Plan, rng: random.Random) -> Plan:
    """What is lost, late and slow, and processes that are cut off."""
    bad = rng.choice((0.01, 0.03))
    rates = replace(plan.rates, request_lost=bad, answer_lost=bad, late=bad, slow=bad, outage=0.001)
    return replace(plan, rates=replace(rates, crash=0.0, freeze=0.0))


def _freezes(plan: Plan, rng: random.Random) -> Plan:
    """Processes that stop in the middle of a call, some for longer than everybody's patience."""
    longest_us = rng.choice((3, 8, 15)) * SECOND_US
    rates = replace(plan.rates, crash=0.0, freeze=rng.choice((0.004, 0.015)), freeze_us=(SECOND_US, longest_us))
    return replace(plan, rates=rates, coordinators=rng.choice((2, 3)))


def _crashes(plan: Plan, rng: random.Random) -> Plan:
    """Processes that die at any step and are started again."""
    rates = replace(plan.rates, crash=rng.choice((0.003, 0.01)), freeze=0.0)
    return replace(plan, rates=rates, rewinds_us=_rewinds(plan, rng))


def _rewinds(plan: Plan, rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randint(3 * SECOND_US, plan.calm_us) for _ in range(rng.choice((0, 0, 1, 2))))


def _amnesia(plan: Plan, rng: random.Random) -> Plan:
    """A Redis that is flushed, restarted empty, or set back, while processes freeze and die."""
    rates = replace(plan.rates, freeze=0.003, crash=0.001, freeze_us=(SECOND_US // 5, 6 * SECOND_US))
    plan = replace(plan, objects=False, rates=rates)
    plan = replace(plan, losses=_losses(plan, rng, rng.randint(1, 3)))
    if len(plan.losses) > 1:
        # Known and left as it is: two live processes of one name take turns at every loss and deliver the same twice at
        # one epoch, and the second knows nothing of what the first delivered.
        plan = replace(plan, flows=tuple(replace(flow, twin=False) for flow in plan.flows))
    return replace(plan, rewinds_us=_rewinds(plan, rng))


def _losses(plan: Plan, rng: random.Random, count: int) -> tuple[tuple[int, str], ...]:
    if plan.objects:
        return ()
    kinds = ("flush", "empty", "rollback", "rollback")
    return tuple(sorted((rng.randint(3 * SECOND_US, plan.calm_us), rng.choice(kinds)) for _ in range(count)))


KINDS_OF = {
    "anything": _anything,
    "peace": _peace,
    "network": _network,
    "freezes": _freezes,
    "crashes": _crashes,
    "amnesia": _amnesia,
}
KINDS = tuple(KINDS_OF)
