"""Connections to a Redis: made, kept and given up. Only this module and `redis_errors` import redis.

A connection is used by one call at a time and thrown away at the first doubt; nothing is ever sent twice, except where
the server said that it did nothing (NOSCRIPT). Every new connection asks the server which life it is in, so that a
restart between two calls is noticed before anything is sent; on a connection that lives on, the script looks whether
the server was a replica meanwhile. Waits are bounded: the connection by `connect_timeout_s` for each address of the
host, every answer by `call_timeout_s`.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import redis.connection
from redis import exceptions
from redis.credentials import CredentialProvider

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.group.documents.api import reincarnated
from partq_spark.group.documents.redis_errors import explained
from partq_spark.group.documents.redis_script import REBORN, SCRIPT, SHA
from partq_spark.group.documents.urls import RedisUrl

MINIMUM_VERSION: Final = (6, 0)  # the first with users (ACL)
_MAX_CONNECTIONS: Final = 16
PING_AFTER_S: Final = 5.0
_SUBSCRIBE_AGAIN_AFTER_S: Final = 0.5

Reply = Any  # int, bytes, None or a list of such: what a script returned


class _Wire(Protocol):
    """What we use of redis-py's connections."""

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *command: Any, check_health: bool) -> None: ...

    def send_packed_command(self, command: Sequence[bytes], check_health: bool) -> None: ...

    def read_response(self) -> Reply: ...

    def can_read(self, timeout: float = 0) -> bool: ...


class _Life(NamedTuple):
    """What a server keeps for as long as it loses nothing: `run_id` is another one after a restart, `replication_id`
    after a replica was promoted, this server or another one whose copy it took over. An idle master changes it now and
    then too, which costs its users some milliseconds. Empty: a server that has none.
    """

    run_id: str
    replication_id: str

    def __str__(self) -> str:
        return f"{self.run_id}-{self.replication_id}"


@dataclass(slots=True)
class _Link:
    """One connection, for as long as its socket lives."""

    connection: _Wire
    life: _Life | None = None

    def quiet(self) -> bool:
        """Whether nothing waits to be read: an answer nobody asked for, or the end, is no good sign."""
        try:
            return not self.connection.can_read()
        except (exceptions.RedisError, OSError):
            return False

    def ask(self, *command: Any) -> Reply:
        """One command, one answer."""
        self.connection.send_packed_command([_packed(command)], check_health=False)
        return self.connection.read_response()

    def ask_all(self, *commands: tuple[str, ...]) -> list[str]:
        """Several commands whose answers are texts, in one round trip."""
        for command in commands:
            self.connection.send_command(*command, check_health=False)
        answers: list[str] = []
        refused: exceptions.ResponseError | None = None
        for _ in commands:
            try:
                answers.append(bytes(self.connection.read_response()).decode(errors="replace"))
            except exceptions.ResponseError as error:
                refused = refused or error  # the other answers come all the same, and are nobody else's
        if refused is not None:
            raise refused
        return answers

    def drop(self) -> None:
        self.connection.disconnect()


def _packed(words: Sequence[str | bytes | int]) -> bytes:
    """A command as Redis reads it; redis-py takes three times as long."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class _Credentials(CredentialProvider):
    """Keeps user and password out of every `repr`."""

    def __init__(self, username: str, password: str) -> None:
        self._pair = (username, password)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        username, password = self._pair
        return (username, password) if username else (password,)

    def __repr__(self) -> str:
        return "_Credentials()"

    def hidden(self, text: str) -> str:
        """`text` without user and password: a server that does not know AUTH repeats what it was sent."""
        for secret in self._pair[::-1]:
            if secret:
                text = text.replace(secret, "(not shown)")
        return text


class RedisClient:
    """A few connections to one database."""

    def __init__(
        self,
        url: RedisUrl,
        *,
        username: str = "",
        password: str = "",
        connect_timeout_s: float = 2.0,
        call_timeout_s: float = 2.0,
        ping_after_s: float = PING_AFTER_S,
        minimum_version: tuple[int, int] = MINIMUM_VERSION,
    ) -> None:
        self.url = str(url)
        self.call_timeout_s = call_timeout_s
        self.ping_after_s = ping_after_s  # of silence on a subscription
        self._minimum_version = minimum_version
        self._credentials = _Credentials(username, password)
        self._options: dict[str, Any] = {
            "host": url.host,
            "port": url.port,
            "db": url.db,
            "protocol": 2,
            "driver_info": None,  # two round trips for every connection
            "socket_timeout": call_timeout_s,
            "socket_connect_timeout": connect_timeout_s,
            "credential_provider": self._credentials if password else None,
            **dict(url.tls_files),
        }
        self._tls, self._tls_files = url.tls, [path for _, path in url.tls_files]
        self._class: type[_Wire] = redis.connection.SSLConnection if url.tls else redis.connection.Connection
        self._logged_in = False  # once: what is refused later may come back
        self.closed = threading.Event()
        self._known: _Life | None = None
        self._latest: _Life | None = None
        self._begin()

    def __repr__(self) -> str:
        return f"RedisClient({self.url!r})"

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._idle: list[_Link] = []

    def close(self) -> None:
        """Give back all connections."""
        self.closed.set()
        self._drop_idle()

    # ---- calls

    def call(self, keys: Sequence[str], *arguments: str | bytes | int, changes: bool) -> Reply:
        """What the script returns for these arguments, in one round trip. `changes`: whether they change anything.

        Raises `Reincarnated` before anything was sent where the server lives anew since `incarnation` was asked for,
        `Unavailable` where the answer did not come, `Invalid` and `Corrupt` where trying again will not help.
        """
        with _Lent(self, changes=changes) as link:
            known = self._known
            if known is None:
                known = self._known = link.life
            if known is None or link.life != known:
                raise reincarnated(self.url, str(known), str(link.life))
            given = (len(keys), *keys, known.replication_id, *arguments)
            try:
                try:
                    return link.ask("EVALSHA", SHA, *given)
                except exceptions.NoScriptError:
                    return link.ask("EVAL", SCRIPT, *given)
            except exceptions.ResponseError as error:
                if not str(error).startswith(REBORN):
                    raise
                link.life = self._life(link)
                raise reincarnated(self.url, str(known), str(link.life)) from None

    def incarnation(self) -> str:
        """The server's life, asked of it now."""
        with _Lent(self) as link:
            life = self._life(link)
            link.life = self._known = self._latest = life
            return str(life)

    # ---- connections

    def connect(self) -> _Link:
        """A new connection, checked; the caller drops it."""
        if self.closed.is_set():
            raise Unavailable(f"ownership {self.url} was closed: open it again")
        link: _Link | None = None
        try:
            link = _Link(self._class(**self._options))
            link.connection.connect()
            link.life = self._life(link)
            self._logged_in = True
        except BaseException as error:
            if link is not None:
                link.drop()
            if isinstance(error, (exceptions.RedisError, OSError)):
                raise self.explain(error) from None
            raise
        return link

    def _life(self, link: _Link) -> _Life:
        """The server's life; raises `Invalid` if the server will not do."""
        server, replication = link.ask_all(("INFO", "server"), ("INFO", "replication"))
        found: dict[str, str] = dict(re.findall(r"(?m)^(\w+):(.*?)\r?$", f"{server}\n{replication}"))
        version = found.get("redis_version", "")
        if found.get("redis_mode") == "sentinel":
            raise Invalid(f"ownership {self.url} is a Sentinel, which keeps no data: give the address of its Redis")
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers < self._minimum_version or not found.get("run_id"):
            wanted = ".".join(map(str, self._minimum_version))
            raise Invalid(
                f"ownership {self.url} says that it is Redis {version or 'of no version'}: use {wanted} or newer"
            )
        return _Life(found["run_id"], found.get("master_replid", ""))

    def lend(self) -> _Link:
        """An idle connection that is still good, or a new one."""
        if self._pid != os.getpid():
            self._begin()  # a fork's child must not speak on its parent's connections
        if not self._free.acquire(timeout=self.call_timeout_s):
            raise Unavailable(f"ownership {self.url}: all {_MAX_CONNECTIONS} connections are in use: try again")
        try:
            while (link := self._next_idle()) is not None:
                if link.life == self._latest and link.quiet():
                    return link
                link.drop()
            link = self.connect()
        except BaseException:
            self._free.release()
            raise
        self._latest = link.life
        return link

    def _next_idle(self) -> _Link | None:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def give_back(self, link: _Link, *, good: bool) -> None:
        """After `lend`."""
        if good and not self.closed.is_set():
            with self._lock:
                self._idle.append(link)
        else:
            link.drop()
        self._free.release()

    def _drop_idle(self) -> None:
        while (link := self._next_idle()) is not None:
            link.drop()

    # ---- what errors mean

    def explain(self, error: Exception, *, changes: bool = False) -> PartqError:
        """partq's error for one of redis-py's or the system's, which came of what `changes` something or does not."""
        return explained(
            error,
            url=self.url,
            call_timeout_s=self.call_timeout_s,
            logged_in=self._logged_in,
            changes=changes,
            hidden=self._credentials.hidden,
            tls=self._tls,
            tls_files=self._tls_files,
        )


class _Lent:
    """A connection for the length of a `with` block; it is kept afterwards only if nothing casts doubt on it."""

    __slots__ = ("_changes", "_client", "_link")

    def __init__(self, client: RedisClient, *, changes: bool = False) -> None:
        self._client = client
        self._changes = changes

    def __enter__(self) -> _Link:
        self._link = self._client.lend()
        return self._link

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, PartqError):
            self._client.give_back(self._link, good=True)
            return
        # A replica may have been the master a moment ago: the next call looks for the present master.
        good = isinstance(error, exceptions.ResponseError) and not isinstance(
            error, exceptions.ReadOnlyError | exceptions.ClusterDownError
        )
        self._client.give_back(self._link, good=good)
        if isinstance(error, exceptions.RedisError | OSError):
            raise self._client.explain(error, changes=self._changes) from None


class Listener:
    """Messages of a few channels, on a connection of its own. For one thread at a time."""

    def __init__(self, client: RedisClient, command: str, *channels: str) -> None:
        self._client = client
        self._command = (command, *channels)
        self._link: _Link | None = None
        self._heard_s = 0.0
        self._asked_s: float | None = None

    def wait(self, timeout_s: float) -> frozenset[str] | None:
        """The channels that had a message, empty if none had one in time; None where some may have been missed."""
        deadline_s = time.monotonic() + timeout_s
        if self._link is None:
            try:
                self._subscribe()
            except Unavailable:
                self._client.closed.wait(max(0.0, min(timeout_s, _SUBSCRIBE_AGAIN_AFTER_S)))
            return None
        try:
            return self._read(self._link, deadline_s)
        except (exceptions.RedisError, OSError, ValueError):  # ValueError: closed by `close` in another thread
            self.close()
            return None

    def close(self) -> None:
        """End the subscription."""
        link, self._link = self._link, None
        if link is not None:
            link.drop()

    def _subscribe(self) -> None:
        link = self._client.connect()
        try:
            link.ask(*self._command)
        except (exceptions.RedisError, OSError) as error:
            link.drop()
            raise self._client.explain(error) from None
        self._link, self._heard_s, self._asked_s = link, time.monotonic(), None

    def _read(self, link: _Link, deadline_s: float) -> frozenset[str] | None:
        channels: set[str] = set()
        while True:
            now_s = time.monotonic()
            until_s = self._keep_alive(link, now_s)
            if until_s is None:
                self.close()
                return None
            wait_s = 0.0 if channels else max(0.0, min(deadline_s, until_s) - now_s)
            if link.connection.can_read(timeout=wait_s):
                message = link.connection.read_response()
                self._heard_s, self._asked_s = time.monotonic(), None
                if isinstance(message, list) and message[0] in (b"message", b"pmessage"):
                    channels.add(bytes(message[-2]).decode(errors="replace"))
            elif channels or time.monotonic() >= deadline_s:
                return frozenset(channels)

    def _keep_alive(self, link: _Link, now_s: float) -> float | None:
        """When to look again; None if the server is silent for too long. A dead network sends no message either."""
        if self._asked_s is None:
            if now_s < self._heard_s + self._client.ping_after_s:
                return self._heard_s + self._client.ping_after_s
            link.connection.send_command("PING", check_health=False)
            self._asked_s = now_s
        limit_s = self._asked_s + self._client.call_timeout_s
        return limit_s if now_s < limit_s else None
