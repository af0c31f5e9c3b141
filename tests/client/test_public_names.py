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

MODULES: dict[str, str] = {**vars(client)["_MODULE_OF"], **vars(partq)["_FROM_SPARK"]}


def test_the_names_are_those_of_the_modules_and_each_method_says_what_it_does() -> None:
    names = vars(partq)["__all__"]
    assert sorted(names) == sorted({*MODULES, "__version__", "register"})
    silent = []
    for name, module in MODULES.items():
        found = getattr(partq, name)
        assert found is getattr(importlib.import_module(module), name)
        ours = [each for each in getattr(found, "__mro__", ()) if each.__module__.startswith("partq_spark")]
        members = [member for each in ours for member in vars(each).items()]
        silent += [
            f"{name}.{each}"
            for each, member in members
            if not each.startswith("_") and (inspect.isfunction(member) or isinstance(member, property))
            if not inspect.getdoc(member)
        ]
    assert silent == []


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
