"""What a query's own code does in foreachBatch, and beside it: it looks once or several times, handles, fails, and
acknowledges by hand, at once, late, repeatedly, or out of order.

It keeps to the contract (docs/acknowledging.md): it asks what is in hand in each batch, forgets what it is told to be
lost, and an acknowledgement means everything that it remembers below the offset. What it was told to count for nothing
it forgets too: that comes again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from partq_spark.base.errors import PartqError
from partq_spark.client.acknowledge import Acknowledger, Held, InHand, KeySequences
from partq_spark.query.notify import Requester
from tests.simulation.history import History
from tests.simulation.links import Weather
from tests.simulation.queries.judge import Judge, Planned, Row
from tests.simulation.queries.plan import QueryPlan
from tests.simulation.queries.reader import Reader
from tests.simulation.queries.spark import Batch, Execution, QueryFailed
from tests.support.judge import Message
from tests.support.scheduler import SECOND_US

WAY_US = 2000


def _other(before: Held, held: Held) -> bool:
    """It was somebody else's meanwhile, or comes again from its first message."""
    return (before.epoch, before.round) != (held.epoch, held.round)


@dataclass(slots=True)
class Memory:
    """What the application knows of one source's messages: handled, and not acknowledged yet."""

    process: str = ""
    messages: dict[Message, int] = field(default_factory=dict)  # when their batch was planned
    hand: InHand | None = None
    sequences: KeySequences | None = None
    losses: Counter[int] = field(default_factory=Counter)  # how often each partition was forgotten

    def forget(self, partition: int) -> None:
        """It is told that it has lost the partition: what it was about to say of it, it does not say any more."""
        self.losses[partition] += 1
        self.messages = {each: at_us for each, at_us in self.messages.items() if each.partition != partition}


class _Line:
    """The way to the reader process that the query has now. What is acknowledged on it is told to the judge."""

    def __init__(self, ours: OurCode, source: int) -> None:
        self._ours = ours
        self._source = source

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "acknowledge":
            return self._acknowledge(message)
        return self._asked(message)

    def _asked(self, message: dict[str, Any]) -> dict[str, Any]:
        scheduler = self._ours.execution.process.scheduler
        scheduler.sleep_us(WAY_US)
        answer = self._ours.reader(self._source).answer(message)
        scheduler.sleep_us(WAY_US)
        return answer

    def _acknowledge(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is remembered below these offsets is done; what is refused is forgotten: it comes again."""
        ours, memory = self._ours, self._ours.memory(self._source)
        group = ours.reader(self._source).source.group
        now = memory.hand.partitions if memory.hand is not None else {}
        # By what was in hand at an earlier epoch, or in an earlier round, nothing is said of what has come since; it is
        # refused.
        ends = {
            int(p): int(offset)
            if (held := now.get(int(p))) is None or (held.epoch, held.round) == (epoch, round_)
            else 0
            for p, (epoch, offset, round_) in message["p"].items()
        }
        said = {
            each: at_us
            for each, at_us in memory.messages.items()
            if message["process"] == memory.process and each.offset < ends.get(each.partition, 0)
        }
        new = ours.judge.acknowledging(group, said)
        ours.note(f"acknowledges {message['p']} by {message['process']}")
        try:
            answer = self._asked(message)
        except PartqError as error:
            ours.note(f"acknowledges in vain: {error}")
            ours.counts["acknowledged in vain"] += 1
            raise
        refused = ends.keys() - set(answer["still"])
        if refused:
            ours.counts["acknowledgements refused"] += 1
            ours.note(f"is refused {sorted(refused)}")
        ours.judge.refused(group, {each for each in new if each.partition in refused})
        for each in said:
            memory.messages.pop(each, None)
        return answer


class _Asker(Acknowledger):
    """For `KeySequences`: that of one source, without a socket."""

    def __init__(self, ours: OurCode, source: int) -> None:  # it has no address
        self._ours = ours
        self._source = source

    def in_hand(self) -> InHand:
        """What the flow has, now."""
        line = _Line(self._ours, self._source)
        answer = line.ask({"do": "in_hand", "after": -1})
        partitions = {int(p): Held(*map(int, held)) for p, held in answer["p"].items()}
        return InHand(cast(Requester, line), str(answer["process"]), partitions, frozenset(map(int, answer["lost"])))


@dataclass(slots=True)
class OurCode:
    """Of one run of a query."""

    plan: QueryPlan
    judge: Judge
    history: History
    weather: Weather
    rng: random.Random
    counts: Counter[str]
    execution: Execution = field(init=False)
    _memories: dict[int, Memory] = field(default_factory=dict)
    _at_work: bool = False

    def reader(self, source: int) -> Reader:
        """The reader process of a source, as it is now."""
        return self.execution.readers[source]

    # --- foreachBatch -------------------------------------------------------------------------------------------------

    def handle(self, batch: Batch) -> None:
        """foreachBatch."""
        while self._at_work:
            self.execution.sleep_us(SECOND_US // 100)
        with self._alone():
            self._handle_batch(batch)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One thread of the application's looks at what it remembers: an `Acknowledger` is for one."""
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def _handle_batch(self, batch: Batch) -> None:
        fails = not self.weather.calm and self.rng.random() < self.plan.fails
        how = self.rng.choice(("before", "planned", "half-way", "after")) if fails else ""
        if how == "before":
            self._fail(how)
        sources = range(len(self.execution.readers))
        by_hand = [number for number in sources if self._is_by_hand(number)]
        ignores = not self.weather.calm and self.rng.random() < self.plan.ignores
        if ignores and len(by_hand) == len(sources):  # else Spark would acknowledge what nobody looked at
            self.counts["ignored"] += 1
            return
        for number in by_hand:
            self._begin(number)
        self.perhaps_replace(0.3)
        batch.look()
        while not self.weather.calm and self.rng.random() < self.plan.plans_again:
            self.counts["planned again"] += 1
            self._work(0.3)
            self.perhaps_replace()
            batch.look()
        if how == "planned":
            self._fail(how)
        self._work(0.2)
        found = batch.read()
        for number in by_hand:
            self._begin(number)
        for planned, rows in found:
            self._handle(planned, rows[: len(rows) // 2] if how == "half-way" else rows)
        if how == "half-way":
            self._fail(how)
        self._work(1.0)
        for number in by_hand:
            self._acknowledge(number)
        if how == "after":
            self._fail(how)

    def look_after(self) -> None:
        """A thread of the application's: in the end it acknowledges everything that it remembers."""
        while True:
            self.execution.process.scheduler.sleep_us(SECOND_US)
            if self.weather.calm and not self._at_work:
                with self._alone():
                    self._acknowledge_all()

    def _acknowledge_all(self) -> None:
        for number in range(len(self.execution.readers)):
            if self._is_by_hand(number) and self.memory(number).messages:
                try:
                    self._begin(number)
                except QueryFailed:
                    continue
                self._complete_all(self.memory(number))
                self._acknowledge(number)

    def _handle(self, planned: Planned, rows: Sequence[Row]) -> None:
        self.judge.handled(planned, rows)
        if not self._is_by_hand(planned.identity.source):
            return
        memory = self.memory(planned.identity.source)
        lost = memory.hand.lost if memory.hand is not None else frozenset()
        memory.messages |= {row.message: planned.asked_us for row in rows if row.partition not in lost}
        if memory.sequences is not None:
            for row in rows:
                key = self.rng.randrange(3)
                memory.sequences.seen(row.partition, row.offset, key)
                if self.rng.random() < 0.7:
                    memory.sequences.complete(row.partition, key)

    def _complete_all(self, memory: Memory) -> None:
        """In the end every sequence is complete."""
        if memory.sequences is not None:
            for partition in {each.partition for each in memory.messages}:
                for key in memory.sequences.open_keys(partition):
                    memory.sequences.complete(partition, key)

    def _fail(self, how: str) -> None:
        self.counts["handling fails"] += 1
        raise QueryFailed(f"foreachBatch fails: {how}")

    def _work(self, part: float) -> None:
        work_us = SECOND_US // 100 if self.weather.calm else self.plan.work_us
        self.execution.sleep_us(int(work_us * part * (0.5 + self.rng.random())))

    def perhaps_replace(self, part: float = 1.0) -> None:
        """Its reader processes are others all of a sudden, and Spark does not notice."""
        for number in range(len(self.execution.readers)):
            if not self.weather.calm and self.rng.random() < self.plan.replaces * part:
                self.counts["readers replaced"] += 1
                self.history.note(f"{self.execution.now_us} {self.reader(number).name} is replaced")
                self.execution.readers[number] = self.execution.new_reader(number)

    # --- acknowledging by hand ----------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """For the history."""
        self.history.note(f"{self.execution.now_us} {self.execution.process.name} {text}")

    def _is_by_hand(self, source: int) -> bool:
        group = self.reader(source).options.group
        return group is not None and group.manual_acks

    def memory(self, source: int) -> Memory:
        """Of one source."""
        found = self._memories.get(source)
        if found is None:
            found = self._memories[source] = Memory()
            if self.plan.style == "sequences":
                found.sequences = KeySequences(_Asker(self, source))
        return found

    def _begin(self, source: int) -> None:
        """Ask what is in hand, and forget what is lost."""
        memory = self.memory(source)
        try:
            if memory.sequences is not None:
                for partition in sorted(memory.sequences.begin()):
                    memory.forget(partition)
            hand = _Asker(self, source).in_hand()
        except PartqError as error:
            raise QueryFailed(f"in_hand: {error}") from error
        former = memory.hand if memory.hand is not None and memory.process == hand.process else None
        for partition in sorted({each.partition for each in memory.messages}):
            held = hand.partitions.get(partition)
            before = former.partitions.get(partition) if former is not None else None
            if held is None or former is None or (before is not None and _other(before, held)):
                memory.forget(partition)
        memory.process, memory.hand = hand.process, hand

    def _acknowledge(self, source: int) -> None:
        memory = self.memory(source)
        hand = memory.hand
        if memory.sequences is not None:
            self._try(memory.sequences.acknowledge)
            return
        style = "batch" if self.weather.calm else self.plan.style
        if hand is None or style == "never":
            return
        ends: dict[int, int] = {}
        for message in memory.messages:
            if message.partition in hand.partitions or message.partition in hand.lost:
                ends[message.partition] = max(ends.get(message.partition, 0), message.offset + 1)
        if style == "batch":
            self._try(partial(hand.acknowledge, ends))
            return
        for partition in list(ends):  # now and then less, or nothing
            ends[partition] -= self.rng.choice((0, 0, 1, 3))
            if self.rng.random() < 0.3 or ends[partition] <= 0:
                del ends[partition]
        if self.rng.random() < 0.4:
            self._try(partial(hand.acknowledge, ends))
            if self.rng.random() < 0.3:
                self.counts["acknowledged again"] += 1
                self._try(partial(hand.acknowledge, ends))
            return
        self.counts["acknowledged late"] += 1
        losses = Counter(memory.losses)

        def late() -> None:
            left = {p: end for p, end in ends.items() if memory.losses[p] == losses[p]}
            self._try(partial(hand.acknowledge, left))

        self.execution.process.spawn("acknowledges", late, self.rng.randint(0, 8 * SECOND_US))

    def _try(self, acknowledge: Callable[[], object]) -> None:
        try:
            acknowledge()
        except PartqError as error:
            self.note(f"could not acknowledge: {error}")
