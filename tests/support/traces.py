"""An OpenTelemetry SDK whose spans stay in memory, as the application's tracer provider for one test. The global one,
which can be set once in a process, is left alone, so that other tests of the process are not traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler


class Traces:
    """What was traced."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("tests")

    @property
    def spans(self) -> list[ReadableSpan]:
        """All spans that are over, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Those with this name."""
        return [each for each in self.spans if each.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only one with this name."""
        (found,) = self.named(name)
        return found


def trace_id(span: ReadableSpan) -> int:
    """Of the trace that it belongs to."""
    return span.get_span_context().trace_id  # type: ignore[union-attr] # a span that is over has one


def span_id(span: ReadableSpan) -> int:
    """By which its children and links name it."""
    return span.get_span_context().span_id  # type: ignore[union-attr] # here too


def linked(span: ReadableSpan) -> list[int]:
    """The ids of the spans that it links to."""
    return [link.context.span_id for link in span.links]


def told(span: ReadableSpan) -> Mapping[str, Any]:
    """Its attributes, but for what all of partq's have."""
    found = dict(span.attributes or {})
    assert found.pop("messaging.system") == "partq"
    return {name.removeprefix("messaging."): value for name, value in found.items()}


def provide(monkeypatch: pytest.MonkeyPatch, sampler: Sampler = ALWAYS_ON) -> Traces:
    """The application has configured a provider, for what begins from now on."""
    made = Traces(sampler)
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made.provider)
    return made


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traces]:
    """Every trace is recorded."""
    made = provide(monkeypatch)
    yield made
    made.provider.shutdown()
