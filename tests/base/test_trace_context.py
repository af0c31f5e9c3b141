"""Headers of traces as W3C has them, and what a batch's span links to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from partq_spark.base.tracing import MOST_LINKS, Span, chosen_links, of_headers, parent_of
from tests.support.properties import examples

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()


def span(trace: int, number: int = 1, *, sampled: bool = True, state: str = "") -> SpanContext:
    flags = TraceFlags(int(sampled))
    return SpanContext(trace, number, is_remote=True, trace_flags=flags, trace_state=TraceState.from_header([state]))


CONTEXT = span(int(TRACE, 16), int(SPAN, 16))


# --- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "is_read"),
    [
        (PARENT, True),
        (b" \t" + PARENT + b" ", True),
        (b"cc" + PARENT[2:] + b"-what-will-be", True),
        (PARENT + b"-", False),
        (PARENT.upper(), False),
        (b"\xff" + PARENT, False),
        (PARENT.replace(TRACE.encode(), b"0" * 32), False),
        (PARENT.replace(SPAN.encode(), b"0" * 16), False),
        (b"", False),
        (b"cc" + PARENT[2:] + b"-" + b"x" * 10_000_000, False),
    ],
)
def test_a_traceparent_is_read_or_is_none(text: bytes, is_read: bool) -> None:
    assert of_headers([("traceparent", text)]) == (CONTEXT if is_read else None)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        (b"vendor=1,other=a:b", "vendor=1,other=a:b"),
        (None, ""),
        (b"\xff", ""),
        ("ü=1".encode(), ""),
        (b"v=" + b"1" * 511, ""),
    ],
)
def test_a_tracestate_goes_along_or_is_left_out(state: bytes | None, kept: str) -> None:
    found = of_headers([("tracestate", state), ("traceparent", PARENT)])
    assert found is not None
    assert (found.span_id, found.trace_state.to_header()) == (CONTEXT.span_id, kept)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("TraceParent", PARENT), ("TRACESTATE", b"v=1")], span(CONTEXT.trace_id, CONTEXT.span_id, state="v=1")),
        ([("other", b"x"), ("traceparent", PARENT), (None, None), ("traceparent", None)], CONTEXT),
        ([("traceparent", PARENT), ("Traceparent", PARENT)], None),
        ([("traceparent", None)], None),
        ([("tracestate", b"v=1")], None),
        ([(None, PARENT)], None),
        ([], None),
    ],
)
def test_headers_name_a_span_or_none(headers: list[tuple[str | None, bytes | None]], found: SpanContext | None) -> None:
    assert of_headers(headers) == found


@examples(200)
@given(
    st.builds(
        span,
        st.integers(1, 2**128 - 1),
        st.integers(1, 2**64 - 1),
        sampled=st.booleans(),
        state=st.sampled_from(["", "vendor=1"]),
    )
)
def test_what_is_written_is_read_again(context: SpanContext) -> None:
    assert of_headers(Span(NonRecordingSpan(context)).headers()) == context


def test_a_tracestate_that_is_too_long_is_not_written() -> None:
    long = span(1, state=",".join(f"v{number}=" + "1" * 200 for number in range(3)))
    assert [name for name, _ in Span(NonRecordingSpan(long)).headers()] == ["traceparent"]


# --- links ------------------------------------------------------------------------------------------------------------


def test_a_batch_links_to_recorded_spans_each_once_in_order_and_looks_at_no_more_than_it_has_room_for() -> None:
    contexts = [span(1), None, span(2, sampled=False), span(3), span(1), span(1, 2)]
    assert chosen_links(contexts) == (span(1), span(3), span(1, 2))
    asked = iter(span(number) for number in range(1, 1_000_000))
    assert len(chosen_links(asked)) == MOST_LINKS
    assert next(asked) == span(MOST_LINKS + 1)


def test_a_batch_belongs_to_the_trace_of_its_messages_if_they_have_one() -> None:
    assert parent_of([span(1, 5), span(1, 6)]) == span(1, 5)
    assert parent_of([span(1), span(2)]) is None
    assert parent_of([]) is None
