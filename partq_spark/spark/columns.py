"""What Spark says of columns, in partq's words, and back: a StructType as names and types, or as columns of Arrow;
which columns a reader gives, and what the rows are that Spark gives to a sink.

A sink gets messages of key and value, or rows for typed queues. The destinations say which, before any task runs, and
what does not fit is refused then; tasks bring each batch to what staging takes (`SinkColumns`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, NullType, StructField, StructType

from partq_spark.base.errors import Invalid
from partq_spark.query.settings import HEADERS_TYPE, IGNORED, MESSAGES, STORED, default_ddl

if TYPE_CHECKING:
    import pyarrow as pa

    from partq_spark.log.destinations import FanPlan, Stage
    from partq_spark.log.model import Head
    from partq_spark.log.schema.columns import Columns
    from partq_spark.query.columns import WantedColumns

TOPIC: Final = "topic"
TYPED_TOPIC: Final = "_topic"
TYPED_HEADERS: Final = STORED["headers"]
TYPED_IGNORED: Final = "_metadata"  # the source's, so that a plain copy works

SINK_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "value": ("string", "binary"),
    "key": ("string", "binary"),
    "headers": (HEADERS_TYPE,),
    "topic": ("string",),
}
"""What a sink takes of messages, and as what."""

TYPED_OWN: Final = {TYPED_TOPIC: SINK_TYPES["topic"], TYPED_HEADERS: SINK_TYPES["headers"]}
"""What it takes beside the columns of rows."""

# --- names and types --------------------------------------------------------------------------------------------------


def column_types(schema: StructType) -> list[tuple[str, str]]:
    """The columns in order, name and Spark's simple type string."""
    return [(column.name, column.dataType.simpleString()) for column in schema.fields]


# --- columns of Arrow -------------------------------------------------------------------------------------------------


def keeps(kind: DataType, *, or_void: bool = False) -> bool:
    """Whether a typed queue may have a column of this type; `or_void`: or VOID in its place, or in it. What is not kept
    Arrow may still have: a variant would look like a struct, and a collation would be forgotten.
    """
    from partq_spark.log.schema.types import SIMPLE_TYPES

    if isinstance(kind, ArrayType):
        return keeps(kind.elementType, or_void=or_void)
    if isinstance(kind, MapType):
        return keeps(kind.keyType) and keeps(kind.valueType, or_void=or_void)
    if isinstance(kind, StructType):
        return all(keeps(field.dataType, or_void=or_void) for field in kind.fields)
    if isinstance(kind, NullType):
        return or_void
    return isinstance(kind, DecimalType) or kind.simpleString().upper() in SIMPLE_TYPES


def arrow_schema_of(schema: StructType) -> pa.Schema:
    """The columns as Spark wants a source's batches to have them (spark-traps.md 11). For types that are kept."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def default_schema(columns: Columns | None, include_headers: bool) -> StructType | str:
    """The columns of a reader that names none. Those of a typed queue as a StructType, since a DDL would have to be
    quoted as the session's settings want it.
    """
    if columns is None:
        return default_ddl(include_headers)
    from pyspark.sql.pandas.types import from_arrow_schema

    from partq_spark.query.columns import default_columns

    return from_arrow_schema(default_columns(columns, include_headers).schema)


def wanted_by(head: Head, schema: StructType) -> WantedColumns:
    """What a reader gives, of the queue with this head, whose `.load()` or `.schema()` said `schema`. Raises `Invalid`
    for the first column that the queue does not have so.
    """
    from partq_spark.query.columns import wanted_columns

    try:
        for field in schema.fields:
            if not keeps(field.dataType):
                known = (MESSAGES if head.columns is None else head.columns).column(field.name)
                is_ = f"it is {known.type}" if known is not None else "which no queue has"
                raise Invalid(
                    f"column {field.name!r} is asked for as {field.dataType.simpleString()}, {is_}: ask for what the "
                    "queue has, and cast it in the query"
                )
        return wanted_columns(head.columns, arrow_schema_of(schema))
    except Invalid as error:
        kind = "untyped" if head.columns is None else "typed"
        raise Invalid(f"queue {head.queue!r} is {kind}: {error}") from None


# --- what a sink gets -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class SinkColumns:
    """What of Spark's columns a task stages, by their places: those that are `given` of rows for typed queues; or
    (None) the key, which may be missing, and the value of messages. And where headers and topics stand, if anywhere.
    """

    given: pa.Schema | None
    places: tuple[int | None, ...]
    headers_at: int | None
    topic_at: int | None

    @property
    def headers(self) -> bool:
        """Whether there is such a column."""
        return self.headers_at is not None

    def taken(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns as staging takes them, the headers behind them; nothing is copied where types agree. What queues
        do not take is seen where rows are staged.
        """
        import pyarrow as pa

        from partq_spark.log.segment import HEADERS, segment_schema

        headers = [] if self.headers_at is None else [batch.column(self.headers_at).cast(HEADERS)]
        if self.given is not None:
            columns = [batch.column(place) for place in self.places]
            names = [*self.given.names, *([TYPED_HEADERS] if headers else [])]
            return pa.RecordBatch.from_arrays([*columns, *headers], names=names)
        columns = self._key_and_value(batch)
        return pa.RecordBatch.from_arrays([*columns, *headers], schema=segment_schema(headers=self.headers))

    def topics(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The column of topics; None if there is none."""
        return None if self.topic_at is None else batch.column(self.topic_at)

    def _key_and_value(self, batch: pa.RecordBatch) -> list[pa.Array]:
        import pyarrow as pa

        key_at, value_at = self.places
        key = pa.nulls(batch.num_rows, pa.string()) if key_at is None else batch.column(key_at)
        return [key.cast(pa.binary()).view(pa.string()), batch.column(value_at).cast(pa.binary())]


def sink_columns(plan: FanPlan, schema: StructType) -> SinkColumns:
    """What rows with the columns `schema` are to the destinations of `plan`. Raises `Invalid` for the first column that
    none of them can take.
    """
    if _are_rows(plan, schema):
        columns = _row_columns(plan, schema)
    else:
        try:
            check_sink_columns(column_types(schema))
        except Invalid as error:
            if plan.by_topic and _typed_stage(plan) is not None:
                raise Invalid(f"{error}; the topics of rows for typed queues are in a column {TYPED_TOPIC}") from None
            raise
        columns = message_columns(schema.fieldNames())
    plan.check(columns.given)
    return columns


def check_sink_columns(columns: Sequence[tuple[str, str]]) -> None:
    """`columns` are name and Spark's simple type string, in order. Raises `Invalid` naming the first column that a sink
    cannot take.
    """
    allowed = ", ".join(f"{name} ({' or '.join(kinds)})" for name, kinds in SINK_TYPES.items())
    names = [name for name, _ in columns]
    for name, kind in columns:
        if name not in SINK_TYPES and name not in IGNORED:
            raise Invalid(
                f"column {name!r} ({kind}) is no column of a partq sink: it takes {allowed}; put payload columns into "
                "value, for example with to_json(struct(...))"
            )
        _check_taken(name, kind, names, SINK_TYPES.get(name))
    if "value" not in names:
        raise Invalid(f"column 'value' is missing (found: {', '.join(names) or 'none'}): a partq sink takes {allowed}")


def _check_taken(name: str, kind: str, names: Sequence[str], kinds: Sequence[str] | None) -> None:
    """It is one of `names` once, and of one of these types; None: its type does not matter."""
    if names.count(name) > 1:
        raise Invalid(f"column {name!r} is there {names.count(name)} times: select it once")
    if kinds is not None and kind not in kinds:
        raise Invalid(f"column {name!r} has type {kind}, a partq sink takes {' or '.join(kinds)}: cast it")


def message_columns(names: Sequence[str]) -> SinkColumns:
    """Of messages whose columns have these names, in Spark's order."""
    at = {name: place for place, name in enumerate(names)}
    places = (at.get("key"), at["value"])
    return SinkColumns(given=None, places=places, headers_at=at.get("headers"), topic_at=at.get(TOPIC))


def _are_rows(plan: FanPlan, schema: StructType) -> bool:
    """A guard: for typed queues. Rows that nobody attracts are whatever they can be."""
    names = schema.fieldNames()
    if plan.by_topic:
        return TYPED_TOPIC in names and (_typed_stage(plan) is not None or not plan.destinations)
    if plan.destinations:
        return plan.destinations[0].columns is not None
    try:
        check_sink_columns(column_types(schema))
    except Invalid:
        return True
    return False


def _typed_stage(plan: FanPlan) -> Stage | None:
    """That of the first destination that has columns."""
    return next((each for each in plan.destinations if each.columns is not None), None)


def _row_columns(plan: FanPlan, schema: StructType) -> SinkColumns:
    from partq_spark.log.schema.columns import shown_names

    own: dict[str, int] = {}
    payload: list[StructField] = []
    places: list[int] = []
    for index, field in enumerate(schema.fields):
        if field.name in TYPED_OWN:
            _check_taken(field.name, field.dataType.simpleString(), schema.fieldNames(), TYPED_OWN[field.name])
            own[field.name] = index
        elif field.name != TYPED_IGNORED:
            if not keeps(field.dataType, or_void=True):
                _refuse_type(plan, field)
                continue
            payload.append(field)
            places.append(index)
    stage = _typed_stage(plan)
    if not payload and stage is not None and stage.columns is not None:
        raise Invalid(
            f"the rows have no column for queue {stage.queue!r}: give some of {shown_names(stage.columns.names)}"
        )
    return SinkColumns(
        given=arrow_schema_of(StructType(payload)),
        places=tuple(places),
        headers_at=own.get(TYPED_HEADERS),
        topic_at=own.get(TYPED_TOPIC),
    )


def _refuse_type(plan: FanPlan, field: StructField) -> None:
    """A column of a type that no queue keeps; where nobody attracts the rows, nobody cares."""
    stage = _typed_stage(plan)
    if stage is None or stage.columns is None:
        return
    from partq_spark.log.schema.columns import shown_names

    kind, known = field.dataType.simpleString(), stage.columns.column(field.name)
    about = f"queue {stage.queue!r} cannot take these rows: column {field.name!r}"
    if known is None:
        raise Invalid(f"{about} ({kind}) is none of the queue's ({shown_names(stage.columns.names)}): leave it out")
    raise Invalid(f"{about} has type {kind}, the queue's is {known.type}: cast or convert it")
