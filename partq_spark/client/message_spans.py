"""The spans of a publisher and of a consumer: of each message that is sent, and of each batch that is received and
acknowledged. What a span is called and tells is decided in `base.tracing`.

None of this exists where tracing is off: a publisher or a consumer asks `SendSpans.of` or `ReceiveSpans.of` once, when
it is made, and gets None.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

from partq_spark.base.tracing import (
    ACKNOWLEDGE,
    LOOKED_AT,
    PROCESS_RECEIVED,
    RECEIVE,
    SEND,
    Span,
    SpanSubject,
    TraceContext,
    Tracing,
    chosen_links,
    is_trace_header,
    of_headers,
    tracing,
)
from partq_spark.client.outgoing import Outgoing, Published
from partq_spark.log.reading import Piece


@dataclass(frozen=True)
class _Spans:
    """Of a publisher or a consumer."""

    _tracing: Tracing
    _where: SpanSubject

    @classmethod
    def of(cls, namespace: str, queue: str, group: str | None = None) -> Self | None:
        """None: tracing is off."""
        found = tracing()
        return None if found is None else cls(found, SpanSubject(queue, namespace, group))


class SendSpans(_Spans):
    """One publisher's: a span for each message, from `send` until it is durable or has failed."""

    def begin(self, message: Outgoing) -> None:
        """A message is sent, in its sender's thread. It gets the headers that name its span, unless it has such headers
        already, whose span the new one links to; or the queue would not take it with them.
        """
        given = any(is_trace_header(name) for name, _ in message.headers)
        context = of_headers(message.headers) if given else None
        span = self._tracing.begin(SEND, self._where, links=() if context is None else (context,))
        if not given:
            headers = span.headers()
            size = sum(len(name) + len(value) for name, value in headers)
            if size <= message.room:
                message.headers = (*message.headers, *headers)
                message.size += size
        message.future.add_done_callback(partial(_sent, span))


def _sent(span: Span, future: Future[Published]) -> None:
    if future.cancelled():
        span.end()
        return
    error = Future.exception(future)  # not the publisher's own, which would note that the sender has read it
    if error is None:
        partition, offset = Future.result(future)
        if partition is not None and offset is not None:
            span.lies(partition, offset)
    span.end(error)


class BatchTrace(NamedTuple):
    """Where a batch that was received stands in a trace."""

    tracing: Tracing
    where: SpanSubject
    messages: int
    received: TraceContext
    links: tuple[TraceContext, ...]

    def processing(self) -> AbstractContextManager[None]:
        """Around what is done with it."""
        span = self.tracing.begin(
            PROCESS_RECEIVED, self.where, messages=self.messages, links=self.links, parent=self.received
        )
        return span.around()

    def acknowledging(self) -> AbstractContextManager[None]:
        """Around its acknowledgement, or that of a part of it."""
        return self.tracing.begin(ACKNOWLEDGE, self.where, parent=self.received).around()


class ReceiveSpans(_Spans):
    """One consumer's: a span for each batch that it gives out, which links to messages of it."""

    def received(self, pieces: Sequence[Piece], since_ns: int) -> BatchTrace:
        """A batch is given out, which was looked for since then (Unix)."""
        messages = sum(piece.batch.num_rows for piece in pieces)
        links = chosen_links(_contexts(pieces))
        span = self._tracing.begin(RECEIVE, self._where, messages=messages, links=links, at_ns=since_ns)
        span.end()
        return BatchTrace(self._tracing, self._where, messages, span.context, links)


def _contexts(pieces: Sequence[Piece]) -> Iterator[TraceContext | None]:
    """Of the first messages of a batch, as far as their headers were read."""
    left = LOOKED_AT
    for piece in pieces:
        headers = piece.headers
        if headers is not None:
            for row in headers.slice(0, left).to_pylist():
                pairs = [(each["key"], each["value"]) for each in row or () if each is not None]
                yield of_headers(pairs)
        left -= min(left, piece.batch.num_rows)
