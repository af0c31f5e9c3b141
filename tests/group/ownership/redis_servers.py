"""Redis servers with something special about them, and raw commands to them."""

from __future__ import annotations

import random
import re
import socket
import time
from typing import Final

from partq_spark.group.documents.redis import RedisDocuments
from partq_spark.group.documents.redis_client import PING_AFTER_S, RedisClient
from partq_spark.group.documents.urls import RedisUrl, parse_ownership
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import Ownership
from partq_spark.objects.memory import MemoryStore
from tests.support.servers import RedisServer

STORE_ID: Final = "0123456789abcdef"
"""Of the object store that these tests do without."""


def an_object_store() -> MemoryStore:
    """Another store than all others."""
    return MemoryStore(clock=time.monotonic, rng=random.Random())


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


def command(server: RedisServer, *words: str) -> str:
    """Send one command and return the beginning of the answer, which must be no error."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(
            b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
        )
        answer = connection.recv(65536).decode()
    assert not answer.startswith("-"), answer
    return answer


class Pair:
    """A server and its replica. The address that everybody uses stays that of the server."""

    def __init__(self, server: RedisServer, replica: RedisServer) -> None:
        self.server, self.replica = server, replica
        for one in (server, replica):
            command(one, "CONFIG", "SET", "repl-diskless-sync-delay", "0")

    def follow(self) -> None:
        """The replica follows the server, and has everything that is there by now."""
        self._follow(self.replica, self.server)

    def fail_over(self) -> None:
        """The replica is promoted. A client that still reaches the server writes what nobody will ever see again."""
        self.synced()
        command(self.replica, "REPLICAOF", "NO", "ONE")

    def fail_back(self) -> None:
        """The server takes over all that the former replica has, and is the master again. No connection breaks."""
        self._follow(self.server, self.replica)
        command(self.server, "REPLICAOF", "NO", "ONE")

    def synced(self) -> None:
        """The replica has everything that is there by now."""
        self._wait(self.replica, self.server)

    def _follow(self, one: RedisServer, other: RedisServer) -> None:
        command(one, "REPLICAOF", "127.0.0.1", str(other.port))
        self._wait(one, other)

    def _wait(self, replica: RedisServer, master: RedisServer) -> None:
        def is_there() -> bool:
            offset = re.search(r"master_repl_offset:(\d+)", command(master, "INFO", "replication"))
            said = command(replica, "INFO", "replication")
            return "master_link_status:up" in said and offset is not None and f"slave_repl_offset:{offset[1]}" in said

        deadline_s = time.monotonic() + 30
        while not is_there():
            assert time.monotonic() < deadline_s, "the replica does not follow"
            time.sleep(0.01)


def open_redis(
    server: RedisServer,
    *,
    group: GroupKey | None = None,
    call_timeout_s: float = 2.0,
    ping_after_s: float = PING_AFTER_S,
    password: str = "",
    username: str = "",
    minimum_version: tuple[int, int] | None = None,
    database: int = 0,
) -> Ownership:
    """A store with short time-outs."""
    url = parse_ownership(f"redis://127.0.0.1:{server.port}/{database}")
    assert isinstance(url, RedisUrl)
    client = RedisClient(
        url,
        username=username,
        password=password,
        connect_timeout_s=call_timeout_s,
        call_timeout_s=call_timeout_s,
        ping_after_s=ping_after_s,
        **({} if minimum_version is None else {"minimum_version": minimum_version}),
    )
    return Ownership(RedisDocuments(client, store_id=lambda: STORE_ID, group=group))
