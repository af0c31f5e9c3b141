"""One run of a streaming query: its driver with the reader processes that it begins, over the production source and
sink, and what its application does with a batch, which may fail anywhere.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructType

import partq
from partq_spark.spark.source import PartqDataSource
from tests.world.by_hand import ByHand
from tests.world.facts import Given, Handled, Row
from tests.world.machine import Host
from tests.world.processes import RETRY_S
from tests.world.query_plan import COPIES, NOWHERE, RESULTS
from tests.world.scheduler import SECOND_US, Crash, Process
from tests.world.sinks import Write, is_refusal
from tests.world.spark import ENDS_A_QUERY, Batch, Interrupted, Planned, QueryFailed, Reader, Run
from tests.world.threads import Lock

if TYPE_CHECKING:
    from tests.world.queries import Query

_AGAIN_S: Final = 1.0
SOURCE: Final = (
    StructType()
    .add("key", StringType())
    .add("value", "binary")
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("redelivered", BooleanType())
)


class Driver:
    """One run of a query: a driver with the reader processes that it has begun, and the application in it."""

    def __init__(self, query: Query, number: int) -> None:
        world = query.world
        self.query, self.world, self.plan = query, world, world.plan.query
        self.rng = random.Random(f"{world.plan.seed} {query.name} {number}")
        drift = world.plan.drift
        self.process: Process = world.scheduler.process(
            f"{query.name}/{number}",
            origin_s=query.rng.uniform(100.0, 100_000.0),
            rate=1.0 + query.rng.uniform(-drift, drift),
        )
        self.host: Host = world.machine.host_of(self.process)
        self.number = number
        self.is_abandoned = False  # it froze, and was started elsewhere
        self.is_otherwise = bool(query.otherwise) and not world.is_calm
        self.by_hand = self._options(0).get("ackMode") == "manual"
        self.planner = self._source(0).streamReader(SOURCE)
        self.readers: list[Reader] = []
        self.hands: list[ByHand] = []
        self.alone = Lock(world.machine)  # an `Acknowledger` is for one thread
        self.error: Exception | None = None
        self.process.on_killed = self._killed

    # --- its processes ------------------------------------------------------------------------------------------------

    @property
    def processes(self) -> list[Process]:
        return [self.process, *(each.process for each in self.readers)]

    def begin(self) -> None:
        self.world.machine.begin(self.host, self._main)

    def interrupt(self) -> None:
        """Spark's stop: its thread ends where it is, and then its readers are told to end."""
        strand = self.host.main.strand
        if self.process.alive and strand is not None:
            self.world.scheduler.interrupt(strand, Interrupted())

    def kill(self) -> None:
        """The whole machine."""
        for process in reversed(self.processes):
            self.world.scheduler.kill(process)

    def _options(self, load: int) -> dict[str, str]:
        query, world, plan = self.query, self.world, self.plan
        how = plan.how
        options = {"path": world.QUEUE, "store": world.url, "retryTimeout": f"{RETRY_S:g}s"}
        options |= {"startingOffsets": "earliest", "maxMessagesPerTrigger": f"{world.plan.max_messages}"}
        options |= {**how.options, **plan.options}
        if how.grouped:
            options |= {"group": world.GROUP, "flow": query.flow(load), "ownership": world.plan.ownership}
        if how.shared:
            options["sessionTimeout"] = f"{world.plan.session_timeout_s:g}s"
        otherwise = {} if not self.is_otherwise else query.otherwise
        if query.has_other_ack_mode:
            otherwise = {**otherwise, "ackMode": "auto" if how.by_hand else "manual"}
        return {name: text for name, text in {**options, **otherwise}.items() if text}

    def _source(self, load: int) -> PartqDataSource:
        return PartqDataSource(CaseInsensitiveDict(self._options(load)))

    def _new_reader(self, load: int) -> Reader:
        number = next(self.world.count)
        make = partial(self._source(load).streamReader, SOURCE)
        return Reader(self.world.machine, f"{self.process.name}/{load}.{number}", self.host, make)

    def _main(self) -> None:
        world, plan = self.world, self.plan
        self.readers = [self._new_reader(load) for load in range(plan.loads)]
        if self.by_hand:
            self.hands = [ByHand(world, self.query.flow(load), plan.style, self.rng) for load in range(plan.loads)]
            world.machine.spawn("application", self._look_after)
        run = Run(
            world.machine,
            self.query.spark,
            self.readers,
            self,
            lambda: "processing" if world.is_calm else plan.trigger,
            lambda: 0.0 if world.is_calm else plan.interval_s,
            plan.logs_every,
            world.count,
        )
        try:
            run.go()
        except Interrupted:
            self.world.counts["a query is stopped"] += 1
        except ENDS_A_QUERY as error:
            self.error = error
            if is_refusal(error):
                with suppress(Interrupted):
                    self.query.resolve(error)
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - the world ends with it
            error.add_note(f"in {self.process.name}")
            world.machine.deaths.append(error)
        for reader in self.readers:
            reader.terminate()
        world.scheduler.kill(self.process)

    def _killed(self) -> None:
        for reader in self.readers:
            reader.leave()
        self.query.ended(self)

    # --- what Spark does with a batch ---------------------------------------------------------------------------------

    def _chance(self, rate: float) -> bool:
        return not self.world.is_calm and self.rng.random() < rate

    def committed(self, batch: Batch) -> None:
        self.world.counts["batches"] += 1
        if self.plan.listener and self.plan.how.grouped:
            batch.tell()

    def handle(self, batch: Batch) -> None:
        """The sink, or foreachBatch, which may fail anywhere."""
        with self.alone:
            self._handle(batch)

    def _handle(self, batch: Batch) -> None:
        plan, world = self.plan, self.world
        world.counts["batches repeated"] += batch.is_repeated
        fails = self.rng.choice(("before", "half-way", "after")) if self._chance(plan.fails) else ""
        scans = [list(batch.planned(self._asked))]
        while self._chance(plan.scans_again):
            world.counts["planned again"] += 1
            scans.append(list(batch.planned(self._asked)))
        self._perhaps_fail(fails == "before")
        for hand in self.hands:
            _told(hand.begin)
        while self._chance(plan.looks_again):
            world.counts["looked again"] += 1
            scans.append(scans[-1])
        looks: list[tuple[Planned, Sequence[Row]]] = []
        for scan in scans:
            looks = [(each, self._look(batch, each)) for each in scan]
            self._work(0.2)
        self._perhaps_fail(fails == "half-way")
        for hand in self.hands:
            _told(hand.begin)
        self._write(batch, [row for _, rows in looks for row in rows])
        self._work(0.5)
        self._done(looks)
        self._perhaps_fail(fails == "after")
        if self._chance(plan.cut_off):
            self._cut_off()

    def _done(self, looks: Sequence[tuple[Planned, Sequence[Row]]]) -> None:
        """It has dealt with these rows; by Spark's word, unless it is to say so by hand."""
        world = self.world
        for each, rows in looks:
            if self.by_hand:
                self.hands[each.source].took(rows)
            elif rows:
                flow, group = self._named(each)
                world.take(Handled(world.now_us, group, flow, tuple(rows)))
        for hand in self.hands:
            hand.acknowledge(everything=world.is_calm)

    def _look(self, batch: Batch, planned: Planned) -> Sequence[Row]:
        """Read what was planned, in tasks."""
        made, asked_us = planned.made, planned.asked_us
        rows = tuple(
            Row(each["partition"], each["offset"], each["key"], each["value"].decode(), each["redelivered"])
            for part in planned.parts
            for table in self.planner.read(part)
            for each in table.to_pylist()
        )
        flow, group = self._named(planned)
        source = f"{self.query.name}/{planned.source}"
        fact = Given(
            at_us=planned.at_us,
            asked_us=min(made.at_us, asked_us) if batch.is_repeated else asked_us,
            group=group,
            flow=flow,
            process=batch.run.readers[planned.source].process.name,
            rows=rows,
            batch=f"{source}/{made.number}",
            after=f"{source}/{made.after}" if made.after else "",
            since_us=asked_us if self.plan.how.shared else min(made.at_us, asked_us),
        )
        self.world.take(fact)
        return rows

    def _named(self, planned: Planned) -> tuple[str, str]:
        """Its flow and group; a source without a group is one for itself."""
        if not self.plan.how.grouped:
            name = self.query.flow(planned.source)
            return name, name
        return json.loads(planned.made.text)["flow"], self.world.GROUP

    def _asked(self, load: int) -> None:
        """Now and then all of it stands still while Spark plans a batch."""
        if self._chance(self.plan.freezes):
            self.world.counts["frozen while it plans"] += 1
            lasts_us = round(self.rng.uniform(1.0, 2 * self.world.plan.session_timeout_s) * SECOND_US)
            at_us = self.rng.randint(0, 6 * self.world.plan.way_us + 1000)
            self.world.scheduler.push(partial(self.query.freeze, self.processes, lasts_us), at_us)

    def _work(self, part: float) -> None:
        self.world.machine.sleep(self.rng.uniform(0.0, part * self.world.plan.handles_s) + 0.001)

    def _perhaps_fail(self, does: bool) -> None:
        if does:
            self.world.counts["handling fails"] += 1
            raise QueryFailed("foreachBatch fails")

    def _cut_off(self) -> None:
        self.world.counts["cut off before Spark's commit"] += 1
        self.query.befell("kill")
        raise Crash

    def _look_after(self) -> None:
        """A thread of the application's: in the end it acknowledges everything that it remembers."""
        while True:
            self.world.machine.sleep(_AGAIN_S)
            for hand in self.hands if self.world.is_calm else ():
                if hand.rows:
                    with self.alone, suppress(partq.PartqError):
                        hand.begin()
                        hand.acknowledge(everything=True)

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, batch: Batch, rows: Sequence[Row]) -> None:
        query, sink = self.query, self.plan.sink
        if sink == NOWHERE:
            return
        app = f"app-{query.name}-{query.begun}"
        some = [row for row in rows if hash_of(row) % 3]
        others = [row for row in rows if not hash_of(row) % 3]
        if sink == "two writes" and self.world.is_calm:
            sink = "two applications"  # somebody has understood what the refusals say
        match sink:
            case "stream":
                self._written(batch, RESULTS, None, rows)
            case "fan-out":
                self._written(batch, None, None, rows)
            case "one write":
                self._written(batch, RESULTS, app, rows)
            case "two queues":
                self._written(batch, RESULTS, app, rows)
                self._written(batch, COPIES, app, some)
            case "two applications":
                self._written(batch, RESULTS, f"{app}-a", some)
                self._written(batch, RESULTS, f"{app}-b", others)
            case "two writes":
                self._written(batch, RESULTS, app, some)
                self._written(batch, RESULTS, app, others)

    def _written(self, batch: Batch, queue: str | None, app: str | None, rows: Sequence[Row]) -> None:
        plan, query = self.plan, self.query
        writer = app or query.spark.query
        Write(
            world=self.world,
            query=query.spark.query,
            batch=batch.number,
            queue=queue,
            application=app,
            rows=[row._replace(value=f"{row.value}@{writer}/{batch.number}{self._drawn()}") for row in rows],
            tasks=plan.tasks,
            is_healthy=lambda: query.is_healthy and plan.sink != "two writes" and not plan.unstable,
            again=lambda: self._chance(plan.tasks_again),
        ).run()

    def _drawn(self) -> str:
        """What a `rand()` of the application gives."""
        return f"~{self.rng.randrange(1000)}" if self._chance(self.plan.unstable) else ""


def _told(begin: Callable[[], None]) -> None:
    """Whoever is not told what is in hand cannot go on."""
    try:
        begin()
    except partq.PartqError as error:
        raise QueryFailed(f"in_hand: {error}") from error


def hash_of(row: Row) -> int:
    """The same in each try."""
    return row.partition * 7 + row.offset
