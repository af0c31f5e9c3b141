"""Consumers in plain Python: `partq.Consumer` in a process of its own, and an application in three kinds.

Run as a script: the argument names a JSON file (see `Plan`). Unless it is a steady one, the application fails now and
then, and goes on with the consumer that it has; after an error of partq's it makes another one. What it is given and
what it has dealt with it writes down as facts, before it goes on. Nothing is judged here.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, TypedDict

import partq
from tests.cast.journal import Journal, now_us
from tests.world.facts import Given, Handled, Row

FAILURE: Final = "the application fails"
"""What these, and those of Spark drivers, say when they do."""

_FAILS: Final = 0.08  # of the batches, before they are handled; half as many afterwards
_WORK_S: Final = 0.3  # at most, on a batch; now and then longer than a flow is missed
_LONG_S: Final = 8.0
_LONG_SHARE: Final = 0.01
_MOST_WAITING: Final = 3
_MOST_MESSAGES: Final = 200
_PAUSE_S: Final = 0.3


class Kind(StrEnum):
    """How an application takes its batches and acknowledges them."""

    NEXT = "next"  # a loop, which is begun again after a failure
    MANUAL = "manual"  # several at once, acknowledged or released one by one
    ASYNC = "async"  # `async for`, by waits that are cancelled


class Plan(TypedDict):
    """What to do."""

    store: str
    queue: str
    group: str
    ownership: str
    session_timeout_s: float
    flow: str
    kind: str  # of `Kind`
    steady: bool  # it fails at nothing, and takes no time
    journal: str
    events: str


class Failure(Exception):
    """The application fails; that is none of partq's errors."""


class Application:
    """What is done with batches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._journal = Journal(Path(plan["journal"]))
        self._chance = random.Random()
        self._asked_us = 0
        self.stopping = False
        self.consumer: partq.Consumer | None = None

    def stop(self) -> None:
        """End in good order."""
        self.stopping = True
        if self.consumer is not None:
            self.consumer.stop()

    def ask(self) -> None:
        """From now on it may be given messages."""
        self._asked_us = now_us()

    def take(self, batch: partq.Batch) -> tuple[Row, ...]:
        """Write down what is in it."""
        rows = tuple(Row(m.partition, m.offset, m.key, str(m.value.decode()), m.redelivered) for m in batch)
        flow = self._plan["flow"]
        self._journal.write(Given(now_us(), self._asked_us, self._plan["group"], flow, flow, rows))
        return rows

    def work_s(self) -> float:
        """How long it takes to handle a batch."""
        most_s = _LONG_S if self._chance.random() < _LONG_SHARE else _WORK_S
        return 0.0 if self._plan["steady"] else self._chance.uniform(0, most_s)

    def handle(self, rows: tuple[Row, ...]) -> None:
        """Raises `Failure`, before or after it is dealt with."""
        fate = 0.5 if self._plan["steady"] else self._chance.random()
        self.ask()  # what comes next comes after this
        if fate < _FAILS:
            raise Failure(f"{FAILURE} before it has handled a batch")
        self._journal.write(Handled(now_us(), self._plan["group"], self._plan["flow"], rows))
        if fate > 1 - _FAILS / 2:
            raise Failure(f"{FAILURE} after it has handled a batch")

    # --- the kinds ----------------------------------------------------------------------------------------------------

    def by_next(self, consumer: partq.Consumer) -> None:
        """Asking for the next batch acknowledges the last."""
        while not self.stopping:
            try:
                for batch in consumer:
                    rows = self.take(batch)
                    time.sleep(self.work_s())
                    self.handle(rows)
            except Failure:
                continue

    def by_hand(self, consumer: partq.Consumer) -> None:
        """Batches are handled in their order; those behind one that was released may be acknowledged all the same."""
        waiting: list[tuple[tuple[Row, ...], partq.Batch]] = []
        while not self.stopping or waiting:
            self.ask()
            batch = consumer.poll(0.2) if len(waiting) < _MOST_WAITING and not self.stopping else None
            if batch is not None:
                waiting.append((self.take(batch), batch))
            if waiting and (batch is None or self._chance.random() < 0.5):
                rows, first = waiting.pop(0)
                time.sleep(self.work_s())
                try:
                    self.handle(rows)
                    first.acknowledge()
                except Failure:
                    first.release()

    def by_asyncio(self, consumer: partq.Consumer) -> None:
        """As `by_next`; most waits for a batch are given up."""
        asyncio.run(self._loops(consumer))

    async def _loops(self, consumer: partq.Consumer) -> None:
        while not self.stopping:
            loop = aiter(consumer)
            try:
                while True:
                    try:
                        batch = await asyncio.wait_for(anext(loop), self._chance.uniform(0.001, 0.3))
                    except TimeoutError:
                        continue
                    rows = self.take(batch)
                    await asyncio.sleep(self.work_s())
                    self.handle(rows)
            except StopAsyncIteration:
                return
            except Failure:
                continue


def main(plan: Plan) -> None:
    """Until SIGTERM."""
    application = Application(plan)
    signal.signal(signal.SIGTERM, lambda *_: application.stop())
    kinds: dict[Kind, Callable[[partq.Consumer], None]] = {
        Kind.NEXT: application.by_next,
        Kind.MANUAL: application.by_hand,
        Kind.ASYNC: application.by_asyncio,
    }
    kind = Kind(plan["kind"])

    def tell(what: str, error: str = "") -> None:
        with Path(plan["events"]).open("a") as file:
            file.write(json.dumps({"at_s": time.monotonic(), "what": what, "error": error}) + "\n")

    while not application.stopping:
        try:
            queue = partq.open_queue(plan["queue"], store=plan["store"])
            with queue.consumer(
                plan["group"],
                flow=plan["flow"],
                ownership=plan["ownership"],
                starting="earliest",
                acknowledge="manual" if kind is Kind.MANUAL else "next",
                max_messages=_MOST_MESSAGES,
                session_timeout_s=plan["session_timeout_s"],
            ) as consumer:
                application.consumer = consumer
                tell("started")
                application.ask()
                kinds[kind](consumer)
        except partq.PartqError as error:
            tell("failed", f"partq_spark.errors.{type(error).__name__}: {error}")
            time.sleep(_PAUSE_S)
    tell("stopped")


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
