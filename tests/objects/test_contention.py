"""Several real processes on one store lose no swap."""

from __future__ import annotations

import json

import pytest

from partq_spark.objects import Document, ObjectStore
from tests.objects import processes


@pytest.mark.slow
def test_processes_that_swap_one_counter_lose_no_update(shared_url: str, shared_store: ObjectStore) -> None:
    processes.run_together(processes.increment, [(shared_url, "q/_head.json", 25)] * 4)
    found = shared_store.load("q/_head.json")
    assert isinstance(found, Document)
    assert json.loads(found.body) == {"value": 100}
    assert [info.name for info in shared_store.list("")] == ["q/_head.json"]
