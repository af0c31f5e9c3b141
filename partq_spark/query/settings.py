"""What a streaming or batch query was asked for, as typed, frozen values: the options of the source, and the columns of
an untyped queue's reader. No pyspark, no Arrow.

Which options there are, and which of them contradict each other, is decided in `spark.options`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from partq_spark.base.errors import Invalid
from partq_spark.log.queue import QueueAddress

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
    def keep_offsets(self) -> bool:
        """Whether what is acknowledged is known for good: by checkpoints, or, without a group, by Spark's own."""
        return self.group is None or self.group.keep_offsets

    @property
    def manual_acks(self) -> bool:
        """Whether nothing counts but the application's word."""
        return self.group is not None and self.group.manual_acks


# --- columns ----------------------------------------------------------------------------------------------------------

# The columns that people see, as names and types in Spark's own words, and the checks of given ones.


HEADERS_TYPE = "array<struct<key:string,value:binary>>"

# The types in which each column of the source may be asked for, the first unless it is said.
SOURCE_TYPES: Mapping[str, tuple[str, ...]] = {
    "key": ("string",),
    "value": ("binary", "string"),
    "queue": ("string",),
    "partition": ("int",),
    "offset": ("bigint",),
    "timestamp": ("timestamp",),
    "redelivered": ("boolean",),
    "headers": (HEADERS_TYPE,),
}
# What they are called in segments (`log.segment`); the others are made where messages are read.
STORED: Mapping[str, str] = {"key": "key", "value": "value", "headers": "_headers", "timestamp": "_timestamp"}

# The columns of a source that a sink ignores, so that a plain copy from queue to queue works.
IGNORED = ("queue", "partition", "offset", "timestamp", "redelivered")


# --- the source -------------------------------------------------------------------------------------------------------


class SourceColumn(NamedTuple):
    """A column of messages that a reader gives: what it is called there, which of the source's it is, and Spark's word
    for the type that it has.
    """

    name: str
    source: str
    type: str


def ddl(columns: Sequence[SourceColumn]) -> str:
    """They as a DDL string."""
    return ", ".join(f"{column.name} {column.type}" for column in columns)


def default_source_columns(include_headers: bool) -> list[SourceColumn]:
    """The source's columns for readers that name none."""
    return named_source_columns([name for name in SOURCE_TYPES if include_headers or name != "headers"])


def wanted_source_columns(given: Sequence[tuple[str, str]]) -> list[SourceColumn]:
    """The columns that a reader's `.schema()` names, each with its type in Spark's words and with ` not null` behind
    any type that excludes null. Raises `Invalid` for the first that the source does not have so (spark-traps.md 16).
    """
    allowed = ", ".join(f"{name} {' or '.join(types)}" for name, types in SOURCE_TYPES.items())
    wanted: list[SourceColumn] = []
    for name, kind in given:
        source = _source_name(name)
        if source is None:
            raise Invalid(
                f"column {name!r} ({kind}) is no column of a partq source, which has {allowed}: name some of these in "
                ".schema(), or leave it out; what the messages hold is in value, for example for from_json(value, ...)"
            )
        for other in wanted:
            if other.source == source:
                raise Invalid(f"column {name!r} is named twice in .schema() (as {other.name!r} before): name it once")
        if kind not in SOURCE_TYPES[source]:
            types = " or ".join(SOURCE_TYPES[source])
            if kind.replace(" not null", "") in SOURCE_TYPES[source]:
                raise Invalid(
                    f"column {name!r} is NOT NULL in .schema() ({kind}), and null is allowed in the source's: make it "
                    f"{types}, without NOT NULL"
                )
            raise Invalid(
                f"column {name!r} has type {kind} in .schema(), a partq source has it as {types}: name it so, and cast "
                "it after .load()"
            )
        wanted.append(SourceColumn(name=name, source=source, type=kind))
    if not wanted:
        raise Invalid(f".schema() names no column: name some of {allowed}, or leave it out")
    return wanted


def named_source_columns(names: Sequence[str]) -> list[SourceColumn]:
    """The columns of these names, as `wanted_source_columns`. Raises `Invalid`."""
    sources = [_source_name(name) for name in names]
    known = [source for source in sources if source is not None]
    if not sources or len(set(known)) < len(sources):
        raise Invalid(f"columns={list(names)!r} is not allowed: give some of {', '.join(SOURCE_TYPES)}, once each")
    return wanted_source_columns([(name, SOURCE_TYPES[source][0]) for name, source in zip(names, known, strict=True)])


def _source_name(name: str) -> str | None:
    """The source's column that is meant: of exactly that name, else the only one but for the case of letters."""
    if name in SOURCE_TYPES:
        return name
    alike = [known for known in SOURCE_TYPES if known.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None
