"""What the rows are that Spark gives to a sink: messages of key and value, or rows for typed queues. The destinations
say which, before any task runs, and what does not fit is refused then; tasks bring each batch to what staging takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from partq_spark.base.errors import Invalid
from partq_spark.log.destinations import FanPlan
from partq_spark.log.schema.columns import shown_names
from partq_spark.log.segment import check_values
from partq_spark.log.segment_columns import HEADERS, headers_name, segment_schema
from partq_spark.query.settings import HEADERS_TYPE, check_sink_columns
from partq_spark.spark.columns import arrow_schema_of, column_types, keeps

if TYPE_CHECKING:
    from partq_spark.log.staged import Stage

TOPIC: Final = "topic"
TYPED_TOPIC: Final = "_topic"
TYPED_HEADERS: Final = headers_name(typed=True)
TYPED_IGNORED: Final = "_metadata"  # the source's, so that a plain copy works


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageColumns:
    """Of messages of key and value: the names of all columns, in Spark's order."""

    names: tuple[str, ...]

    @property
    def given(self) -> None:
        """The columns of rows, which these are not."""
        return None

    @property
    def headers(self) -> bool:
        """Whether there is such a column."""
        return "headers" in self.names

    def taken(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Raises as `normalised` does."""
        return normalised(batch, self.names, self.headers, first_row)

    def topics(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The column of topics; None if there is none."""
        return topics_of(batch, self.names)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowColumns:
    """Of rows for typed queues: the columns `given`, and where they, `_headers` and `_topic` stand in Spark's order."""

    given: pa.Schema
    places: tuple[int, ...]
    headers_at: int | None
    topic_at: int | None

    @property
    def headers(self) -> bool:
        """Whether there is such a column."""
        return self.headers_at is not None

    def taken(self, batch: pa.RecordBatch, _first_row: int) -> pa.RecordBatch:
        """The columns that are given, as Spark has them, and the headers behind them; staging looks at the values."""
        columns = [batch.column(place) for place in self.places]
        names = self.given.names
        if self.headers_at is not None:
            columns.append(batch.column(self.headers_at).cast(HEADERS))
            names = [*names, TYPED_HEADERS]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def topics(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The column of topics; None if there is none."""
        return None if self.topic_at is None else batch.column(self.topic_at)


SinkColumns = MessageColumns | RowColumns


def sink_columns(plan: FanPlan, schema: StructType) -> SinkColumns:
    """What rows with the columns `schema` are to the destinations of `plan`. Raises `Invalid` for the first column that
    none of them can take.
    """
    if not _are_rows(plan, schema):
        try:
            check_sink_columns(column_types(schema))
        except Invalid as error:
            if plan.by_topic and _typed_stage(plan) is not None:
                raise Invalid(f"{error}; the topics of rows for typed queues are in a column {TYPED_TOPIC}") from None
            raise
        plan.check(None)
        return MessageColumns(names=tuple(schema.fieldNames()))
    columns = _row_columns(plan, schema)
    plan.check(columns.given)
    return columns


def _are_rows(plan: FanPlan, schema: StructType) -> bool:
    """A guard: for typed queues. Rows that nobody attracts are whatever they can be."""
    names = schema.fieldNames()
    if plan.by_topic:
        return TYPED_TOPIC in names and (_typed_stage(plan) is not None or not plan.destinations)
    if plan.destinations:
        return plan.destinations[0].stage.columns is not None
    try:
        check_sink_columns(column_types(schema))
    except Invalid:
        return True
    return False


def _typed_stage(plan: FanPlan) -> Stage | None:
    """That of the first destination that has columns."""
    return next((each.stage for each in plan.destinations if each.stage.columns is not None), None)


def _row_columns(plan: FanPlan, schema: StructType) -> RowColumns:
    own: dict[str, int] = {}
    payload: list[StructField] = []
    places: list[int] = []
    for index, field in enumerate(schema.fields):
        if field.name in (TYPED_TOPIC, TYPED_HEADERS):
            _check_own(field, own)
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
    return RowColumns(
        given=arrow_schema_of(StructType(payload)),
        places=tuple(places),
        headers_at=own.get(TYPED_HEADERS),
        topic_at=own.get(TYPED_TOPIC),
    )


def _check_own(field: StructField, known: dict[str, int]) -> None:
    wanted = "string" if field.name == TYPED_TOPIC else HEADERS_TYPE
    if field.name in known:
        raise Invalid(f"column {field.name!r} is there twice: select it once")
    if field.dataType.simpleString() != wanted:
        raise Invalid(
            f"column {field.name!r} has type {field.dataType.simpleString()}, a partq sink takes {wanted}: cast it"
        )


def _refuse_type(plan: FanPlan, field: StructField) -> None:
    """A column of a type that no queue keeps; where nobody attracts the rows, nobody cares."""
    stage = _typed_stage(plan)
    if stage is None or stage.columns is None:
        return
    kind, known = field.dataType.simpleString(), stage.columns.column(field.name)
    about = f"queue {stage.queue!r} cannot take these rows: column {field.name!r}"
    if known is None:
        raise Invalid(f"{about} ({kind}) is none of the queue's ({shown_names(stage.columns.names)}): leave it out")
    raise Invalid(f"{about} has type {kind}, the queue's is {known.type}: cast or convert it")


# --- messages of key and value ----------------------------------------------------------------------------------------


def normalised(batch: pa.RecordBatch, columns: Sequence[str], headers: bool, first_row: int) -> pa.RecordBatch:
    """`batch`, whose columns are named `columns` in this order, as a segment's columns; nothing is copied where types
    agree.

    Raises `Invalid` for a binary key that is not UTF-8, and for a value that is null; whether texts are UTF-8 is seen
    where they are staged. `first_row` is the number of the batch's first row in its task.
    """
    position = {name: index for index, name in enumerate(columns)}
    value = batch.column(position["value"]).cast(pa.binary())
    key = batch.column(position["key"]) if "key" in position else pa.nulls(batch.num_rows, pa.string())
    try:
        key = key.cast(pa.string())
    except pa.ArrowInvalid:
        row = next(index for index, raw in enumerate(key.to_pylist()) if not _is_utf8(raw))
        raise Invalid(
            f"the key of row {first_row + row} is not valid UTF-8 ({key[row].as_py()[:40]!r}): encode it, for example "
            "with hex()"
        ) from None
    arrays = [key, value]
    if headers:
        arrays.append(batch.column(position["headers"]).cast(HEADERS))
    check_values(value, first_row)
    return pa.RecordBatch.from_arrays(arrays, schema=segment_schema(headers))


def topics_of(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Array | None:
    """The column `topic` of `batch`, whose columns are named `columns` in this order; None if there is none."""
    return batch.column(columns.index(TOPIC)) if TOPIC in columns else None


def _is_utf8(raw: bytes | None) -> bool:
    try:
        (raw or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
