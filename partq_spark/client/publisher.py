"""A publisher: messages are sent one by one, gathered for a moment, and published together by a thread of its own.

The rules. What one thread sends keeps its order for each key, because one publish follows the other. A Future that is
done means durable. A publish that fails ends the publisher: all later Futures fail too, in order, so that nothing comes
after a gap. What waits is bounded in bytes. A forked child has neither the thread nor a right to what was sent.

Signal handlers run between any two lines of a sender, and may raise, send or close. So it hands over by one `put`,
waits in a `SimpleQueue`, and has no lock but one that C enters and leaves (see `taking`), which the thread never takes.
All goes through one queue, messages and who waits for those before: a flush is done when its turn has come.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.base.tracing import SpanSubject, tracing
from partq_spark.client.arguments import argument, check_number, checked, checked_publish_id
from partq_spark.client.outgoing import Outgoing, Published, Result, TakenRows, begin_span, publish_together, take_value
from partq_spark.client.publication import Publication, PublishReport
from partq_spark.log.destinations import checked_topic
from partq_spark.log.queue import NamespaceAddress, open_queue

MOST_BATCH_BYTES: Final = 64 * 1024 * 1024
EXIT_WAIT_S: Final = 30.0  # so long a process that ends publishes what was sent and not closed
MOST_UNREAD: Final = 1000  # failures that are kept in mind

R = TypeVar("R")
_log = logging.getLogger("partq.client")


class _Turn:
    """Somebody waits until all is done that was sent before. The thread waits until a table's turn is over."""

    def __init__(self, *, is_table: bool = False, is_last: bool = False) -> None:
        self.is_table, self.is_last = is_table, is_last
        self.begun: SimpleQueue[None] = SimpleQueue()
        self.over: SimpleQueue[None] = SimpleQueue()


class Publisher:
    """Use as a context manager; any thread may send. Made by `Queue.publisher`."""

    def __init__(
        self,
        where: NamespaceAddress,
        queue: str,
        *,
        linger_s: float,
        max_batch_bytes: int,
        max_pending_bytes: int,
        publish_id: str | None,
    ) -> None:
        """Reads the queue's head. Raises `Invalid` for a value out of its range, and if there is no such queue."""
        check_number("linger_s", linger_s, "seconds", most=3600)
        check_number("max_batch_bytes", max_batch_bytes, "bytes", least=1, most=MOST_BATCH_BYTES)
        most_bytes = 2**40 if publish_id is None else 2**31 - 1  # what is one publish is one array of values
        check_number("max_pending_bytes", max_pending_bytes, "bytes", least=max_batch_bytes, most=most_bytes)
        self._where = where
        self._queue = open_queue(where.target(queue))
        head = self._queue.refresh()
        self._limit = head.config.max_message_bytes
        self._take: Callable[[Any, str | None], Outgoing] = partial(take_value, self._queue)
        if head.columns is not None:
            self._take = TakenRows(self._queue.another(), head.queue_id, head.columns)
        self._tracing = tracing()  # None: it is off
        self._subject = SpanSubject(queue, where.namespace)
        self._linger_s = linger_s
        self._batch_bytes = max_batch_bytes
        self._most_bytes = max_pending_bytes
        self._publish_id = None if publish_id is None else checked_publish_id(publish_id)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._sent: SimpleQueue[Outgoing | _Turn] = SimpleQueue()
        self._waiting: deque[Outgoing | _Turn] = deque()  # the thread's own
        self._hurried = 0  # turns among them, before which nothing lingers
        self._sent_bytes = self._done_bytes = 0  # the senders', the thread's
        self._has_messages = self._ended = False  # under the publish id: some were sent; what is one publish is whole
        self._with_table: set[int] = set()  # threads that are in send_table
        self._closing = self._is_over = False  # the thread takes all that was sent before; it has ended
        self._failure: PartqError | None = None
        self._unread: deque[Result[Any]] = deque()
        self._thread = threading.Thread(target=self._run, name="partq publisher", daemon=True)
        self._thread.start()
        atexit.register(self._end_of_process)

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(
        self,
        value: bytes | str | Mapping[str, Any],
        *,
        key: str | None = None,
        headers: Mapping[str, bytes | None] | Iterable[tuple[str, bytes | None]] = (),
        topic: str | None = None,
        timeout_s: float | None = None,
    ) -> Future[Published]:
        """Send one message: bytes or text with a key; to a typed queue a mapping of its columns, whose key column is
        the key. The Future gives its partition and offset when it is durable; of one with a `topic`, which goes to the
        queues that attract it, neither.

        Waits while `max_pending_bytes` are on their way, for `timeout_s` (None: the queue's `retry_timeout_s`), then
        raises `Unavailable`, and nothing was sent. Raises `Invalid` for a message that no queue takes.
        """
        self._require_own()
        if topic is not None:
            checked_topic(argument("str", "topic", topic))
        if timeout_s is not None:
            timeout_s = argument("float | None", "timeout_s", timeout_s)
        message = self._take(value, key)
        message.take_headers(headers, self._limit)
        message.topic = topic
        waits_s = self._where.retry_timeout_s if timeout_s is None else timeout_s
        until_s = time.monotonic() + (0 if threading.current_thread() is self._thread else waits_s)
        if self._hand_over(message):
            return message.future
        self._sent.put(_Turn())  # what waits does not linger now
        while not self._hand_over(message):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise Unavailable(
                    f"{self._pending} bytes are on their way to {self._queue}, max_pending_bytes is "
                    f"{self._most_bytes}: nothing was sent after {waits_s:g} s; send it again, more slowly"
                )
            time.sleep(min(left_s, 0.005))
        return message.future

    def send_table(self, table: Any) -> Future[PublishReport]:
        """Publish the messages of anything with `__arrow_c_stream__` as one publish, after all that was sent before:
        columns `value`, and if it has them `key` and `headers`; for a typed queue its columns by name, and `_headers`.
        Waits until it is done, in bounded memory.

        Raises `Invalid` for a table that cannot be published; the publisher goes on.
        """
        self._require_own(waits=True)
        future: Result[PublishReport] = Result()
        turn = _Turn(is_table=True)
        own = {threading.get_ident()}
        claimed = False
        try:
            with self._lock:
                self._require_open()
                self._with_table |= own
                if self._has_messages and self._publish_id is not None:
                    raise Invalid("under a publish id there is one publish: a table cannot join messages sent before")
                self._ended = claimed = self._publish_id is not None
                self._sent_bytes += 1  # it counts for something, so that a flush waits for it
                self._sent.put(turn)
            self._wait(turn, None)  # publishes before it end within the queue's retry_timeout_s each
            if self._failure is not None:
                return self._failed(future)
            self._queue.another().require(self._queue.head.queue_id)  # the queue that it was made for (RES-05)
            with Publication(self._where, queue=self._queue.name, publish_id=self._publish_id) as publication:
                publication.add(table)
                claimed = False  # whatever becomes of it
                try:
                    future.set_result(publication.commit())
                except PartqError as error:
                    self._failure = error
                    return self._failed(future, error)
        finally:
            if claimed:
                self._ended = False  # nothing was published under the id
            self._with_table -= own
            turn.over.put(None)  # no handler of a signal runs between these lines
        return future

    @checked
    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was sent is done. Raises the first failure that nobody has read, and `Unavailable` after
        `timeout_s` (None: each publish ends within the queue's `retry_timeout_s`); what is on its way goes on.
        """
        self._require_own(waits=True)
        self._drain(_Turn(), timeout_s)

    def close(self) -> None:
        """Publish what is left, and end. Raises as `flush`. May be repeated."""
        self._require_own(waits=True)
        self._closing = True  # who has seen otherwise hands over before the last turn comes
        self._drain(_Turn(is_last=True), None)

    def _drain(self, turn: _Turn, timeout_s: float | None) -> None:
        with self._lock:
            self._ended |= self._has_messages and self._publish_id is not None
            self._sent.put(turn)
        self._wait(turn, timeout_s)
        if turn.is_last:
            atexit.unregister(self._end_of_process)
        with self._lock:
            unread = [self._unread.popleft() for _ in range(len(self._unread))]  # the thread may add to them
        if failed := [each for each in unread if not each.was_read]:
            failed[0].result()

    def _wait(self, turn: _Turn, timeout_s: float | None) -> None:
        if self._is_over or sys.is_finalizing():  # then it does not go on any more, and `_end_of_process` has been
            return
        try:
            turn.begun.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))
        except Empty:
            if self._pending:
                raise Unavailable(f"{self._pending} bytes are on their way to {self._queue}, not done yet") from None

    def __enter__(self) -> Self:
        self._require_own()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif os.getpid() == self._pid:
            self._leave_undone(f"left by {type(error).__name__}")
            try:
                self.close()
            except PartqError as failure:
                error.add_note(f"and not all that was sent is published: {failure}")

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        taken: Sequence[Outgoing] | _Turn = ()
        try:
            while not isinstance(taken := self._taken(), _Turn) or not taken.is_last:
                if isinstance(taken, _Turn):
                    taken.begun.put(None)
                    if taken.is_table:
                        taken.over.get()  # its sender publishes it
                        self._done_bytes += 1
                    continue
                self._publish([each for each in taken if each.future.set_running_or_notify_cancel()])
                self._done_bytes += sum(each.memory for each in taken)
        finally:
            self._failure = self._failure or Unavailable(f"the publisher to {self._queue} has ended")
            self._waiting.extendleft([taken] if isinstance(taken, _Turn) else reversed(taken))
            try:
                self._tell_the_rest()
            finally:
                self._is_over = True  # nobody waits for what is put from now on
                self._tell_the_rest()

    def _tell_the_rest(self) -> None:
        while self._waiting or not self._sent.empty():
            self._receive(0)
            each = self._waiting.popleft()
            if isinstance(each, _Turn):
                each.begun.put(None)
            elif not each.future.done():
                self._tell(self._failed, each.future)

    def _taken(self) -> Sequence[Outgoing] | _Turn:
        """What is to be done next."""
        while True:
            while not (self._waiting and self._sent.empty()):
                self._receive()
            first = self._waiting[0]
            if isinstance(first, _Turn):
                self._hurried -= 1
                self._waiting.popleft()
                return first
            left_s = self._lingers_s(first)
            if left_s is not None and left_s <= 0:
                return self._batch()
            self._receive(left_s)

    def _receive(self, timeout_s: float | None = None) -> None:
        with suppress(Empty):
            self._waiting.append(self._sent.get(timeout=timeout_s))
            self._hurried += isinstance(self._waiting[-1], _Turn)

    def _lingers_s(self, first: Outgoing) -> float | None:
        """How long the messages that wait still do; None: until something changes."""
        is_full = self._publish_id is None and self._pending >= self._batch_bytes
        if self._hurried or self._failure is not None or is_full:
            return 0
        return None if self._publish_id is not None else first.sent_s + self._linger_s - time.monotonic()

    def _batch(self) -> list[Outgoing]:
        """The next messages, at least one. Those with a topic and those without are published apart."""
        taken: list[Outgoing] = []
        size = 0
        while self._waiting:
            each = self._waiting[0]
            if isinstance(each, _Turn):
                break
            whole = self._publish_id is not None
            if taken and not whole and (size >= self._batch_bytes or (each.topic is None) != (taken[0].topic is None)):
                break
            self._waiting.popleft()
            taken.append(each)
            size += each.memory
        return taken

    def _publish(self, messages: Sequence[Outgoing]) -> None:
        own: PartqError | None = None
        places: Sequence[Published] = ()
        if messages and self._failure is None:
            try:
                places = publish_together(self._where, self._queue, messages, self._publish_id)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the senders are told
                own = error if isinstance(error, PartqError) else Unavailable(f"{type(error).__name__}: {error}")
                self._failure = own
        for number, message in enumerate(messages):
            if self._failure is None:
                self._tell(message.future.set_result, places[number])
            else:
                self._tell(self._failed, message.future, own)

    def _tell(self, tell: Callable[..., object], *about: object) -> None:
        """What callbacks raise is theirs, `sys.exit()` too: others wait for this thread."""
        try:
            tell(*about)
        except BaseException:  # noqa: BLE001 - told in the log
            _log.exception("a Future's callback has failed")

    # --- in a sender's thread -----------------------------------------------------------------------------------------

    def _hand_over(self, message: Outgoing) -> bool:
        """False: there is no room now. What is sent after a failure has failed."""
        with self._lock:
            self._require_open()
            if self._failure is not None:
                self._failed(message.future)
                return True
            if self._pending and self._pending + message.memory > self._most_bytes:
                if self._publish_id is None:
                    return False
                raise Invalid(
                    f"under a publish id all is published at once, and more than max_pending_bytes "
                    f"({self._most_bytes}) were sent: raise that, or use send_table or Queue.publication"
                )
            if self._tracing is not None:
                begin_span(self._tracing, self._subject, message, self._limit)
            size = message.memory
            self._has_messages = True
            self._sent_bytes += size
            self._sent.put(message)  # no handler of a signal runs between these lines
        if self._is_over:  # by a fault: here, or by the thread's last look
            with suppress(InvalidStateError):
                self._failed(message.future)
        return True

    @property
    def _pending(self) -> int:
        """Bytes of what was sent and is not done."""
        return self._sent_bytes - self._done_bytes

    def _require_open(self) -> None:
        if self._closing:
            raise Invalid(f"the publisher to {self._queue} is closed: make another one")
        if self._ended and self._failure is None:
            raise Invalid(f"publish id {self._publish_id!r} was published: make another publisher with another id")

    def _failed(self, future: Result[R], error: PartqError | None = None) -> Result[R]:
        """The Future, failed by its own publish (`error`) or by an earlier one."""
        if error is None and (failure := self._failure) is not None:
            error = type(failure)(f"this was not published, because an earlier publish failed: {failure}")
        try:
            future.set_exception(error)  # whose callbacks may raise anything
        finally:  # not before, nor where a signal cut it short: who flushes would wait for it
            if future.done() and len(self._unread) < MOST_UNREAD:
                self._unread.append(future)
        return future

    def _leave_undone(self, why: str) -> None:
        """What is one publish is whole: nobody knows whether all of it was sent."""
        if self._publish_id is not None and not self._ended:
            self._failure = self._failure or Invalid(f"nothing is published under id {self._publish_id!r}: {why}")

    def _require_own(self, *, waits: bool = False) -> None:
        """A guard: a forked child has no thread, and what was sent is its parent's. `waits`: for the thread."""
        if os.getpid() != self._pid:
            raise Invalid("this publisher belongs to the process that made it, and this is a fork: make another one")
        if waits and (threading.current_thread() is self._thread or threading.get_ident() in self._with_table):
            raise Invalid(
                "a Future's callback, or what send_table calls, cannot wait for its publisher: wait elsewhere"
            )

    def _end_of_process(self) -> None:
        """Publish what was sent and not closed. A forked child's end publishes nothing."""
        if os.getpid() != self._pid:
            return
        self._leave_undone("the process ended before it was closed")
        try:
            self.flush(EXIT_WAIT_S)
        except PartqError as error:
            _log.warning("not all that was sent is published: %s", error)
