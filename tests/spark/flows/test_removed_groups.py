"""`partq group remove` between two runs of a query: nothing is left out without a word."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cli import processes
from tests.spark.flows.conftest import GROUP, Shared, got
from tests.support.spark import ended, failure
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.redis]

Make = Callable[..., Shared]


def test_a_nightly_job_whose_group_was_removed_says_so_and_goes_on_where_it_was(shared: Make) -> None:
    orders = shared(partitions=2, coordinated=False)
    nightly = orders.consumer("nightly")
    options = {"ownership": "none", "startingOffsets": "latest"}
    ended(nightly.start(orders.stream(**options), available_now=True))  # makes the group
    orders.publish(*[(p, b"first") for p in (0, 0, 0, 1, 1, 1)])
    ended(nightly.start(orders.stream(**options), available_now=True))
    assert got(nightly) == orders.everything()

    removed = processes.run(
        orders.lab.store_folder, "group", "remove", orders.name, "--group", GROUP, "--yes", "--force"
    )
    assert removed.returncode == 0, removed.stderr
    orders.publish((0, b"second"), (0, b"second"), (1, b"second"), (1, b"second"))
    said = failure(nightly.start(orders.stream(**options), available_now=True))
    assert f"group default/{orders.name}/{GROUP} was removed" in said
    assert 'startingOffsets={"0":3,"1":3}' in said
    assert orders.lab.head(orders.name).groups == {}

    again = orders.consumer("again")
    for _ in range(2):  # the first run makes the group
        ended(again.start(orders.stream(ownership="none", startingOffsets='{"0":3,"1":3}'), available_now=True))
    assert got(nightly, again) == orders.everything(), "everything, once"


def test_a_shared_query_does_not_slip_into_a_group_that_was_made_again(shared: Make) -> None:
    orders = shared(partitions=2)
    one, query = orders.start("one")
    orders.publish((0, b"a"), (1, b"b"))
    wait_until(lambda: orders.offsets() == [1, 1], "acknowledgements")
    query.stop()
    place = ("--group", GROUP, "--ownership", orders.ownership)
    removed = processes.run(orders.lab.store_folder, "group", "remove", orders.name, *place, "--yes")
    assert removed.returncode == 0, removed.stderr
    orders.publish((0, b"c"), (1, b"d"))
    two, other = orders.start("two", startingOffsets="latest")
    assert f"group default/{orders.name}/{GROUP} was removed" in failure(orders.restart(one))
    orders.publish((0, b"e"))
    wait_until(lambda: got(two) == [(0, 2)], "what came since the group was made again")
    assert other.isActive
