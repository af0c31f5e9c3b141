"""Queues and groups through `import partq`: the same answers and errors as the command line gives (API-01), and what
cannot be created or altered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

import partq
from partq_spark.cli.commands import document
from tests.cli.conftest import Partq
from tests.client.conftest import Make, acknowledged


def filled(make: Make, messages: int = 20) -> partq.Queue:
    queue = make()
    with queue.publication() as publication:
        keys = [f"k{number % 5}" for number in range(messages)]
        publication.add(pa.table({"key": keys, "value": [str(number) for number in range(messages)]}))
        publication.commit()
    return queue


# --- the same answers -------------------------------------------------------------------------------------------------


def same(command: Partq, words: tuple[object, ...], answer: object) -> None:
    """What the command prints as JSON is the answer of the API."""
    found, expected = command.json(*words), json.loads(json.dumps(document(answer)))
    for each in [found, expected] if isinstance(found, dict) else [*found, *expected]:
        partitions = each.get("partitions")
        for part in [each, *(partitions if isinstance(partitions, list) else ())]:
            for moving in ("oldest_age_s", "changed_s", "lag_s"):
                part.pop(moving, None)
    assert found == expected


@pytest.mark.conformance("API-01")
def test_what_the_command_line_shows_the_api_gives(command: Partq, make: Make) -> None:
    queue = filled(make)
    acknowledged(queue, "billing", {0: 3, 1: 2})
    queue.subscribe("orders/>")
    group = ("--group", "billing")
    same(command, ("queue", "list"), partq.list_queues(store=command.url))
    same(command, ("queue", "describe", "orders", "--bytes"), queue.describe(count_bytes=True))
    same(command, ("group", "list", "orders"), queue.groups())
    same(command, ("status", "orders", *group), queue.status("billing"))
    same(command, ("checkpoints", "orders", *group), queue.checkpoints("billing"))
    same(command, ("queue", "subscriptions"), partq.list_subscriptions(store=command.url))
    rewind = queue.rewind("billing", to="earliest", dry_run=True)
    same(command, ("checkpoints", "rewind", "orders", *group, "--to", "earliest", "--dry-run"), rewind)
    same(command, ("queue", "alter", "orders", "--partitions", 4, "--dry-run"), queue.alter(partitions=4, dry_run=True))
    seen = [(each.partition, each.offset, each.key, each.value.decode()) for each in queue.browse()]
    assert seen == [
        (each["partition"], each["offset"], each["key"], each["value"]) for each in command.browse("orders")
    ]


# --- the same errors --------------------------------------------------------------------------------------------------


CASES: dict[str, Callable[[partq.Queue], Any]] = {
    "queue create orders --partitions 3": lambda q: partq.create_queue("orders", partitions=3, store=q.store),
    "queue describe other": lambda q: partq.open_queue("other", store=q.store),
    "status orders --group nobody": lambda q: q.status("nobody"),
    "checkpoints orders --group nobody": lambda q: q.checkpoints("nobody"),
    "checkpoints rewind orders --group billing --to 99 --yes": lambda q: q.rewind("billing", to=99),
    "group remove orders --group nobody --yes": lambda q: q.remove_group("nobody"),
    "group remove orders --group billing --yes": lambda q: q.remove_group("billing"),
    "browse orders --partition 9": lambda q: list(q.browse(partition=9)),
    "queue delete other --yes": lambda q: partq.Queue("other", store=q.store).delete(),
    "publish --topic a/b --fail-unattracted": lambda q: partq.topic_publication(
        "a/b", fail_unattracted=True, store=q.store
    ),
}


@pytest.mark.conformance("API-01")
@pytest.mark.parametrize("line", CASES)
def test_errors_are_the_same(command: Partq, make: Make, line: str) -> None:
    queue = filled(make)
    acknowledged(queue, "billing", {0: 3})
    with pytest.raises(partq.Invalid) as raised:
        CASES[line](queue)
    age = r"changed \d s ago"
    assert re.sub(age, "", command.error(*line.split())) == re.sub(age, "", str(raised.value))


# --- creating and altering --------------------------------------------------------------------------------------------

DDL = "id BIGINT NOT NULL, name STRING, count INT, tags ARRAY<STRING>"
STRUCT = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("name", StringType()),
        StructField("count", IntegerType()),
        StructField("tags", ArrayType(StringType())),
    ]
)
ARROW = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.large_string()),
        ("count", pa.int32()),
        ("tags", pa.large_list(pa.string_view())),
    ]
)


@pytest.mark.parametrize("schema", [DDL, STRUCT.json(), STRUCT, ARROW])
def test_a_schema_may_come_in_each_form(make: Make, schema: Any) -> None:
    queue = make(schema=schema, key="ID")
    found = queue.describe().schema
    assert found is not None
    assert (found.ddl, found.key, found.version) == (DDL, "id", 1)
    assert make(schema=schema, key="id", exist_ok=True) == queue
    assert queue.alter(schema=schema).schema == partq.SchemaAlteration(from_=DDL, to=DDL, added=(), widened=())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "id"}, "there is no schema: give the schema too"),
        ({"schema": DDL, "key": "nobody"}, "key column 'nobody' is none of the queue's: id, name, count, tags"),
        ({"schema": DDL, "key": "tags"}, r"key column 'tags' has type ARRAY<STRING>: a key may be STRING, TINYINT"),
        ({"schema": "a INT, b"}, "schema, at character 9: the end stands where a type was expected"),
        ({"schema": pa.schema([("a", pa.uint64())])}, "column 'a' has type uint64, which a queue does not keep"),
        ({"schema": IntegerType()}, "schema is of type IntegerType: give a DDL"),
        ({"schema": '{"type": "struct"}'}, "no JSON of a StructType"),
        # There is one already.
        ({"name": "plain", "partitions": 3}, "exists already"),
        ({"name": "plain", "partitions": 3, "exist_ok": True}, r"partitions=2, not 3; retention_s=60(\.0)?, not None"),
        (
            {"name": "plain", "schema": DDL, "exist_ok": True, "retention_s": 60},
            "exists already with other columns: .* cannot become typed",
        ),
        *(
            ({"name": "rows", "exist_ok": True, "partitions": 2, **given}, said)
            for given, said in (
                ({}, "exists already with other columns: .* cannot become untyped"),
                ({"schema": DDL}, "has key column id, not none"),
                ({"schema": f"{DDL}, more INT", "key": "id"}, "has no column 'more': add it with `partq queue alter"),
                ({"schema": "id BIGINT NOT NULL", "key": "id"}, "column 'name' of queue 'rows' cannot be dropped"),
                (
                    {"schema": DDL.replace("INT,", "BIGINT,"), "key": "id"},
                    "widen it with `partq queue alter rows --wid",
                ),
                ({"schema": DDL.replace(" NOT NULL", ""), "key": "id"}, "whether it may be null was said"),
            )
        ),
    ],
)
def test_what_no_queue_can_have_or_another_has_is_refused(make: Make, given: dict[str, Any], said: str) -> None:
    queues = (make("plain", retention_s=60), make("rows", schema=DDL, key="id"))
    assert make("plain", retention_s=60, exist_ok=True) == queues[0]
    before = [each.describe() for each in queues]
    with pytest.raises(partq.Invalid, match=said):
        make(**given)
    assert [each.describe() for each in queues] == before
    assert len(partq.list_queues(store=queues[0].store)) == 2


UNTYPED = "is untyped, its messages are key and value"


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"add_column": "coupon"}, "at character 7: the end stands where a type was expected"),
        ({"add_column": "coupon STRING NOT NULL"}, "cannot be added as NOT NULL"),
        ({"add_column": "NAME STRING"}, "column 'NAME' cannot be added: there is 'name' of type STRING"),
        ({"widen": "nobody BIGINT"}, "column 'nobody' cannot be widened: the queue has id, name"),
        ({"widen": "count SMALLINT"}, "column 'count' of type INT cannot become SMALLINT"),
        ({"widen": "name BINARY"}, "this type cannot be widened; add a column instead"),
        ({"schema": "id BIGINT NOT NULL, title STRING, count INT, tags ARRAY<STRING>"}, "dropped or get another name"),
        ({"schema": f"{DDL}, coupon STRING"}, r"has no column 'coupon': add it with .* --add-column 'coupon STRING'"),
        ({"key": "name"}, "alter has no argument 'key': give some of partitions"),
        ({}, "nothing to alter: give partitions, columns to add or to widen"),
        *(({option: "a INT"}, UNTYPED) for option in ("add_column", "widen", "schema")),
    ],
)
def test_what_could_lose_or_change_a_value_is_refused_in_words(make: Make, given: dict[str, Any], said: str) -> None:
    queue = make() if said == UNTYPED else make(schema=DDL, key="id")
    before = queue.describe()
    for dry_run in (True, False):
        with pytest.raises(partq.Invalid, match=said):
            queue.alter(dry_run=dry_run, **given)
    assert queue.describe() == before


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_begins_where_it_is_told(make: Make) -> None:
    queue = filled(make)
    ends = [each.next for each in queue.describe().partitions]
    soon = datetime.now(UTC) + timedelta(hours=1)
    for group, starting, expected in (
        ("a", "earliest", (0, 0)),
        ("b", "latest", tuple(ends)),
        ("c", {0: 1, 1: 2}, (1, 2)),
        ("d", soon, tuple(ends)),
        ("e", "2000-01-01T00:00:00Z", (0, 0)),
    ):
        queue.create_group(group, starting=starting)
        assert queue.describe().groups[group] == expected
    with pytest.raises(partq.Invalid, match="no time zone"):
        queue.create_group("f", starting=datetime(2026, 1, 1))  # noqa: DTZ001 - that is refused
