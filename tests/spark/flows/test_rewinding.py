"""`partq checkpoints rewind` under streaming queries that go on running."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from partq_spark.cli.main import cli
from tests.spark.flows.conftest import GROUP, Shared, got
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def rewind(orders: Shared, *words: str, ownership: str) -> None:
    command = ["checkpoints", "rewind", orders.name, "--group", GROUP, *words, "--yes"]
    done = CliRunner().invoke(cli, [*command, "--store", orders.lab.url, "--ownership", ownership])
    assert done.exit_code == 0, done.output


def publish(orders: Shared, *names: str) -> None:
    orders.publish(*((partition, name.encode()) for name in names for partition in range(orders.partitions)))


@pytest.mark.conformance("CHK-04")
@pytest.mark.parametrize("ownership", ["redis", "none"])
def test_queries_go_on_from_where_they_were_rewound_to(shared: Make, ownership: str) -> None:
    """Idle and with messages coming; what comes again is marked, what is new is not; nobody has to be restarted."""
    orders = shared(partitions=2, coordinated=ownership == "redis")
    options = {} if ownership == "redis" else {"ownership": "none"}
    consumers = [orders.start("one", **options)]
    if ownership == "redis":
        consumers.append(orders.start("two"))
        orders.wait_for_shares(1, 1)
    flows = [consumer for consumer, _ in consumers]
    publish(orders, "a", "b", "c")
    wait_until(lambda: orders.offsets() == [3, 3], "acknowledgement of everything")
    assert got(*flows) == orders.everything()
    owners = orders.owners()

    where = orders.ownership if ownership == "redis" else "none"
    rewind(orders, "--by", "2", "--partition", "0", ownership=where)
    wait_until(lambda: got(*flows) == sorted([*orders.everything(), (0, 1), (0, 2)]), "second delivery")
    wait_until(lambda: orders.offsets() == [3, 3], "acknowledgement of what came again")
    assert orders.owners() == owners
    assert sorted((row.partition, row.offset) for each in flows for row in each.rows if row.redelivered) == [
        (0, 1),
        (0, 2),
    ]

    rewind(orders, "--to", "earliest", ownership=where)
    publish(orders, "d")
    wait_until(lambda: orders.offsets() == [4, 4], "acknowledgement of everything once more")
    assert orders.owners() == owners
    for partition in (0, 1):
        rows = [row for each in flows for row in each.rows if row.partition == partition]
        last = [row.offset for row in rows][-4:]
        assert last == [0, 1, 2, 3], "from the beginning, in order"
        assert all(row.redelivered for row in rows[-4:-1])
    assert all(query.exception() is None for _, query in consumers)
