"""A consumer in plain Python, a flow of its group like any other, and what its user sees of a batch.

It drives the loop that stands behind a streaming query (`query.consumer`, with the threads of
`query.consumer_process`), as an application that acknowledges by itself. What is here runs in the caller's threads and
may be left by an exception anywhere; what must not be torn is done beside them (`taking`). What becomes of a batch is
decided in `batches.fate_of`.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType, TracebackType
from typing import Self

from partq_spark.base.errors import Invalid
from partq_spark.client.arguments import checked
from partq_spark.client.batches import BatchTrace, Delivery, fate_of, stream
from partq_spark.client.messages import Message, messages_of
from partq_spark.client.taking import Ask, Taking
from partq_spark.log.queue import open_queue
from partq_spark.log.reading import Piece
from partq_spark.query.columns import named_columns
from partq_spark.query.settings import STORED, SourceOptions


@checked
class Batch:
    """Messages that were given out together: iterate over them, or take them as a table (`__arrow_c_stream__`, so that
    pyarrow, polars, pandas and duckdb read it), with the columns of the Spark source, or those that the consumer was
    asked for. Iterating gives whole messages; where these columns do not make any, they are read again.
    """

    def __init__(self, giver: Taking, delivery: Delivery) -> None:
        self._giver = giver
        self._delivery = delivery

    def __del__(self) -> None:
        delivery = getattr(self, "_delivery", None)  # a signal's exception comes before the first line, too
        if delivery is not None and not (delivery.is_looked_into or delivery.is_settled):
            self._giver.dropped(delivery)

    @property
    def pieces(self) -> Sequence[Piece]:
        """The messages as the log keeps them, with what of them is wanted."""
        self._delivery.is_looked_into = True
        return self._delivery.pieces or ()

    @property
    def is_settled(self) -> bool:
        """Acknowledged as a whole, or released."""
        return self._delivery.is_settled

    @property
    def trace(self) -> BatchTrace | None:
        """Where it stands in a trace; None: tracing is off."""
        return self._delivery.trace

    def __len__(self) -> int:
        return sum(piece.batch.num_rows for piece in self.pieces)

    def __iter__(self) -> Iterator[Message]:
        return self._messages(self.pieces)

    def _messages(self, pieces: Sequence[Piece]) -> Iterator[Message]:
        of = self._delivery
        is_whole = of.wanted is None or (of.columns is None and set(STORED.values()) <= set(of.wanted.stored))
        for piece in pieces if is_whole else of.read(None):
            yield from messages_of(piece, of.queue, of.columns, of.below)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        of = self._delivery
        wanted = of.wanted or named_columns(of.columns, None)
        return stream(self.pieces, of.queue, of.below, wanted).__arrow_c_stream__(requested_schema)

    def acknowledge(self, message: Message | None = None) -> frozenset[int]:
        """All of it is dealt with; or of one partition everything up to this message. What came before it in the same
        partitions, in earlier batches, is too. Returns the partitions for which that does not count, because they have
        moved on since, or were given out anew after a release: their messages come again.

        Raises `Invalid` for a message of another batch, and in a forked child; `Fenced` if another took the whole group
        over (`ownership="none"`), `Unavailable` if a store does not answer: repeating it is harmless.
        """
        due = self._delivery.ends
        if message is not None:
            end = due.get(message.partition)
            if end is None or message.offset >= end.offset or message.queue != self._delivery.queue:
                raise Invalid(
                    f"offset {message.offset} of partition {message.partition} of {message.queue!r} is not in this "
                    "batch: acknowledge a message by the batch that it came in"
                )
            due = {message.partition: end._replace(offset=message.offset + 1)}
        return frozenset(due.keys() - self._giver.acknowledge(self._delivery, due))

    def release(self) -> None:
        """What of it is not acknowledged comes again, marked: with the next batches, here or elsewhere. Raises as
        `acknowledge`.
        """
        self._giver.release(self._delivery)


class _EndInGoodOrder(set["Consumer"]):
    """Those that the main thread has open, as a handler of SIGTERM: the loop of each ends after its batch."""

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        for each in tuple(self):  # other threads may close theirs meanwhile
            each.stop()
        if not self:  # the last one was closed by a thread that may not take the handler away
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


@checked
class Consumer:
    """Use as a context manager, and iterate over it, or `poll`; with asyncio `async for`, or `anext`. Made by
    `Queue.consumer`. One thread or task asks at a time, a second one is refused.

    Each loop is one of its own. With `acknowledge="next"` asking for the next batch acknowledges the last; where a loop
    begins, the batch in whose body the former one was left is given back: it comes again, marked.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        by_next: bool,
        columns: Sequence[str] | None,
        idle_timeout_s: float | None,
    ) -> None:
        """Reads the queue's head, and joins nothing yet; of a typed queue the consumer keeps the columns that it has
        there. `by_next`: asking for the next batch acknowledges the last. Raises `Invalid` for a column that there is
        not.
        """
        self._by_next = by_next
        self._idle_timeout_s = idle_timeout_s
        self._taking = Taking(options, open_queue(options.target).refresh(), columns)
        self._guard = threading.RLock()  # entered and left by C alone: no exception comes in between
        self._ask: Ask | None = None

    # --- batches ------------------------------------------------------------------------------------------------------

    def poll(self, timeout_s: float | None = None) -> Batch | None:
        """The next batch; None after `timeout_s` without one (None: no end), and once `stop` was called. With
        `acknowledge="next"` this acknowledges what the last `poll` gave, if it was looked into (iterated over,
        measured, taken as a table); if not, it comes again, marked.

        Raises `Fenced` if another took the group over (`ownership="none"`), `Invalid` if another live process has the
        flow's name, or another thread asks, `Unavailable` if a store does not answer for `retry_timeout_s`.
        """
        return self._asked(None, timeout_s)

    def __iter__(self) -> Iterator[Batch]:
        return self._loop()

    def __aiter__(self) -> AsyncIterator[Batch]:
        return self._loop()

    async def __anext__(self) -> Batch:
        """As `poll`, without an end but `idle_timeout_s`. A wait that is cancelled takes no batch."""
        return await self._next_of(None)

    def stop(self) -> None:
        """End the loop after the batch that is being handled; asking for the next one acknowledges it first. May be
        called by any thread, and by a signal handler.
        """
        self._taking.is_stopping = True

    # --- coming and going ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group, and give up what was not acknowledged: it comes again, marked. Bounded; may be repeated."""
        found = signal.getsignal(signal.SIGTERM)
        if isinstance(found, _EndInGoodOrder):
            found.discard(self)
            if not found and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._taking.close()

    def __enter__(self) -> Self:
        self._require_usable()
        if threading.current_thread() is threading.main_thread():
            found = signal.getsignal(signal.SIGTERM)
            if isinstance(found, _EndInGoodOrder):
                found.add(self)
            elif found is signal.SIG_DFL:  # else somebody has a better use for it
                signal.signal(signal.SIGTERM, _EndInGoodOrder({self}))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- asking -------------------------------------------------------------------------------------------------------

    def _loop(self) -> _Loop:
        loop = _Loop(lambda loop: self._asked(loop, self._idle_timeout_s), self._next_of)
        self._leave(loop)
        return loop

    def _asked(self, asker: object, timeout_s: float | None) -> Batch | None:
        answers: SimpleQueue[None] = SimpleQueue()
        ask = Ask(timeout_s, lambda: answers.put(None))
        try:
            self._begin(asker, ask)
            answers.get()
            return self._given(asker, ask)
        finally:  # without a call: here no signal handler comes in between
            ask.is_left = True
            if self._ask is ask:
                self._ask = None

    async def _next_of(self, asker: object) -> Batch:
        loop = asyncio.get_running_loop()
        answers: asyncio.Future[None] = loop.create_future()

        def answered() -> None:
            with suppress(RuntimeError):  # the event loop is closed: nobody waits
                loop.call_soon_threadsafe(_wake, answers)

        ask = Ask(self._idle_timeout_s, answered)
        try:
            self._begin(asker, ask)
            await answers
            batch = self._given(asker, ask)
        finally:
            ask.is_left = True
            if self._ask is ask:
                self._ask = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    def _begin(self, asker: object, ask: Ask) -> None:
        self._require_usable()
        with self._guard:
            if self._ask is not None:
                raise Invalid(
                    "the consumer is being asked for a batch by another thread or task: ask by one at a time, or "
                    "make a consumer for each (a group shares its partitions)"
                )
            self._ask = ask
        self._leave(asker)
        self._taking.begin(ask)

    def _leave(self, asker: object) -> None:
        """The batch that was given last: its receiver asks on, or somebody else does."""
        last = self._taking.last
        if last is not None:
            last.fate = fate_of(last, asker, by_next=self._by_next)

    def _given(self, asker: object, ask: Ask) -> Batch | None:
        if ask.error is not None:
            raise ask.error
        if ask.found is None:
            return None
        batch = Batch(self._taking, ask.found)
        self._taking.give(ask.found, asker)
        return batch

    def _require_usable(self) -> None:
        self._taking.require_process()
        if self._taking.is_closed:
            raise Invalid("the consumer is closed: what was not acknowledged comes again; make another one")


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():  # it was cancelled
        waiter.set_result(None)


@dataclass(slots=True, eq=False)
class _Loop:
    """One `for`, or `async for`, over a consumer; may be gone on with by another one, or `next` and `anext`."""

    _ask: Callable[[_Loop], Batch | None]
    _ask_with_asyncio: Callable[[_Loop], Awaitable[Batch]]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        batch = self._ask(self)
        if batch is None:
            raise StopIteration
        return batch

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        return await self._ask_with_asyncio(self)
