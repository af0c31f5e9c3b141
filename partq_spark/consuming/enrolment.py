"""How a query becomes a flow of its group, and stays one: its name, the group in the head, the bind. No pyspark.

The very first offset of a query has nothing but the flow's name. It costs an empty batch, and whatever happens after it
the query finds its own partitions again; the group never hears of a name that a crash could still make forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from partq_spark import offsets
from partq_spark.consuming.patience import Patience
from partq_spark.errors import Invalid
from partq_spark.flow.checkpoint import removed
from partq_spark.flow.checkpoints import Checkpoint, CheckpointStore
from partq_spark.flow.claims import View
from partq_spark.flow.effects import Effects
from partq_spark.flow.membership import Membership
from partq_spark.flow.model import GroupKey
from partq_spark.log.model import Head
from partq_spark.log.queue import Queue
from partq_spark.offsets import BatchEnd
from partq_spark.options import GroupOptions

BIND_WAIT_S: Final = 5.0
"""For a coordinator's answer. A flow that got none looks on at every trigger."""

Join = Callable[[str, str], tuple[Membership, CheckpointStore]]
_log = logging.getLogger("partq.flow")


class Enrolment:
    """One query's name and membership. `create_group` and `join` are `Consumer`'s. Nothing is read yet."""

    def __init__(
        self,
        queue: Queue,
        group: GroupOptions,
        *,
        create_group: Callable[[], None],
        join: Join,
        effects: Effects,
        patience: Patience,
    ) -> None:
        self._queue = queue
        self._group = group
        self._create_group = create_group
        self._join = join
        self._effects = effects
        self._patience = patience
        self._checkpoints: CheckpointStore | None = None
        self.flow = group.flow  # None until it is known
        self.member: Membership | None = None  # once the name is known
        self.view: View | None = None  # the last look

    def introduce(self) -> dict[str, Any]:
        """The first offset: the group is there, the flow has its name, and nobody has been told yet."""
        self._create_group()
        if self.flow is None:
            self.flow = f"flow-{self._effects.token()}"
        return offsets.encode(
            BatchEnd(queue_id=self._queue.head.queue_id, group=self._group.name, flow=self.flow, spans={})
        )

    def checked(self, raw: dict[str, Any]) -> BatchEnd | None:
        """An offset of this group and flow; adopts the flow's name. Raises `Invalid`."""
        end = offsets.decode(raw)
        if end is None:
            return None
        offsets.require_same_group(end, self._group.name, self._group.flow)
        self.flow = end.flow
        return end

    def fresh_head(self, known: BatchEnd) -> Head:
        """The head now. Raises `Invalid` if it is another queue's than that of `known`, or if the group that this
        process joined was removed from it.
        """
        head = self._queue.refresh()
        offsets.require_same_queue(known, head.queue_id, str(self._queue))
        if self.member is not None and self._group.name not in head.groups:
            key = GroupKey(self._queue.namespace, self._queue.name, self._group.name)
            raise Invalid(removed(key, f"flow {self.flow!r} ends"))
        return head

    def joined(self, known: BatchEnd) -> Membership:
        """The membership, bound; presenting what this flow had according to `known` (FLO-07)."""
        if self.member is None:
            head = self.fresh_head(known)
            if self._group.name not in head.groups:
                self._create_group()  # somebody deleted it
            self.member, self._checkpoints = self._join(self.flow or "", head.queue_id)
        member = self.member
        if not member.is_bound:
            mapping = {partition: span.epoch for partition, span in known.spans.items()}
            bound = self._patience.try_for(lambda: member.bind(mapping, wait_s=BIND_WAIT_S))
            self.seen(bound.view)
            if not bound.answered:
                _log.warning(
                    "no coordinator has answered flow %s of %s for %.0f s: is one running (partq coordinator run)?",
                    self.flow,
                    self._queue,
                    BIND_WAIT_S,
                )
        return member

    def bound_member(self) -> Membership | None:
        """The membership, if it is bound."""
        return self.member if self.member is not None and self.member.is_bound else None

    def is_alive(self, instance: str | None) -> bool:
        """A guard: nobody can have taken this instance for gone. Another thread may have begun a new one meanwhile."""
        member = self.member
        return member is not None and member.instance == instance is not None and member.lease_left_s() > 0

    def seen(self, view: View) -> View:
        """A look at the group; what is told once goes to the log."""
        for partition, epoch in view.lost.items():
            _log.info("flow %s of %s gave up partition %d (epoch %d)", self.flow, self._queue, partition, epoch)
        for update in view.updates:
            _log.info("flow %s of %s is %s now", self.flow, self._queue, "active" if update.active else "inactive")
        self.view = view
        return view

    def checkpoint(self, partition: int) -> Checkpoint | None:
        """A partition's checkpoint as it is now. Raises `Unavailable`, `Corrupt`."""
        return self._checkpoints.read(partition) if self._checkpoints is not None else None
