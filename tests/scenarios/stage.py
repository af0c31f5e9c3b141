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
from typing import Any, Final, NamedTuple, Self, TypeVar

import pyarrow as pa
import pytest

import partq
from tests.scenarios.driven import GROUP, QUEUE, Application, Query, Row, again, begun, delivered, new
from tests.world.machine import Host, Machine
from tests.world.ownership import Coordinator
from tests.world.plan import Plan
from tests.world.scheduler import SECOND_US, Crash
from tests.world.spark import hear
from tests.world.store import Journey, Road, TrueStore, Weather
from tests.world.threads import Thread
from tests.world.witness import key_of
from tests.world.world import World

__all__ = ["GROUP", "OWNERSHIPS", "Application", "Query", "Row", "Stage", "Staged"]
__all__ += ["again", "begun", "delivered", "new"]

T = TypeVar("T")
STEP_US: Final = 5_000
Staged = Callable[..., "Stage"]
OWNERSHIPS: Final = pytest.mark.parametrize("ownership", ["store", "none"])
Act = Callable[[Callable[[], Any]], Any]
"""What a call does in place of its effect, which it is given."""
FOLDER: Final = f"default/{QUEUE}/{GROUP}/"


class Stage:
    """A queue of `partitions` in one store, and whoever a scenario lets live beside it."""

    def __init__(self, **plan: Any) -> None:
        """`plan`: what is not as it is here."""
        settings: dict[str, Any] = {"rebalance_delay_s": 0.0, "session_timeout_s": 10.0, "way_us": 0, **plan}
        self.world = world = World(Plan(**settings))
        journey = Journey(world.machine, world.interrupter, lambda _: None, Weather(way_us=0))
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
        names = ("partitions", "rebalance_delay_s", "max_handoff_time_s")
        settings = {name: getattr(world.plan, name) for name in names}
        self.begin(partial(partq.create_queue, QUEUE, store=world.url, **settings)).result()
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

    def copy(self, folder: str) -> Callable[[], None]:
        """What lies there now; called, it is put back, and nothing else is there."""
        objects = self.world.store._objects
        kept = {name: each for name, each in objects.items() if name.startswith(folder)}

        def put_back() -> None:
            for name in [name for name in objects if name.startswith(folder)]:
                del objects[name]
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


# --- what a scenario sees and breaks between the processes ------------------------------------------------------------


class Step:
    """Something that a process was asked to do. It may take its time, while the scenario goes on."""

    def __init__(self, stage: Stage, call: Callable[[], Any]) -> None:
        self._stage, self._call = stage, call
        self._found: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def carry_out(self) -> None:
        """By a strand of the process."""
        try:
            self._found = self._call()
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the scenario's
            self._error = error
        self.is_done = True

    def result(self, within_s: float = 600.0) -> Any:
        """What came of it; raises what it raised."""
        until_us = self._stage.now_us + round(within_s * SECOND_US)
        self._stage.run(0)
        while not self.is_done:
            assert self._stage.now_us < until_us, f"it is not done within {within_s:g} s"
            self._stage.run(STEP_US)
        if self._error is not None:
            raise self._error
        return self._found


class Instead(NamedTuple):
    """What becomes of the next call of this kind."""

    kind: str
    part: str
    by: str
    act: Act


class Line(Road):
    """The way of all processes to the store, which the scenario watches and breaks."""

    def __init__(self, store: TrueStore, machine: Machine, journey: Journey) -> None:
        super().__init__(store, journey)
        self._machine = machine
        self.calls: list[tuple[str, str, str]] = []
        self.coming: list[Instead] = []

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        by = self._machine.host.process.name
        self.calls.append((by.partition("/")[0], kind, name))
        for each in self.coming:
            if kind == each.kind and each.part in name and by.startswith(each.by):
                self.coming.remove(each)
                effect = partial(each.act, effect)
                break
        return super().call(kind, name, effect)

    def asked(self, kind: str, part: str = "", by: str = "") -> int:
        """How often since `calls` was cleared."""
        return sum(kind == each[1] and part in each[2] and each[0].startswith(by) for each in self.calls)


class Held:
    """A call that stands still until it is released."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_waiting = self._is_free = False

    def stand_still(self) -> None:
        self.is_waiting = True
        while not self._is_free:
            self._machine.sleep(0.01)

    def release(self) -> None:
        self._is_free = True
