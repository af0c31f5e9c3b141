"""A simulated coordinator: the real `GroupRuntime` of one group, stepped as the service does, over simulated stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from coordinator.heads import GroupFacts
from coordinator.leadership import StoreLife
from coordinator.logs import Log
from coordinator.runtime import GroupRuntime
from coordinator.settings import Settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import PartqError
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership, Reincarnated
from tests.simulation.links import Link
from tests.simulation.objects import Objects
from tests.support.scheduler import Process

RETRY_S = 0.2
MOST_RETRY_S = 2.0


class Timers(Protocol):
    """What of a world's plan concerns its coordinators."""

    @property
    def lease_timeout_s(self) -> float: ...

    @property
    def renewal_s(self) -> float: ...

    @property
    def session_timeout_s(self) -> float: ...


class Heads(Protocol):
    """What of a queue's head concerns a group."""

    @property
    def ends(self) -> tuple[int, ...]: ...

    def facts(self) -> GroupFacts: ...


def coordinate(
    plan: Timers,
    process: Process,
    link: Link,
    store: Ownership,
    objects: Objects,
    head: Heads,
    effects: Effects,
    log: Log,
    stopping: Callable[[], bool],
    key: GroupKey,
) -> None:
    """What a coordinator process does until it is killed, or stopped in good order."""

    def facts_now() -> GroupFacts:
        return link.call("head", head.facts, write=False)

    def ends(_: str) -> Sequence[int]:
        return link.call("head", lambda: head.ends, write=False)

    life = StoreLife(store)
    runtime = GroupRuntime(
        key,
        store=store,
        life=life,
        checkpoints=lambda facts: CheckpointStore(objects, key, facts.queue_id, since=facts.since, effects=effects),
        ends=ends,
        facts_now=facts_now,
        settings=Settings(
            name=process.name,
            lease_timeout_s=plan.lease_timeout_s,
            renewal_s=plan.renewal_s,
            handoff_look_s=0.1,
            frozen_after_s=min(plan.lease_timeout_s, 3.0),
            assumed_session_timeout_s=plan.session_timeout_s,
            retry_most_s=1.0,
        ),
        effects=effects,
        log=log,
    )
    facts: GroupFacts | None = None
    looked_s = 0.0
    pause_s = RETRY_S
    while not stopping():
        incarnation = life.value
        try:
            if facts is None or effects.now_s() - looked_s > 1.0:
                looked_s = effects.now_s()
                facts = facts_now()
            next_s = runtime.step(facts)
        except Reincarnated:
            if incarnation is not None:
                life.lost(incarnation)
            wait_s = 0.0
        except PartqError:
            wait_s = effects.uniform(0.0, pause_s)
            pause_s = min(pause_s * 2, MOST_RETRY_S)
        else:
            wait_s, pause_s = next_s, RETRY_S
        if wait_s > 0.0:
            wait(store, effects, wait_s)
    try:
        runtime.release()
    except PartqError:
        pass  # the lease ends by itself


def wait(store: Ownership, effects: Effects, wait_s: float) -> None:
    """Until there are news or the time is over; a store that has no news says so early."""
    begun_s = effects.now_s()
    if store.wait_news(wait_s) is None:
        effects.sleep(max(0.0, begun_s + wait_s - effects.now_s()))
