"""What befalls the queries and groups of a world, by name: kills, freezes, restored Spark checkpoints, twins,
successors, options that are forgotten, and what operators do to groups and queue meanwhile, by the real operations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from partq_spark.base.errors import PartqError
from partq_spark.group import lifecycle, rewinding
from partq_spark.group.documents.memory import DocumentsSnapshot, MemoryDocuments
from partq_spark.group.ownership import Ownership
from tests.simulation.queries.plan import OWNERSHIP, GroupPlan, SourcePlan
from tests.simulation.queries.spark import Execution
from tests.simulation.queries.stores import key_of
from tests.support.scheduler import SECOND_US

if TYPE_CHECKING:
    from tests.simulation.queries.world import Query, World

LONGEST_US = 14 * SECOND_US


class Accidents:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self._snapshots: list[DocumentsSnapshot] = [world.server.memory.snapshot()]
        self._to_groups: Mapping[str, Callable[[GroupPlan], None]] = {
            "rewind": self._rewind,
            "resize": self._resize,
            "remove": self._remove,
            "share": self._share,
            "lose": self._lose,
        }
        self._to_queries: Mapping[str, Callable[[Query, Execution], None]] = {
            "kill": lambda _, execution: world.scheduler.kill(execution.process),
            "stop": lambda _, execution: world.interrupt(execution),
            "freeze": lambda _, execution: self._freeze(execution),
            "restore": self._restore,
            "twin": self._twin,
            "successor": self._succeed,
            "ack mode": self._change_ack_mode,
            "ownership": self._forget_ownership,
        }

    def happen(self, what: str, number: int) -> None:
        """Something befalls the query or the group of this number."""
        world = self._world
        if world.weather.calm:
            return
        if what in self._to_groups:
            self._to_groups[what](world.plan.groups[number])
            return
        query = world.queries[number]
        execution = query.present
        if execution is not None:
            world.counts[what] += 1
            world.history.note(f"{world.scheduler.now_us} {what} {execution.process.name}")
            self._to_queries[what](query, execution)

    # --- queries ------------------------------------------------------------------------------------------------------

    def _freeze(self, execution: Execution) -> None:
        execution.readers[0].freeze(self._rng.randint(SECOND_US, LONGEST_US))

    def _end(self, execution: Execution) -> None:
        """In one way or the other."""
        if self._rng.random() < 0.5:
            self._world.interrupt(execution)
        else:
            self._world.scheduler.kill(execution.process)

    def _restore(self, query: Query, execution: Execution) -> None:
        self._world.scheduler.kill(execution.process)
        query.spark.restore(self._rng.randint(1, 8))

    def _twin(self, query: Query, execution: Execution) -> None:
        if query.plan.logs_every > 1:
            return  # nothing would tell Spark of the other run
        self._freeze(execution)
        execution.abandoned = True
        self._world.scheduler.push(partial(self._world.start, query), self._rng.randint(SECOND_US, 6 * SECOND_US))

    def _succeed(self, query: Query, execution: Execution) -> None:
        """Another query with another name and a Spark checkpoint of its own, whatever becomes of this one."""
        world = self._world
        if query.retired:
            return
        query.retired = True
        if query.orphaned:
            world.begun_anew(query)
        name = f"s{len(world.queries)}"
        sources = tuple(
            SourcePlan(
                group=source.group,
                options={**source.options, **({"flow": f"{name}-{load}"} if "flow" in source.options else {})},
            )
            for load, source in enumerate(query.plan.sources)
        )
        how = self._rng.choice(("end", "freeze", "go on"))
        if how == "end":
            self._end(execution)
        elif how == "freeze":
            self._freeze(execution)
        world.add(replace(query.plan, name=name, sources=sources), self._rng.randint(SECOND_US // 2, 4 * SECOND_US))

    def _change_ack_mode(self, query: Query, execution: Execution) -> None:
        """Its next run has the other one, for a while; not all options go with it."""
        options = query.plan.sources[0].options
        if len(query.plan.sources) > 1 or "flow" not in options or options["checkpoints"] == "none":
            return
        query.otherwise = {"ackMode": "auto" if options["ackMode"] == "manual" else "manual"}
        self._run_otherwise(query, execution)

    def _forget_ownership(self, query: Query, execution: Execution) -> None:
        """Its next run shares a group that is somebody's alone, or has one to itself that others share."""
        source = query.plan.sources[0]
        if len(query.plan.sources) > 1 or not source.group:
            return
        if source.options["ownership"] == "none":
            self._world.start_coordinator(source.group, 0)
            query.otherwise = {"ownership": OWNERSHIP}
        else:
            query.otherwise = {"ownership": "none", "sessionTimeout": None, "maxPollInterval": None}
        self._run_otherwise(query, execution)

    def _run_otherwise(self, query: Query, execution: Execution) -> None:
        """Until somebody notices."""
        self._end(execution)

        def noticed() -> None:
            now = query.present
            query.otherwise = {}
            if now is not None and now is not execution:
                self._world.interrupt(now)

        self._world.scheduler.push(noticed, query.plan.pause_us * 2 + self._rng.randint(SECOND_US, 8 * SECOND_US))

    # --- groups -------------------------------------------------------------------------------------------------------

    def _rewind(self, plan: GroupPlan) -> None:
        """`partq checkpoints rewind`, at one instant: what a lost answer does to it is looked at elsewhere."""
        world, queue = self._world, self._world.queue.queue
        head = queue.refresh()
        if plan.name not in head.groups or not plan.keeps:
            return
        checkpoints = lifecycle.checkpoints_of(queue, plan.name)
        goal = rewinding.Goal(by=self._rng.randint(1, 3)) if self._rng.random() < 0.5 else rewinding.Goal(earliest=True)
        try:
            steps = rewinding.planned_rewind(str(queue), head, checkpoints.list_readable(), (), goal, lambda _: ())
        except PartqError:
            return
        world.counts["rewind"] += 1
        for step in steps:
            if step.is_needed:
                world.judge.rewinding(world.scheduler.now_us, plan.name, step.partition, step.to)
        outcome = rewinding.carry_out(queue, checkpoints, plan.name, steps)
        if outcome.error is not None:
            raise outcome.error
        world.history.note(f"{world.scheduler.now_us} rewound {plan.name}: {[(s.partition, s.to) for s in steps]}")

    def _resize(self, _: GroupPlan) -> None:
        world = self._world
        partitions = self._rng.choice((1, 2, 3, 4))
        world.counts["resize"] += 1
        world.history.note(f"{world.scheduler.now_us} resized to {partitions}")
        world.queue.resize(partitions)

    def _remove(self, plan: GroupPlan) -> None:
        """`partq group remove`, while its queries are down."""
        self._while_down(plan, self._queries_of(plan), self._removed)

    def _share(self, plan: GroupPlan) -> None:
        """`partq group alter --ownership`, while its queries are down."""
        mine = self._queries_of(plan)
        if all(len(query.plan.sources) == 1 for query in mine):
            self._while_down(plan, mine, self._shared)

    def _queries_of(self, plan: GroupPlan) -> list[Query]:
        return [each for each in self._world.queries if any(source.group == plan.name for source in each.plan.sources)]

    def _while_down(
        self, plan: GroupPlan, queries: list[Query], then: Callable[[GroupPlan, list[Query]], None]
    ) -> None:
        world = self._world
        if plan.name not in world.queue.head.groups:
            return
        at_us = self._rng.randint(3 * SECOND_US, 6 * SECOND_US)
        for query in queries:
            # Another operator may be at the group, too: the queries stay down until the last one is done.
            query.held_until_us = max(query.held_until_us, world.scheduler.now_us + at_us + SECOND_US)
            for execution in list(query.running):
                world.scheduler.kill(execution.process)
        world.scheduler.push(partial(then, plan, queries), at_us)

    def share_as_told(self, query: Query) -> None:
        """Somebody forgot the ownership when nobody had joined the group yet: all who have it right are refused, and
        the user does what the error says, when no flow lives.
        """
        world, queue = self._world, self._world.queue.queue
        head = queue.refresh()
        for source in query.plan.sources:
            found, wanted = head.groups.get(source.group), source.options.get("ownership", "none")
            running = any(
                each.group == source.group for other in world.queries if other.running for each in other.plan.sources
            )
            if found is not None and found.ownership not in (None, wanted.partition(":")[0]) and not running:
                world.counts["shared as told"] += 1
                former = Ownership(MemoryDocuments(world.server.memory)) if found.ownership == "redis" else None
                lifecycle.share(queue, lifecycle.remains(queue, source.group, former), wanted, former)

    def _shared(self, plan: GroupPlan, queries: list[Query]) -> None:
        """Alone, if its flows shared it, and the other way round: but one query goes with the change to `none`."""
        world, queue = self._world, self._world.queue.queue
        found = queue.refresh().groups.get(plan.name)
        present = [query for query in queries if not query.retired]
        if found is None or found.ownership not in ("none", "redis") or not present or any(q.running for q in queries):
            return
        world.counts["share"] += 1
        was_shared = found.ownership == "redis"
        former = Ownership(MemoryDocuments(world.server.memory)) if was_shared else None
        lifecycle.share(queue, lifecycle.remains(queue, plan.name, former), "none" if was_shared else OWNERSHIP, former)
        world.history.note(f"{world.scheduler.now_us} shared otherwise than by {found.ownership}: {plan.name}")
        if not was_shared:
            world.start_coordinator(plan.name, 0)
        for query in queries:
            query.otherwise = {}
            query.retired = query.retired or (was_shared and query is not present[0])
            query.plan = replace(query.plan, sources=tuple(map(_turned, query.plan.sources)))

    def _removed(self, plan: GroupPlan, queries: list[Query]) -> None:
        world, queue = self._world, self._world.queue.queue
        found = queue.refresh().groups.get(plan.name)
        if found is None:
            return
        world.counts["remove"] += 1
        ownership = Ownership(MemoryDocuments(world.server.memory)) if found.ownership == "redis" else None
        left = lifecycle.remains(queue, plan.name, ownership)
        lifecycle.remove(queue, left, ownership)
        world.history.note(f"{world.scheduler.now_us} removed {key_of(plan.name)}")
        for query in queries:
            query.orphaned = bool(query.spark.offsets)
        if not any(query.orphaned and not query.retired for query in queries):
            world.judge.begun_anew(plan.name)  # nobody remembers where it was

    def _lose(self, plan: GroupPlan) -> None:
        """The ownership store forgets, or goes back in time."""
        world = self._world
        if not plan.shared:
            return
        kind = self._rng.choice(("flush", "empty", "rollback"))
        world.counts[kind] += 1
        world.history.note(f"{world.scheduler.now_us} {kind}")
        if kind == "flush":
            world.server.memory.flush()
            return
        world.weather.lives += 1
        if kind == "empty":
            world.server.memory.restart_empty()
        else:
            world.server.memory.restore(self._rng.choice(self._snapshots))

    def remember(self) -> None:
        """A copy of the ownership store that it may be set back to."""
        self._snapshots.append(self._world.server.memory.snapshot())
        if not self._world.weather.calm:
            self._world.scheduler.push(self.remember, self._rng.randint(SECOND_US // 2, 5 * SECOND_US))


def _turned(source: SourcePlan) -> SourcePlan:
    """A load of a group that is shared in the other way."""
    options = dict(source.options)
    if options["ownership"] == "none":
        options |= {"ownership": OWNERSHIP, "sessionTimeout": "5s"}
    else:
        options["ownership"] = "none"
        for name in ("sessionTimeout", "maxPollInterval"):
            options.pop(name, None)
    return SourcePlan(group=source.group, options=options)
