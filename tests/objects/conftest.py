"""The stores under test: one fixture that is every store in turn, and one for those that several open."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partq_spark.objects import ObjectStore
from partq_spark.objects.azure_access import CONNECTION_STRING
from partq_spark.objects.local import LocalStore
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from partq_spark.objects.urls import AzureUrl, parse_url
from tools.servers import Azurite

PAGE_SIZE = 7
"""Small, so that listings have pages."""


SMALL = bytes(range(256)) * 4


LARGE = bytes(range(251)) * 1000  # far over what the local store copies instead of mapping


FOUR_CALLS: list[Callable[[ObjectStore], object]] = [
    lambda store: store.load("q/_head.json"),
    lambda store: store.create("q/object", b"x"),
    lambda store: store.swap("q/doc", b"{}", expected=None),
    lambda store: list(store.list("")),
]


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets this process's for the length of a test, which begins with the common one."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


_AZURE = pytest.param("azure", marks=pytest.mark.azurite)


def write(store: ObjectStore, name: str, *pieces: bytes | memoryview) -> None:
    """Create an object piece by piece."""
    with store.writer(name) as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)


def memory_store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore(clock=time.time, rng=random.Random(1), page_size=PAGE_SIZE)


@pytest.fixture(params=["memory", "retrying", "local", _AZURE])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Every store, empty, not even its folder or container there."""
    made: ObjectStore
    match request.param:
        case "memory":
            made = memory_store()
        case "retrying":
            made = Retrying(memory_store(), 0)
        case "local":
            made = LocalStore(str(tmp_path / "not yet" / "store"))
        case _:
            made = azure_store(request.getfixturevalue("azurite"), monkeypatch)
    yield made
    made.close()


def azure_store(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch, *, port: int | None = None, **settings: float
) -> ObjectStore:
    """A store in a fresh container, with small pages, that tries nothing again; `port` goes by a proxy."""
    from partq_spark.objects.azure import AzureStore
    from partq_spark.objects.azure_access import find_access

    endpoint = f"http://127.0.0.1:{port or azurite.port}/{azurite.account}"
    connection_string = azurite.connection_string_with(azurite.key, endpoint)
    monkeypatch.setenv(CONNECTION_STRING, connection_string)
    url = parse_url(azurite.fresh_url())
    assert isinstance(url, AzureUrl)
    access = find_access(str(url), {CONNECTION_STRING: connection_string})
    return AzureStore(url, access, page_size=PAGE_SIZE, **settings)


@pytest.fixture(params=["local", _AZURE])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that several can open, empty; credentials are in the environment."""
    if request.param == "local":
        return f"file://{tmp_path}/store"
    azurite: Azurite = request.getfixturevalue("azurite")
    monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
    return azurite.fresh_url()
