"""A simulated world that a scenario drives step by step: the sidecar and streaming queries over the production source,
each a process of its own, that are begun, killed, frozen and asked when the scenario says so. Between its steps nothing
happens; time goes on while it waits (`sleep`, `until`), and then everybody lives.
"""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Self, TypeVar

import pyarrow as pa
import pytest

import partq
from tests.scenarios.driven import GROUP, QUEUE, Application, Query, Row, again, begun, delivered, new
from tests.scenarios.ways import STEP_US, Act, Held, Instead, Line, Step
from tests.world.journey import Journey, Weather
from tests.world.machine import Host
from tests.world.ownership import Coordinator
from tests.world.plan import Plan
from tests.world.scheduler import SECOND_US
from tests.world.spark import hear
from tests.world.threads import Thread
from tests.world.witness import key_of
from tests.world.world import World

__all__ = ["GROUP", "OWNERSHIPS", "Application", "Query", "Row", "Stage", "Staged"]
__all__ += ["again", "begun", "delivered", "new"]

T = TypeVar("T")
Staged = Callable[..., "Stage"]
OWNERSHIPS: Final = pytest.mark.parametrize("ownership", ["store", "none"])
FOLDER: Final = f"default/{QUEUE}/{GROUP}/"


class Stage:
    """A queue of `partitions` in one store, and whoever a scenario lets live beside it."""

    def __init__(
        self,
        *,
        partitions: int = 2,
        delay_s: float = 0.0,
        handoff_s: float = 3.0,
        paid: bool = False,
        session_s: float = 10.0,
    ) -> None:
        plan = Plan(
            partitions=partitions,
            rebalance_delay_s=delay_s,
            max_handoff_time_s=handoff_s,
            paid=paid,
            session_timeout_s=session_s,
            way_us=0,
            ownership="store",
        )
        self.world = world = World(plan)
        journey = Journey(world.machine, Weather(way_us=0), lambda _: None)
        self.line = world.road = Line(world.store, world.machine, journey)
        self.coordinator: Coordinator  # the newest
        self._exits = ExitStack()
        self._published = 0

    def __enter__(self) -> Self:
        world = self.world
        gc.disable()  # what it would end at some moment is not a matter of the scenario
        self._exits.callback(gc.enable)
        self._exits.enter_context(world.around.in_place())
        world.store._seen = lambda *_: None  # the judge of random worlds has no facts here
        self._exits.enter_context(world.machine.in_place())
        self._exits.callback(world.scheduler.end)
        self._person = world.machine.host_of(world.scheduler.process("person", origin_s=50.0))
        plan = world.plan
        self.create(
            partitions=plan.partitions,
            rebalance_delay_s=plan.rebalance_delay_s,
            max_handoff_time_s=plan.max_handoff_time_s,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        return self.world.now_us

    @property
    def now_s(self) -> float:
        return self.now_us / SECOND_US

    def run(self, for_us: int) -> None:
        """Everybody lives for so long."""
        scheduler = self.world.scheduler
        scheduler.run(scheduler.now_us + for_us, scheduler.steps + 1_000_000)
        for error in self.world.machine.deaths:
            raise error

    def sleep(self, duration_s: float) -> None:
        self.run(round(duration_s * SECOND_US))

    def until(self, look: Callable[[], object], within_s: float = 60.0) -> None:
        """Wait for something that must happen."""
        until_us = self.now_us + round(within_s * SECOND_US)
        while not look():
            assert self.now_us < until_us, f"it did not happen within {within_s:g} s"
            self.sleep(0.05)

    # --- what people do -----------------------------------------------------------------------------------------------

    def begin(self, call: Callable[[], Any], host: Host | None = None) -> Step:
        """Something that a process does, beside all others; a person at a command line if none is named."""
        step = Step(self, call)
        Thread(target=step.carry_out, machine=self.world.machine).start_in(host or self._person)
        return step

    def do(self, call: Callable[[partq.Queue], T]) -> T:
        """What a person does with the queue, until it is done."""
        found: T = self.begin(lambda: call(self.world.queue())).result()
        return found

    def create(self, **settings: Any) -> None:
        self.begin(partial(partq.create_queue, QUEUE, store=self.world.url, **settings)).result()

    def publish(self, *counts: int) -> None:
        """So many messages to each partition, in one publish."""
        among = self.do(lambda queue: queue.describe()).layout.partitions
        keys = [key_of(partition, among) for partition in range(len(counts))]
        self.publish_keys([key for key, count in zip(keys, counts, strict=True) for _ in range(count)])

    def publish_keys(self, keys: Sequence[str]) -> None:
        """A message for each of these keys, in one publish. Values are their numbers."""
        values = [b"%d" % (self._published + number) for number in range(len(keys))]
        self._published += len(keys)
        table = pa.table({"key": pa.array(keys, pa.string()), "value": pa.array(values, pa.binary())})

        def publish(queue: partq.Queue) -> None:
            with queue.publication() as publication:
                publication.add(table)
                publication.commit()

        self.do(publish)

    def alter(self, partitions: int, **settings: Any) -> None:
        self.do(lambda queue: queue.alter(partitions=partitions, **settings))

    def remove_group(self, *asleep: Query, for_s: float = 0.0) -> None:
        """While these queries stand still, so that nobody sees that they live, and for so long after that."""
        for query in asleep:
            query.freeze()
        self.do(lambda queue: queue.remove_group(GROUP, force=True))
        self.sleep(for_s)
        for query in asleep:
            query.thaw()

    def rewind(self, **how: Any) -> partq.Rewind:
        return self.do(lambda queue: queue.rewind(GROUP, **how))

    def status(self) -> partq.GroupView:
        return self.do(lambda queue: queue.status(GROUP, ownership="store"))

    def complete(self, query: Query) -> None:
        """A listener hears that the last batch of a query is complete, and says so."""
        hear(json.dumps(query.report), json.dumps(query.log[-1]))
        self.run(STEP_US)

    def coordinated(self) -> Coordinator:
        """A sidecar."""
        made = Coordinator(self.world, f"coordinator-{len(self.world.actors)}")
        self.world.actors[made.name] = self.coordinator = made
        self.world.scheduler.push(made.start, 0)
        self.run(STEP_US)
        return made

    def query(self, flow: str | None = None, **options: str) -> Query:
        """A streaming query of the group."""
        return Query(self, flow, {"group": GROUP, "ownership": "store", **options})

    def ungrouped(self, **options: str) -> Query:
        """A streaming query without a group."""
        return Query(self, None, options)

    # --- what is stored -----------------------------------------------------------------------------------------------

    @property
    def ends(self) -> list[int]:
        """Of every partition that there ever was."""
        return [each.next for each in self.do(lambda queue: queue.describe()).partitions]

    @property
    def everything(self) -> Counter[tuple[int, int]]:
        """Partition and offset of each message, once."""
        return Counter((p, offset) for p, end in enumerate(self.ends) for offset in range(end))

    def metadata(self, partition: int) -> dict[str, str]:
        """A checkpoint as it lies in the store; nothing if there is none."""
        found = self.world.store.load(f"{FOLDER}checkpoint/{partition}")
        return dict(getattr(found, "metadata", {}))

    def offset(self, partition: int) -> int | None:
        found = self.metadata(partition).get("offset")
        return None if found is None else int(found)

    def owner(self, partition: int) -> tuple[str | None, int]:
        """Flow and epoch."""
        found = self.metadata(partition)
        return found.get("flow"), int(found.get("epoch", 0))

    def edit(self, name: str, change: Callable[[Any], bytes | Mapping[str, str]]) -> None:
        """Behind everybody's back."""
        found: Any = self.world.store.load(name)
        self.world.store.swap(name, change(found), expected=found.etag)

    def wipe(self, folder: str) -> None:
        """Nothing lies there any more."""
        for name in [name for name in self.world.store._objects if name.startswith(folder)]:
            del self.world.store._objects[name]

    def copy(self, folder: str) -> Callable[[], None]:
        """What lies there now; called, it is put back, and nothing else is there."""
        objects = self.world.store._objects
        kept = {name: each for name, each in objects.items() if name.startswith(folder)}

        def put_back() -> None:
            self.wipe(folder)
            objects.update(kept)

        return put_back

    def instead(self, kind: str, part: str, act: Act, by: str = "") -> None:
        """The next such call does this."""
        self.line.coming.append(Instead(kind, part, by, act))

    def hold(self, kind: str, part: str, *, by: str = "", after: bool = False, lost: bool = False) -> Held:
        """The next such call stands still, before or after it takes effect. Then its answer may be lost."""
        held = Held(self.world.machine)

        def slowly(effect: Callable[[], Any]) -> Any:
            if not after:
                held.stand_still()
            found = effect()
            if after:
                held.stand_still()
            if lost:
                raise partq.Unavailable("no answer came (test)")
            return found

        self.instead(kind, part, slowly, by)
        return held
