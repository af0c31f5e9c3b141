"""A query as a participant of a group, or of none: its name, its group in the head, its membership. No pyspark.

The very first offset of a query has the flow's name, and since when its group is there, and nothing else. It costs an
empty batch. Whatever happens after it, the query finds its own partitions again, and the group never hears of a name
that a crash could still make the query forget. A query whose group is gone, or was made again, is refused: the new
group begins elsewhere, and what lies between would be left out silently.
"""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from partq_spark.base.effects import Effects, in_a_row, side_by_side
from partq_spark.base.errors import Fenced, Invalid
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Standing, View
from partq_spark.group.membership import GroupInQueue, Membership, SessionSettings
from partq_spark.group.model import Checkpoint
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session
from partq_spark.group.solo import EPOCH, EveryPartition, SoloSession
from partq_spark.log import groups
from partq_spark.log.model import Head, at
from partq_spark.log.queue import QueueLog, shared_store
from partq_spark.objects.urls import is_paid
from partq_spark.query import offsets, planning
from partq_spark.query.offsets import BatchEnd, BatchSpan, rewind_command
from partq_spark.query.settings import Boundary, GroupOptions, SourceOptions
from partq_spark.query.waiting import StoreRetry

BIND_WAIT_S: Final = 5.0
"""For a coordinator's answer. A flow that got none looks on at every trigger."""

MOST_PLACES: Final = 50
"""Partitions that an error names with where the query was."""

_log = logging.getLogger("partq.flow")


STORE_RETRY_S = 2.0
"""How long the stores themselves try again: not for long, because their callers go on trying."""

MOST_AT_ONCE = 16
"""Checkpoints that are written side by side where each write takes a request."""


class Participant:
    """Who a query is for those who share its queue, and what is its own. Without a group its Spark checkpoint alone
    says which query it is, and it has every partition. Nothing is read yet.
    """

    def __init__(self, queue: QueueLog, options: SourceOptions, effects: Effects) -> None:
        self._queue = queue
        self._options = options
        self._group = group = options.group
        self.settings = SessionSettings()
        if group is not None:
            said = group.session_timeout_s, group.checkpoint_interval_s
            self.settings = SessionSettings.at(options.target.store, group.ownership, *said)
        self._start = options.start or Boundary(edge="latest")
        self._effects = effects
        what = str(queue) if group is None else f"group {group.name!r} of {queue}"
        self.store_retry = StoreRetry(options.target.retry_timeout_s, effects, what)
        self.flow = group.flow if group is not None else None  # until it is known
        self.member: Membership | None = None  # once the query knows who it is
        self.view: View | None = None  # the last look
        self._checkpoints: CheckpointStore | None = None

    @property
    def name(self) -> str:
        """For messages."""
        return f"the query of {self._queue}" if self._group is None else f"flow {self.flow!r} of {self._queue}"

    def introduce(self) -> BatchEnd:
        """What the very first batch follows. In a group it is the end of that batch, which is empty: the group is
        there, the flow has its name, and nobody has been told yet. Raises `Invalid` for offsets that the queue does not
        have.
        """
        if self._group is None:
            head = self._queue.refresh()
            start = planning.resolve(head, self._start, "startingOffsets", self._queue.offsets_at)
            spans = {partition: BatchSpan(EPOCH, offset, offset, 0) for partition, offset in start.items()}
            return BatchEnd(queue_id=head.queue_id, group=None, flow=None, spans=spans)
        self._create_group(self._group)
        if self.flow is None:
            self.flow = f"flow-{self._effects.token()}"
        head = self._queue.head
        since = head.groups[self._group.name].since_sequence
        nothing = BatchEnd(queue_id=head.queue_id, group=self._group.name, since=since, flow=self.flow, spans={})
        return offsets.in_ack_mode(nothing, manual_acks=self._group.manual_acks)

    def _create_group(self, group: GroupOptions) -> None:
        """Make the group where it is not there; warn if it is there and the options would have it begin elsewhere.
        Raises `Invalid` if it is shared in another way.
        """
        queue, options, place = self._queue, self._options, self._start
        head = queue.refresh()
        groups.require_ownership(head, group.name, group.ownership, store=queue.store.url)
        if (found := head.groups.get(group.name)) is None:
            start = planning.resolve(head, place, "startingOffsets", queue.offsets_at)
            exact = place.offsets is not None and options.fail_on_data_loss  # else it means what can be read
            found = groups.create_group(queue, group.name, [*start.values()], exact=exact, ownership=group.ownership)
            head = queue.head  # messages may have gone meanwhile
        if options.start is None or place.edge == "latest":  # that is where the group began, at its time
            return
        if place.offsets is not None:  # of before a resize: what came since begins at its beginning
            later = [*enumerate(head.earliest)][len(found.start) :]
            place = Boundary(offsets=dict(later) | {**place.offsets})
        wanted = planning.resolve(head, place, "startingOffsets", queue.offsets_at)
        if any(max(at(found.start, p), at(head.earliest, p)) != offset for p, offset in wanted.items()):
            _log.warning(
                "group %s of %s begins elsewhere than startingOffsets or startingTimestamp say (it existed, or those "
                "messages are gone): to go back in an existing group use `%s`",
                group.name,
                queue,
                rewind_command(options.target, group.name, place),
            )

    def checked(self, raw: dict[str, Any], *, to_read: bool = False) -> BatchEnd | None:
        """What an offset of this query's Spark checkpoint means; adopts the flow's name. None: there is none yet.
        `to_read`: its batch is asked for. Raises `Invalid` if it is another query's, or of another `ackMode`.
        """
        end = offsets.decode(raw)
        if end is None:
            return None
        if self._group is None:
            offsets.require_same_group(end, None, None)
            return end
        # Once joined, it stays who it is: another run of the query may write into the same Spark checkpoint.
        offsets.require_same_group(end, self._group.name, self._group.flow if self.member is None else self.flow)
        self.flow = end.flow
        return offsets.in_ack_mode(end, manual_acks=self._group.manual_acks, to_read=to_read)

    def fresh_head(self, known: BatchEnd, *, complete: bool = True) -> Head:
        """The head now; without a group that of the last look, which reads nothing else. Raises `Invalid` if it is
        another queue's than that of `known`, or if the group of `known` was removed from it, or is shared in another
        way; `Fenced` if it was removed and made again while this process was a flow of it. `complete`: whether the
        batch up to `known` is.
        """
        head = self._looked(known, fresh=self._group is not None)
        if self._group is not None:
            self._require_same_life(head, known, self._group, complete=complete)
            groups.require_ownership(head, self._group.name, self._group.ownership, store=self._queue.store.url)
        return head

    def _looked(self, known: BatchEnd, *, fresh: bool = True) -> Head:
        """The head, read again if it has to be `fresh`; of the queue of `known`, or this raises `Invalid`."""
        head = self._queue.refresh() if fresh else self._queue.head
        offsets.require_same_queue(known, head.queue_id, str(self._queue))
        return head

    def joined(self, known: BatchEnd, *, complete: bool = True) -> Membership:
        """The membership, bound; presenting what the query had according to `known` (FLO-07). Raises as
        `fresh_head`.
        """
        if self.member is None:
            self.member = self._member(known, complete=complete)
        member = self.member
        if not member.is_bound:
            mapping = {partition: span.epoch for partition, span in known.spans.items()}
            view = self.seen(self.store_retry.call(lambda: member.bind(mapping, wait_s=BIND_WAIT_S)))
            if view.standing is Standing.UNANSWERED:
                _log.warning(
                    "no coordinator has answered flow %s of %s for %.0f s: is one running (partq coordinator run)?",
                    self.flow,
                    self._queue,
                    BIND_WAIT_S,
                )
        return member

    def _member(self, known: BatchEnd, *, complete: bool) -> Membership:
        group = self._group
        if group is None:
            begins = {partition: span.start for partition, span in known.spans.items()}
            return EveryPartition(partial(self._looked, known), begins, self._effects)
        found = self.fresh_head(known, complete=complete).groups[group.name]
        if found.ownership is None:
            groups.change_ownership(self._queue, group.name, found, group.ownership)
        return self._flow_of(group, self.flow or "")

    def _flow_of(self, group: GroupOptions, flow: str) -> Membership:
        """A membership of `flow` in the group as the queue's head shows it, not bound yet. Raises `Invalid`."""
        queue, effects = self._queue, self._effects
        target, paid = self._options.target, is_paid(queue.store.url)
        found = GroupInQueue(queue, group.name)
        self._checkpoints = checkpoints = found.checkpoints(
            shared_store(target.store, min(STORE_RETRY_S, target.retry_timeout_s)), effects
        )
        bound = self._options.max_delivered_unacked
        settings = replace(self.settings, keep_offsets=group.keep_offsets, max_unacknowledged=bound)
        run = side_by_side(ThreadPoolExecutor(MOST_AT_ONCE, "partq checkpoints")) if paid else in_a_row
        if group.ownership == "none":
            return SoloSession(found, checkpoints, flow, settings, effects, run)
        ownership = open_ownership(group.ownership, store=shared_store(target.store, 0.0), group=found.key)
        return Session(ownership, found, checkpoints, flow, settings, effects, run)

    def _require_same_life(self, head: Head, known: BatchEnd, group: GroupOptions, *, complete: bool) -> None:
        """A guard: the group is the one in which this query began."""
        try:
            groups.require_group(head, group.name, known.since or 0, f"flow {self.flow!r} ends")
        except (Invalid, Fenced) as error:
            where = None if group.manual_acks else _places(known, len(head.next), complete=complete)
            said = str(error) + (f"; {where}" if where else "")
            raise type(error)(said) if self.member is not None else Invalid(said) from error

    def checkpoint(self, partition: int) -> Checkpoint | None:
        """A partition's checkpoint as it is now. Raises `Unavailable`, `Corrupt`."""
        return self._checkpoints.read(partition) if self._checkpoints is not None else None

    def bound_member(self) -> Membership | None:
        """The membership, if it is bound."""
        return self.member if self.member is not None and self.member.is_bound else None

    def is_alive(self, instance: str | None) -> bool:
        """A guard: nobody can have taken this instance for gone. Another thread may have begun a new one meanwhile."""
        member = self.member
        return member is not None and member.instance == instance is not None and member.lease_left_s() > 0

    def seen(self, view: View) -> View:
        """A look at what is the query's."""
        self.view = view
        return view


def _places(known: BatchEnd, partitions: int, *, complete: bool) -> str | None:
    """Where a query was, in words: how to go on from there if it had all partitions. None: that cannot be said, or is
    too long.
    """
    places = {str(p): span.to if complete else span.start for p, span in sorted(known.spans.items())}
    if not 0 < len(places) <= MOST_PLACES:
        return None
    text = json.dumps(places, separators=(",", ":"))
    if len(places) == partitions:
        return f"to go on where this query was, give it startingOffsets={text} and a new checkpoint location"
    return f"of its own partitions this query was at {text}"
