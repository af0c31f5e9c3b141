"""A publisher: messages are sent one by one, gathered for a moment, and published together by a thread of its own.

The rules. What one thread sends keeps its order for each key, because one publish follows the other. A Future that is
done means durable. A publish that fails ends the publisher: all later Futures fail too, in order, so that nothing comes
after a gap. What waits is bounded in bytes. A forked child has neither the thread nor a right to what was sent.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.base.tracing import SpanSubject, tracing
from partq_spark.client.arguments import argument, check_number, checked, checked_publish_id
from partq_spark.client.outgoing import (
    Outgoing,
    Published,
    Result,
    TakenRows,
    begin_span,
    publish_together,
    take_value,
)
from partq_spark.client.publication import Publication, PublishReport
from partq_spark.log.destinations import checked_topic
from partq_spark.log.queue import NamespaceAddress, open_queue

MOST_BATCH_BYTES: Final = 64 * 1024 * 1024
EXIT_WAIT_S: Final = 30.0
"""At the end of a process that did not close its publisher: for so long what was sent is still published."""

MOST_UNREAD: Final = 1000  # failures that are kept in mind

R = TypeVar("R")
_log = logging.getLogger("partq.client")


class _Turn:
    """A table waits for its turn, and the thread waits until it is over."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()


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
        self._changed = threading.Condition()
        self._waiting: deque[Outgoing | _Turn] = deque()
        self._bytes = 0  # of what was sent and is not done
        self._sent = self._done = 0  # messages and turns
        self._flushed = 0  # so many of those sent may not linger
        self._closing = False
        self._ended = False  # one publish under the publish id was made
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
        with self._changed:
            self._require_open()
            if self._failure is None:
                self._wait_for_room(message.memory, timeout_s)
            if self._failure is not None:
                return self._failed(message.future)
            if self._tracing is not None:
                begin_span(self._tracing, self._subject, message, self._limit)
            self._waiting.append(message)
            self._bytes += message.memory
            self._sent += 1
            self._changed.notify_all()
        return message.future

    def send_table(self, table: Any) -> Future[PublishReport]:
        """Publish the messages of anything with `__arrow_c_stream__` as one publish, after all that was sent before:
        columns `value`, and if it has them `key` and `headers`; for a typed queue its columns by name, and `_headers`.
        Waits until it is done, in bounded memory.

        Raises `Invalid` for a table that cannot be published; the publisher goes on.
        """
        self._require_own()
        future: Result[PublishReport] = Result()
        turn = _Turn()
        with self._changed:
            self._require_open()
            if self._publish_id is not None and self._sent:
                raise Invalid("under a publish id there is one publish: a table cannot join the messages sent before")
            self._waiting.append(turn)
            self._sent += 1
            self._flushed = self._sent
            self._changed.notify_all()
        try:
            turn.begun.wait()  # publishes before it end within the queue's retry_timeout_s each
            if self._failure is not None:
                return self._failed(future)
            with Publication(self._where, queue=self._queue.name, publish_id=self._publish_id) as publication:
                publication.add(table)
                self._ended = self._publish_id is not None
                try:
                    future.set_result(publication.commit())
                except PartqError as error:
                    self._failure = error
                    return self._failed(future, error)
        finally:
            turn.over.set()
        return future

    @checked
    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was sent is done. Raises the first failure that nobody has read, and `Unavailable` after
        `timeout_s` (None: each publish ends within the queue's `retry_timeout_s`); what is on its way goes on.
        """
        self._require_own()
        if threading.current_thread() is self._thread:
            raise Invalid("a Future's callback cannot wait for its publisher: wait in another thread")
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            sent = self._sent
            self._flushed = max(self._flushed, sent)
            self._changed.notify_all()
            while self._done < sent:
                left_s = None if until_s is None else until_s - time.monotonic()
                if left_s is not None and left_s <= 0:
                    raise Unavailable(
                        f"{sent - self._done} messages are on their way to {self._queue} and not done yet"
                    )
                self._changed.wait(left_s)
            failed = next((each for each in self._unread if not each.was_read), None)
            self._unread.clear()
        if failed is not None:
            failed.result()

    def close(self) -> None:
        """Publish what is left, and end. Raises as `flush`. May be repeated."""
        self._require_own()
        try:
            if not self._closing:
                self.flush()
        finally:
            with self._changed:
                self._closing = True
                self._changed.notify_all()
            atexit.unregister(self._end_of_process)

    def __enter__(self) -> Self:
        self._require_own()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif os.getpid() == self._pid:
            try:
                self.close()
            except PartqError as failure:
                error.add_note(f"and not all that was sent is published: {failure}")

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._taken()) is not None:
            if isinstance(taken, _Turn):
                taken.begun.set()
                taken.over.wait()  # for a table, which its sender publishes
                self._finish(1, 0)
                continue
            going = [each for each in taken if each.future.set_running_or_notify_cancel()]
            try:
                self._publish(going)
            finally:
                self._finish(len(taken), sum(each.memory for each in taken))

    def _taken(self) -> Sequence[Outgoing] | _Turn | None:
        """What is to be done next; None when the publisher is closed."""
        with self._changed:
            while True:
                if not self._waiting:
                    if self._closing:
                        return None
                    self._changed.wait()
                    continue
                first = self._waiting[0]
                if isinstance(first, _Turn):
                    self._waiting.popleft()
                    return first
                left_s = self._lingers_s(first)
                if left_s is None or left_s > 0:
                    self._changed.wait(left_s)
                    continue
                return self._batch()

    def _lingers_s(self, first: Outgoing) -> float | None:
        """How long the messages that wait still do; None: until something changes."""
        if self._flushed > self._done or self._closing or self._failure is not None:
            return 0
        if self._publish_id is not None:
            return None
        if self._bytes >= self._batch_bytes:
            return 0
        return first.sent_s + self._linger_s - time.monotonic()

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
        if not messages:
            return
        if self._failure is not None:
            for message in messages:
                self._failed(message.future)
            return
        try:
            places = publish_together(self._where, self._queue, messages, self._publish_id)
        except Exception as error:  # noqa: BLE001 - whatever it is, the senders are told
            self._failure = error if isinstance(error, PartqError) else Unavailable(f"{type(error).__name__}: {error}")
            for message in messages:
                self._failed(message.future, self._failure)
        else:
            self._ended = self._publish_id is not None
            for message, place in zip(messages, places, strict=True):
                message.future.set_result(place)

    def _finish(self, count: int, size: int) -> None:
        with self._changed:
            self._done += count
            self._bytes -= size
            self._changed.notify_all()

    # --- with the lock ------------------------------------------------------------------------------------------------

    def _wait_for_room(self, size: int, timeout_s: float | None) -> None:
        if self._bytes + size <= self._most_bytes or not self._bytes:
            return
        if self._publish_id is not None:
            raise Invalid(
                f"under a publish id all is published at once, and more than max_pending_bytes ({self._most_bytes}) "
                "were sent: raise that, or publish a table or file (send_table, Queue.publication)"
            )
        waits_s = self._where.retry_timeout_s if timeout_s is None else timeout_s
        until_s = time.monotonic() + (0 if threading.current_thread() is self._thread else waits_s)
        while self._bytes + size > self._most_bytes and self._bytes and self._failure is None:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise Unavailable(
                    f"{self._bytes} bytes are on their way to {self._queue}, max_pending_bytes is {self._most_bytes}: "
                    f"nothing was sent after {waits_s:g} s; send it again, more slowly"
                )
            self._changed.wait(left_s)
        self._require_open()

    def _require_open(self) -> None:
        if self._closing:
            raise Invalid(f"the publisher to {self._queue} is closed: make another one")
        if self._ended:
            raise Invalid(f"publish id {self._publish_id!r} was published: make another publisher with another id")

    def _failed(self, future: Result[R], error: PartqError | None = None) -> Result[R]:
        """The Future, failed by its own publish (`error`) or by an earlier one."""
        failure = self._failure
        if error is None and failure is not None:
            error = type(failure)(f"this was not published, because an earlier publish failed: {failure}")
        future.set_exception(error)
        with self._changed:
            if len(self._unread) < MOST_UNREAD:
                self._unread.append(future)
        return future

    def _require_own(self) -> None:
        """A guard: a forked child has no thread, and what was sent is its parent's."""
        if os.getpid() != self._pid:
            raise Invalid(
                "this publisher belongs to the process that made it, and this is a fork of it: make another one"
            )

    def _end_of_process(self) -> None:
        """Publish what was sent and not closed. A forked child's end publishes nothing."""
        if os.getpid() != self._pid:
            return
        try:
            self.flush(EXIT_WAIT_S)
        except PartqError as error:
            _log.warning("not all that was sent is published: %s", error)
