"""partq's spans in the application's traces: how they are named, what they tell, and how they hang together. Only here
OpenTelemetry is imported.

The rules. It is on where the application has configured a tracer provider, and otherwise nothing of OpenTelemetry is
imported: `tracing` says which, and is asked when a publisher, a consumer or a batch begins, not for each message. Names
and attributes are those of OpenTelemetry's conventions for messaging. No span tells a key, a value, a header or the
text of an error, which may quote one. A span of a batch links to messages as
`linked` below chooses.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

TraceContext: TypeAlias = "trace.SpanContext"
SpanKind = Literal["PRODUCER", "CONSUMER", "CLIENT", "INTERNAL"]


class Operation(NamedTuple):
    """What is done to messages: its name, which begins the span's, and its type as the conventions have it."""

    name: str
    type: str
    kind: SpanKind


SEND: Final = Operation("send", "send", "PRODUCER")
SEND_BATCH: Final = Operation("send", "send", "CLIENT")  # no message names this span
RECEIVE: Final = Operation("receive", "receive", "CONSUMER")
PROCESS: Final = Operation("process", "process", "CONSUMER")  # Spark hands the batch over: nobody received it
PROCESS_RECEIVED: Final = Operation("process", "process", "INTERNAL")
ACKNOWLEDGE: Final = Operation("ack", "settle", "CLIENT")


class SpanSubject(NamedTuple):
    """What a span is about. What is not known is None and left out."""

    queue: str | None
    namespace: str | None = None
    group: str | None = None


class Span:
    """One span that has begun. To be ended once, by any thread."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def context(self) -> TraceContext:
        """By which other spans name it."""
        return self._span.get_span_context()

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """What its message carries, so that the receiver finds it."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carried: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carried, set_span_in_context(self._span))
        return tuple((name, text.encode()) for name, text in carried.items() if len(text) <= MOST_HEADER_BYTES)

    def lies(self, partition: int, offset: int) -> None:
        """Where its message lies."""
        self._span.set_attribute("messaging.destination.partition.id", str(partition))
        self._span.set_attribute("messaging.partq.offset", offset)

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        """It is over: now, or at this point in time (Unix)."""
        if error is not None:
            from opentelemetry.trace import StatusCode

            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(StatusCode.ERROR)
        self._span.end(at_ns)

    @contextmanager
    def around(self) -> Iterator[None]:
        """It is the current span in a block, and over with it."""
        from opentelemetry.trace import use_span

        try:
            with use_span(self._span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            self.end(error)
            raise
        self.end()


class Tracing:
    """Begins spans with the application's tracer provider."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer

    def begin(
        self,
        operation: Operation,
        where: SpanSubject,
        *,
        messages: int | None = None,
        links: Sequence[TraceContext] = (),
        parent: TraceContext | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """A span under the application's current one; without one under `parent`, or where that is None too, under the
        links if all are of one trace. `messages`: how many a batch has. `at_ns`: since when (Unix).
        """
        from opentelemetry.trace import Link, SpanKind

        told = {
            "messaging.system": "partq",
            "messaging.operation.name": operation.name,
            "messaging.operation.type": operation.type,
            "messaging.destination.name": where.queue,
            "messaging.partq.namespace": where.namespace,
            "messaging.consumer.group.name": where.group,
            "messaging.batch.message_count": messages,
        }
        span = self._tracer.start_span(
            operation.name if where.queue is None else f"{operation.name} {where.queue}",
            _context(parent or parent_of(links)),
            SpanKind[operation.kind],
            {name: value for name, value in told.items() if value is not None},
            [Link(each) for each in links],
            at_ns,
        )
        return Span(span)


def tracing() -> Tracing | None:
    """None where the application has configured no tracer provider by now."""
    if "opentelemetry.trace" not in sys.modules:  # which configuring one imports
        return None
    from opentelemetry import trace

    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Tracing(provider.get_tracer("partq"))


def around(operation: Operation, where: SpanSubject, *, messages: int | None = None) -> AbstractContextManager[None]:
    """A span around a block, for what is done once in a while; nothing where tracing is off."""
    found = tracing()
    return nullcontext() if found is None else found.begin(operation, where, messages=messages).around()


def _context(parent: TraceContext | None) -> Context | None:
    """What a span begins in; None: as the caller's thread is."""
    from opentelemetry import trace

    if parent is None or trace.get_current_span().get_span_context().is_valid:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(parent))


# --- where a message stands in a trace --------------------------------------------------------------------------------

# The W3C headers `traceparent` and `tracestate`, and which messages of a batch its span links to. Called only where
# tracing is on.
#
# What cannot be read is no trace: headers are whatever a publisher wrote, so nothing here raises for them. What is
# taken from a batch is bounded, however large the batch.


TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

MOST_LINKS: Final = 32
"""Of one span: as many different messages of a batch, those that come first."""

LOOKED_AT: Final = 1000
"""Messages of a batch, its first, whose headers are looked at for links."""

MOST_HEADER_BYTES: Final = 512  # of either, as W3C lets a participant do; what is longer is neither read nor written


def is_trace_header(name: str | None) -> bool:
    """Names count whatever the case of their letters, as W3C has it."""
    return name is not None and len(name) <= len(TRACEPARENT) and name.lower() in (TRACEPARENT, TRACESTATE)


def of_headers(headers: Iterable[tuple[str | None, bytes | None]]) -> TraceContext | None:
    """The span that a message's headers name; None if they name none, or two."""
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    found: dict[str, str] = {}
    for name, value in headers:
        if name is None or value is None or not is_trace_header(name):
            continue
        if name.lower() == TRACEPARENT in found:
            return None
        if len(value) <= MOST_HEADER_BYTES and value.isascii():
            found[name.lower()] = value.decode("ascii")
    context = get_current_span(TraceContextTextMapPropagator().extract(found)).get_span_context()
    return context if context.is_valid else None


def chosen_links(contexts: Iterable[TraceContext | None]) -> tuple[TraceContext, ...]:
    """What a batch's span links to: the spans that are recorded, each once, the first of them."""
    found: dict[tuple[int, int], TraceContext] = {}
    for each in contexts:
        if each is not None and each.trace_flags.sampled:
            found.setdefault((each.trace_id, each.span_id), each)
            if len(found) == MOST_LINKS:
                break
    return tuple(found.values())


def parent_of(links: Iterable[TraceContext]) -> TraceContext | None:
    """Under which span that of the batch stands: where all its links are of one trace it belongs to that, under the
    first; else to none of them.
    """
    found = tuple(links)
    return found[0] if found and len({each.trace_id for each in found}) == 1 else None
