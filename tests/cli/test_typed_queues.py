"""`partq queue create --schema`, `describe` and `alter` of typed queues."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Partq

DDL = "id BIGINT NOT NULL, name STRING, count INT"


@pytest.fixture
def rows(partq: Partq) -> Partq:
    """A store with the typed queue `rows`."""
    partq("queue", "create", "rows", "--partitions", 2, "--schema", DDL, "--key", "id")
    return partq


def test_a_typed_queue_is_created_and_described(partq: Partq) -> None:
    said = partq("queue", "create", "rows", "--partitions", 2, "--schema", DDL, "--key", "ID").stdout
    assert said.endswith(" with 2 partitions and 3 columns; key 'id'.\n")
    said = partq("queue", "create", "other", "--partitions", 1, "--schema", "a INT").stdout
    assert said.endswith(" with 1 partition and 1 column; messages have no key.\n")
    shown = partq("queue", "describe", "rows").stdout
    assert "columns           3, version 1\nkey               id\n" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["id", "BIGINT", "NOT", "NULL"] in lines
    assert ["count", "INT"] in lines
    assert "key               none: messages go to random partitions" in partq("queue", "describe", "other").stdout
    described = partq.json("queue", "describe", "rows")["schema"]
    assert (described["ddl"], described["key"], described["version"], described["changes"]) == (DDL, "id", 1, [])
    assert described["columns"][0] == {"name": "id", "type": "BIGINT", "nullable": False, "since": 1, "former": []}
    partq("queue", "create", "plain", "--partitions", 1)
    assert partq.json("queue", "describe", "plain")["schema"] is None
    assert "columns" not in partq("queue", "describe", "plain").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--schema", "a INT, b"), "schema, at character 9: the end stands where a type was expected"),
        (("--schema", "a VARIANT"), "type 'VARIANT' is none that a queue keeps"),
        (("--schema", "a INT", "--key", "b"), "key column 'b' is none of the queue's: a"),
        (("--schema", "a ARRAY<INT>", "--key", "a"), "key column 'a' has type ARRAY<INT>: a key may be STRING"),
        (("--schema", "_a INT"), "begins with '_'"),
        (("--schema", "a INT, A STRING"), "differ in case alone"),
        (("--schema", ", ".join(f"c{n} INT" for n in range(2000))), "schema has 2000 columns, 1 to 1000 are possible"),
        (("--key", "a"), "there is no schema: give the schema too"),
    ],
)
def test_a_schema_that_no_queue_can_have_is_wrong_use(partq: Partq, arguments: tuple[str, ...], said: str) -> None:
    assert said in partq.misuse("queue", "create", "rows", "--partitions", 1, *arguments)
    assert partq.json("queue", "list") == []


def test_columns_are_added_and_widened(rows: Partq) -> None:
    change = ("--add-column", "coupon STRING -- of today", "--add-column", "`a b` INT", "--widen", "count BIGINT")
    planned = rows("queue", "alter", "rows", *change, "--dry-run").stdout.splitlines()
    assert planned[:3] == [
        "new column: coupon STRING, null in the messages that are there",
        "new column: `a b` INT, null in the messages that are there",
        "column count: INT → BIGINT",
    ]
    assert planned[-1] == "Nothing was changed."
    assert rows.json("queue", "describe", "rows")["schema"]["version"] == 1
    wanted = rows.json("queue", "alter", "rows", *change, "--dry-run")["schema"]
    done = rows("queue", "alter", "rows", *change, "--retention", 60).stdout.splitlines()
    assert done[0] == "retention: none → 60.0"
    assert done[1:4] == planned[:3]
    assert "must pin its columns with .schema() before it is started again, or Spark refuses its checkpoint" in done[4]
    assert "A streaming query that keeps whole rows or a widened column in Spark's state" in done[4]
    assert done[4].endswith("to which _metadata belongs if the query keeps it:")
    assert done[5] == f'  .schema("{DDL}")'
    found = rows.json("queue", "describe", "rows")["schema"]
    assert (
        found["ddl"]
        == wanted["to"]
        == f"{DDL.replace('INT', 'BIGINT').replace('BIGBIG', 'BIG')}, coupon STRING, `a b` INT"
    )
    assert found["changes"] == wanted["changes"]
    assert found["changes"][1] == {
        "version": 3,
        "added": [],
        "widened": [{"column": "count", "from": "INT", "to": "BIGINT"}],
    }
    shown = [line.split() for line in rows("queue", "describe", "rows").stdout.splitlines()]
    assert ["columns", "5,", "version", "3"] in shown
    assert ["count", "BIGINT", "1", "INT"] in shown
    assert ["coupon", "STRING", "2"] in shown


def test_the_columns_that_are_there_are_no_change(rows: Partq) -> None:
    assert rows("queue", "alter", "rows", "--schema", DDL.lower()).stdout == "schema: as it was\n"


@pytest.mark.conformance("TYP-06")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--add-column", "coupon"), 2, "at character 7: the end stands where a type was expected"),
        (("--widen", "count BIGINT,"), 2, "at character 14: the end stands where a column's name was expected"),
        (("--schema", "id"), 2, "at character 3: the end stands where a type was expected"),
        (("--add-column", "name INT"), 1, "column 'name' cannot be added: there is 'name' of type STRING"),
        (("--add-column", "x INT NOT NULL"), 1, "cannot be added as NOT NULL"),
        (("--add-column", "x INT", "--add-column", "X INT"), 1, "'x' and 'X' differ in case alone"),
        (("--widen", "count STRING"), 1, "column 'count' of type INT cannot become STRING"),
        (("--widen", "nobody BIGINT"), 1, "column 'nobody' cannot be widened: the queue has id, name, count"),
        (("--schema", "id BIGINT NOT NULL, name STRING"), 1, "column 'count' of queue 'rows' cannot be dropped or get"),
        (("--schema", DDL.replace("name", "title")), 1, "column 'name' of queue 'rows' cannot be dropped or get"),
        (("--schema", f"{DDL}, coupon STRING"), 1, "add it with `partq queue alter rows --add-column 'coupon STRING'`"),
        (("--schema", DDL.replace(" INT", " BIGINT")), 1, "`partq queue alter rows --widen 'count BIGINT'`"),
    ],
)
def test_what_could_lose_or_change_a_value_is_refused(
    rows: Partq, arguments: tuple[str, ...], code: int, said: str
) -> None:
    before = rows.json("queue", "describe", "rows")
    for dry_run in ((), ("--dry-run",)):
        ask = rows.error if code == 1 else rows.misuse
        assert said in ask("queue", "alter", "rows", *arguments, *dry_run)
    assert rows.json("queue", "describe", "rows") == before


@pytest.mark.conformance("TYP-06")
def test_an_untyped_queue_cannot_become_typed_and_a_key_stays(rows: Partq) -> None:
    rows("queue", "create", "plain", "--partitions", 1)
    for arguments in (("--schema", DDL), ("--add-column", "a INT"), ("--widen", "a INT")):
        assert "queue 'plain' is untyped, its messages are key and value" in rows.error(
            "queue", "alter", "plain", *arguments
        )
    assert "No such option" in rows.misuse("queue", "alter", "rows", "--key", "name")


def test_a_table_of_many_columns_is_cut(partq: Partq) -> None:
    ddl = ", ".join(f"c{number} INT" for number in range(1000))
    partq("queue", "create", "wide", "--partitions", 1, "--schema", ddl)
    assert "… and 936 more columns: --json shows all" in partq("queue", "describe", "wide").stdout
