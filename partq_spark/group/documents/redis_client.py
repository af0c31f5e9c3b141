"""Connections to a Redis: made, kept and given up. Only this module and `redis_errors` import redis.

A connection is used by one call at a time and thrown away at the first doubt; nothing is ever sent twice, except where
the server said that it did nothing (NOSCRIPT). Every new connection asks the server which life it is in, so that a
restart between two calls is noticed before anything is sent; on a connection that lives on, the script looks whether
the server was a replica meanwhile. Waits are bounded: the connection by `connect_timeout_s` for each address of the
host, every answer by `call_timeout_s`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol

import redis.connection
from redis import exceptions
from redis.credentials import CredentialProvider

from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.group.documents.api import Reincarnated, reincarnated
from partq_spark.group.documents.redis_errors import explained
from partq_spark.group.documents.redis_script import REBORN, SCRIPT, SHA
from partq_spark.group.documents.urls import RedisUrl

MINIMUM_VERSION: Final = (6, 0)  # the first with users (ACL)
_MAX_CONNECTIONS: Final = 16
PING_AFTER_S: Final = 5.0
_SUBSCRIBE_AGAIN_AFTER_S: Final = 0.5

Reply = Any  # int, bytes, None or a list of such: what a script returned


class _Life(NamedTuple):
    """What a server keeps for as long as it loses nothing: `run_id` is another one after a restart, `replication_id`
    after a replica was promoted, this server or another one whose copy it took over. An idle master changes it now and
    then too, which costs its users some milliseconds. Empty: a server that has none.
    """

    run_id: str
    replication_id: str

    def __str__(self) -> str:
        return f"{self.run_id}-{self.replication_id}"


class _Connection(Protocol):
    """What we use of redis-py's connections, and what we write on them."""

    life: _Life

    def connect(self) -> None: ...

    def on_connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def send_command(self, *command: Any, check_health: bool) -> None: ...

    def read_response(self) -> Reply: ...

    def can_read(self, timeout: float = 0) -> bool: ...


def _ask(connection: _Connection, *command: str | bytes | int) -> Reply:
    """One command, one answer."""
    connection.send_command(*command, check_health=False)
    return connection.read_response()


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
        self._tls_files = dict(url.tls_files)
        self._class: Any = redis.connection.SSLConnection if url.tls else redis.connection.Connection
        self._options: dict[str, Any] = {
            "host": url.host,
            "port": url.port,
            "db": url.db,
            "protocol": 2,
            "driver_info": None,  # two round trips for every connection
            "socket_timeout": call_timeout_s,
            "socket_connect_timeout": connect_timeout_s,
            "credential_provider": self._credentials if password else None,
            "redis_connect_func": self._greet,
            **self._tls_files,
        }
        pool: Any = redis.connection.BlockingConnectionPool  # without types
        self._pool = pool(
            max_connections=_MAX_CONNECTIONS,
            timeout=call_timeout_s,
            connection_class=self._class,
            **self._options,
        )
        self._logged_in = False  # once: what is refused later may come back
        self.closed = threading.Event()
        self.lives = 0
        self._known: _Life | None = None  # by the latest call
        self._latest: _Life | None = None  # by the latest connection

    def __repr__(self) -> str:
        return f"RedisClient({self.url!r})"

    def close(self) -> None:
        """Give back all connections."""
        self.closed.set()
        self._pool.disconnect(inuse_connections=False)

    # ---- calls

    def call(self, keys: Sequence[str], *arguments: str | bytes | int, changes: bool) -> Reply:
        """What the script returns for these arguments, in one round trip. `changes`: whether they change anything.

        Raises `Reincarnated` before anything was done where the server lives anew since the last call, `Unavailable`
        where the answer did not come, `Invalid` and `Corrupt` where trying again will not help.
        """
        with self._lent(changes=changes) as connection:
            known, life = self._known, connection.life
            self._known = life
            if known not in (None, life):
                raise self._lives_anew(known, life)
            given = (len(keys), *keys, life.replication_id, *arguments)
            try:
                try:
                    return _ask(connection, "EVALSHA", SHA, *given)
                except exceptions.NoScriptError:
                    return _ask(connection, "EVAL", SCRIPT, *given)
            except exceptions.ResponseError as error:
                if not str(error).startswith(REBORN):
                    raise
                self._known = self._latest = connection.life = self._life(connection)
                raise self._lives_anew(life, connection.life) from None

    def _lives_anew(self, was: _Life | None, now: _Life | None) -> Reincarnated:
        self.lives += 1
        return reincarnated(self.url, str(was), str(now))

    # ---- connections

    def connect(self) -> _Connection:
        """A connection beside the others, checked; the caller disconnects it."""
        self._must_be_open()
        try:
            connection: _Connection = self._class(**self._options)
            connection.connect()
        except (exceptions.RedisError, OSError) as error:
            raise self.explain(error) from None
        return connection

    def _must_be_open(self) -> None:
        if self.closed.is_set():
            raise Unavailable(f"ownership {self.url} was closed: open it again")

    @contextmanager
    def _lent(self, *, changes: bool) -> Iterator[_Connection]:
        """A connection for one call; it is kept afterwards only if nothing casts doubt on it."""
        self._must_be_open()
        try:
            connection: _Connection = self._pool.get_connection()
        except (exceptions.RedisError, OSError) as error:
            raise self.explain(error) from None
        good = False
        try:
            if connection.life != self._latest:  # it may lead to another server than new ones do
                connection.disconnect()
                connection.connect()
            yield connection
            good = True
        except PartqError:
            good = True
            raise
        except (exceptions.RedisError, OSError) as error:
            # A replica may have been the master a moment ago: the next call looks for the present master.
            moved = isinstance(error, exceptions.ReadOnlyError | exceptions.ClusterDownError)
            good = isinstance(error, exceptions.ResponseError) and not moved
            raise self.explain(error, changes=changes) from None
        finally:
            if not good or self.closed.is_set():
                connection.disconnect()
            self._pool.release(connection)

    def _greet(self, connection: _Connection) -> None:
        """Every new connection, before it is used."""
        try:
            connection.on_connect()
            self._latest = connection.life = self._life(connection)
        except BaseException:
            connection.disconnect()
            raise
        self._logged_in = True

    def _life(self, connection: _Connection) -> _Life:
        """The server's life; raises `Invalid` if the server will not do."""
        told = bytes(_ask(connection, "INFO")).decode(errors="replace")
        found: dict[str, str] = dict(re.findall(r"(?m)^(\w+):(.*?)\r?$", told))
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
            tls=self._class is redis.connection.SSLConnection,
            tls_files=list(self._tls_files.values()),
        )


class Listener:
    """Messages of a few channels, on a connection of its own. For one thread at a time."""

    def __init__(self, client: RedisClient, command: str, *channels: str) -> None:
        self._client = client
        self._command = (command, *channels)
        self._connection: _Connection | None = None
        self._heard_s = 0.0
        self._asked_s: float | None = None

    def wait(self, timeout_s: float) -> frozenset[str] | None:
        """The channels that had a message, empty if none had one in time; None where some may have been missed."""
        deadline_s = time.monotonic() + timeout_s
        if self._connection is None:
            try:
                self._subscribe()
            except Unavailable:
                self._client.closed.wait(max(0.0, min(timeout_s, _SUBSCRIBE_AGAIN_AFTER_S)))
            return None
        try:
            return self._read(self._connection, deadline_s)
        except (exceptions.RedisError, OSError, ValueError):  # ValueError: closed by `close` in another thread
            self.close()
            return None

    def close(self) -> None:
        """End the subscription."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _subscribe(self) -> None:
        connection = self._client.connect()
        try:
            _ask(connection, *self._command)
        except (exceptions.RedisError, OSError) as error:
            connection.disconnect()
            raise self._client.explain(error) from None
        self._connection, self._heard_s, self._asked_s = connection, time.monotonic(), None

    def _read(self, connection: _Connection, deadline_s: float) -> frozenset[str] | None:
        channels: set[str] = set()
        while True:
            now_s = time.monotonic()
            until_s = self._keep_alive(connection, now_s)
            if until_s is None:
                self.close()
                return None
            wait_s = 0.0 if channels else max(0.0, min(deadline_s, until_s) - now_s)
            if connection.can_read(timeout=wait_s):
                message = connection.read_response()
                self._heard_s, self._asked_s = time.monotonic(), None
                if isinstance(message, list) and message[0] in (b"message", b"pmessage"):
                    channels.add(bytes(message[-2]).decode(errors="replace"))
            elif channels or time.monotonic() >= deadline_s:
                return frozenset(channels)

    def _keep_alive(self, connection: _Connection, now_s: float) -> float | None:
        """When to look again; None if the server is silent for too long. A dead network sends no message either."""
        if self._asked_s is None:
            if now_s < self._heard_s + self._client.ping_after_s:
                return self._heard_s + self._client.ping_after_s
            connection.send_command("PING", check_health=False)
            self._asked_s = now_s
        limit_s = self._asked_s + self._client.call_timeout_s
        return limit_s if now_s < limit_s else None
