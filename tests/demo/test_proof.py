"""The demo's own proof is proven: it finds what is missing, twice, or out of order, and accepts what is marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from partq_spark.demo.flights import ddl
from partq_spark.demo.proof import COLUMNS, DELIVERED, Proof, prove

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Row = tuple[str | None, int, int, int]  # aircraft, partition, offset, which flight: a later one is at a later minute
Check = Callable[..., Proof]

GOOD: list[Row] = [("a", 0, 0, 0), ("b", 1, 0, 1), ("a", 0, 1, 2), (None, 0, 2, 3), ("b", 1, 1, 4)]
HOUR = datetime(2013, 1, 1, 10, tzinfo=UTC)
TABLE = f"""
    {ddl(*COLUMNS)}, partition INT, offset BIGINT, redelivered BOOLEAN, flow STRING, delivered_us BIGINT, row BIGINT
"""


@pytest.fixture
def checked(spark: SparkSession) -> Check:
    """Proves micro-batches, in the order in which they were written: each a flow, its rows, whether they are marked."""

    def check(*batches: tuple[str, Sequence[Row], bool]) -> Proof:
        rows = [
            (aircraft, HOUR, flight, "UA", flight, partition, offset, marked, flow, 1000 + number, place)
            for number, (flow, given, marked) in enumerate(batches)
            for place, (aircraft, partition, offset, flight) in enumerate(given)
        ]
        session = spark.newSession()
        session.createDataFrame(rows, TABLE).createOrReplaceTempView(DELIVERED)
        return prove(lambda text: [row.asDict() for row in session.sql(text).collect()], 5, 2)

    return check


def test_all_is_well(checked: Check) -> None:
    outcome = checked(("x", GOOD[:3], False), ("x", GOOD[3:], False))
    assert outcome.ok
    assert outcome.handed_over == 0
    assert (outcome.delivered, outcome.aircraft, list(outcome.per_partition)) == (5, 2, [3, 2])
    assert (outcome.rows, outcome.again, outcome.redelivered, outcome.per_flow) == (5, 0, 0, {"x": 5})


def test_a_missing_flight_is_found(checked: Check) -> None:
    outcome = checked(("x", GOOD[:-1], False))
    assert (outcome.ok, outcome.missing, outcome.twice) == (False, 1, 0)


def test_a_flight_that_came_twice_is_found(checked: Check) -> None:
    outcome = checked(("x", GOOD, False), ("y", GOOD[:1], False))
    assert (outcome.ok, outcome.missing, outcome.twice) == (False, 0, 1)


def test_what_came_again_is_all_right_if_it_says_so(checked: Check) -> None:
    outcome = checked(("x", GOOD[:3], False), ("y", [GOOD[0], GOOD[2]], True), ("y", GOOD[3:], False))
    assert outcome.ok
    assert (outcome.rows, outcome.delivered, outcome.again, outcome.redelivered) == (7, 5, 2, 2)
    assert outcome.per_flow == {"x": 3, "y": 4}


def test_what_might_have_come_before_and_did_not_is_all_right_too(checked: Check) -> None:
    outcome = checked(("x", GOOD[:3], False), ("y", GOOD[3:], True))
    assert outcome.ok
    assert (outcome.again, outcome.redelivered) == (0, 2)


def test_a_mark_on_the_first_of_two_deliveries_does_not_excuse_the_second(checked: Check) -> None:
    outcome = checked(("x", GOOD, True), ("y", GOOD[3:4], False))
    assert (outcome.ok, outcome.twice) == (False, 1)


@pytest.mark.parametrize("swapped", [(0, 2), (1, 4)])
def test_an_aircraft_out_of_order_is_found(checked: Check, swapped: tuple[int, int]) -> None:
    rows = list(GOOD)
    first, second = swapped
    rows[first] = (*rows[first][:3], GOOD[second][3])
    rows[second] = (*rows[second][:3], GOOD[first][3])
    outcome = checked(("x", rows, False))
    assert (outcome.ok, outcome.missing, outcome.aircraft_out_of_order) == (False, 0, 1)


def test_an_aircraft_out_of_order_between_two_flows_is_found(checked: Check) -> None:
    later, earlier = [GOOD[2]], [GOOD[0], GOOD[1], GOOD[3], GOOD[4]]
    outcome = checked(("x", later, False), ("y", earlier, False))
    assert (outcome.ok, outcome.aircraft_out_of_order, outcome.offsets_out_of_order) == (False, 1, 0)


def test_a_delivery_against_the_order_of_offsets_is_found(checked: Check) -> None:
    # The flight without an aircraft has nothing else that could be out of order.
    outcome = checked(("x", [GOOD[0], GOOD[3], GOOD[2], GOOD[1], GOOD[4]], False))
    assert (outcome.ok, outcome.aircraft_out_of_order, outcome.offsets_out_of_order) == (False, 0, 1)


def test_a_partition_that_went_on_in_another_flow_is_counted_each_time(checked: Check) -> None:
    outcome = checked(("x", [GOOD[0], GOOD[1]], False), ("y", [GOOD[2], GOOD[4]], False), ("x", GOOD[3:4], False))
    assert outcome.ok
    assert outcome.handed_over == 3  # partition 0 there and back, partition 1 there


def test_a_partition_that_no_flight_fell_into_is_empty(checked: Check) -> None:
    rows = [row for row in GOOD if row[1] == 1]
    assert list(checked(("x", rows, False)).per_partition) == [0, 2]
