"""Small explorations of every interleaving. What they are worth: `tests/power/guards.toml` takes one guard of the core
out after the other (`core: ...`), and each is found within these bounds.
"""

from __future__ import annotations

import pytest

from tests.coordinator.modelcheck.explore import Explorer, Result


def explore(flows: int, partitions: int, limit: int = 4000) -> Result:
    return Explorer(flows=flows, partitions=partitions, limit=limit).run()


@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("HAN-09")
@pytest.mark.parametrize("flows", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_one_partition_to_the_end(flows: int) -> None:
    result = explore(flows, 1, limit=8000)
    assert result.complete
    assert result.states > 700
    assert result.longest_way_to_ready <= 6


@pytest.mark.slow
@pytest.mark.conformance("REB-15")
@pytest.mark.conformance("DIS-05")
@pytest.mark.parametrize(("flows", "partitions"), [(2, 2), (3, 2), (3, 3)])
def test_the_beginning_of_larger_groups(flows: int, partitions: int) -> None:
    result = explore(flows, partitions)
    assert result.states >= 4000
    assert result.longest_way_to_ready <= 15
