"""Where a message stands in a trace: the W3C headers `traceparent` and `tracestate`, and which messages of a batch its
span links to. Pure; nothing of OpenTelemetry.

What cannot be read is no trace: headers are whatever a publisher wrote, so nothing here raises for them. What is taken
from a batch is bounded, however large the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

MOST_LINKS: Final = 32
"""Of one span: as many different messages of a batch, those that come first."""

LOOKED_AT: Final = 1000
"""Messages of a batch, its first, whose headers are looked at for links."""

MOST_STATE_BYTES: Final = 512  # of a tracestate, as W3C lets a participant do; a longer one is dropped

_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.{0,400})?", re.DOTALL)

HeaderPair = tuple[str | None, bytes | None]


class TraceContext(NamedTuple):
    """One span, as others name it. `flags`: bit 0 says that it is recorded. `state`: what vendors added, as text."""

    trace_id: int
    span_id: int
    flags: int
    state: str = ""

    @property
    def is_sampled(self) -> bool:
        """Whether its trace is recorded, as far as its sender knew."""
        return bool(self.flags & 1)

    def headers(self) -> tuple[tuple[str, bytes], ...]:
        """What a message carries, so that its receiver finds this span."""
        parent = f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags & 0xFF:02x}".encode()
        state = self.state.encode()
        if not state or len(state) > MOST_STATE_BYTES:
            return ((TRACEPARENT, parent),)
        return (TRACEPARENT, parent), (TRACESTATE, state)


def is_trace_header(name: str | None) -> bool:
    """Names count whatever the case of their letters, as W3C has it."""
    return name is not None and len(name) <= len(TRACEPARENT) and name.lower() in (TRACEPARENT, TRACESTATE)


def parsed(traceparent: bytes, tracestate: bytes | None = None) -> TraceContext | None:
    """The span that a `traceparent` names; None for what is none. A later version than W3C's 00 is read as far as it
    begins like that, and a `tracestate` that is no ASCII, or too long, is left out.
    """
    found = _PARENT.fullmatch(traceparent.strip(b" \t")) if len(traceparent) <= 512 else None
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    trace_id, span_id = int(trace, 16), int(span, 16)
    if version == b"ff" or (version == b"00" and more is not None) or not trace_id or not span_id:
        return None
    state = ""
    if tracestate is not None and len(tracestate) <= MOST_STATE_BYTES and tracestate.isascii():
        state = tracestate.decode("ascii")
    return TraceContext(trace_id, span_id, int(flags, 16), state)


def of_headers(headers: Iterable[HeaderPair]) -> TraceContext | None:
    """The span that a message's headers name; None if they name none, or two."""
    found: dict[str, bytes] = {}
    for name, value in headers:
        if name is None or value is None or not is_trace_header(name):
            continue
        lower = name.lower()
        if lower in found and lower == TRACEPARENT:
            return None
        found[lower] = value
    return parsed(found[TRACEPARENT], found.get(TRACESTATE)) if TRACEPARENT in found else None


def chosen_links(contexts: Iterable[TraceContext | None], most: int = MOST_LINKS) -> tuple[TraceContext, ...]:
    """What a batch's span links to: the spans that are recorded, each once, the first `most` of them."""
    found: dict[tuple[int, int], TraceContext] = {}
    for each in contexts:
        if each is not None and each.is_sampled:
            found.setdefault((each.trace_id, each.span_id), each)
            if len(found) == most:
                break
    return tuple(found.values())


def parent_of(links: Iterable[TraceContext]) -> TraceContext | None:
    """Under which span that of the batch stands: where all its links are of one trace it belongs to that, under the
    first; else to none of them.
    """
    found = tuple(links)
    return found[0] if found and len({each.trace_id for each in found}) == 1 else None
