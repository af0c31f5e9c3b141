"""Who works on a queue for days: writers that publish each batch once, however often they repeat it; people and cron
jobs that trim, collect, compact, resize, alter and rewind; readers who stop in the middle and go on hours later; and a
flow that comes by now and then.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

import partq
from tests.world.facts import Befell, Durable, Sent, demand
from tests.world.log_plan import GRACE_S, HOUR_S
from tests.world.machine import EPOCH_S, Host
from tests.world.payloads import WIDTHS, number_of, text_of
from tests.world.processes import Actor, Flow
from tests.world.scheduler import SECOND_US

if TYPE_CHECKING:
    from tests.world.world import World

_ADDED: Final = ("INT", "STRING", "ARRAY<STRUCT<a: INT NOT NULL>>")


class Writer(Actor):
    """Publishes batches under publish ids, each until it knows that it is published, and now and then the last one
    again. One that is anonymous publishes each once, whatever becomes of it.
    """

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._left = world.plan.messages
        self._batch = 0
        self._is_anonymous = name.startswith("anonymous")
        self._values: dict[int, list[tuple[str, str]]] = {}  # of batches: keys and values

    def live(self, host: Host) -> None:
        while not host.stopping and self._left:
            self.sleep(host.rng.uniform(0.1, 2.0) * self.world.plan.pause_s)
            batch = self._batch
            self._batch += self._is_anonymous
            self._left -= self._is_anonymous
            try:
                self._publish(host, batch)
            except (partq.Unavailable, partq.Conflict):
                self.world.counts["gave up"] += 1
                continue
            if not self._is_anonymous and host.rng.random() < 0.85:
                self._batch += 1
                self._left -= 1
        self.is_done = not self._left

    def _rows(self, batch: int) -> list[tuple[str, str]]:
        """The same whenever it is repeated. What is anonymous keeps no order: it has keys of its own."""
        if batch not in self._values:
            keys = [f"{self.name}-{self.rng.randrange(3)}" for _ in range(self.rng.randint(1, 5))]
            if self._is_anonymous:
                keys = [f"{each}-{batch}" for each in keys]
            rows = [(key, f"{key}:{batch}:{row}") for row, key in enumerate(keys)]
            for row, (key, value) in enumerate(rows):
                self.world.take(Sent(self.world.now_us, self.name, key, 100 * batch + row, value))
            self._values[batch] = rows
        self.world.ledger.together(value for _, value in self._values[batch])
        return self._values[batch]

    def _publish(self, host: Host, batch: int) -> None:
        rows = self._rows(batch)
        publish_id = None if self._is_anonymous else f"{self.name}-{batch}"
        queue = self.world.queue()
        if not self.world.plan.log.is_typed and host.rng.random() < 0.5:
            with queue.publisher(publish_id=publish_id, linger_s=60.0) as publisher:
                sent = [(value, publisher.send(value, key=key)) for key, value in rows]
                self._nap(host)
                publisher.flush()
            for value, future in sent:
                place = future.result(0)
                if place.partition is not None and place.offset is not None:
                    self.world.take(Durable(self.world.now_us, value, place.partition, place.offset))
            return
        table = self._table(queue, rows)
        with queue.publication(publish_id=publish_id) as publication:
            if publication.is_done:
                self.world.counts["repetition"] += 1
                return
            publication.add(table)  # of the columns as they were: what was widened since is widened here
            self._nap(host)
            publication.commit()

    def _nap(self, host: Host) -> None:
        """What is staged may become old."""
        if host.rng.random() < self.world.plan.log.sleepy:
            self.world.counts["slept"] += 1
            self.sleep(host.rng.choice((1.0, 12 * HOUR_S, 23 * HOUR_S, 50 * HOUR_S)))

    def _table(self, queue: partq.Queue, rows: list[tuple[str, str]]) -> pa.Table:
        table = {"key": [key for key, _ in rows], "value": [value.encode() for _, value in rows]}
        schema = queue.describe().schema
        if schema is None:
            return pa.table(table)
        (kind,) = (each.type for each in schema.columns if each.name == "n")
        numbers = pa.array([number_of(value, WIDTHS[kind]) for _, value in rows], pa.int64())
        narrow = {"TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INT": pa.int32(), "BIGINT": pa.int64()}[kind]
        return pa.table({**table, "n": numbers.cast(narrow)})


class Keeper(Actor):
    """Does one thing again and again, which its name says."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self._left = world.plan.log.rounds
        self._work: Callable[[partq.Queue], object] = {
            "trimmer": self._trim,
            "collector": lambda queue: queue.collect(grace_s=GRACE_S),
            "compactor": self._compact,
            "resizer": lambda queue: queue.alter(partitions=self.rng.randint(1, 4)),
            "alterer": self._alter,
            "rewinder": self._rewind,
            "reader": self._read,
        }[name.partition("-")[0]]

    def live(self, host: Host) -> None:
        while not host.stopping and self._left:
            pause_s = GRACE_S if self.name.startswith("collector") else 1.5 * self.world.plan.pause_s
            self.sleep(host.rng.uniform(0.1, 1.6) * pause_s)
            self._left -= 1
            try:
                self._work(self.world.queue())
                self.world.counts[self.name.partition("-")[0]] += 1
            except (partq.Unavailable, partq.Conflict):
                self.world.counts["gave up"] += 1
        self.is_done = not self._left

    def _trim(self, queue: partq.Queue) -> None:
        found = queue.describe().partitions
        if self.rng.random() < 0.3:
            queue.trim(datetime.fromtimestamp(EPOCH_S + self.rng.uniform(0, self.world.now_us / SECOND_US), UTC))
            return
        everything = self.rng.random() < self.world.plan.log.trim_all
        queue.trim(
            {each.partition: each.next if everything else self.rng.randint(each.earliest, each.next) for each in found}
        )

    def _compact(self, queue: partq.Queue) -> None:
        done = queue.compact(min_age_s=self.rng.choice((0.0, 60.0, HOUR_S)))
        self.world.counts["compacted"] += done.steps

    def _alter(self, queue: partq.Queue) -> None:
        if self.rng.random() < 0.5:
            queue.alter(add_column=f"c{self._left}_{self.lives} {self.rng.choice(_ADDED)}")
            return
        try:
            queue.alter(widen=f"n {self.rng.choice(list(WIDTHS))}")
        except partq.Invalid as error:
            demand("cannot become" in str(error), error)  # it is as wide already

    def _rewind(self, queue: partq.Queue) -> None:
        goal: dict[str, Any] = {"to": "earliest"} if self.rng.random() < 0.5 else {"by": self.rng.randint(1, 5)}
        self.world.befell("rewind")
        try:
            queue.rewind(self.world.GROUP, **goal)
        except (partq.Invalid, partq.Fenced):  # others changed it meanwhile
            self.world.counts["came too late"] += 1

    def _read(self, queue: partq.Queue) -> None:
        """All that is there, as one view of it shows, which may become old."""
        begun_us = self.world.now_us
        ledger = self.world.ledger
        try:
            for message in queue.browse():
                lies = ledger.messages[message.partition][message.offset]
                demand((message.key, text_of(message.value)) == lies[:2], "another message at", message)
                if self.rng.random() < 0.1:
                    self.sleep(self.rng.choice((0.1, HOUR_S, 20 * HOUR_S, 50 * HOUR_S)))
        except partq.Corrupt as error:
            demand(type(error).__name__ == "ObjectMissing", error)
            age_s = (self.world.now_us - begun_us) / SECOND_US
            demand(age_s >= GRACE_S - 2 * self.world.plan.skew_s, "a view could not be read within grace:", error)
            demand(bool(ledger.trimmed_us), "lost, and nothing was trimmed:", error)
            self.world.counts["read too late"] += 1


class Visitor(Flow):
    """A flow that comes by now and then, as long as others work on the queue."""

    ends_by = (partq.Corrupt,)

    def live(self, host: Host) -> None:
        try:
            self._visit(host)
        except partq.Corrupt as error:
            # A rewind came too late for a trim: it says so to the person, and flows cannot go on there.
            demand(bool(self.world.ledger.trimmed_us), "lost, and nothing was trimmed:", error)
            self.world.counts["taken back to what is gone"] += 1
            self.world.is_over = True

    def _visit(self, host: Host) -> None:
        world = self.world
        for _ in range(world.plan.log.rounds):
            self.sleep(host.rng.uniform(0.1, 2.0) * world.plan.pause_s)
            if host.stopping:
                return
            world.take(Befell(world.now_us, "visit", self.name, is_accident=True))  # it may leave with a batch in hand
            try:
                with self.consumer() as consumer:
                    self.consume(host, consumer, most=self.rng.choice((1, 3, 100)))
            except (partq.Unavailable, partq.Conflict):
                world.counts["gave up"] += 1
            except partq.Invalid as error:
                demand("load again" in str(error), error)
                world.counts["a value did not fit"] += 1
        while world.is_busy() and not host.stopping:
            self.sleep(HOUR_S)
        super().live(host)
