"""The stores under test: one fixture that is every store in turn, and one for those that several open. And what real
processes do, each of which opens its store by URL, as users do.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partq_spark.objects import Document, ObjectStore, open_store
from partq_spark.objects.azure_access import CONNECTION_STRING
from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_folders import FolderLock
from partq_spark.objects.memory import MemoryStore
from partq_spark.objects.retrying import Retrying
from partq_spark.objects.urls import AzureUrl, parse_url
from tests.support.processes import die_with_parent
from tests.support.servers import Azurite

PAGE_SIZE = 7
"""Small, so that listings have pages."""


SMALL = bytes(range(256)) * 4


LARGE = bytes(range(251)) * 1000  # far over what the local store copies instead of mapping


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


# --- real processes ---------------------------------------------------------------------------------------------------


def start(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """A new interpreter that runs `target`; it dies with this one."""
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(target, *args), daemon=True)
    process.start()
    return process


def _run(target: Callable[..., None], *args: Any) -> None:
    die_with_parent()
    target(*args)


def freeze_inside_the_lock(url: str, name: str) -> None:
    """Swap, and stop (SIGSTOP) while holding the folder's lock; when woken, go on as if nothing had been."""
    enter = FolderLock.__enter__

    def enter_and_freeze(lock: FolderLock) -> None:
        enter(lock)
        os.kill(os.getpid(), signal.SIGSTOP)

    FolderLock.__enter__ = enter_and_freeze  # type: ignore[method-assign] # the one instruction to be frozen at
    store = open_store(url, retry_timeout_s=0)
    found = store.load(name)
    assert isinstance(found, Document)
    store.swap(name, b'{"by":"frozen"}', expected=found.etag)
