"""Rows by a publisher: where they lie, what is refused, and columns that change meanwhile."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import partq
from partq_spark.log import fanout
from tests.client.conftest import Make
from tests.client.test_typed_messages import DDL, ROWS, by_place


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


def test_an_untyped_queue_takes_no_row_and_one_without_a_key_column_no_key(make: Make) -> None:
    with make().publisher() as publisher, pytest.raises(partq.Invalid, match="is untyped, a message is bytes or text"):
        publisher.send({"id": 1})
    queue = make("keyless", partitions=4, schema=DDL)
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
    with partq.topic_publication("orders/eu", store=orders.store) as publication:
        publication.add(pa.table({"id": [6, 7]}))
        assert publication.commit().queues[0].messages == 2
    assert [each.value["id"] for each in eu.browse()] == [1, 6, 7]
    publisher = orders.publisher()
    publisher.send({"id": 5}, topic="plain")
    with pytest.raises(partq.Invalid, match=r"'plain' \(untyped: key and value\) cannot take messages that are rows"):
        publisher.close()
