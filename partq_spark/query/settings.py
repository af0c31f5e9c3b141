"""What a streaming or batch query was asked for, as typed, frozen values: the options of the source, and the columns of
an untyped queue's reader. No pyspark, no Arrow.

Which options there are, and which of them contradict each other, is decided in `spark.options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from partq_spark.log.queue import QueueAddress
from partq_spark.log.schema.columns import Column, Columns, FormerType

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
    keep_offsets: bool = True  # False with checkpoints=none
    flow: str | None = None  # None: generated, and kept in the query's offsets
    checkpoint_interval_s: float | None = None  # None: the store's default
    session_timeout_s: float
    max_poll_interval_s: float | None
    manual_acks: bool = False  # ackMode=manual


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceOptions:
    """The options of a batch or stream source. `group` is None for a query that stands alone."""

    target: QueueAddress
    group: GroupOptions | None
    start: Boundary | None  # None: the role's default
    end: Boundary = Boundary(edge="latest")
    max_messages: int | None
    max_bytes: int | None
    max_delivered_unacked: int | None  # messages
    fail_on_data_loss: bool = True
    include_headers: bool
    poll_interval_s: float | None = None  # None: the store's default

    @property
    def is_shared(self) -> bool:
        """Whether others may take something over while a batch runs."""
        return self.group is not None and self.group.ownership != "none"

    @property
    def session_timeout_s(self) -> float:
        """How long silence is not taken for an end; 0: nobody listens."""
        return self.group.session_timeout_s if self.group is not None and self.is_shared else 0.0

    @property
    def manual_acks(self) -> bool:
        """Whether nothing counts but the application's word."""
        return self.group is not None and self.group.manual_acks


# --- columns ----------------------------------------------------------------------------------------------------------

MESSAGES: Final = Columns(
    columns=(
        Column(name="key", type="STRING"),
        Column(name="value", type="BINARY", former=(FormerType("STRING", 1),)),
        Column(name="queue", type="STRING"),
        Column(name="partition", type="INT"),
        Column(name="offset", type="BIGINT"),
        Column(name="timestamp", type="TIMESTAMP"),
        Column(name="redelivered", type="BOOLEAN"),
        Column(name="headers", type="ARRAY<STRUCT<key: STRING, value: BINARY>>"),
    ),
    version=2,
)
"""The columns of an untyped queue's reader, as those of a typed queue are kept: a value may be asked for as text, too,
as if that had been its type before.
"""

HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"
"""That of `headers`, as Spark says it."""

STORED: Mapping[str, str] = {"key": "key", "value": "value", "headers": "_headers", "timestamp": "_timestamp"}
"""What they are called in segments (`log.segment`); the others are made where messages are read."""

IGNORED = ("queue", "partition", "offset", "timestamp", "redelivered")
"""The columns of a source that a sink ignores, so that a plain copy from queue to queue works."""


def default_names(include_headers: bool) -> tuple[str, ...]:
    """Those that a reader gets that names none."""
    return tuple(name for name in MESSAGES.names if include_headers or name != "headers")


def default_ddl(include_headers: bool) -> str:
    """They as a DDL, for which nobody needs Arrow."""
    return ", ".join(str(MESSAGES.column(name)) for name in default_names(include_headers))
