"""The stores under test: one fixture that is every store in turn, and one for those that several processes share. And
what real processes do, each of which opens its store by URL, as users do.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base.errors import Conflict
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


_EVERY_STORE = ["memory", "retrying", "local", pytest.param("azure", marks=pytest.mark.azurite)]


_SHARED_STORES = ["local", pytest.param("azure", marks=pytest.mark.azurite)]


def write(store: ObjectStore, name: str, *pieces: bytes | memoryview) -> None:
    """Create an object piece by piece."""
    with store.writer(name) as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)


def memory_store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore(clock=time.time, rng=random.Random(1), page_size=PAGE_SIZE)


@pytest.fixture(params=_EVERY_STORE)
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


def local_store(folder: Path) -> LocalStore:
    """One that waits only a little for a lock."""
    return LocalStore(str(folder), lock_wait_s=0.3)


@pytest.fixture(params=_SHARED_STORES)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that several processes can open, empty; credentials are in the environment."""
    if request.param == "local":
        return f"file://{tmp_path}/store"
    azurite: Azurite = request.getfixturevalue("azurite")
    monkeypatch.setenv(CONNECTION_STRING, azurite.connection_string)
    return azurite.fresh_url()


@pytest.fixture
def shared_store(shared_url: str) -> Iterator[ObjectStore]:
    """The same store, opened here."""
    opened = open_store(shared_url, retry_timeout_s=10)
    yield opened
    opened.close()


# --- real processes ---------------------------------------------------------------------------------------------------


_SPAWN = multiprocessing.get_context("spawn")


_MAX_TRIES = 10_000


def start(target: Callable[..., None], *args: Any) -> multiprocessing.process.BaseProcess:
    """A new interpreter that runs `target`; it dies with this one."""
    process = _SPAWN.Process(target=_run, args=(target, *args), daemon=True)
    process.start()
    return process


def run_together(target: Callable[..., None], arguments: list[tuple[Any, ...]], *, wait_s: float = 60) -> None:
    """One process for each tuple of arguments, all released at once; fails if one does."""
    barrier = _SPAWN.Barrier(len(arguments))
    processes = [start(_together, barrier, target, args) for args in arguments]
    deadline_s = time.monotonic() + wait_s
    for process in processes:
        process.join(max(0.0, deadline_s - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join(10)
    assert codes == [0] * len(processes)


def _run(target: Callable[..., None], *args: Any) -> None:
    die_with_parent()
    target(*args)


def _together(barrier: Any, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    barrier.wait(60)
    target(*args)


def increment(url: str, name: str, times: int) -> None:
    """Add one to a counter document, so often, while others do the same."""
    store = open_store(url)
    for _ in range(times):
        for _ in range(_MAX_TRIES):
            found = store.load(name)
            try:
                if isinstance(found, Document):
                    value = json.loads(found.body)["value"]
                    store.swap(name, json.dumps({"value": value + 1}).encode(), expected=found.etag)
                else:
                    store.swap(name, b'{"value": 1}', expected=None)
                break
            except Conflict:
                continue
        else:
            raise AssertionError(f"{name} could not be swapped in {_MAX_TRIES} tries")


def create_without_end(url: str, ready: Any) -> None:
    """Create objects whose content can be told from their name, and swap a document, until killed."""
    store = open_store(url)
    etag = store.swap("crash/document", b'{"value":0}', expected=None)
    ready.set()
    for i in range(1_000_000):
        name = f"crash/{os.getpid()}-{i:06}"
        with store.writer(name) as writer:
            for piece in content_of(name):
                writer.write(piece)
        etag = store.swap("crash/document", json.dumps({"value": i, "filler": "x" * 50_000}).encode(), expected=etag)


def content_of(name: str) -> list[bytes]:
    """Some 600 kB that belong to this name alone."""
    return [hashlib.sha256(f"{name} {i}".encode()).digest() * 2000 for i in range(10)]


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
