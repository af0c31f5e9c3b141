"""`import partq`: the public names and nothing else, each explained, none of them paid for before it is used."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys

import pytest

import partq
from partq_spark import client

OWN = {"__version__", "register", "supervise", "processing"}
CLIENT: list[str] = vars(client)["__all__"]
PARTQ: list[str] = vars(partq)["__all__"]


def test_the_module_has_the_names_of_the_client_and_those_that_need_spark() -> None:
    assert {*PARTQ} == {*CLIENT, *OWN}
    assert len(PARTQ) == len(set(PARTQ))


@pytest.mark.parametrize("name", sorted({*PARTQ} - {"__version__"}))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(partq, name)
    assert (inspect.getdoc(found) or "").strip()
    if inspect.isclass(found):
        silent = [
            each
            for each, member in vars(found).items()
            if not each.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
            if not inspect.getdoc(member)
        ]
        assert silent == [], "public methods without a docstring"


def test_a_name_is_the_one_that_its_module_has() -> None:
    listed = {**vars(client)["_MODULE_OF"], **vars(partq)["_FROM_SPARK"]}
    assert len(listed) > 50
    for name, module in listed.items():
        assert getattr(importlib.import_module(module), name) is getattr(partq, name)


def test_the_client_lists_no_module_above_it_and_a_name_that_is_not_there_is_refused() -> None:
    """Its list is imported by name, which no import contract sees."""
    rooms = {module.split(".")[1] for module in vars(client)["_MODULE_OF"].values()}
    assert rooms <= {"client", "query", "group", "log", "objects", "base"}
    with pytest.raises(AttributeError, match="partq has no 'nothing'"):
        _ = partq.nothing  # type: ignore[attr-defined]


def test_importing_it_imports_neither_arrow_nor_spark() -> None:
    code = "import sys, partq; print({'pyarrow', 'pyspark', 'py4j', 'redis', 'azure', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "set()\n"


def test_a_queue_is_an_address_that_travels() -> None:
    queue = partq.Queue("Orders", store="file:///srv/queues", namespace="shop", retry_timeout_s=7)
    again = pickle.loads(pickle.dumps(queue))  # noqa: S301 - our own
    assert again == queue
    assert hash(again) == hash(queue)
    assert str(again) == "queue 'orders' (namespace 'shop', store file:///srv/queues)"
    assert queue != partq.Queue("orders", store="file:///srv/queues")
