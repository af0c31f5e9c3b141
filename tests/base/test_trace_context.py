"""Headers of traces as W3C has them, and what a batch's span links to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from partq_spark.base.tracing import MOST_LINKS, TraceContext, chosen_links, of_headers, parent_of, parsed
from tests.support.properties import examples

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()
CONTEXT = TraceContext(int(TRACE, 16), int(SPAN, 16), 1)


def span(trace: int, number: int = 1, *, sampled: bool = True) -> TraceContext:
    return TraceContext(trace, number, int(sampled))


# --- headers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (PARENT, CONTEXT),
        (b" \t" + PARENT + b" ", CONTEXT),
        (PARENT[:-2] + b"ff", CONTEXT._replace(flags=255)),
        (b"cc" + PARENT[2:], CONTEXT),
        (b"cc" + PARENT[2:] + b"-what-will-be", CONTEXT),
        (b"cc" + PARENT[2:] + b"what-will-be", None),
        (PARENT + b"-", None),
        (b"ff" + PARENT[2:], None),
        (PARENT.upper(), None),
        (PARENT + b"1", None),
        (PARENT + b"\n", None),
        (PARENT.replace(TRACE.encode(), b"0" * 32), None),
        (PARENT.replace(SPAN.encode(), b"0" * 16), None),
        (b"", None),
        (b"cc" + PARENT[2:] + b"-" + b"x" * 10_000_000, None),
    ],
)
def test_a_traceparent_is_read_or_is_none(text: bytes, found: TraceContext | None) -> None:
    assert parsed(text) == found


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
    assert parsed(PARENT, state) == CONTEXT._replace(state=kept)


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([("traceparent", PARENT)], CONTEXT),
        ([("TraceParent", PARENT), ("TRACESTATE", b"v=1")], CONTEXT._replace(state="v=1")),
        ([("other", b"x"), ("traceparent", PARENT), (None, None), ("traceparent", None)], CONTEXT),
        ([("traceparent", PARENT), ("Traceparent", PARENT)], None),
        ([("traceparent", None)], None),
        ([("tracestate", b"v=1")], None),
        ([(None, PARENT)], None),
        ([], None),
    ],
)
def test_the_headers_of_a_message_name_one_span_or_none(
    headers: list[tuple[str | None, bytes | None]], found: TraceContext | None
) -> None:
    assert of_headers(headers) == found


@examples(200)
@given(
    st.builds(
        TraceContext,
        st.integers(1, 2**128 - 1),
        st.integers(1, 2**64 - 1),
        st.sampled_from([0, 1]),
        st.sampled_from(["", "vendor=1"]),
    )
)
def test_what_is_written_is_what_opentelemetry_reads_and_what_is_read_again(context: TraceContext) -> None:
    headers = context.headers()
    assert of_headers(headers) == context
    carrier = {name: value.decode() for name, value in headers}
    read = get_current_span(TraceContextTextMapPropagator().extract(carrier)).get_span_context()
    assert (read.trace_id, read.span_id, int(read.trace_flags)) == context[:3]
    assert read.trace_state.to_header() == context.state


def test_a_tracestate_that_is_too_long_is_not_written() -> None:
    assert [name for name, _ in CONTEXT._replace(state="v=" + "1" * 511).headers()] == ["traceparent"]


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
