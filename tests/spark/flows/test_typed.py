"""A typed queue shared by two queries: its rows are handed over, resized and rewound as other messages are, while its
columns change.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import partq
from partq_spark.log.admin import alter_queue
from partq_spark.log.schema.ddl import parse_ddl
from partq_spark.log.schema.versions import columns_of
from tests.spark.flows.conftest import GROUP, Shared
from tests.support.spark import Consumer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

KEYS = 10


def publish(orders: Shared, low: int, *more: str) -> None:
    """Twenty rows, two for each key, in one publish."""
    rows = orders.lab.spark.range(low, low + 2 * KEYS)
    rows = rows.selectExpr(f"CAST(id % {KEYS} AS INT) k", "CAST(id AS INT) n", *more)
    orders.lab.append(rows.coalesce(1), orders.name)


def numbers(*consumers: Consumer) -> list[int]:
    return sorted(row.n for consumer in consumers for row in consumer.rows)


@pytest.mark.conformance("TYP-06")
def test_rows_move_between_queries_as_messages_do(shared: Callable[..., Shared]) -> None:
    columns = columns_of(parse_ddl("k INT, n INT NOT NULL, name STRING"), "k")
    orders = shared(partitions=2, columns=columns)
    queue = orders.lab.queue(orders.name)
    one, first = orders.start("one")
    publish(orders, 0, "concat('n', id) name")
    wait_until(lambda: numbers(one) == list(range(20)), "the first rows")
    two, second = orders.start("two")
    orders.wait_for_shares(1, 1)
    publish(orders, 20)
    wait_until(lambda: numbers(one, two) == list(range(40)), "rows by both")
    assert {row.n for row in two.rows} <= set(range(20, 40))

    queue.refresh()
    alter_queue(queue, add_columns="coupon STRING", widen="n BIGINT")
    publish(orders, 40, "'c' coupon")
    alter_queue(queue, partitions=4)
    orders.partitions = 4
    publish(orders, 60, "'c' coupon")
    orders.wait_for_shares(2, 2)
    publish(orders, 80)
    wait_until(lambda: numbers(one, two) == list(range(100)), "all rows")
    for row in one.rows + two.rows:
        assert list(row.asDict()) == ["k", "n", "name", "_metadata"], "what they loaded"
        assert row.k == row.n % KEYS
        assert row.name == (f"n{row.n}" if row.n < 20 else None)
        assert not row._metadata.redelivered
    ends = list(orders.lab.head(orders.name).next)
    wait_until(lambda: orders.offsets() == ends, "acknowledgement of everything")

    here = partq.open_queue(orders.name, store=orders.lab.url)
    here.rewind(GROUP, by=2, partitions=[0], ownership=orders.ownership)
    wait_until(lambda: len(numbers(one, two)) == 102, "second delivery")
    again = [row for row in one.rows + two.rows if row._metadata.redelivered]
    assert [(row._metadata.partition, row._metadata.offset) for row in again] == [(0, ends[0] - 2), (0, ends[0] - 1)]
    assert (first.exception(), second.exception()) == (None, None)
    wait_until(lambda: orders.offsets() == ends, "acknowledgement of what came again")
    here.trim(dict(enumerate(ends)))
    assert orders.lab.read(orders.name).count() == 0
