"""The queues of one seed, the way of Spark's processes to their store, and what befalls both. Knows nothing of what is
right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypeVar
from unittest import mock

import partq
from partq_spark.base.errors import Conflict, PartqError, Unavailable
from partq_spark.log import connect, tree
from partq_spark.log import queue as log_queue
from partq_spark.log.compaction import compact
from partq_spark.log.model import Head, at
from partq_spark.log.publish import Full, PublishIdentity, publish
from partq_spark.log.reading import RangeReader
from partq_spark.log.schema.versions import schema_of
from partq_spark.log.sizes import LogSizes
from partq_spark.log.staged import stage_of
from partq_spark.objects.api import ObjectStore
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from tests.log import queues
from tests.simulation.sink.judge import NOISE, Place
from tests.simulation.sink.plan import QUEUES, Plan
from tests.support.judge import demand
from tests.support.scheduler import Crash
from tests.support.way import WRITES, Way
from tests.world.outcome import quiet

T = TypeVar("T")
TYPED: Final = "name STRING, number INT, text STRING NOT NULL, x DOUBLE, tags ARRAY<INT>"
SMALL: Final = LogSizes(inline_entries=3, fan_out=2, head_writers=2, page_fan_out=2, slice_gain=2)
MOST_RESIZES: Final = 20  # of a queue, which has at most 32 layouts
MOST_WAITS: Final = 4  # of 25 hours: less than the age of a writer's record


class Link(Way):
    """The way of Spark's processes to the store: requests and answers are lost, effects come late, processes die."""

    def __init__(self, store: ObjectStore, of: Queues) -> None:
        super().__init__(store)
        self._of = of

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        of = self._of
        of.base.clock.now_us += 1000
        of.reads += kind == "read" and "/_segments/" in name
        if of.calm:
            return effect()
        of.land(0.05)
        rng, plan = of.rng, of.plan
        self._perhaps_crash()
        rate = plan.faults * (3 if kind == "swap" else 1)  # whose outcome has to be settled
        draw = rng.random() / (rate or 1e-9)
        if draw < 0.4:
            raise self._failure("request lost", kind)
        if kind == "swap" and rng.random() < plan.late:
            of.late.append(effect)
            failure = self._failure("effect late", kind)
            raise Crash if rng.random() < 0.5 else failure  # a process that is gone asks nobody what became of it
        result = effect()
        self._perhaps_crash()
        if draw < 0.8 and kind in {*WRITES, "written"}:
            raise self._failure("answer lost", kind)
        if draw < 1.0 and kind == "swap":
            of.counts["contradicted"] += 1
            raise Conflict("a repetition of the swap met its success (simulated)")
        return result

    def _perhaps_crash(self) -> None:
        if self._of.rng.random() < self._of.plan.crashes:
            self._of.counts["crash"] += 1
            raise Crash

    def _failure(self, fault: str, kind: str) -> Unavailable:
        self._of.counts[fault] += 1
        return Unavailable(f"{kind}: {fault} (simulated)")


class Queues:
    """Several queues in a store in memory, under a clock of their own. `calm`: there are no faults."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(f"sink world {plan.seed}")
        self._tokens = random.Random(f"sink tokens {plan.seed}")
        self.base = queues.World()
        self.url = f"file:///sink/{plan.seed}"
        self.store = MemoryStore(clock=lambda: self.base.clock.now_us / 1e6, rng=self._tokens, url=self.url)
        self.base.store, self.base.sizes = self.store, SMALL
        self.calm = True
        self.reads = 0  # of messages, since this was last set
        self.late: list[Callable[[], object]] = []
        self.landed = False  # something that was late, since this was last set
        self.counts: Counter[str] = Counter()
        self._waits = self._noise = self._columns = 0

    def token(self, count: int = 32) -> str:
        """In place of the system's chance."""
        return f"{self._tokens.getrandbits(8 * count):0{2 * count}x}"

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within it, stores that partq opens are this world's, time is its time, and chance its chance."""
        effects = self.base.clock.effects()

        def opened(url: str, *, retry_timeout_s: float = 120.0) -> ObjectStore:
            demand(url == self.url, "another store was opened:", url)
            return Retrying(Link(self.store, self), retry_timeout_s, effects)

        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(connect, "open_store", opened))
            patches.enter_context(mock.patch.dict(connect._open, clear=True))
            patches.enter_context(mock.patch.dict(connect._namespaces, clear=True))
            patches.enter_context(mock.patch.object(log_queue, "store_effects", return_value=effects))
            patches.enter_context(mock.patch("secrets.token_hex", self.token))
            patches.enter_context(quiet())
            yield

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """No faults for others than Spark."""
        before, self.calm = self.calm, True
        yield
        self.calm = before

    def land(self, chance: float) -> None:
        """What was lost on its way may arrive now."""
        if self.late and self.rng.random() < chance:
            effect = self.late.pop(self.rng.randrange(len(self.late)))
            with suppress(Conflict):
                effect()
                self.counts["landed late"] += 1
                self.landed = True

    def queue(self, name: str) -> partq.Queue:
        """As an operator has it."""
        return partq.Queue(name, store=self.url)

    @property
    def names(self) -> Sequence[str]:
        """The queues that there are."""
        if self.plan.kind == "fan-out":
            return tuple(QUEUES)
        return ("orders", "audit") if self.plan.kind == "two queues" else ("orders",)

    def create(self) -> None:
        """All of them."""
        for name in self.names:
            typed = self.plan.kind == "typed"
            schema, key = (TYPED, "name") if typed else (None, None)
            made = partq.create_queue(name, partitions=self.plan.partitions, schema=schema, key=key, store=self.url)
            if self.plan.kind == "fan-out":
                made.subscribe(*QUEUES[name])

    def read(self, name: str, begin: tuple[int, ...]) -> tuple[dict[Place, str], tuple[int, ...], tuple[int, ...]]:
        """Its messages from these offsets on, as text; the first and the next offset of each partition."""
        queue = self.base.handle(name)
        head: Head = queue.refresh()
        wanted = {p: (max(first, at(begin, p)), end) for p, (first, end) in queues.everything(head).items()}
        view = tree.view(head, wanted)
        payload = None if head.columns is None else schema_of(head.columns)
        columns = ["name", "number", "text", "x", "tags"] if payload is not None else ["key", "value"]
        found: dict[Place, str] = {}
        pieces = RangeReader(queue, head.queue_id, view, payload=payload).pieces() if begin != head.next else ()
        for piece in pieces:
            rows = [piece.batch.column(name).to_pylist() for name in columns]
            if self.plan.headers:
                none = [None] * piece.batch.num_rows
                rows.append([each or [] for each in (none if piece.headers is None else piece.headers.to_pylist())])
            for index, row in enumerate(zip(*rows, strict=True)):
                found[piece.partition, piece.offset + index] = text_of(row)
        return found, head.earliest, head.next

    # --- what befalls queues ------------------------------------------------------------------------------------------

    def happen(self, chance: float) -> Iterator[str]:
        """Something may happen to queues: what, and to which."""
        while self.rng.random() < chance:
            name = self.rng.choice(self.names)
            deeds = [self._resize, self._resize, self._compact, self._compact, self._publish, self._collect, self._fill]
            if self.plan.kind == "typed":
                deeds.append(self._alter)
            if not self.plan.healthy:
                deeds.append(self._trim)
            deed = self.rng.choice(deeds)
            self.counts[deed.__name__[1:]] += 1
            with self.undisturbed():
                try:
                    deed(name)
                except PartqError as error:  # not the sink's
                    raise RuntimeError(f"{deed.__name__} {name}: {error}") from error
            yield f"{deed.__name__[1:]} {name}"

    def _resize(self, name: str) -> None:
        if self.base.handle(name).refresh().layout.generation < MOST_RESIZES:
            self.queue(name).alter(partitions=self.rng.randint(1, 5))

    def _alter(self, name: str) -> None:
        self._columns += 1
        if self._columns == 1:
            self.queue(name).alter(widen="number BIGINT")
        elif self._columns < 4:
            self.queue(name).alter(add_column=f"more{self._columns} STRING")

    def _compact(self, name: str) -> None:
        self.base.clock.now_us += 1_000_000
        queue = self.base.handle(name)
        while compact(queue, min_age_s=0.5) is not None:
            self.counts["compacted"] += 1

    def _publish(self, name: str) -> None:
        """Somebody else, so that entries and writers move out of the head."""
        if self.plan.kind == "typed":
            return
        for _ in range(self.rng.randint(1, 5)):
            self._noise += 1
            queue = self.base.handle(name)
            stage = stage_of(queue.refresh())
            rows = [(f"{NOISE}{self._noise}", b"")]
            who = PublishIdentity(writer=f"{NOISE}-{self._noise}", batch=0)
            with suppress(Full):
                publish(queue, stage, queues.staged(queue, stage, rows, seed=str(self._noise)), who)

    def _fill(self, name: str) -> None:
        """Nothing new comes into it until it is `emptied`."""
        self.queue(name).alter(quota_bytes=1)

    def emptied(self) -> None:
        """A person gives all queues room."""
        with self.undisturbed():
            for name in self.names:
                self.queue(name).alter(quota_bytes=None)

    def _trim(self, name: str) -> None:
        head = self.base.handle(name).refresh()
        before = {p: self.rng.randint(earliest, end) for p, (earliest, end) in queues.everything(head).items()}
        self.queue(name).trim(before)

    def _collect(self, name: str) -> None:
        if self._waits < MOST_WAITS:
            self._waits += 1
            self.base.clock.now_us += 25 * queues.HOUR_US
        self.queue(name).collect()


def text_of(row: Sequence[object]) -> str:
    """A message as the judge compares it; others' begin with `NOISE`."""
    first = row[0]
    return first if isinstance(first, str) and first.startswith(NOISE) else repr(tuple(row))
