"""The live picture of one group: which cell, lane and bar the page shows for what the client saw. Pure.

Texts about the group are those of `partq status` (`client.words`, `group.status`); here they are only put in places.
What a picture needs of earlier ones (colours, how long a wait was at first, lag over time) is its `GroupMemory`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from partq_spark.client import FlowView, GroupView, PartitionStatus, PartitionView, words
from partq_spark.page.memory import NOBODY, Decision, History, Line, Mark, line, marks, part, remembered

HOLDDOWN: Final = "holddown"
GLYPHS: Final = {
    PartitionStatus.READY: "",
    PartitionStatus.PAUSED: "‖",
    PartitionStatus.UNBOUND: "!",
    PartitionStatus.UNASSIGNED: "○",
}
"""What a cell shows beside its number: a status is not told by colour alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupMemory:
    """What is kept of a group from one look to the next. `waits_s`: how long what is being waited for was to take when
    it was seen first, by partition number or `HOLDDOWN`.
    """

    marks: Mapping[str, Mark] = field(default_factory=dict)
    waits_s: Mapping[str, float] = field(default_factory=dict)
    lag: History = ()
    lag_s: History = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """A partition in a lane. `label` is the whole of it, for people who cannot see it or who point at it."""

    partition: int
    css: str
    glyph: str
    label: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """A flow with its partitions. `arriving`: partitions that are on their way. `attention`: something is wrong."""

    flow: str
    css: str
    state: str
    last_seen: str
    lag: int
    cells: tuple[Cell, ...]
    arriving: tuple[Cell, ...]
    attention: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """Something that runs out: a handoff (`cell` on its way `from_` a flow `to` another) or the holddown (no cell).
    `left` is the part of it that is left, 0 to 100.
    """

    cell: Cell | None
    from_: str
    from_css: str
    to: str
    to_css: str
    text: str
    left: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupPicture:
    """What the page shows of a group beside what the client saw. `css`: by partition, how its flow looks."""

    lanes: tuple[Lane, ...]
    waits: tuple[Wait, ...]
    reasons: tuple[str, ...]
    css: Mapping[int, str]
    lag: Line
    lag_s: Line


def memory_of(before: GroupMemory, view: GroupView, now_s: float) -> GroupMemory:
    """What is remembered after this look."""
    flows = [*(each.flow for each in view.flows), *(each.flow for each in view.partitions if each.flow)]
    remaining = {
        str(each.partition): each.handoff.remaining_s
        for each in view.partitions
        if each.handoff is not None and each.handoff.remaining_s is not None
    }
    if view.rebalance_deadline_s is not None:
        remaining[HOLDDOWN] = view.rebalance_deadline_s
    known_s = [each.lag_s for each in view.partitions if each.lag_s is not None]
    return GroupMemory(
        marks=marks(flows, before.marks),
        waits_s={name: max(left_s, before.waits_s.get(name, 0.0)) for name, left_s in remaining.items()},
        lag=remembered(before.lag, now_s, sum(each.lag for each in view.partitions)),
        lag_s=remembered(before.lag_s, now_s, max(known_s) if known_s else None),
    )


def picture(view: GroupView, memory: GroupMemory, now_s: float) -> GroupPicture:
    """The page's picture of one look, `memory` being that after it."""
    return GroupPicture(
        lanes=_lanes(view, memory),
        waits=_waits(view, memory),
        # A handoff's own words stand beside its cell.
        reasons=words.reasons_in_words([each for each in view.partitions if each.handoff is None]),
        css={each.partition: _css(each.flow, memory) for each in view.partitions},
        lag=line(memory.lag, now_s),
        lag_s=line(memory.lag_s, now_s),
    )


def _lanes(view: GroupView, memory: GroupMemory) -> tuple[Lane, ...]:
    """A lane for each flow by name, one for a flow that only a partition names, and one for what nobody has."""
    known = {each.flow: each for each in view.flows}
    gone = {each.flow for each in view.partitions if each.flow and each.flow not in known}
    flows = [*view.flows, *(_unknown(name) for name in sorted(gone))]
    still = words.standing_still(view)
    lanes = [_lane(flow, flow.flow, view, memory, still) for flow in flows]
    if any(each.flow is None for each in view.partitions):
        lanes.append(_lane(None, "no flow", view, memory, still))
    return tuple(lanes)


def _lane(flow: FlowView | None, name: str, view: GroupView, memory: GroupMemory, still: frozenset[int]) -> Lane:
    """Of a flow, or of what nobody has."""
    having = flow.flow if flow is not None else None
    mine = [each for each in view.partitions if each.flow == having]
    state = words.flow_state(flow) if flow is not None else ""
    if having is not None and having not in [each.flow for each in view.flows]:
        # Only its partitions tell of it: that it left, or nothing where nobody asked.
        state = "not bound" if any(each.status is PartitionStatus.UNBOUND for each in mine) else "not known"
    return Lane(
        flow=name,
        css=_css(having, memory),
        state=state,
        last_seen=words.last_seen(flow) if flow is not None else "",
        lag=sum(each.lag for each in mine),
        cells=tuple(cell(each, memory) for each in mine),
        arriving=tuple(
            replace(cell(each, memory), css=f"{_css(having, memory)} arriving")
            for each in view.partitions
            if each.handoff is not None and each.handoff.to == having != each.flow
        ),
        attention=state in ("silent", "not bound") or any(each.partition in still for each in mine),
    )


def _unknown(name: str) -> FlowView:
    return FlowView(flow=name, active=False, bound=False, partitions=(), last_seen_s=None)


def cell(each: PartitionView, memory: GroupMemory) -> Cell:
    """One partition."""
    label = f"partition {each.partition}: {each.status}, {f'flow {each.flow}' if each.flow else 'no flow'}"
    label += f", lag {each.lag:,}"
    return Cell(
        partition=each.partition,
        css=f"{_css(each.flow, memory)} {each.status.lower()}",
        glyph=GLYPHS[each.status],
        label=f"{label}; {each.reason}" if each.reason else label,
    )


def _waits(view: GroupView, memory: GroupMemory) -> tuple[Wait, ...]:
    """What runs out: the holddown first, then the handoffs by partition."""

    def wait(name: str, left_s: float | None, text: str, moving: PartitionView | None, to: str | None) -> Wait:
        from_ = None if moving is None else moving.flow
        return Wait(
            cell=None if moving is None else cell(moving, memory),
            from_=from_ or "no flow",
            from_css=_css(from_, memory),
            to=to or "no flow",
            to_css=_css(to, memory),
            text=text,
            left=part(left_s or 0.0, memory.waits_s.get(name, 0.0)),
        )

    made = [
        wait(str(each.partition), each.handoff.remaining_s, each.reason, each, each.handoff.to)
        for each in view.partitions
        if each.handoff is not None
    ]
    if view.rebalance_deadline_s is not None:
        text = dict(words.group_in_words(view))["rebalancing"]
        made.insert(0, wait(HOLDDOWN, view.rebalance_deadline_s, text, None, None))
    return tuple(made)


def _css(flow: str | None, memory: GroupMemory) -> str:
    mark = memory.marks.get(flow) if flow is not None else None
    return NOBODY if mark is None else mark.css


def timeline_note(decisions: Sequence[Decision] | None, server: str, leader: str | None) -> str:
    """Where the decisions about a group come from that `server`, the coordinator in whose process the page is served,
    knows of (None: no coordinator serves it), while `leader` leads the group; empty if there is nothing to say.
    """
    if decisions is None:
        return "No coordinator serves this page, so there is no timeline: its own page has one."
    if leader is None or leader == server:
        nothing = f"The coordinator {server} has decided nothing about this group since it was started."
        return "" if decisions else nothing
    return f"The coordinator {leader} leads this group: what it decides is on its own page, not here ({server})."
