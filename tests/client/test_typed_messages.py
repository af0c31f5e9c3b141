"""Rows go into a typed queue and come out as they were: one by one and as tables, by reading, browsing, consuming."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import partq
from partq_spark.log import fanout
from partq_spark.log.partitioner import partition_of
from tests.client.conftest import Make
from tests.log.schema.shapes import batches, same
from tests.support.properties import examples

DDL = "id BIGINT NOT NULL, name STRING, total DECIMAL(7,2), tags ARRAY<STRING>"
ROWS: list[dict[str, Any]] = [
    {"id": number, "name": f"n{number}", "total": Decimal(number), "tags": ["a"] * (number % 3)} for number in range(20)
]


def payload(queue: partq.Queue, **between: Any) -> pa.Table:
    """All rows, without `_metadata`."""
    return pa.table(queue.read(**between)).drop_columns(["_metadata"])


def by_place(queue: partq.Queue) -> dict[object, Any]:
    return {(each.partition, each.offset): each.value for each in queue.browse()}


def as_arrow(kind: pa.DataType, value: Any) -> Any:
    """A value of a message as pyarrow would give it: a MAP as a list of pairs."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(as_arrow(kind.key_type, key), as_arrow(kind.item_type, item)) for key, item in pairs]
    if pa.types.is_list(kind):
        return [as_arrow(kind.value_type, each) for each in value]
    if pa.types.is_struct(kind):
        return {field.name: as_arrow(field.type, value[field.name]) for field in kind}
    return value


def rows_as_arrow(schema: pa.Schema, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{field.name: as_arrow(field.type, row[field.name]) for field in schema} for row in rows]


# --- there and back ---------------------------------------------------------------------------------------------------


@pytest.mark.conformance("TYP-02")
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), as_table=st.booleans())
def test_any_row_of_any_columns_comes_back_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, batch: pa.RecordBatch, as_table: bool
) -> None:
    store = f"file://{tmp_path_factory.mktemp('store')}"
    queue = partq.create_queue("orders", partitions=1, store=store, schema=batch.schema)
    wanted = batch.to_pylist()
    with queue.publisher() as publisher:
        if as_table:
            publisher.send_table(batch)
        else:
            for row in wanted:
                publisher.send(row)
    table = payload(queue)
    assert table.schema.equals(batch.schema)
    assert same(table.to_pylist(), wanted)
    seen = list(queue.browse())
    assert same(rows_as_arrow(batch.schema, [each.value for each in seen]), wanted)
    assert [each.key for each in seen] == [None] * len(wanted)
    with queue.consumer("billing", starting="earliest") as consumer:
        mine = consumer.poll(5) if wanted else None
        if mine is not None:
            assert same(list(mine), seen)
            assert same(pa.table(mine).drop_columns(["_metadata"]).to_pylist(), wanted)
    # and what was given can be sent again
    with queue.publisher() as publisher:
        for message in seen:
            publisher.send(message.value)
    assert same(payload(queue).to_pylist(), wanted * 2)


@pytest.mark.conformance("TYP-03")
@pytest.mark.parametrize(
    ("kind", "values", "texts"),
    [
        ("STRING", ["a", "é", ""], ["a", "é", ""]),
        ("TINYINT", [-128, 127], ["-128", "127"]),
        ("SMALLINT", [-1], ["-1"]),
        ("INT", [0, 2**31 - 1], ["0", "2147483647"]),
        ("BIGINT", [-(2**63)], ["-9223372036854775808"]),
        ("BOOLEAN", [True, False], ["true", "false"]),
        ("DATE", [date(1, 1, 1), date(2020, 2, 29)], ["0001-01-01", "2020-02-29"]),
        ("BINARY", [b"a", "é".encode()], ["a", "é"]),
    ],
)
def test_a_messages_key_is_the_text_of_the_key_column(
    make: Make, kind: str, values: list[Any], texts: list[str]
) -> None:
    queue = make(partitions=5, schema=f"v INT, k {kind}", key="k")
    with queue.publisher() as publisher:
        places = [publisher.send({"v": 1, "k": value}) for value in values]
        publisher.send({"v": 2})
    found: dict[object, str | None] = {(each.partition, each.offset): each.key for each in queue.browse()}
    assert [found[place.result()] for place in places] == texts
    assert [place.result().partition for place in places] == [partition_of(text.encode(), 5) for text in texts]
    assert sorted(map(str, found.values())) == sorted([*texts, "None"])


def test_a_message_has_all_that_is_known_of_it(make: Make) -> None:
    queue = make(partitions=1, schema=DDL, key="id")
    with queue.publisher() as publisher:
        publisher.send(ROWS[3], headers={"trace": b"7f3a", "empty": None})
        publisher.send({"id": 5})
    first, second = queue.browse()
    assert (first.key, first.value, first.queue, first.partition, first.offset) == ("3", ROWS[3], "orders", 0, 0)
    assert first.headers == (("trace", b"7f3a"), ("empty", None))
    assert (datetime.now(UTC) - first.timestamp).total_seconds() < 60
    assert second.value == {"id": 5, "name": None, "total": None, "tags": None}
    assert second.headers is None


def test_maps_are_dicts_where_a_dict_can_be_them(make: Make) -> None:
    queue = make(
        partitions=1, schema="m MAP<STRING, MAP<INT, DATE>>, f MAP<DOUBLE, INT>, l ARRAY<STRUCT<m: MAP<INT, INT>>>"
    )
    row = {
        "m": {"x": {1: date(2020, 1, 1)}, "y": None},
        "f": [(0.0, 1), (-0.0, 2)],
        "l": [{"m": {1: 2}}, None, {"m": None}],
    }
    with queue.publisher() as publisher:
        publisher.send(row)
    (message,) = queue.browse()
    assert message.value == row
    assert list(map(repr, message.value["f"])) == ["(0.0, 1)", "(-0.0, 2)"]


# --- a publisher ------------------------------------------------------------------------------------------------------


def test_a_future_says_where_the_row_lies(make: Make) -> None:
    queue = make(partitions=3, schema=DDL, key="id")
    with queue.publisher() as publisher:
        places = [publisher.send(row).result() for row in ROWS[:3]]
        later = [publisher.send(row) for row in ROWS[3:]]
    found = by_place(queue)
    assert [found[place] for place in [*places, *(each.result() for each in later)]] == ROWS


def test_a_row_is_found_where_it_lies_after_the_number_of_partitions_has_changed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = make(partitions=3, schema=f"{DDL}, x FLOAT", key="id")
    publish_all = fanout.publish_all

    def after_resizing(*arguments: Any, **more: Any) -> Any:
        queue.alter(partitions=5, add_column="later STRING")
        return publish_all(*arguments, **more)

    monkeypatch.setattr(fanout, "publish_all", after_resizing)
    rows = [{**row, "x": 0.1} for row in ROWS]
    with queue.publisher(linger_s=1) as publisher:
        places = [publisher.send(row, headers={"n": str(row["id"]).encode()}) for row in [*rows, rows[0]]]
    found = by_place(queue)
    assert len(found) == 21
    kept = [{**row, "x": 0.10000000149011612, "later": None} for row in [*rows, rows[0]]]
    assert [found[place.result()] for place in places] == kept
    assert places[0].result() < places[-1].result()


@pytest.mark.parametrize(
    ("value", "more", "said"),
    [
        ({"id": "x"}, {}, r"does not take this row: column 'id': 'x' \(str\) is no BIGINT"),
        ({"name": "x"}, {}, "column 'id': missing"),
        ({"id": 1, "colour": 1}, {}, "column 'colour': there is no such column"),
        (b"text", {}, r"is typed, a message is a mapping of its columns \(id BIGINT NOT NULL, .*\), not bytes"),
        ({"id": 1}, {"key": "k"}, "a key cannot be given beside a row: it is the column 'id' of the row"),
        ({"id": 1, "name": "x" * 1000}, {}, "the message has .* bytes, the queue takes 500: keep large payloads"),
        ({"id": 1}, {"headers": {"a": b"x" * 500}}, "the message has .* bytes, the queue takes 500"),
    ],
)
def test_what_the_queue_does_not_take_is_refused_by_send_and_the_publisher_goes_on(
    make: Make, value: Any, more: dict[str, Any], said: str
) -> None:
    queue = make(schema=DDL, key="id", max_message_bytes=500)
    with queue.publisher() as publisher:
        publisher.send({"id": 1})
        with pytest.raises(partq.Invalid, match=said):
            publisher.send(value, **more)
        publisher.send({"id": 2})
    assert sorted(each.value["id"] for each in queue.browse()) == [1, 2]


def test_an_untyped_queue_takes_no_row(make: Make) -> None:
    with make().publisher() as publisher, pytest.raises(partq.Invalid, match="is untyped, a message is bytes or text"):
        publisher.send({"id": 1})


def test_without_a_key_column_rows_have_no_key(make: Make) -> None:
    queue = make(partitions=4, schema=DDL)
    with queue.publisher() as publisher:
        with pytest.raises(partq.Invalid, match="a key cannot be given beside a row: its messages have none"):
            publisher.send({"id": 1}, key="k")
        for row in ROWS:
            publisher.send(row)
    assert {each.key for each in queue.browse()} == {None}
    assert len({each.partition for each in queue.browse()}) > 1


@pytest.mark.conformance("TYP-05")
def test_a_running_publisher_takes_rows_for_columns_that_came_since(make: Make) -> None:
    """Without being made anew, rows of before and of after in one publish."""
    queue = make(partitions=1, schema=DDL, key="id")
    with queue.publisher(linger_s=5) as publisher:
        publisher.send({"id": 1})
        queue.alter(add_column="coupon STRING, small TINYINT")
        publisher.send({"id": 2, "coupon": "x", "small": 1})
        queue.alter(widen="small INT, total DECIMAL(9,2)")
        publisher.send({"id": 3, "small": 70_000, "total": Decimal("1234567.25")})
        with pytest.raises(partq.Invalid, match="'colour': there is no such column"):
            publisher.send({"id": 4, "colour": "red"})
    found = [(each.value["id"], each.value["coupon"], each.value["small"]) for each in queue.browse()]
    assert found == [(1, None, None), (2, "x", 1), (3, None, 70_000)]
    assert queue.describe().log.entries == 1


def test_a_queue_that_was_made_again_with_other_columns_gets_nothing(make: Make) -> None:
    queue = make(partitions=1, schema=DDL, key="id")
    publisher = queue.publisher(linger_s=5)
    future = publisher.send({"id": 1})
    queue.delete()
    make(partitions=1, schema="name BINARY, id BIGINT", key="id")
    with pytest.raises(partq.Invalid, match="does not take this row"):
        publisher.send({"id": 2, "name": b"x"})
    with pytest.raises(partq.Invalid, match="column 'name' has type STRING, the queue's is BINARY"):
        publisher.close()
    assert future.exception() is not None
    assert list(queue.browse()) == []


def test_rows_wait_for_room_in_memory(make: Make) -> None:
    queue = make(schema=DDL, key="id")
    with queue.publisher(linger_s=60, max_batch_bytes=1000, max_pending_bytes=20_000) as publisher:
        for row in ROWS * 5:
            publisher.send(row)
            assert publisher._bytes <= 20_000
    assert queue.describe().messages == 100


def test_threads_send_rows_at_the_same_time(make: Make) -> None:
    queue = make(schema=DDL, key="id")
    with queue.publisher() as publisher:
        threads = [threading.Thread(target=lambda: [publisher.send(row) for row in ROWS]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(each.value["id"] for each in queue.browse()) == sorted(row["id"] for row in ROWS * 4)


@pytest.mark.conformance("TYP-06")
def test_rows_go_by_their_topics_to_queues_with_the_same_columns(make: Make) -> None:
    orders, eu, other = (make(name, partitions=1, schema=DDL, key="id") for name in ("orders", "eu", "us"))
    plain = make("plain", partitions=1)
    eu.subscribe("orders/eu")
    other.subscribe("orders/us")
    plain.subscribe("plain")
    with orders.publisher() as publisher:
        done = publisher.send({"id": 1}, topic="orders/eu")
        publisher.send({"id": 2}, topic="orders/us")
        publisher.send({"id": 3}, topic="nobody")
        publisher.send({"id": 4})
    assert done.result() == (None, None)
    assert [[each.value["id"] for each in queue.browse()] for queue in (eu, other, orders)] == [[1], [2], [4]]
    publisher = orders.publisher()
    publisher.send({"id": 5}, topic="plain")
    with pytest.raises(
        partq.Invalid, match=r"queue 'plain' \(untyped: key and value\) cannot take messages that are rows"
    ):
        publisher.close()
    with partq.topic_publication("orders/eu", store=orders.store) as publication:
        publication.add(pa.table({"id": [6, 7]}))
        assert publication.commit().queues[0].messages == 2
    assert [each.value["id"] for each in eu.browse()] == [1, 6, 7]


def test_a_publish_id_holds_for_rows_too(make: Make) -> None:
    queue = make(schema=DDL, key="id")
    for _ in range(2):
        with queue.publisher(publish_id="monday") as publisher:
            for row in ROWS:
                publisher.send(row)
    with queue.publication(publish_id="tuesday") as publication:
        publication.add(pa.table({"id": [1]}))
        publication.add(
            pa.table({"ID": pa.array([2], pa.int16()), "tags": pa.array([["x"]], pa.large_list(pa.string_view()))})
        )
        report = publication.commit()
    assert (report.messages, report.without_key) == (2, 0)
    assert queue.publication(publish_id="tuesday").is_done
    assert queue.describe().messages == len(ROWS) + 2


# --- reading and consuming --------------------------------------------------------------------------------------------


def filled(make: Make, partitions: int = 2) -> partq.Queue:
    queue = make(partitions=partitions, schema=DDL, key="id")
    with queue.publisher() as publisher:
        publisher.send_table(pa.table({"id": [row["id"] for row in ROWS], "name": [row["name"] for row in ROWS]}))
    return queue


def test_a_table_has_the_columns_and_metadata_or_those_that_are_named(make: Make) -> None:
    queue = filled(make)
    table = pa.table(queue.read())
    assert table.schema.names == ["id", "name", "total", "tags", "_metadata"]
    known = table.column("_metadata").to_pylist()
    assert known[0].keys() == {"queue", "partition", "offset", "timestamp", "redelivered"}
    assert {(each["partition"], each["offset"]) for each in known} == by_place(queue).keys()
    some = pa.table(queue.read(columns=["NAME", "_metadata", "id"]))
    assert some.schema.names == ["NAME", "_metadata", "id"]
    assert some.column("NAME").to_pylist() == table.column("name").to_pylist()
    for columns, said in (
        (["value"], "column 'value' is none of the queue's: name some of id, name, total, tags and _metadata"),
        (["id", "ID"], "'id'"),
        ([], "no column is named"),
    ):
        with pytest.raises(partq.Invalid, match=said):
            queue.read(columns=columns)
        with pytest.raises(partq.Invalid, match=said):
            queue.consumer("billing", columns=columns)


def test_a_consumer_gives_tables_of_the_columns_that_it_names_and_whole_messages(make: Make) -> None:
    queue = filled(make)
    with queue.consumer("billing", starting="earliest", idle_timeout_s=0.5, columns=["name", "_metadata"]) as consumer:
        tables, messages = [], []
        for batch in consumer:
            assert [piece.batch.schema.names for piece in batch.pieces] == [["name"]] * len(batch.pieces)
            tables.append(pa.table(batch))
            messages += list(batch)
    (table,) = tables
    assert table.schema.names == ["name", "_metadata"]
    assert table.column("name").to_pylist() == [each.value["name"] for each in messages]
    assert [each.key for each in messages] == [str(each.value["id"]) for each in messages]
    assert {(each.partition, each.offset): each.value for each in messages} == by_place(queue)


def test_messages_that_come_again_are_marked_in_metadata_too(make: Make) -> None:
    queue = filled(make, partitions=1)
    with queue.consumer("billing", starting="earliest", acknowledge="manual", flow="one", max_messages=5) as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        batch.release()
        again = consumer.poll(5)
        assert again is not None
        assert {each.redelivered for each in again} == {True}
        assert {each["redelivered"] for each in pa.table(again).column("_metadata").to_pylist()} == {True}


@pytest.mark.conformance("TYP-05")
def test_a_consumer_keeps_its_columns_until_a_value_does_not_fit(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, count INT", key="id")

    def send(row: dict[str, Any]) -> None:
        with queue.publisher() as publisher:
            publisher.send(row)

    send({"id": 1, "count": 1})
    with queue.consumer("billing", starting="earliest", acknowledge="manual") as consumer:
        batch = consumer.poll(5)
        assert batch is not None
        batch.acknowledge()
        queue.alter(add_column="coupon STRING", widen="count BIGINT")
        send({"id": 2, "count": 2, "coupon": "x"})
        batch = consumer.poll(5)
        assert batch is not None
        assert pa.table(batch).column("count").type == pa.int32()
        assert [each.value for each in batch] == [{"id": 2, "count": 2}]
        batch.acknowledge()
        send({"id": 3, "count": 2**40})
        with pytest.raises(
            partq.Invalid, match=r"partition 0, offset 2, column 'count': 1099511627776 does not fit INT"
        ):
            consumer.poll(5)
    with queue.consumer("billing", idle_timeout_s=0.5) as consumer:
        (batch,) = consumer
        assert [each.value for each in batch] == [{"id": 3, "count": 2**40, "coupon": None}]


def test_a_queue_that_was_made_again_before_the_first_batch_is_read_by_its_new_columns(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, gone STRING", key="id")
    consumer = queue.consumer("billing", starting="earliest", idle_timeout_s=0.5)
    queue.delete()
    with make(partitions=1, schema="id STRING, name STRING", key="id").publisher() as publisher:
        publisher.send({"id": "a", "name": "b"})
    with consumer:
        assert [each.value for batch in consumer for each in batch] == [{"id": "a", "name": "b"}]


@pytest.mark.conformance("TYP-06")
def test_rows_of_all_versions_are_read_as_the_newest_also_when_compacted(make: Make) -> None:
    queue = make(partitions=1, schema="id INT, count TINYINT", key="id")
    for number, ddl in enumerate(("count SMALLINT", "count INT", "count BIGINT", "id BIGINT")):
        with queue.publisher() as publisher:
            publisher.send({"id": number, "count": number}, headers={"h": b"x"} if number else ())
        queue.alter(widen=ddl, add_column=f"c{number} STRING")
    before = payload(queue).to_pylist()
    seen = list(queue.browse())
    assert queue.compact(min_age_s=0).steps
    assert payload(queue).to_pylist() == before
    assert list(queue.browse()) == seen
    assert before[0] == {"id": 0, "count": 0, "c0": None, "c1": None, "c2": None, "c3": None}


CHANGES: list[dict[str, Any]] = [
    *({"widen": f"count {kind}"} for kind in ("SMALLINT", "INT", "BIGINT")),
    *({"widen": f"total DECIMAL({digits},2)"} for digits in (6, 7, 8)),
    *({"add_column": f"c{number} STRING"} for number in range(4)),
]


def one_by_one(publisher: partq.Publisher, row: dict[str, Any]) -> None:
    publisher.send(row).result()


def as_tables(publisher: partq.Publisher, row: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("count", pa.int8()), ("total", pa.decimal128(5, 2))])
    publisher.send_table(pa.Table.from_pylist([row], schema=schema)).result()


@pytest.mark.conformance("TYP-05")
@pytest.mark.slow
def test_columns_change_ten_times_while_publishers_and_consumers_go_on(make: Make) -> None:
    """Nothing fails, nothing is lost or changed; a consumer that was there before keeps its columns."""
    queue = make(partitions=3, schema="id BIGINT, count TINYINT, total DECIMAL(5,2)", key="id")
    sent: list[dict[str, Any]] = []
    failed: list[BaseException] = []
    over = threading.Event()

    def publish(first: int, send: Callable[[partq.Publisher, dict[str, Any]], None]) -> None:
        number = first
        with queue.publisher(linger_s=0.01) as publisher:
            while not over.is_set():
                row = {"id": number, "count": number % 100, "total": Decimal(number % 100).scaleb(-2)}
                send(publisher, row)
                sent.append(row)
                number += 1

    seen: list[dict[str, Any]] = []
    consumer = queue.consumer("billing", starting="earliest", idle_timeout_s=2)

    def consume() -> None:
        with consumer:
            for batch in consumer:
                assert pa.table(batch).schema.names == ["id", "count", "total", "_metadata"]
                seen.extend(each.value for each in batch)

    def told(work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test tells it
            failed.append(error)

    works: list[tuple[Any, ...]] = [(publish, 0, one_by_one), (publish, 1_000_000, as_tables), (consume,)]
    threads = [threading.Thread(target=told, args=work) for work in works]
    for thread in threads:
        thread.start()
    for change in CHANGES:
        enough = len(sent) + 10
        while len(sent) < enough and not failed:
            time.sleep(0.005)
        queue.alter(**change)
    over.set()
    for thread in threads:
        thread.join()
    assert failed == []
    by_id = {row["id"]: row for row in sent}
    assert len(by_id) == len(sent) == len(seen)
    assert {row["id"]: row for row in seen} == by_id
    after = payload(queue)
    assert after.schema.names == ["id", "count", "total", "c0", "c1", "c2", "c3"]
    assert {row["id"]: row for row in after.select(["id", "count", "total"]).to_pylist()} == by_id
    assert queue.describe().schema.version == 11  # type: ignore[union-attr]


# --- what else knows messages -----------------------------------------------------------------------------------------


def test_a_dry_run_samples_the_keys_of_rows(make: Make) -> None:
    queue = filled(make)
    sample = queue.alter(partitions=3, dry_run=True).sample
    assert sample is not None
    moving = sum(partition_of(str(n).encode(), 2) != partition_of(str(n).encode(), 3) for n in range(20))
    assert (sample.messages, sample.without_key, sample.keys, sample.keys_that_move) == (20, 0, 20, moving)
    keyless = make("keyless", schema=DDL)
    with keyless.publisher() as publisher:
        publisher.send_table(pa.table({"id": [1, 2]}))
    sample = keyless.alter(partitions=3, dry_run=True).sample
    assert sample is not None
    assert (sample.messages, sample.without_key, sample.keys) == (2, 2, 0)


@pytest.mark.conformance("TYP-06")
def test_trimming_rewinding_resizing_and_retention_do_not_mind_rows(make: Make) -> None:
    queue = filled(make)
    with queue.consumer("billing", starting="earliest", idle_timeout_s=0.5) as consumer:
        assert sum(map(len, consumer)) == 20
    assert queue.checkpoints("billing").lag == 0
    queue.alter(partitions=3)
    with queue.publisher() as publisher:
        publisher.send({"id": 100})
    assert queue.status("billing").partitions[0].lag >= 0
    queue.rewind("billing", to="earliest")
    with queue.consumer("billing", idle_timeout_s=0.5) as consumer:
        again = [each for batch in consumer for each in batch]
    assert len(again) == 21
    assert sum(each.redelivered for each in again) >= 20
    assert queue.trim(datetime.now(UTC)).trimmed == 21
    assert payload(queue).num_rows == 0
