"""What the process of a flow has beside the calls of Spark or of an application: the heartbeat, the news, the mailbox,
and the rule which thread may use the consumer when. No pyspark.

A monitor guards the consumer: one thread at a time, and a thread that waits for news lets the others in. So a pause is
seen, and what a listener or an application says is written down, also while the main thread waits or a batch runs for
long. All threads are daemons, from the first call that needs them.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.group.binding import HeartbeatThread, Liveness
from partq_spark.group.ownership import import_client
from partq_spark.query.acknowledgements import RoundPosition
from partq_spark.query.consumer import ConsumerLoop
from partq_spark.query.notify import Mailbox, Message, is_taken
from partq_spark.query.settings import SourceOptions

BUSY_LOOK_S: Final = 0.5
"""How often the flow is looked after while Spark is busy with a batch and there are no news."""

BUSY_WAIT_S: Final = 20.0  # that a question through the mailbox waits for the flow; less than the asker waits
_LEAST_PAUSE_S: Final = 0.01  # between two looks, however often there are news
STOP_WAIT_S: Final = 5.0  # that `stop` waits for the flow
_log = logging.getLogger("partq.flow")


class ConsumerProcess:
    """A consumer with the threads beside it, of which a query without a group needs none.

    `liveness`: of the process that it works for; None: the process that started this one, as Spark does. `mailbox`:
    whether others on this machine may reach it. `deserted`: why nobody will ask any more, in words: then the flow
    leaves its group, and joins again when asked.
    """

    def __init__(
        self,
        options: SourceOptions,
        effects: Effects | None = None,
        *,
        liveness: Liveness | None = None,
        mailbox: bool = True,
        deserted: Callable[[], str] = lambda: "",
    ) -> None:
        self._options = options
        self._deserted = deserted
        self._monitor = threading.Condition(threading.RLock())
        effects, is_flow = effects if effects is not None else Effects(), options.group is not None
        # A thread that waits lets the others in, and one of them that has news ends the wait.
        self._consumer = ConsumerLoop(options, effects, self._monitor.wait if is_flow else effects.sleep)
        self._asking = False  # Spark is: the flow is looked after anyway
        self._answered_s = 0.0
        self._stopping = threading.Event()
        self._left = threading.Event()
        self._trouble: Exception | None = None
        self._mailbox: Mailbox | None = None
        self._is_without_mailbox = not mailbox  # or it was tried, and said
        self._liveness = liveness if liveness is not None else Liveness(parent=os.getppid())
        beat_s = self._consumer.participant.settings.beat_interval_s
        self._heartbeat = HeartbeatThread(self._beat, beat_s, self._liveness, name="the query")
        if is_flow:
            self._heartbeat.start()
            threading.Thread(target=self._hear, name="partq news", daemon=True).start()

    @contextmanager
    def asked(self) -> Iterator[ConsumerLoop]:
        """The consumer, for one of Spark's questions. Raises what ended the heartbeat or went wrong beside a batch."""
        with self._monitor:
            self._heartbeat.check()
            trouble, self._trouble = self._trouble, None
            if trouble is not None:
                raise trouble
            self._asking = True
            try:
                yield self._consumer
            finally:
                self._asking = False
                self._answered_s = time.monotonic()
            self._open_mailbox()

    def acknowledge(self, process: str, positions: Mapping[int, RoundPosition]) -> frozenset[int]:
        """The application's word, by any thread: the partitions for which it counts. Raises as
        `Acknowledgements.by_application`.
        """
        with self._monitor:
            still = self._consumer.acknowledgements.by_application(process, positions)
            self._look()
            return still

    def release(self, process: str, positions: Mapping[int, RoundPosition]) -> None:
        """The application gives back what it was given: what of it is not acknowledged comes again."""
        with self._monitor:
            if (member := self._consumer.participant.bound_member()) is not None:
                with suppress(Unavailable):  # or what was acknowledged and is not written down comes again, too
                    member.flush()
            self._consumer.acknowledgements.given_out.refuse(process, positions, ())
            self._look()

    def report(self) -> dict[str, object] | None:
        """For the query's progress."""
        return self._consumer.report()

    def stop(self) -> None:
        """Leave the group. Bounded; may be repeated."""
        self._stopping.set()
        self._heartbeat.stop()
        if self._mailbox is not None:
            self._mailbox.close()
        try:
            if not self._monitor.acquire(timeout=STOP_WAIT_S):
                _log.warning("the flow's group will notice that it is gone: a store does not answer")
                return
            try:
                self._consumer.stop()
            except PartqError as error:
                _log.warning("the flow left without a word: %s", error)
            finally:
                self._monitor.release()
        finally:
            self._left.set()

    # --- threads ------------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        member = self._consumer.participant.member
        if member is not None:
            member.beat()

    def _hear(self) -> None:
        """News of the group are acted upon at once, by the main thread if it waits, else here."""
        if self._options.group is not None:
            import_client(self._options.group.ownership)  # while Spark has its first and empty batch
        while not self._stopping.wait(_LEAST_PAUSE_S):
            member, news = self._consumer.participant.bound_member(), True
            try:
                if member is None:
                    self._stopping.wait(BUSY_LOOK_S)
                else:
                    news = member.wait_news(BUSY_LOOK_S)
            except PartqError:
                self._stopping.wait(BUSY_LOOK_S)  # the main thread meets the error by itself
            except Exception as error:  # noqa: BLE001 - it is passed on to the main thread by the next question
                self._trouble = error
                self._stopping.wait(BUSY_LOOK_S)
            with self._monitor:
                # Where a question is being answered, or was a moment ago, its thread looks itself.
                if news or not (self._asking or self._silent_s < BUSY_LOOK_S):
                    self._look()
        self._left.wait(STOP_WAIT_S)
        if self._consumer.participant.member is not None:
            self._consumer.participant.member.close()  # here, because this thread waits for news by its connections

    def _look(self) -> None:
        """With the monitor."""
        self._consumer.wake()
        if self._asking:
            self._monitor.notify_all()
        elif not self._stopping.is_set() and self._is_living:
            try:
                if self._consumer.participant.bound_member() is not None and (reason := self._deserted()):
                    _log.warning("%s leaves: %s", self._consumer.address, reason)
                    self._consumer.stop()
                self._consumer.look_while_busy(self._silent_s)
            except Unavailable as error:
                _log.info("beside a batch: %s", error)  # the next question meets it by itself
            except Exception as error:  # noqa: BLE001 - it is passed on to the main thread by the next question
                self._trouble = error

    @property
    def _silent_s(self) -> float:
        """Since the last question ended, which may have taken long itself."""
        return time.monotonic() - self._answered_s

    @property
    def _is_living(self) -> bool:
        """A guard: a look may begin a new instance, which nobody does in the name of a frozen or dead JVM (LOS-06)."""
        return self._heartbeat.is_beating and not self._liveness.gone and not self._liveness.is_frozen

    # --- the mailbox --------------------------------------------------------------------------------------------------

    def _open_mailbox(self) -> None:
        """As soon as the flow has its name, if nobody listens under it: a batch may have nothing to read. From whoever
        does, as soon as it is bound.
        """
        address = self._consumer.address
        is_found = self._mailbox is not None and self._mailbox.is_found
        if is_found or self._is_without_mailbox or address is None:
            return
        if self._mailbox is not None:
            self._mailbox.close()
        try:
            member = self._consumer.participant.bound_member()
            is_alive = member is not None and member.lease_left_s() > 0  # else another process may have the name
            if not is_alive and is_taken(address):
                return
            self._mailbox = Mailbox(address, self._handle)
        except Invalid as error:
            if self._options.manual_acks:  # nothing is ever acknowledged without one
                raise Invalid(f"{address} cannot be reached by its application: {error}") from error
            self._is_without_mailbox = True
            _log.warning("no listener can reach %s: %s", address, error)
            return
        self._consumer.notify = self._mailbox.path

    def _handle(self, message: Message) -> Message | None:
        if not self._monitor.acquire(timeout=BUSY_WAIT_S):
            raise Unavailable("the reader process waits for a store that does not answer: ask again later")
        try:
            return self._handled(message)
        finally:
            self._monitor.release()

    def _handled(self, message: Message) -> Message | None:
        match message["do"]:
            case "complete":
                try:
                    self._consumer.complete(str(message["end"]))
                finally:
                    self._look()
                return None
            case "in_hand":
                return self._consumer.acknowledgements.in_hand()
            case "acknowledge":
                positions = {int(p): RoundPosition(*map(int, position)) for p, position in message["p"].items()}
                still = self.acknowledge(str(message["process"]), positions)
                return {"still": sorted(still)}
            case other:
                raise Invalid(f"{other!r} is not known to this version of partq")
