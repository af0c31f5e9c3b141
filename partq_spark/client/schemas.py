"""The columns of a typed queue as programs give and see them: a DDL, a schema of Spark's or of Arrow's goes in, values
that say what the columns are and were come out. What columns a queue may have is decided in `log.schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partq_spark.base.errors import Invalid, WrongUse

if TYPE_CHECKING:
    from partq_spark.log.schema.columns import Columns


@dataclass(frozen=True, kw_only=True, slots=True)
class WidenedColumn:
    """A column that got a wider type; types in Spark's words."""

    column: str
    from_: str
    to: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaChange:
    """What came with a version of the columns: `added` ones as DDL, and those that were `widened`."""

    version: int
    added: tuple[str, ...]
    widened: tuple[WidenedColumn, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ColumnDescription:
    """One column. `type` is in Spark's words, `since` the first version that has it, `former` its types before this
    one, oldest first.
    """

    name: str
    type: str
    nullable: bool
    since: int
    former: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaDescription:
    """The columns of a typed queue. `ddl` are those of today, version `version`; `key` is the one that decides the
    partition, None: messages have no key. `changes` are those that led here, oldest first; version 1 is what the queue
    was created with.
    """

    ddl: str
    key: str | None
    version: int
    columns: tuple[ColumnDescription, ...]
    changes: tuple[SchemaChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaAlteration:
    """How a queue's columns changed, or would: the DDL before and after, and what came with each new version."""

    from_: str
    to: str
    changes: tuple[SchemaChange, ...]


def columns_from(schema: Any, key: str | None) -> Columns | None:
    """The columns that a user gives for a new queue: a DDL or the JSON of a `StructType` as text, a `StructType`, a
    `pyarrow.Schema`; None for an untyped queue. Raises `WrongUse` by place or column.
    """
    if schema is None:
        if key is not None:
            raise WrongUse(
                f"key={key!r} names a column, and there is no schema: give the schema too, or leave key out (a message "
                "of an untyped queue has a key of its own)"
            )
        return None
    from partq_spark.log.schema import versions

    try:
        return versions.columns_of(versions.schema_from(_known_form(schema)), key)
    except Invalid as error:
        raise WrongUse(str(error)) from error


def checked_ddl(text: str) -> str:
    """Columns as DDL, as partq writes it. Raises `Invalid` with the place of what does not parse."""
    from partq_spark.log.schema.ddl import ddl_of, parse_ddl

    return ddl_of(parse_ddl(text))


def schema_description(columns: Columns) -> SchemaDescription:
    """What a queue's head says of its columns."""
    return SchemaDescription(
        ddl=columns.ddl,
        key=columns.key,
        version=columns.version,
        columns=tuple(
            ColumnDescription(
                name=column.name,
                type=column.type,
                nullable=column.nullable,
                since=column.since,
                former=tuple(former.type for former in column.former),
            )
            for column in columns.columns
        ),
        changes=_changes(columns, since=1),
    )


def alteration(before: Columns, after: Columns) -> SchemaAlteration:
    """From one version of a queue's columns to a later one."""
    return SchemaAlteration(from_=before.ddl, to=after.ddl, changes=_changes(after, since=before.version))


def _changes(columns: Columns, *, since: int) -> tuple[SchemaChange, ...]:
    """What came with each version after `since`."""
    added: dict[int, list[str]] = {}
    widened: dict[int, list[WidenedColumn]] = {}
    for column in columns.columns:
        first = type(column)(name=column.name, type=column.type_at(column.since), nullable=column.nullable)
        added.setdefault(column.since, []).append(str(first))
        types = list(column.types())
        for former, wider in zip(column.former, types[1:], strict=True):
            change = WidenedColumn(column=column.name, from_=former.type, to=wider)
            widened.setdefault(former.until + 1, []).append(change)
    return tuple(
        SchemaChange(version=version, added=tuple(added.get(version, ())), widened=tuple(widened.get(version, ())))
        for version in range(since + 1, columns.version + 1)
    )


def _known_form(schema: Any) -> Any:
    """A text or an Arrow schema. A `StructType` is known by its `json`: pyspark is not imported."""
    import pyarrow as pa

    if isinstance(schema, str | pa.Schema):
        return schema
    to_json = getattr(schema, "json", None)
    text = to_json() if callable(to_json) else None
    if isinstance(text, str) and text.startswith("{"):
        return text
    raise Invalid(
        f"schema is of type {type(schema).__name__}: give a DDL such as 'id BIGINT NOT NULL, name STRING', a "
        "StructType or a pyarrow.Schema"
    )
