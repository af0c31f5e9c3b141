"""A simulated reader process: the real `ConsumerLoop`, and beside it what lives beside it in production, as strands.

One at a time uses the consumer, and one that waits for news in it lets the others in (`query.consumer_process`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from partq_spark.base.effects import Effects
from partq_spark.base.errors import PartqError, Unavailable
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from partq_spark.query.consumer import ConsumerLoop
from partq_spark.query.joining import beat_interval_s, open_consumer
from partq_spark.query.manual import RoundPosition
from partq_spark.query.notify import PAGE
from partq_spark.spark.options import stream_source_options
from tests.simulation.history import History
from tests.simulation.links import Link, Weather
from tests.simulation.objects import Objects
from tests.simulation.queries.plan import SourcePlan
from tests.simulation.queries.stores import TrueStore, url_of
from tests.simulation.stores import Mutex, OwnershipServer
from tests.support.judge import Violation
from tests.support.scheduler import SECOND_US, Crash, Process, Scheduler, Strand

BUSY_LOOK_S = 0.5
MOST_CALLS = 400  # to stores, for one question
EARLY_US = 4 * SECOND_US  # nobody gives up before: retryTimeout is longer, and so is every other patience
T = TypeVar("T")


class Interrupted(BaseException):
    """Spark's SIGTERM: the main thread ends where it is, and then the reader leaves in good order."""


class ReaderDied(Exception):
    """Spark finds its reader process gone: the query fails."""


class _Link(Link):
    """A reader's calls: Spark's own thread is interrupted in them."""

    reader: Reader

    def call(self, verb: str, effect: Callable[[], T], *, write: bool, mortal: bool = False) -> T:
        reader = self.reader
        if reader.options.group is None and (write or "/_head.json" not in verb):
            raise Violation(f"{reader.name} has no group, and asks for more than the head: {verb}")
        if reader.asking is not None and reader.scheduler.current is reader.asking:
            if reader.interrupted:
                raise Interrupted
            reader.calls += 1
            if reader.calls > MOST_CALLS * (1 + (reader.scheduler.now_us - reader.asked_us) // (5 * SECOND_US)):
                raise Violation(f"{reader.name} asks stores {reader.calls} times for one question, now: {verb}")
        return super().call(verb, effect, write=write, mortal=mortal)


class Reader(Process):
    """The process that Spark asks of one source. `siblings`: all processes of its machine, which freeze together."""

    def __init__(
        self,
        name: str,
        number: int,
        source: SourcePlan,
        *,
        scheduler: Scheduler,
        weather: Weather,
        store: TrueStore,
        server: OwnershipServer,
        history: History,
        token: Callable[[], str],
        origin_s: float,
        rate: float,
        siblings: Callable[[], list[Process]],
    ) -> None:
        super().__init__(scheduler, name, origin_s=origin_s, rate=rate)
        self.number = number
        self.source = source
        self.link = _Link(self, weather)
        self.link.reader = self
        self.objects = Objects(store, self.link)
        self.effects = Effects(
            now_s=self.now_s, time_us=lambda: 0, sleep=self.sleep, uniform=scheduler.rng.uniform, token=token
        )
        self._server = server
        self._history = history
        self._siblings = siblings
        self._mutex = Mutex(scheduler)
        self._waiting: Strand | None = None
        self._trouble: Exception | None = None
        self.interrupted = False
        self.asking: Strand | None = None
        self.answered_s = float("-inf")
        self.asked_us = 0
        self.calls = 0
        options = stream_source_options({**source.options, "store": url_of(number)})
        self.options = options
        self.consumer: ConsumerLoop

    def begin(self) -> Reader:
        """Open everything: from now on it is known by its address."""
        is_flow = self.options.group is not None
        self.consumer = open_consumer(self.options, self.effects, wait=self._wait if is_flow else None)
        if is_flow:
            self.spawn("beats", self._beat, 10_000)
            self.spawn("news", self._hear, 10_000)
        return self

    def ownership(self, group: GroupKey) -> Ownership:
        """The reader's way to the ownership server, which it asks as seldom as Redis."""
        return self._server.open(self.link, self.effects, group=group, look_interval_s=0.1)

    def freeze(self, duration_us: int) -> None:
        """Its whole machine."""
        for process in self._siblings():
            Process.freeze(process, duration_us)

    # --- Spark's questions --------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[ConsumerLoop], T]) -> T:
        """One question by the query's own strand. Raises what the consumer raises, `ReaderDied`, `Interrupted`."""
        try:
            if not self.alive:
                raise Crash
            with self._mutex:
                if not self.alive:
                    raise Crash
                trouble, self._trouble = self._trouble, None
                if trouble is not None:
                    raise trouble
                self.asking, self.asked_us, self.calls = self.scheduler.current, self.scheduler.now_us, 0
                try:
                    return question(self.consumer)
                except Unavailable as error:
                    took_us = self.scheduler.now_us - self.asked_us
                    if took_us < EARLY_US:
                        raise Violation(f"{self.name} gives up after {took_us} us: {error}") from error
                    raise
                finally:
                    self.asking = None
                    self.answered_s = self.now_s()
        except Crash:
            asker = self.scheduler.current
            if asker is None or not asker.process.alive:
                raise
            raise ReaderDied(self.name) from None

    def _wait(self, timeout_s: float) -> None:
        """The main thread's: lets the others in, and ends early if one of them has news."""
        self._waiting = self.scheduler.current
        self._mutex.__exit__()
        try:
            self.scheduler.wait_us(max(0, round(timeout_s / self.rate * SECOND_US)))
        finally:
            self._waiting = None
            self._mutex.__enter__()
        if self.interrupted:
            raise Interrupted

    def stop(self) -> None:
        """Leave in good order, and end."""

        def stop() -> None:
            with self._mutex:
                try:
                    self.consumer.stop()
                except PartqError as error:
                    self._history.note(f"{self.scheduler.now_us} {self.name} leaves without a word: {error}")
            self.alive = False

        self.spawn("stop", stop)

    # --- beside -------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while True:
            self.sleep(beat_interval_s(self.options.group, self.options.target.store))
            member = self.consumer.member
            if member is None or self.interrupted:
                continue
            try:
                member.beat()
            except Unavailable:
                continue
            except PartqError as error:
                self._trouble = error
                return

    def _hear(self) -> None:
        while True:
            self.sleep(0.01)
            member = self.consumer.member
            news = True
            try:
                if member is None or not member.is_bound:
                    self.sleep(BUSY_LOOK_S)
                else:
                    news = member.wait_news(BUSY_LOOK_S)
            except PartqError:
                self.sleep(BUSY_LOOK_S)
            with self._mutex:
                if news or (self.asking is None and self.now_s() - self.answered_s >= BUSY_LOOK_S):
                    self._look()

    def _look(self) -> None:
        self.consumer.wake()
        if self.asking is not None:
            if self._waiting is not None:
                self.scheduler.wake(self._waiting)
        elif not self.interrupted:
            try:
                self.consumer.look_while_busy()
            except Unavailable:
                pass
            except PartqError as error:
                self._trouble = error

    # --- the mailbox --------------------------------------------------------------------------------------------------

    def complete(self, digest: str) -> None:
        """The listener's word, some time after the batch."""

        def tell() -> None:
            with self._mutex:
                try:
                    self.consumer.complete(digest)
                except PartqError:
                    pass
                finally:
                    self._look()

        self.spawn("listener", tell, self.scheduler.rng.randint(40_000, 200_000))

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """The application's question, by a strand of the application. Raises what the consumer raises."""
        if not self.alive or self.interrupted:
            self.scheduler.sleep_us(SECOND_US)
            raise Unavailable("no reader process answers")
        member = self.consumer.member
        try:
            with self._mutex:
                if message["do"] == "in_hand":
                    found = self.consumer.acknowledgements.in_hand(after=int(message["after"]), most=PAGE)
                    return {**found, "bound": member is not None and member.is_bound}
                positions = {int(p): RoundPosition(*map(int, position)) for p, position in message["p"].items()}
                still = self.consumer.acknowledgements.by_application(str(message["process"]), positions)
                self._look()
                return {"still": sorted(still), "bound": member is not None and member.is_bound}
        except Crash:
            asker = self.scheduler.current
            if asker is None or not asker.process.alive:
                raise
            raise Unavailable("the reader process is gone") from None
