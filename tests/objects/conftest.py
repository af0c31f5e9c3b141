"""The stores under test: one fixture that is every store in turn, and one for those that several open."""

from __future__ import annotations

import os
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from partq_spark.objects import ObjectStore
from partq_spark.objects.azure import AzureStore
from partq_spark.objects.local import LocalStore
from partq_spark.objects.retrying import Retrying
from partq_spark.objects.s3 import S3Store
from partq_spark.objects.urls import ServiceUrl, parse_url
from tests.support.memory_store import MemoryStore
from tools.proxy import Proxy
from tools.servers import Azurite, S3Server

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


SERVICES = [
    pytest.param("azurite", marks=pytest.mark.azurite),
    pytest.param("s3_server", marks=pytest.mark.s3),
]


def write(store: ObjectStore, name: str, *pieces: bytes | memoryview) -> None:
    """Create an object piece by piece."""
    with store.writer(name) as writer:
        for piece in pieces:
            assert writer.write(piece) == len(piece)


def memory_store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore(clock=time.time, rng=random.Random(1), page_size=PAGE_SIZE)


@pytest.fixture(params=SERVICES)
def server(request: pytest.FixtureRequest) -> Azurite | S3Server:
    """Each service in turn."""
    found: Azurite | S3Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: Azurite | S3Server) -> Iterator[Proxy]:
    """Before it."""
    with Proxy(server.port).running() as running_proxy:
        yield running_proxy


@pytest.fixture(params=["memory", "retrying", "local", *SERVICES])
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
        case server:
            made = service_store(request.getfixturevalue(server), monkeypatch)
    yield made
    made.close()


def whole_text(error: BaseException) -> str:
    """All that anybody is shown of it."""
    return "".join(traceback.format_exception(error)) + str(error) + repr(error)


def set_variables(monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]) -> None:
    """In this process's environment."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def service_store(
    server: Azurite | S3Server, monkeypatch: pytest.MonkeyPatch, *, port: int | None = None, **settings: float
) -> AzureStore | S3Store:
    """A store in a fresh container, with small pages, that tries nothing again; `port` goes by a proxy."""
    set_variables(monkeypatch, server.variables(port))
    url = parse_url(server.fresh_url())
    assert isinstance(url, ServiceUrl)
    opened = (AzureStore if url.scheme == "azure" else S3Store)(url, **settings)
    opened.page_size = PAGE_SIZE
    return opened


@pytest.fixture(params=["local", *SERVICES])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a store that several can open, empty; credentials are in the environment."""
    if request.param == "local":
        return f"file://{tmp_path}/store"
    server: Azurite | S3Server = request.getfixturevalue(request.param)
    set_variables(monkeypatch, server.variables())
    return server.fresh_url()
