"""The options of the source as typed, frozen values: what a streaming or batch query was asked for. No pyspark.

Which options there are, and which of them contradict each other, is decided in `spark.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from partq_spark.log.connect import QueueAddress

QueueEdge = Literal["earliest", "latest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Boundary:
    """Where to begin or end: exactly one of the fields is set."""

    edge: QueueEdge | None = None
    offsets: Mapping[int, int] | None = None  # one per partition
    time_us: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupOptions:
    """How a stream takes part in a consumer group. Free of secrets: Redis' user and password are each process's own."""

    name: str
    ownership: str  # none, store, or a canonical Redis URL
    keep_offsets: bool  # False with checkpoints=none
    flow: str | None  # None: generated, and kept in the query's offsets
    checkpoint_interval_s: float | None  # None: the store's default
    session_timeout_s: float
    max_poll_interval_s: float | None
    manual_acks: bool = False  # ackMode=manual


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of a batch or stream source. `group` is None for a query that stands alone."""

    target: QueueAddress
    group: GroupOptions | None
    start: Boundary | None  # None: the role's default
    end: Boundary
    max_messages: int | None
    max_bytes: int | None
    max_delivered_unacked: int | None  # messages
    fail_on_data_loss: bool
    include_headers: bool
    poll_interval_s: float | None  # None: the store's default

    @property
    def is_shared(self) -> bool:
        """Whether others may take something over while a batch runs."""
        return self.group is not None and self.group.ownership != "none"

    @property
    def session_timeout_s(self) -> float:
        """How long silence is not taken for an end; 0: nobody listens."""
        return self.group.session_timeout_s if self.group is not None and self.is_shared else 0.0

    @property
    def keep_offsets(self) -> bool:
        """Whether what is acknowledged is known for good: by checkpoints, or, without a group, by Spark's own."""
        return self.group is None or self.group.keep_offsets

    @property
    def manual_acks(self) -> bool:
        """Whether nothing counts but the application's word."""
        return self.group is not None and self.group.manual_acks
