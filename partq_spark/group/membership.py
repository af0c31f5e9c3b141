"""What a consumer needs to know of the partitions that it has, and what memberships of a group have in common.

Memberships differ in what grants partitions, and in what verifies that they are still the consumer's. In a shared group
(`session`) a coordinator does both. With `solo` the flow takes all of the group by itself. Without a group every
partition is the query's (`query.ungrouped`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence

from partq_spark.base.effects import Effects
from partq_spark.group.checkpoint_writer import CheckpointWriter
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.claims import Binding, Position, View
from partq_spark.group.holdings import FlowHoldings
from partq_spark.group.model import GroupKey
from partq_spark.group.settings import SessionSettings
from partq_spark.log.model import Origin


class Membership(ABC):
    """One consumer, in one process. `beat` may be called by any thread, the rest by one at a time.

    Everything but `is_bound`, `instance`, `mapping`, `in_hand`, `note`, `lease_left_s` and `has_news` may raise
    `Unavailable`: then it is called again. `Session` says what each of them does. Where a membership says nothing else,
    nobody listens, and there is nothing to write down.
    """

    @property
    @abstractmethod
    def is_bound(self) -> bool: ...

    @property
    @abstractmethod
    def instance(self) -> str | None: ...

    @property
    def mapping(self) -> Mapping[int, int]:
        """The partitions (with epochs) that this consumer has, or would get back as another instance."""
        return {}

    @property
    def has_news(self) -> bool:
        """Whether the group's state has changed since the last look; costs nothing to ask."""
        return False

    @abstractmethod
    def bind(self, mapping: Mapping[int, int] | None = None, *, wait_s: float) -> Binding: ...

    def unbind(self) -> None:  # noqa: B027 - there may be nothing to leave
        """Acknowledge what is left to acknowledge, then leave. May be repeated."""

    def beat(self) -> None:  # noqa: B027 - there may be nobody who listens
        """One heartbeat."""

    @abstractmethod
    def observe(self) -> View: ...

    def confirm(self) -> View:
        """A look just before what was announced is read: whether it is still this consumer's. Raises as `observe`."""
        return self.observe()

    @abstractmethod
    def deliver(self, ends: Mapping[int, int]) -> bool: ...

    @abstractmethod
    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]: ...

    def flush(self) -> None:  # noqa: B027 - there may be nothing to write down
        """Write down all acknowledgements now."""

    @abstractmethod
    def acknowledged(self, partitions: Collection[int]) -> Mapping[int, int]: ...

    def in_hand(self) -> Mapping[int, int]:
        """Messages of each partition that were delivered and are not acknowledged."""
        return {}

    def note(self, text: str | None) -> None:  # noqa: B027 - there may be nobody who listens
        """Tell people something of this consumer, until it is something else; None: nothing. Cheap to repeat."""

    @abstractmethod
    def lease_left_s(self) -> float: ...

    @abstractmethod
    def wait_news(self, timeout_s: float) -> bool:
        """Wait until the group's state has changed, at most so long; whether it may have."""

    def close(self) -> None:  # noqa: B027 - there may be nothing open
        """Give back connections, after `unbind`."""


class GroupMembership(Membership):
    """One flow of a group: what it has in hand, and the checkpoints in which it writes down how far it is.

    `flow` is in lower case already; `queue_id` is that of the head. `start_of` gives the first offset of a partition
    whose checkpoint has none (`checkpoints=none`): the group's start. `milestones`: offsets of a partition at which
    others may wait for it (`key_order.Milestones`).
    """

    def __init__(
        self,
        checkpoints: CheckpointStore,
        key: GroupKey,
        queue_id: str,
        flow: str,
        settings: SessionSettings | None,
        effects: Effects | None,
        *,
        start_of: Callable[[int], int],
        milestones: Callable[[int], Sequence[int]],
    ) -> None:
        self._checkpoints = checkpoints
        self._key = key
        self._queue_id = queue_id
        self._flow = flow
        self._settings = settings if settings is not None else SessionSettings()
        self._effects = effects if effects is not None else Effects()
        self._holdings = FlowHoldings()
        self._checkpoint_writer = CheckpointWriter(
            checkpoints, self._holdings, self._settings, self._effects, start_of=start_of, milestones=milestones
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._key}, {self._flow!r})"

    @property
    def flow(self) -> str:
        """The flow's name."""
        return self._flow

    @property
    def mapping(self) -> Mapping[int, int]:
        return dict(self._holdings.mapping)

    def acknowledge(self, positions: Mapping[int, Position], origin: Origin | None = None) -> frozenset[int]:
        """Everything before these positions is dealt with; `origin` is the newest publish that was read then. Returns
        the partitions that this flow still has at that epoch; the others' messages come again elsewhere, and are not
        acknowledged (HAN-10).

        Written at once where the partition is paused, else at the checkpoint interval, by this call or a later one.
        Raises `Unavailable` where writing did: it is done again later.
        """
        still = self._holdings.acknowledge(positions, origin)
        self._write(everything=False)
        return still

    def flush(self) -> None:
        self._write(everything=True)

    def in_hand(self) -> Mapping[int, int]:
        return self._holdings.unacknowledged()

    @abstractmethod
    def _write(self, *, everything: bool) -> None:
        """Move the checkpoints for which it is time, or all of them. Nothing, where the flow is not bound."""
