"""What a seed draws before anything runs: groups and how they are used, queries and what befalls them. Numbers only."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tests.simulation.links import Rates
from tests.support.scheduler import SECOND_US

OWNERSHIP = "redis://sim:6379/0"
QUEUE = "orders"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPlan:
    """How a group is used: `mode` in words. Without a name there is none."""

    name: str
    shared: bool
    keeps: bool
    by_hand: bool

    @property
    def is_simple(self) -> bool:
        """Spark's checkpoint alone says what was delivered."""
        return not self.shared and not self.by_hand

    @property
    def options(self) -> dict[str, str]:
        """What every query of it is given."""
        if not self.name:
            return {"queue": QUEUE}
        options = {"queue": QUEUE, "group": self.name, "ownership": OWNERSHIP if self.shared else "none"}
        options["checkpoints"] = "store" if self.keeps else "none"
        options["ackMode"] = "manual" if self.by_hand else "auto"
        return options


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlan:
    """One load of a query; `group` is empty if it has none."""

    group: str
    options: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryPlan:
    """One streaming query. `trigger`: processing, available or once. Probabilities are for each batch."""

    name: str
    sources: tuple[SourcePlan, ...]
    trigger: str
    interval_us: int  # of processing-time triggers; 0: at once
    work_us: int
    fails: float
    plans_again: float
    replaces: float  # its reader processes before it plans again
    freezes: float  # while it plans
    ignores: float  # by hand: without a look at its rows
    listener: bool
    logs_every: int  # asyncProgressTracking: so many batches are written down at a time
    style: str  # how its application acknowledges by hand
    begins_us: int
    pause_us: int  # about so long from its end to its next start


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole world. Times are true time; faults and accidents stop at `calm_us`."""

    seed: int
    kind: str
    partitions: int
    groups: tuple[GroupPlan, ...]
    queries: tuple[QueryPlan, ...]
    accidents: tuple[tuple[int, str, int], ...]  # when, what, to which query or group
    rebalance_delay_s: float
    handoff_s: float
    session_timeout_s: float
    lease_timeout_s: float
    renewal_s: float
    coordinators: int
    publish_us: int
    calm_us: int
    rates: Rates
    skewed: bool

    @property
    def is_plain(self) -> bool:
        """Nothing happens but starts, stops in good order, and batches that fail."""
        rates = self.rates
        quiet = not (rates.crash or rates.freeze or rates.answer_lost)
        steady = all(query.replaces == 0 and query.logs_every == 1 for query in self.queries)
        return quiet and steady and all(what in ("stop", "resize", "lose") for _, what, _ in self.accidents)

    @classmethod
    def draw(cls, seed: int) -> Plan:
        """Most of everything at random; the seed's number decides how the group is used."""
        rng = random.Random(f"queries {seed}")
        kind = kind_of(seed)
        calm_us = rng.randint(12, 25) * SECOND_US
        groups: tuple[GroupPlan, ...] = (MODES[kind],)
        if rng.random() < 0.15:
            groups += (replace(MODES[rng.choice(GROUPED)], name="audit"),)
        level = rng.choice((0.0, 0.3, 1.0))
        plan = cls(
            seed=seed,
            kind=kind,
            partitions=rng.choice((1, 2, 2, 3, 4)),
            groups=groups,
            queries=(),
            accidents=(),
            rebalance_delay_s=rng.choice((0.0, 0.5, 2.0)),
            handoff_s=rng.choice((0.0, 0.5, 2.0)),
            session_timeout_s=5.0,
            lease_timeout_s=2.0,
            renewal_s=0.7,
            coordinators=rng.choice((1, 1, 1, 2)),
            publish_us=rng.choice((SECOND_US, 3 * SECOND_US)),
            calm_us=calm_us,
            rates=Rates(
                request_lost=0.002 * level,
                answer_lost=0.003 * level,
                late=0.003 * level,
                slow=0.003 * level,
                crash=0.001 * level,
                freeze=0.0006 * level,
                way_us=rng.choice((1000, 4000)),
                timeout_us=rng.choice((SECOND_US // 2, 2 * SECOND_US)),
                freeze_us=(SECOND_US, 12 * SECOND_US),
            ),
            skewed=rng.random() < 0.5,
        )
        queries = tuple(_query(rng, number, groups, calm_us) for number in range(_count(rng, groups[0])))
        return replace(plan, queries=queries, accidents=_accidents(rng, groups, queries, calm_us))


def kind_of(seed: int) -> str:
    """How the seed's group is used. One seed in eight has none, and all others are what they were before that."""
    return NO_GROUP if seed % 8 == 3 else GROUPED[seed % len(GROUPED)]


def _count(rng: random.Random, group: GroupPlan) -> int:
    if not group.name:
        return rng.choice((1, 1, 2))
    return rng.choice((1, 2, 2, 3)) if group.shared else 1


def _query(rng: random.Random, number: int, groups: tuple[GroupPlan, ...], calm_us: int) -> QueryPlan:
    name = f"q{number}"
    loads = list(groups) if not number else [groups[0]]
    if groups[0].shared and len(loads) == 1 and rng.random() < 0.2:
        loads.append(groups[0])
    if not groups[0].name and len(loads) == 1 and rng.random() < 0.3:
        loads.append(groups[0])
    sources = tuple(_source(rng, f"{name}-{load}", group, alone=len(loads) == 1) for load, group in enumerate(loads))
    trigger = rng.choice(("processing", "processing", "processing", "processing", "available", "once"))
    if trigger == "available" and len(sources) > 1:
        sources = tuple(map(_patient, sources))
    return QueryPlan(
        name=name,
        sources=sources,
        trigger=trigger,
        interval_us=rng.choice((0, SECOND_US, 3 * SECOND_US)),
        work_us=rng.choice((SECOND_US // 100, SECOND_US // 2, 2 * SECOND_US, 6 * SECOND_US)),
        fails=rng.choice((0.0, 0.1, 0.4)),
        plans_again=rng.choice((0.0, 0.3)),
        replaces=rng.choice((0.0, 0.0, 0.2)),
        freezes=rng.choice((0.0, 0.0, 0.0, 0.1)),
        ignores=rng.choice((0.0, 0.2)) if all(group.by_hand for group in loads) else 0.0,
        listener=rng.random() < 0.4,
        logs_every=rng.choice((1, 1, 1, 1, 1, 3)) if trigger == "processing" else 1,
        style=rng.choice(STYLES),
        begins_us=rng.choice((0, rng.randint(0, calm_us // 2))) if number else 0,
        pause_us=rng.choice((SECOND_US // 2, 3 * SECOND_US, 12 * SECOND_US)),
    )


def _source(rng: random.Random, flow: str, group: GroupPlan, *, alone: bool) -> SourcePlan:
    options = group.options
    options |= {"startingOffsets": rng.choice(("earliest", "earliest", "earliest", "latest")), "retryTimeout": "20s"}
    # Several loads wait one after the other: maxPollInterval has to be longer than all of that (`_patient`).
    options["pollInterval"] = rng.choice(("500ms", "2s")) if alone else "500ms"
    if group.keeps:
        options["checkpointInterval"] = rng.choice(("0s", "1s", "5s"))
    if group.shared:
        options["sessionTimeout"] = "5s"
        if rng.random() < (0.4 if group.by_hand else 0.2):
            options["maxPollInterval"] = "3s"
    if group.by_hand or (rng.random() < 0.4 and group.name):
        options["flow"] = flow
    if rng.random() < 0.4:
        options["maxMessagesPerTrigger"] = rng.choice(("2", "5"))
    if rng.random() < 0.3:
        options["maxDeliveredUnackedMsgsPerFlow"] = rng.choice(("4", "20"))
    return SourcePlan(group=group.name, options=options)


def _patient(source: SourcePlan) -> SourcePlan:
    """Until Spark asks this load again, another one may wait for its share, or for what only this one acknowledges:
    rebalance delay, max-handoff-time and session timeout together. A flow that leaves before that acknowledges nothing.
    """
    if "maxPollInterval" not in source.options:
        return source
    return SourcePlan(group=source.group, options={**source.options, "maxPollInterval": "12s"})


def _accidents(
    rng: random.Random, groups: tuple[GroupPlan, ...], queries: tuple[QueryPlan, ...], calm_us: int
) -> tuple[tuple[int, str, int], ...]:
    found: list[tuple[int, str, int]] = []
    for _ in range(rng.choice((0, 1, 2, 4))):
        at_us = rng.randint(SECOND_US, calm_us)
        if rng.random() < 0.7:
            found.append((at_us, rng.choice(TO_QUERIES), rng.randrange(len(queries))))
        else:
            found.append((at_us, rng.choice(TO_GROUPS), rng.randrange(len(groups))))
    return tuple(sorted(found))


MODES: Mapping[str, GroupPlan] = {
    "auto alone": GroupPlan(name="billing", shared=False, keeps=True, by_hand=False),
    "auto alone without offsets": GroupPlan(name="billing", shared=False, keeps=False, by_hand=False),
    "auto shared": GroupPlan(name="billing", shared=True, keeps=True, by_hand=False),
    "auto shared without offsets": GroupPlan(name="billing", shared=True, keeps=False, by_hand=False),
    "by hand alone": GroupPlan(name="billing", shared=False, keeps=True, by_hand=True),
    "by hand shared": GroupPlan(name="billing", shared=True, keeps=True, by_hand=True),
    "no group": GroupPlan(name="", shared=False, keeps=False, by_hand=False),
}
KINDS = tuple(MODES)
*GROUPED, NO_GROUP = KINDS
TO_QUERIES = (
    "kill",
    "kill",
    "stop",
    "freeze",
    "restore",  # it is killed, and starts again on an older copy of its Spark checkpoint
    "twin",  # it freezes, and is started elsewhere on the same Spark checkpoint
    "successor",  # another query takes its place, with a Spark checkpoint of its own
    "ack mode",  # it starts again with the other ackMode
    "ownership",  # it starts again and has forgotten its ownership
)
TO_GROUPS = ("rewind", "resize", "resize", "remove", "share", "lose")
STYLES = ("batch", "late", "sequences", "never")
