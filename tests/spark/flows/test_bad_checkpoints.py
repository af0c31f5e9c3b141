"""Checkpoints that were edited by hand: nonsense, beyond the log's end, before its start. Queries say so, and go
on when it is mended.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from partq_spark.cli.main import cli
from partq_spark.log import housekeeping
from tests.spark.flows.conftest import GROUP, Shared, got
from tests.spark.test_data_loss import replace
from tests.support.edits import edited
from tests.support.spark import Lab, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def blob(orders: Shared, partition: int) -> Path:
    return orders.lab.store_folder / "default" / orders.name / GROUP / "checkpoint" / str(partition)


def edit(orders: Shared, partition: int, **changes: str) -> None:
    """As somebody would who leaves the rest as it is and makes the checksum match; it gets a new ETag, as it would
    elsewhere.
    """
    path = blob(orders, partition)
    replace(path, edited(path.read_text(), etag=secrets.token_hex(16), **changes).encode())


@pytest.mark.parametrize("ownership", ["redis", "none"])
def test_nonsense_in_a_checkpoint_ends_the_query_by_its_name_and_restored_it_goes_on(
    shared: Make, ownership: str
) -> None:
    """While the query runs, and once more when it is started on it."""
    orders = shared(partitions=2, coordinated=ownership == "redis")
    options = {} if ownership == "redis" else {"ownership": "none"}
    one, query = orders.start("one", **options)
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    good = blob(orders, 0).read_bytes()
    edit(orders, 0, epoch="many")
    orders.publish((0, b"c"), (1, b"d"))
    where = f"checkpoint default/{orders.name}/{GROUP}/checkpoint/0"
    said = failure(query)
    assert f"{where}: its metadata key 'epoch' is 'many': restore the blob from a copy, or delete it" in said

    replace(blob(orders, 0), good)
    query = orders.restart(one, **options)
    wait_until(lambda: orders.offsets() == [2, 2], "acknowledgements")

    query.stop()
    wait_until(lambda: ownership == "none" or orders.owners() == {0: None, 1: None}, "the end of the flow")
    good = blob(orders, 0).read_bytes()
    replace(blob(orders, 0), b"nonsense")
    again = one.start(orders.stream(**options))
    if ownership == "none":
        assert f"{where[len('checkpoint ') :]} is no document of partq" in failure(again)
    else:  # the coordinator meets it, and cannot give this partition to anybody; the other one goes on
        orders.publish((1, b"x"))
        wait_until(lambda: one.values[-1:] == [b"x"], "messages of the other partition")
        again.stop()
    replace(blob(orders, 0), good)
    orders.restart(one, **options)
    orders.publish((0, b"e"), (1, b"f"))
    wait_until(lambda: orders.offsets() == list(orders.lab.head(orders.name).next), "acknowledgements")
    assert set(got(one)) == set(orders.everything())
    assert len(got(one)) - len(orders.everything()) <= sum(row.redelivered for row in one.rows)


def test_a_checkpoint_beyond_the_end_is_an_error_that_names_the_way_back(lab: Lab) -> None:
    """Also with failOnDataLoss=false: it would be the group's next messages that are lost, not the former ones."""
    orders = Shared(lab=lab, ownership="none", name="orders", partitions=2)
    lab.create("orders", 2)
    one, query = orders.start("one", flow="one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    query.stop()
    edit(orders, 0, offset="99")
    two = orders.consumer("two")
    for tolerant in ("false", "true"):
        said = failure(two.start(orders.stream(flow="two", failOnDataLoss=tolerant)))
        assert f"group '{GROUP}' is at offset 99 of partition 0 of queue 'orders', which ends at 1" in said
        assert "Go back with `partq checkpoints rewind`" in said
    assert orders.offsets() == [99, 1]
    command = ["checkpoints", "rewind", "orders", "--group", GROUP, "--partition", "0", "--to", "1", "--yes"]
    done = CliRunner().invoke(cli, [*command, "--store", lab.url, "--ownership", "none"])
    assert done.exit_code == 0, done.output
    orders.restart(two, flow="two")
    orders.publish((0, b"c"), (1, b"d"))
    wait_until(lambda: got(one, two) == orders.everything(), "everything, once")


def test_a_checkpoint_before_the_start_of_the_log_is_a_loss_that_may_be_tolerated(lab: Lab) -> None:
    orders = Shared(lab=lab, ownership="none", name="orders", partitions=1)
    queue = lab.create("orders", 1)
    orders.publish(*((0, b"%d" % n) for n in range(10)))
    one, query = orders.start("one", flow="one", startingOffsets="latest")
    orders.publish((0, b"10"))
    wait_until(lambda: orders.offsets() == [11], "the acknowledgement")
    query.stop()
    # Its process leaves a moment later, and writes what it knows over what was edited before.
    wait_until(lambda: "delivering" not in blob(orders, 0).read_text(), "the flow's last word")
    housekeeping.trim(queue, [8])
    assert lab.head("orders").earliest == (8,)
    edit(orders, 0, offset="5")
    two = orders.consumer("two")
    said = failure(two.start(orders.stream(flow="two")))
    assert "offsets 5 to 8 of partition 0 of queue 'orders' have been trimmed" in said
    assert "failOnDataLoss=false" in said
    assert orders.offsets() == [5]
    orders.restart(two, flow="two", failOnDataLoss="false")
    wait_until(lambda: [row.offset for row in two.rows] == [8, 9, 10], "what is left")
    wait_until(lambda: orders.offsets() == [11], "the acknowledgement")
    assert one.values == [b"10"]
