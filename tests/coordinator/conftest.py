"""A Redis of each test's own and a place that keeps its ownership there, for tests with real coordinators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from tests.cast.sidecars import Place
from tests.support.servers import RedisServer, running


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A server of one's own, to kill, flush and spoil."""
    with running(RedisServer()) as server:
        yield server


@pytest.fixture
def command(redis: RedisServer) -> Iterator[Callable[..., object]]:
    """One command for it, in words; its answer."""
    with Redis(port=redis.port, decode_responses=True) as client:
        yield client.execute_command


@pytest.fixture
def place(tmp_path: Path, redis: RedisServer) -> Place:
    """Stores of one's own: the queues in a folder, ownership in that Redis."""
    return Place(tmp_path, redis.url)
