"""The planner: where a query is with its partitions, what its next micro-batch reads of them, and which task reads it.
Pure: no I/O, no clock, no pyspark.

What a query has is a `View` of its membership; what it did is in the offset that Spark starts from. `consumer` gets
both. How much a batch takes is decided in `limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from partq_spark.base.errors import Invalid, ObjectMissing
from partq_spark.group.claims import Claim, Position, View
from partq_spark.log import tree
from partq_spark.log.layouts import LayoutWait
from partq_spark.log.model import Entry, Head, Origin, at
from partq_spark.log.tree import Losses, check_kept
from partq_spark.query.limits import BatchLimits, PartitionOffsets, Ranges, batch_ends
from partq_spark.query.offsets import BatchEnd, BatchSpan
from partq_spark.query.settings import Boundary

# A task costs 5 to 10 ms, a small message next to nothing: so partitions with few messages share tasks. Few, because a
# user's own work per message may be slow and should run side by side.
TASK_ROWS = 100

Spans = Mapping[int, BatchSpan]


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPlan:
    """A batch. `spans` are those that may be delivered, some of them empty; `held_back` are empty spans of partitions
    that are the flow's and may not be delivered now; `news` has the new ends of those that moved on. `barred` are those
    of `spans` with messages that wait for an earlier layout (RES-03).
    """

    spans: Spans
    held_back: Spans
    news: Mapping[int, int]
    barred: frozenset[int] = frozenset()

    def may_go_on(self, head: Head) -> bool:
        """Whether `head` has something that this batch left out and that need not wait for others."""
        return any(at(head.next, p) > span.to for p, span in self.spans.items() if p not in self.barred)

    @property
    def all_spans(self) -> Spans:
        """What the end of the batch says: everything that the flow has, so that a restart can present it (FLO-07)."""
        return {**self.held_back, **self.spans}

    @property
    def reached(self) -> dict[int, int]:
        """Where the flow is at its end, in everything that it has."""
        return {partition: span.to for partition, span in self.all_spans.items()}

    @property
    def filled(self) -> Spans:
        """What the batch reads."""
        return {partition: span for partition, span in self.spans.items() if span.start < span.to}


@dataclass(frozen=True, slots=True)
class IdleLook:
    """A whole look at `at_s` after which there was nothing to do."""

    start: dict[str, Any]
    plan: BatchPlan
    at_s: float


# --- where a query begins and goes on ---------------------------------------------------------------------------------


def resolve(head: Head, place: Boundary, option: str, offsets_at: Callable[[int], Sequence[int]]) -> dict[int, int]:
    """The offset of every partition at `place`, in their order. `offsets_at` finds a time in the log.

    Raises `Invalid` if the user's offsets do not name exactly the queue's partitions, or lie beyond an end.
    """
    if place.edge == "earliest":
        return dict(enumerate(head.earliest))
    if place.edge == "latest":
        return dict(enumerate(head.next))
    if place.time_us is not None:
        return dict(enumerate(offsets_at(place.time_us)))
    given = place.offsets or {}
    expected = set(range(len(head.next)))
    if set(given) != expected:
        missing, unknown = sorted(expected - set(given)), sorted(set(given) - expected)
        raise Invalid(
            f"option {option} must name every partition of queue {head.queue!r} (0 to {len(head.next) - 1}): "
            f"missing {missing or 'none'}, unknown {unknown or 'none'}"
        )
    for partition, offset in given.items():
        if offset > head.next[partition]:
            raise Invalid(
                f"option {option} names offset {offset} of partition {partition}, which ends at "
                f"{head.next[partition]}: give an offset up to the end"
            )
    return {partition: given[partition] for partition in sorted(given)}


def between(
    head: Head, start: Boundary, end: Boundary, options: tuple[str, str], offsets_at: Callable[[int], Sequence[int]]
) -> dict[int, BatchSpan]:
    """What lies between two places, for a reading without a query. `options` names both, for errors. Raises as
    `resolve`, and `Invalid` for an end that lies before its start.
    """
    starts = resolve(head, start, options[0], offsets_at)
    ends = resolve(head, end, options[1], offsets_at)
    for partition, offset in starts.items():
        if offset > ends[partition]:
            raise Invalid(
                f"partition {partition} would be read from offset {offset} to {ends[partition]}: its end lies before "
                "its start; correct where it begins or where it ends"
            )
    return {partition: BatchSpan(0, offset, ends[partition], 0) for partition, offset in starts.items()}


def continued(head: Head, reached: PartitionOffsets, losses: Losses) -> dict[int, int]:
    """Where a query goes on, in every partition that the queue has: one that `reached` does not name begins at its
    beginning. No position is outside of what the log keeps.

    A position whose next message has been trimmed moves to the earliest one, and one beyond the end (the store was
    restored from an older copy) to the end; either is a loss.
    """
    result = {partition: reached.get(partition, earliest) for partition, earliest in enumerate(head.earliest)}
    for partition, offset in reached.items():
        earliest = at(head.earliest, partition)
        check_kept(head, partition, offset, max(offset, earliest), losses)
        if partition in result:
            result[partition] = min(max(offset, earliest), head.next[partition])
    return result


def begin(
    before: BatchEnd,
    claim: Claim,
    *,
    unread: BatchSpan | None = None,
    reached: int = 0,
    missed: Collection[int] = (),
) -> BatchSpan:
    """Where the flow is with a partition that it has: an empty span at the offset that is next.

    What `before` says at the same epoch is where it goes on, because this flow alone delivered since. What was
    delivered beyond it, by the checkpoint or (`reached`) by this process, is marked: an older Spark checkpoint came
    back, or a process was killed between announcing a batch and writing down its end, which nobody can tell apart.
    `unread` is what this process announced and no batch was made of.

    Where the claim is not `by_offset` (`checkpoints=none`) the checkpoint never moves, and what this query has
    completed is not read again, even if the partition was somebody else's meanwhile. An offset that the checkpoint has
    yet counts, for the query may have been taken back, or have left out what it says.
    Partitions in `missed` were left out of the last batch (`group.left_out`): their span comes again, marked.
    """
    known = before.spans.get(claim.partition)
    if known is not None and known.epoch == claim.epoch:
        below = max(claim.redelivered_below, claim.acknowledged, reached)
        return BatchSpan(
            claim.epoch, known.to, known.to, max(known.redelivered_below, below if below > known.to else 0)
        )
    if unread is not None and unread.epoch == claim.epoch:
        return _unread_again(unread, claim)
    if known is None or claim.by_offset:
        return BatchSpan(claim.epoch, claim.position, claim.position, claim.redelivered_below)
    rest = _at_rest(known, claim.partition in missed)
    at = max(claim.position, rest.to)
    return BatchSpan(claim.epoch, at, at, max(claim.redelivered_below, rest.redelivered_below))


def _unread_again(unread: BatchSpan, claim: Claim) -> BatchSpan:
    """By the claim, too: another process of the flow's name may have delivered it meanwhile."""
    start = max(unread.start, claim.acknowledged)
    return BatchSpan(claim.epoch, start, start, max(unread.redelivered_below, claim.redelivered_below))


def _at_rest(span: BatchSpan, is_missed: bool) -> BatchSpan:
    """An empty span where one is with `span`: at its end, or, if it was left out of its batch, at its start, marked."""
    if not is_missed or span.start == span.to:
        return span._replace(start=span.to)
    return BatchSpan(span.epoch, span.start, span.start, max(span.redelivered_below, span.to))


def relied_on(before: BatchEnd, claims: Mapping[int, Claim]) -> set[Origin | None]:
    """What the log must have, or `begin` would be wrong about what has been read: for each claim what its checkpoint
    says, if it begins there, else what Spark's offset says.
    """

    def at_checkpoint(known: BatchSpan | None, claim: Claim) -> bool:
        if known is None or not claim.by_offset:
            return known is None
        return known.epoch != claim.epoch or known.to == claim.acknowledged

    return {claim.origin if at_checkpoint(before.spans.get(p), claim) else before.origin for p, claim in claims.items()}


def left_out(before: BatchEnd, claims: Mapping[int, Claim], missed: Collection[int]) -> dict[int, Position]:
    """What `begin` leaves out, with `checkpoints=none`, because this query has completed it at an epoch before: it is
    acknowledged at the present one, or what waits for it (RES-03) would wait for messages that nobody reads again.
    """
    done = {
        p: _at_rest(known, p in missed).to
        for p, claim in claims.items()
        if (known := before.spans.get(p)) is not None and known.epoch != claim.epoch and not claim.by_offset
    }
    return {p: Position(claims[p].epoch, to) for p, to in done.items() if to > claims[p].acknowledged}


def begin_manual(
    before: BatchEnd, given: BatchSpan | None, claim: Claim, *, unread: BatchSpan | None = None, reached: int = 0
) -> BatchSpan:
    """The same with `ackMode=manual`: what the application has not acknowledged comes again, also if Spark completed
    its batch.

    `given` is the span that this very process gave out last, and that counts. A new process has none, since whatever
    the application had in memory went with the former one: it begins at the checkpoint, and what Spark's offset, the
    checkpoint or this process knows to be delivered is marked (SEQ-01).
    """
    if given is not None and given.epoch == claim.epoch:
        return BatchSpan(claim.epoch, given.to, given.to, given.redelivered_below)
    if unread is not None and unread.epoch == claim.epoch:
        return _unread_again(unread, claim)
    known = before.spans.get(claim.partition)
    # An empty span says what was delivered before by its mark alone.
    delivered = max(known.to, known.redelivered_below) if known is not None and known.epoch == claim.epoch else 0
    at = claim.acknowledged
    below = max(claim.redelivered_below, claim.position if claim.position > at else 0, delivered, reached)
    return BatchSpan(claim.epoch, at, at, below)


# --- the next batch, and its tasks ------------------------------------------------------------------------------------


def planned_batch(
    head: Head,
    view: View,
    before: BatchEnd,
    *,
    begin: Callable[[Claim], BatchSpan],
    mapping: Mapping[int, int],
    target: Mapping[int, int] | None,
    waits: Callable[[Mapping[int, int]], Mapping[int, LayoutWait]] = lambda _: {},
    limits: BatchLimits,
    entries: Callable[[Ranges], Iterable[Entry]],
    losses: Losses,
    missed: Collection[int] = (),
) -> BatchPlan:
    """The batch that follows `before`. `begin`: where the flow is with a claim. `target`: where AvailableNow ends.
    `mapping`: what the flow would get back. `waits`: what of the partitions with these next offsets waits (`KeyOrder`).
    `missed` as `begin` has it.

    Raises `ObjectMissing` for messages that are gone (failOnDataLoss).
    """
    begins = {p: begin(claim) for p, claim in view.claims.items() if p < len(head.next)}
    deliverable = view.deliverable
    ready = {p: span.to for p, span in begins.items() if p in deliverable}
    starts = _without_lost(head, ready, before, losses)
    ends = {p: _end(head, target, p, offset) for p, offset in starts.items()}
    waiting = waits(starts)
    barred = frozenset(p for p, wait in waiting.items() if wait.until < ends[p])
    ends.update({p: max(starts[p], waiting[p].until) for p in barred})
    reached = batch_ends(starts, ends, limits, entries)
    spans = {
        # Never less than what was announced before, whatever the limits say: a repetition in parts would let what waits
        # for it (RES-03) come between them, and a handoff would take the rest for in hand, or for done.
        p: BatchSpan(begins[p].epoch, start, max(reached[p], view.claims[p].position), begins[p].redelivered_below)
        for p, start in starts.items()
    }
    held_back = {p: span for p, span in begins.items() if p not in spans}
    for p, span in before.spans.items():  # this instance of the flow has not claimed it yet
        if p not in begins and mapping.get(p) == span.epoch:
            held_back[p] = _at_rest(span, p in missed)
    return BatchPlan(
        spans=spans,
        held_back=held_back,
        news={p: span.to for p, span in spans.items() if not span.start == span.to == begins[p].to},
        barred=barred,
    )


def _end(head: Head, target: Mapping[int, int] | None, partition: int, offset: int) -> int:
    end = head.next[partition]
    return max(offset, end if target is None else min(end, target.get(partition, 0)))


def _without_lost(head: Head, ready: Mapping[int, int], before: BatchEnd, losses: Losses) -> dict[int, int]:
    """`ready`, from the earliest message on. A group that is beyond the end is put right by somebody; a query without
    one is where its Spark checkpoint says, also in partitions that an older copy of the queue does not have.
    """
    known = {p: span.to for p, span in before.spans.items()} if before.group is None else {}
    for partition, offset in ready.items() if before.group is not None else ():
        if offset > head.next[partition]:
            raise ObjectMissing(
                f"group {before.group!r} is at offset {offset} of partition {partition} of queue {head.queue!r}, which "
                f"ends at {head.next[partition]}: was the store restored from an older copy? Go back with `partq "
                "checkpoints rewind`"
            )
    moved = continued(head, {**known, **ready}, losses)
    return {partition: moved[partition] for partition in ready}


def log_view(head: Head, spans: Spans, *, fail_on_data_loss: bool, warn: Callable[[str], None]) -> tree.LogView:
    """The part of the log that leads to `spans`. Raises `ObjectMissing` for what is gone (failOnDataLoss)."""
    ranges = {partition: (span.start, span.to) for partition, span in spans.items() if span.start < span.to}
    return tree.view(head, tree.untrimmed(head, ranges, Losses(fail_on_data_loss, warn)))


def tasks(spans: Ranges) -> list[list[int]]:
    """The partitions that have messages, grouped into tasks: each alone, unless several together have few messages."""
    grouped: list[list[int]] = []
    rows = TASK_ROWS
    for partition in sorted(spans):
        start, to = spans[partition]
        if start >= to:
            continue
        if rows + (to - start) > TASK_ROWS:
            grouped.append([])
            rows = 0
        grouped[-1].append(partition)
        rows += to - start
    return grouped
