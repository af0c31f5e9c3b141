"""Several real processes on one store: no swap is lost, no name is won twice."""

from __future__ import annotations

import json
import os

import pytest

from partq_spark.objects import Document, ObjectStore
from tests.objects import processes
from tests.support.servers import Azurite


@pytest.mark.slow
def test_processes_that_swap_one_counter_lose_no_update(shared_url: str, shared_store: ObjectStore) -> None:
    processes.run_together(processes.increment, [(shared_url, "q/_head.json", 25)] * 4)
    found = shared_store.load("q/_head.json")
    assert isinstance(found, Document)
    assert json.loads(found.body) == {"value": 100}
    assert [info.name for info in shared_store.list("")] == ["q/_head.json"]


@pytest.mark.slow
def test_each_name_is_won_by_exactly_one_process(shared_url: str, shared_store: ObjectStore) -> None:
    names = [f"race/{i:02}" for i in range(20)]
    processes.run_together(processes.create_all, [(shared_url, names, str(i)) for i in range(4)])
    claimed = {
        name: info.name.rpartition("/")[2]
        for info in shared_store.list("won/")
        for name in json.loads(bytes(shared_store.read(info.name)))
    }
    assert sorted(claimed) == names
    assert {name: bytes(shared_store.read(name)).decode() for name in names} == claimed


@pytest.mark.azurite
@pytest.mark.usefixtures("azurite")
def test_a_forked_worker_and_its_parent_do_not_share_a_connection(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.objects.conftest import azure_store

    store = azure_store(azurite, monkeypatch)
    store.create("parent", b"p" * 1000)
    store.create("child", b"c" * 1000)
    child = os.fork()
    if child == 0:  # as a Spark worker: it inherits the store with its open connection
        same = all(bytes(store.read("child")) == b"c" * 1000 for _ in range(50))
        os._exit(0 if same else 1)
    assert all(bytes(store.read("parent")) == b"p" * 1000 for _ in range(50))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
