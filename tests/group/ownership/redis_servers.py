"""Redis servers with something special about them, and raw commands to them."""

from __future__ import annotations

import socket
from typing import Any, Final

from redis import Redis

from partq_spark.base.json_documents import sealed
from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_client import RedisClient
from partq_spark.group.documents.urls import NAME, RedisUrl, parse_ownership
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from tests.objects.conftest import memory_store
from tools.servers import RedisServer

STORE_ID: Final = "0123456789abcdef"
"""Of the object store that these tests do without."""


class SpecialRedis(RedisServer):
    """A redis-server with more arguments; it counts as started when it answers anything at all."""

    def __init__(self, *arguments: str) -> None:
        super().__init__()
        self.arguments = arguments

    def command(self) -> list[str]:
        return [*super().command(), *self.arguments]

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(1) in (b"+", b"-")


def command(server: RedisServer, *words: str) -> Any:
    """Send one command; the answer."""
    with Redis(port=server.port, decode_responses=True) as raw:
        return raw.execute_command(*words)


def open_redis(
    server: RedisServer, *, group: GroupKey | None = None, timeout_s: float = 2.0, database: int = 0, **more: Any
) -> Ownership:
    """A store with short time-outs."""
    url = parse_ownership(f"redis://127.0.0.1:{server.port}/{database}")
    assert isinstance(url, RedisUrl)
    objects = memory_store()
    objects.swap(NAME, sealed({"store_id": STORE_ID}), expected=None)
    return Ownership(RedisDocuments(RedisClient(url, timeout_s=timeout_s, **more), objects, group=group))
