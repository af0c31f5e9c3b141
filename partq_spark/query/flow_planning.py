"""Where a flow is with its partitions, and what its next micro-batch takes of them. Pure: no I/O, no clock, no pyspark.

What a flow has is a `View` of its session, what it did is in the offset that Spark starts from; `consumer` gets both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from partq_spark.base.errors import ObjectMissing
from partq_spark.group.claims import Claim, Position, View
from partq_spark.log.layouts import Wait
from partq_spark.log.model import Entry, Head, at
from partq_spark.query import planning
from partq_spark.query.offsets import BatchEnd, Span
from partq_spark.query.settings import SourceOptions

Spans = Mapping[int, Span]


@dataclass(frozen=True, kw_only=True, slots=True)
class Unacknowledged:
    """Messages that the flow has delivered and not acknowledged, for each of its partitions, and how many it may have
    in all (`maxDeliveredUnackedMsgsPerFlow`).
    """

    bound: int
    in_hand: Mapping[int, int]

    @property
    def room(self) -> int:
        """How many more in all."""
        return max(self.bound - sum(self.in_hand.values()), 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
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
    def filled(self) -> Spans:
        """What the batch reads."""
        return {partition: span for partition, span in self.spans.items() if span.start < span.to}


def limits(options: SourceOptions, unacknowledged: Unacknowledged | None, limited: bool) -> planning.Limits:
    """What a batch may take. `unacknowledged` holds with every trigger, the others only if the trigger is `limited`."""
    room = unacknowledged.room if unacknowledged is not None else None
    bounds = [bound for bound in (room, options.max_messages if limited else None) if bound is not None]
    return planning.Limits(messages=min(bounds, default=None), bytes=options.max_bytes if limited else None)


def windows(bound: int, in_hand: Mapping[int, int], backlog: Mapping[int, int]) -> dict[int, int]:
    """How many more messages each partition of `backlog` may have in hand, out of `bound` for the whole flow (HAN-12).

    An equal share for each partition that the flow has (`in_hand` names them all), so that one whose messages nobody
    acknowledges does not use up the others' part; what division leaves goes to the longest backlogs. Where a share is
    less than a message, those that wait with nothing in hand have one each before that, if it is enough for them.
    """
    share, rest = divmod(bound, max(len(in_hand), 1))
    rest -= sum(max(count - share, 0) for count in in_hand.values())
    result = {partition: max(share - in_hand.get(partition, 0), 0) for partition in backlog}
    first = _with_nothing_in_hand(in_hand, backlog) if share == 0 else ()
    if len(first) <= rest:
        result.update(dict.fromkeys(first, 1))
        rest -= len(first)
    for partition in sorted(backlog, key=lambda p: (result[p] - backlog[p], p)):
        more = min(backlog[partition] - result[partition], rest)
        if more > 0:
            result[partition] += more
            rest -= more
    return result


def window_ends(starts: Mapping[int, int], ends: Mapping[int, int], unacknowledged: Unacknowledged) -> dict[int, int]:
    """`ends` as far as the windows of the partitions reach.

    If there is not a message for each of those that wait with nothing in hand, all of them may have one, and the room
    that is left in all bounds how many do: then `planning.longest_waiting` chooses, so that none waits for ever.
    """
    backlog = {p: ends[p] - start for p, start in starts.items()}
    first = _with_nothing_in_hand(unacknowledged.in_hand, backlog)
    if unacknowledged.bound < len(unacknowledged.in_hand) and unacknowledged.room < len(first):
        return {p: start + int(p in first) for p, start in starts.items()}
    more = windows(unacknowledged.bound, unacknowledged.in_hand, backlog)
    return {p: start + min(backlog[p], more[p]) for p, start in starts.items()}


def _with_nothing_in_hand(in_hand: Mapping[int, int], backlog: Mapping[int, int]) -> frozenset[int]:
    return frozenset(p for p, size in backlog.items() if size > 0 and not in_hand.get(p))


def begin(
    before: BatchEnd,
    claim: Claim,
    *,
    unread: Span | None = None,
    reached: int = 0,
    keeps_offsets: bool = True,
    missed: Collection[int] = (),
) -> Span:
    """Where the flow is with a partition that it has: an empty span at the offset that is next.

    What `before` says at the same epoch is where it goes on, because this flow alone delivered since. What was
    delivered beyond it, by the checkpoint or (`reached`) by this process, is marked: an older Spark checkpoint came
    back, or a process was killed between announcing a batch and writing down its end, which nobody can tell apart.
    `unread` is what this process announced and no batch was made of.

    Without `keeps_offsets` (`checkpoints=none`) the checkpoint never moves, and what this query has completed is not
    read again, even if the partition was somebody else's meanwhile. Partitions in `missed` were left out of the last
    batch (`flow.missed`): their span comes again, marked.
    """
    known = before.spans.get(claim.partition)
    if known is not None and known.epoch == claim.epoch:
        below = max(claim.redelivered_below, claim.acknowledged, reached)
        return Span(claim.epoch, known.to, known.to, max(known.redelivered_below, below if below > known.to else 0))
    if unread is not None and unread.epoch == claim.epoch:
        return Span(claim.epoch, unread.start, unread.start, unread.redelivered_below)
    if known is None or keeps_offsets:
        return Span(claim.epoch, claim.position, claim.position, claim.redelivered_below)
    rest = _at_rest(known, claim.partition in missed)
    at = max(claim.position, rest.to)
    return Span(claim.epoch, at, at, max(claim.redelivered_below, rest.redelivered_below))


def _at_rest(span: Span, is_missed: bool) -> Span:
    """An empty span where one is with `span`: at its end, or, if it was left out of its batch, at its start, marked."""
    if not is_missed or span.start == span.to:
        return span._replace(start=span.to)
    return Span(span.epoch, span.start, span.start, max(span.redelivered_below, span.to))


def left_out(before: BatchEnd, claims: Mapping[int, Claim], missed: Collection[int]) -> dict[int, Position]:
    """What `begin` leaves out without `keeps_offsets` because this query has completed it at an epoch before: it is
    acknowledged at the present one, or whoever waits for it (RES-03) would wait for what nobody reads again.
    """
    done = {
        p: _at_rest(known, p in missed).to
        for p, claim in claims.items()
        if (known := before.spans.get(p)) is not None and known.epoch != claim.epoch
    }
    return {p: Position(claims[p].epoch, to) for p, to in done.items() if to > claims[p].acknowledged}


def begin_by_hand(
    before: BatchEnd, given: Span | None, claim: Claim, *, unread: Span | None = None, reached: int = 0
) -> Span:
    """The same with `ackMode=manual`: what the application has not acknowledged comes again, whatever Spark completed.

    `given` is the span that this very process gave out last, and that counts. A new process has none, since whatever
    the application had in memory went with the former one: it begins at the checkpoint, and what Spark's offset, the
    checkpoint or this process knows to be delivered is marked (SEQ-01).
    """
    if given is not None and given.epoch == claim.epoch:
        return Span(claim.epoch, given.to, given.to, given.redelivered_below)
    if unread is not None and unread.epoch == claim.epoch:
        return Span(claim.epoch, unread.start, unread.start, unread.redelivered_below)
    known = before.spans.get(claim.partition)
    # An empty span says what was delivered before by its mark alone.
    delivered = max(known.to, known.redelivered_below) if known is not None and known.epoch == claim.epoch else 0
    at = claim.acknowledged
    below = max(claim.redelivered_below, claim.position if claim.position > at else 0, delivered, reached)
    return Span(claim.epoch, at, at, below)


def plan(
    head: Head,
    view: View,
    before: BatchEnd,
    *,
    begin: Callable[[Claim], Span],
    mapping: Mapping[int, int],
    target: Mapping[int, int] | None,
    waits: Callable[[Mapping[int, int]], Mapping[int, Wait]] = lambda _: {},
    limits: planning.Limits,
    unacknowledged: Unacknowledged | None = None,
    entries: Callable[[planning.Spans], Iterable[Entry]],
    fail_on_data_loss: bool,
    warn: Callable[[str], None],
    missed: Collection[int] = (),
) -> Plan:
    """The batch that follows `before`. `begin`: where the flow is with a claim. `target`: where AvailableNow ends.
    `mapping`: what the flow would get back. `waits`: what of the partitions with these next offsets waits (`Order`).
    `missed` as `begin` has it.

    Raises `ObjectMissing` for messages that are gone (failOnDataLoss).
    """
    begins = {p: begin(claim) for p, claim in view.claims.items() if p < len(head.next)}
    ready = {p: span.to for p, span in begins.items() if p in view.deliverable}
    starts = _without_lost(head, ready, before, fail_on_data_loss, warn)
    ends = {p: _end(head, target, p, offset) for p, offset in starts.items()}
    waiting = waits(starts)
    barred = frozenset(p for p, wait in waiting.items() if wait.until < ends[p])
    ends.update({p: max(starts[p], waiting[p].until) for p in barred})
    if unacknowledged is not None:
        ends = window_ends(starts, ends, unacknowledged)
    reached = planning.batch_ends(starts, ends, limits, entries)
    spans = {
        # never less than what was announced before
        p: Span(begins[p].epoch, start, max(reached[p], view.claims[p].position), begins[p].redelivered_below)
        for p, start in starts.items()
    }
    held_back = {p: span for p, span in begins.items() if p not in spans}
    for p, span in before.spans.items():  # this instance of the flow has not claimed it yet
        if p not in begins and mapping.get(p) == span.epoch:
            held_back[p] = _at_rest(span, p in missed)
    return Plan(
        spans=spans,
        held_back=held_back,
        news={p: span.to for p, span in spans.items() if not span.start == span.to == begins[p].to},
        barred=barred,
    )


def _end(head: Head, target: Mapping[int, int] | None, partition: int, offset: int) -> int:
    end = head.next[partition]
    return max(offset, end if target is None else min(end, target.get(partition, 0)))


def _without_lost(
    head: Head, ready: Mapping[int, int], before: BatchEnd, fail_on_data_loss: bool, warn: Callable[[str], None]
) -> dict[int, int]:
    """`ready`, from the earliest message on."""
    for partition, offset in ready.items():
        if offset > head.next[partition]:
            raise ObjectMissing(
                f"group {before.group!r} is at offset {offset} of partition {partition} of queue {head.queue!r}, which "
                f"ends at {head.next[partition]}: was the store restored from an older copy? Go back with `partq "
                "checkpoints rewind`"
            )
    moved = planning.continued(head, ready, fail_on_data_loss=fail_on_data_loss, warn=warn)
    return {partition: moved[partition] for partition in ready}


def progress(view: View, head: Head, reached: Mapping[int, int]) -> dict[str, dict[str, int]]:
    """For `lastProgress`: of each partition its epoch, its end, and how many messages the flow is behind it."""
    return {
        str(p): {
            "epoch": claim.epoch,
            "end": at(head.next, p),
            "lag": at(head.next, p) - reached.get(p, claim.position),
        }
        for p, claim in view.claims.items()
    }
