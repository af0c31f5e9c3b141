"""Takes a consumer's batches from the queue, and carries out what becomes of them. Nothing here runs in the caller's
thread: an exception there, or a wait that is given up, tears nothing.

Signal handlers run on the main thread, between any two lines, and may raise: Ctrl-C, an alarm. A loop that could be
left anywhere would forget what it has in hand, and a `Condition` (also that of an `Event` or a `Future`) raises
`RuntimeError: cannot release un-acquired lock` in place of the exception. A `SimpleQueue` is left as it was.

Two threads: one answers who asks for a batch, one at a time; the other acknowledges and gives back by hand, also while
the first one waits for messages.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import SpanSubject, tracing
from partq_spark.client.batches import BatchTrace, Delivery, Fate, pieces
from partq_spark.group.binding import Liveness
from partq_spark.log import tree
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from partq_spark.query import offsets, planning
from partq_spark.query.acknowledgements import RoundPosition
from partq_spark.query.columns import named_columns
from partq_spark.query.consumer_process import ConsumerProcess
from partq_spark.query.offsets import BatchSpan
from partq_spark.query.settings import SourceOptions
from partq_spark.query.waiting import StoreRetry

T = TypeVar("T")

_SLICE_S: Final = 0.1  # of a wait, between two looks at whether to stop
_log = logging.getLogger("partq.client")


class _Stopped(Exception):
    """`stop` was called while something waited."""


class Ask:
    """One question for a batch. `answered` is called when `found` (None: there is none) or `error` says what came."""

    def __init__(self, timeout_s: float | None, answered: Callable[[], None]) -> None:
        self.until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self.answered = answered
        self.is_left = False
        """Nobody waits for the answer any more."""
        self.found: Delivery | None = None
        self.error: BaseException | None = None

    def is_over(self) -> bool:
        """No further look."""
        return self.is_left or (self.until_s is not None and time.monotonic() >= self.until_s)


class Taking:
    """One consumer's. Made with what `Consumer` is made of."""

    def __init__(self, options: SourceOptions, head: Head, columns: Sequence[str] | None) -> None:
        """Nothing is joined yet. Raises `Invalid` for a column that there is not."""
        self._options = options
        self._names = columns
        self._load(head)
        name = None if options.group is None else options.group.name
        self._tracing = tracing()  # None: it is off
        self._subject = SpanSubject(options.target.queue, options.target.namespace, name)
        self._pid = os.getpid()
        self._at: dict[str, Any] = dict(offsets.INITIAL)
        self.last: Delivery | None = None
        """What was given last, by `give`."""
        self._taken: Delivery | None = None  # in nobody's hand
        self._dropped: deque[Delivery] = deque()
        self._process: ConsumerProcess | None = None
        self.is_stopping = self.is_closed = False
        self._waiting = 0  # the thread that may be stopped
        self._used = (threading.current_thread(), time.monotonic())
        self._effects = Effects(sleep=self._sleep)
        self._store_retry = StoreRetry(options.target.retry_timeout_s, self._effects, f"queue {options.target.queue!r}")
        self._asks = Aside("partq consumer")
        self._words = Aside("partq acknowledgements")

    def _load(self, head: Head) -> None:
        """Which columns this queue's batches have from now on."""
        self._queue_id = head.queue_id
        self._columns = head.columns
        self._wanted = None if self._names is None else named_columns(head.columns, self._names)

    def require_process(self) -> None:
        """Raises `Invalid` in a forked child."""
        if os.getpid() != self._pid:
            raise Invalid("this consumer belongs to the process that made it, and this is its fork: make another one")

    # --- for the caller's thread --------------------------------------------------------------------------------------

    def begin(self, ask: Ask) -> None:
        """Answer it, after those before it. What became of the last batch (`Delivery.fate`) is carried out first."""
        self._use()
        self._asks.begin(partial(self._answer, ask))

    def give(self, found: Delivery, asker: object) -> None:
        """It is in its asker's hand: that of one thread, in which nothing comes between these lines."""
        found.asker = asker
        self._at = found.end
        self.last = found
        self._taken = None

    def acknowledge(self, delivery: Delivery, due: Mapping[int, RoundPosition]) -> frozenset[int]:
        """Those of `due` for which it counts. Raises as `Batch.acknowledge`."""
        self.require_process()
        self._use()
        delivery.is_looked_into = True
        return self._words.run(partial(self._acknowledge, delivery, due))

    def release(self, delivery: Delivery) -> None:
        """It comes again. Raises as `acknowledge`."""
        self.require_process()
        self._use()
        self._words.run(partial(self._give_back, delivery))

    def dropped(self, delivery: Delivery) -> None:
        """Nobody looked into it, and nobody holds it."""
        delivery.is_dropped = True
        self._dropped.append(delivery)

    def close(self) -> None:
        """Leave the group. Bounded; may be repeated."""
        self.is_stopping = self.is_closed = True
        if self._process is not None and os.getpid() == self._pid:
            self._words.run(self._process.stop)  # else `_answer` finds that it is closed
            atexit.unregister(self.close)

    def _use(self) -> None:
        self._used = (threading.current_thread(), time.monotonic())

    # --- what becomes of batches --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        self._give_back_dropped()
        last = self.last
        if last is None or last.is_settled or last.fate is None:
            return
        if last.fate is Fate.ACKNOWLEDGE:
            self._store_retry.call(partial(self._acknowledge, last, last.ends))
            return
        if last.asker is None and not last.is_looked_into:
            self._say_unseen(last)
        self._give_back(last)

    def _give_back_dropped(self) -> None:
        """Before anything after them in their partitions is acknowledged, and these with it."""
        for dropped in tuple(self._dropped):  # of two threads none goes on before it is given back
            if not (dropped.is_settled or dropped.is_looked_into or dropped.fate is Fate.ACKNOWLEDGE):
                self._say_unseen(dropped)
                self._give_back(dropped)
            with suppress(ValueError):  # the other one was faster
                self._dropped.remove(dropped)

    def _say_unseen(self, delivery: Delivery) -> None:
        _log.warning(
            "queue %r: a batch of partitions %s was given out, and nobody looked into it: it comes again, marked. "
            "A poll() that is cancelled returns its batch to nobody: with asyncio use `async for batch in consumer`",
            self._options.target.queue,
            sorted(delivery.ends),
        )

    def _acknowledge(self, delivery: Delivery, due: Mapping[int, RoundPosition]) -> frozenset[int]:
        self._give_back_dropped()
        with nullcontext() if delivery.trace is None else delivery.trace.acknowledging():
            still = self._beside().acknowledge(delivery.process, due)
        if due is delivery.ends:
            delivery.is_settled = True
        return still

    def _give_back(self, delivery: Delivery) -> None:
        self._beside().release(delivery.process, delivery.ends)
        delivery.is_settled = True

    # --- taking -------------------------------------------------------------------------------------------------------

    def _answer(self, ask: Ask) -> None:
        try:
            self._settle()
            self._waiting = threading.get_ident()
            while not (self.is_stopping or ask.is_left):  # else those that were given up would be looked for in turn
                ask.found = self._look()
                if ask.found is not None or ask.is_over():
                    break
        except _Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that asks
            ask.error = error
        finally:
            self._waiting = 0
            try:
                if self.is_closed:
                    self.close()
            finally:
                ask.answered()

    def _look(self) -> Delivery | None:
        """One look, up to the poll interval. What was taken for an asker that had gone is still there, if its
        partitions are. Only what a batch gives out moves the position. None also where the lease has ended while it was
        read: then the next look asks whose it is.
        """
        process, taken = self._beside(), self._taken
        since_ns = time.time_ns()
        with process.asked() as consumer:
            end = taken.end if taken is not None else consumer.next_end(self._at)
            if end == self._at:
                return None
            found = consumer.batch(self._at, end, partial(self._planned, consumer.queue), None)
            if found is None:
                self._taken, self._at = None, end
                return None
            queue, head, log, spans = found
            given_out = consumer.acknowledgements.given_out
            name, ends = given_out.process, given_out.ends(spans)
        if taken is None or taken.ends != ends:
            taken = self._taken = Delivery(
                process=name,
                end=end,
                ends=ends,
                queue=queue.name,
                below={partition: span.redelivered_below for partition, span in spans.items()},
                columns=self._columns,
                wanted=self._wanted,
                read=partial(pieces, queue, head.queue_id, log, self._options.fail_on_data_loss, self._columns),
            )
        if taken.pieces is None:
            taken.pieces = tuple(taken.read(self._wanted))
            if self._tracing is not None:
                taken.trace = BatchTrace.begun(self._tracing, self._subject, taken.pieces, since_ns)
            with process.asked() as consumer:
                if not consumer.is_alive:  # reading takes its time, and others may have the partitions by now
                    return None
        return taken

    def _planned(
        self, queue: QueueLog, head: Head, spans: Mapping[int, BatchSpan]
    ) -> tuple[QueueLog, Head, tree.LogView, Mapping[int, BatchSpan]]:
        if head.queue_id != self._queue_id:  # made again since, and before the first batch
            self._load(head)
        own = queue.another()  # the threads beside look at the other
        log = planning.log_view(head, spans, fail_on_data_loss=self._options.fail_on_data_loss, warn=_log.warning)
        return own, head, log, spans

    def _beside(self) -> ConsumerProcess:
        if self._process is None:
            self._process = ConsumerProcess(
                self._options,
                self._effects,
                liveness=Liveness(parent=None),
                mailbox=False,
                deserted=self._deserted,
            )
            atexit.register(self.close)  # the process ends: later no thread runs that would end it in order
        return self._process

    def _deserted(self) -> str:
        """Why nobody will ask any more."""
        thread, used_s = self._used
        silent_s = time.monotonic() - used_s
        group = self._options.group
        if group is None or thread.is_alive() or silent_s <= group.session_timeout_s:
            return ""
        return (
            f"thread {thread.name!r}, which asked or acknowledged last, has ended, and for {silent_s:.0f} s nobody "
            "did; what is not acknowledged comes again; asking joins again"
        )

    def _sleep(self, duration_s: float) -> None:
        """What waits for a store, or for a coordinator's first answer, ends when the loop is to end."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self.is_stopping and self._waiting == threading.get_ident():
                raise _Stopped
            time.sleep(min(left_s, _SLICE_S))


class Aside:
    """A thread for work that must not be torn: who wants it done only waits. What is given to it is done in
    turn, to its end, and in its caller's context (of traces). The thread is a daemon, and ends with this object.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()

    def __del__(self) -> None:
        self._calls.put(None)

    def begin(self, call: Callable[[], None]) -> None:
        """Nobody waits for it, and it raises nothing."""
        self._calls.put(partial(copy_context().run, call))

    def run(self, call: Callable[[], T]) -> T:
        """What it returns or raises. It goes on also if the wait is left by an exception."""
        if sys.is_finalizing():  # daemons stand still by now
            return call()
        answers: SimpleQueue[Callable[[], T]] = SimpleQueue()

        def answered() -> None:
            try:
                found = call()
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                failure = error
                answers.put(lambda: _raised(failure))
            else:
                answers.put(lambda: found)

        self.begin(answered)
        return answers.get()()


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it belongs to may end while this waits


def _raised(error: BaseException) -> T:  # type: ignore[type-var] # of what would have been returned
    raise error
