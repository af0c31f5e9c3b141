"""Connections to a Redis: made, kept and given up, and what goes wrong with them, in words. Only this imports redis.

A connection is used by one call at a time and thrown away at the first doubt; nothing is ever sent twice, except where
the server said that it did nothing (NOSCRIPT). Every new connection asks the server which life it is in, so that a
restart between two calls is noticed before anything is sent; on a connection that lives on, the script looks whether
the server was a replica meanwhile. Waits are bounded: the connection by `timeout_s` for each address of the
host, every answer by as much; that the network is dead under a subscription, which waits without asking, shows
by TCP's keepalive as redis-py sets it.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import redis.connection
from redis import exceptions
from redis.credentials import UsernamePasswordCredentialProvider

from partq_spark.base.errors import Corrupt, Invalid, PartqError, Unavailable
from partq_spark.group.documents import Reincarnated
from partq_spark.group.documents.redis_script import REBORN, RIGHTS, SCRIPT, SHA
from partq_spark.group.documents.urls import PASSWORD, USERNAME, RedisUrl

MINIMUM_VERSION: Final = (6, 0)  # the first with users (ACL)
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


_Connection = Any
"""One of redis-py's, which have no types, with the `life` of its server, as we write it on them."""


def _ask(connection: _Connection, *command: str | bytes | int) -> Reply:
    """One command, one answer."""
    connection.send_command(*command, check_health=False)
    return connection.read_response()


class RedisClient:
    """Connections to one database, as many as threads call at once. They are kept here and not in redis-py's pool: its
    locks, checks and counts take a tenth of the time of a coordinator that makes hundreds of calls a second.
    """

    def __init__(
        self,
        url: RedisUrl,
        *,
        username: str = "",
        password: str = "",
        timeout_s: float = 2.0,
    ) -> None:
        self.url = str(url)
        self._timeout_s = timeout_s
        self._credentials = UsernamePasswordCredentialProvider(username, password)  # its `repr` shows neither
        self._tls_files = dict(url.tls_files)
        self._class: Any = redis.connection.SSLConnection if url.tls else redis.connection.Connection
        self._options: dict[str, Any] = {
            "host": url.host,
            "port": url.port,
            "db": url.db,
            "protocol": 2,
            "driver_info": None,  # two round trips for every connection
            "socket_timeout": timeout_s,
            "socket_connect_timeout": timeout_s,
            "credential_provider": self._credentials if password else None,
            "redis_connect_func": self._greet,
            **self._tls_files,
        }
        self._idle: deque[_Connection] = deque()
        self._logged_in = False  # once: what is refused later may come back
        self.closed = threading.Event()
        self.lives = 0
        self._known: _Life | None = None  # by the latest call
        self.latest: _Life | None = None  # by the latest connection

    def close(self) -> None:
        """Give back all connections; one that a call uses goes when the call ends."""
        self.closed.set()
        with suppress(IndexError):
            while True:
                self._idle.pop().disconnect()

    # ---- calls

    def call(self, keys: Sequence[str], *arguments: str | bytes | int, changes: bool) -> Reply:
        """What the script returns for these arguments, in one round trip. `changes`: whether they change anything.

        Raises `Reincarnated` before anything was done where the server lives anew since the last call, `Unavailable`
        where the answer did not come, `Invalid` and `Corrupt` where trying again will not help.
        """
        connection, good = self._unused(), False  # it is kept only if nothing casts doubt on it
        try:
            answer = self._answer(connection, keys, arguments)
            good = True
            return answer
        except (exceptions.RedisError, OSError) as error:
            # A replica may have been the master a moment ago: the next call looks for the present master.
            moved = isinstance(error, exceptions.ReadOnlyError | exceptions.ClusterDownError)
            good = isinstance(error, exceptions.ResponseError) and not moved
            raise self.explain(error, changes=changes) from None
        finally:
            if good:
                self._idle.append(connection)
            else:
                connection.disconnect()
            if self.closed.is_set():
                self.close()

    def _answer(self, connection: _Connection, keys: Sequence[str], arguments: Sequence[str | bytes | int]) -> Reply:
        """By a server that has the life that was known."""
        known, life = self._known, connection.life
        if known not in (None, life):
            raise self._lives_anew(known, life)
        self._known = life
        given = (len(keys), *keys, life.replication_id, *arguments)
        try:
            try:
                return _ask(connection, "EVALSHA", SHA, *given)
            except exceptions.NoScriptError:
                return _ask(connection, "EVAL", SCRIPT, *given)
        except exceptions.ResponseError as error:
            if not str(error).startswith(REBORN):
                raise
            self.latest = connection.life = self._life(connection)
            raise self._lives_anew(life, connection.life) from None

    def _lives_anew(self, was: _Life | None, now: _Life | None) -> Reincarnated:
        self.lives += 1  # first: another thread that finds this life known must find it counted
        self._known = now
        return Reincarnated(
            f"ownership {self.url} was restarted or replaced (life {was}, now {now}): what it said before does not"
            " count"
        )

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

    def _unused(self) -> _Connection:
        """The one that was given back last if it is as good as a new one, else a new one."""
        self._must_be_open()
        with suppress(IndexError, exceptions.RedisError, OSError):
            connection = self._idle.pop()
            mine = connection.pid == os.getpid()  # that of a process that forked is in use there
            # It may lead to another server than new ones do, be ended, or say what a call would take for its answer.
            if mine and connection.life == self.latest and not connection.can_read():
                return connection
            connection.disconnect()
        return self.connect()

    def _greet(self, connection: _Connection) -> None:
        """Every new connection, before it is used."""
        try:
            connection.on_connect()
            self.latest = connection.life = self._life(connection)
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
        if numbers < MINIMUM_VERSION or not found.get("run_id"):
            wanted = ".".join(map(str, MINIMUM_VERSION))
            raise Invalid(
                f"ownership {self.url} says that it is Redis {version or 'of no version'}: use {wanted} or newer"
            )
        return _Life(found["run_id"], found.get("master_replid", ""))

    # ---- what errors mean

    def explain(self, error: Exception, *, changes: bool = False) -> PartqError:
        """partq's error for one of redis-py's or the system's, which came of what `changes` something or does not: what
        it means, and what to do next.
        """
        text = self._hidden(str(error)).splitlines()
        said = text[0][:300] if text else type(error).__name__
        next_step = "whether a change took place is known when it is read again" if changes else "look whether it runs"
        secure = _tls_problem(error, list(self._tls_files.values()))
        if secure is not None:
            return Invalid(f"ownership {self.url}: {secure} ({said})")
        if isinstance(error, exceptions.TimeoutError | TimeoutError):
            plain = ", or it speaks no TLS" if self._is_tls else ""
            return Unavailable(f"ownership {self.url} did not answer within {self._timeout_s:g} s{plain}: {next_step}")
        if isinstance(error, exceptions.InvalidResponse):
            return Invalid(f"ownership {self.url} does not answer as Redis does: check host and port")
        if isinstance(error, exceptions.AuthenticationError) and self._logged_in:
            return Unavailable(
                f"ownership {self.url} refuses user or password ({said}), which were good before: a Redis that has no"
                " aclfile forgets its users when it is restarted; make the user again, and all goes on by itself"
            )
        if isinstance(error, exceptions.AuthenticationError):
            return Invalid(f"ownership {self.url} refuses user or password ({said}): set {USERNAME} and {PASSWORD}")
        for kind, mark, raised, sentence in _MEANINGS:
            if isinstance(error, kind) and re.search(mark, said):
                return raised(f"ownership {self.url}: {sentence} ({said})")
        if isinstance(error, exceptions.ResponseError):
            return Unavailable(f"ownership {self.url} refuses at the moment: {said}")
        if self._is_tls and "EOF" in said:
            said += "; so does one that asks for a client's certificate, ssl_certfile and ssl_keyfile"
        return Unavailable(f"ownership {self.url} cannot be reached or the connection broke ({said}): {next_step}")

    @property
    def _is_tls(self) -> bool:
        return self._class is redis.connection.SSLConnection

    def _hidden(self, text: str) -> str:
        """`text` without user and password: a server that does not know AUTH repeats what it was sent."""
        for secret in (self._credentials.password, self._credentials.username):
            if secret:
                text = text.replace(secret, "(not shown)")
        return text


# The kind of redis-py's error, what its text contains (the code itself is cut off where redis-py has a class for it,
# and repeated inside by older servers), and what we say.
_REPLICA: Final = "this Redis is a read-only replica: wait for the failover to end, or give its master's address"
_FULL: Final = "maxmemory reached, Redis takes no more writes: raise maxmemory or free memory"
_LOST_MASTER: Final = "this Redis is a replica that has lost its master: give its master's address"
_FORBIDDEN: Final = f"the user may not do this: let an administrator give it ACL SETUSER … {RIGHTS}"
_ELSEWHERE: Final = "the group's keys are on another node of a cluster: give an address that serves all keys"
_FOREIGN: Final = (
    "a key of the group holds what partq did not write, or is damaged: remove the keys that begin with partq:"
)
_MEANINGS: Final[tuple[tuple[type[Exception], str, type[PartqError], str], ...]] = (
    (exceptions.ReadOnlyError, "", Unavailable, _REPLICA),
    (exceptions.OutOfMemoryError, "", Unavailable, _FULL),
    (exceptions.MasterDownError, "", Unavailable, _LOST_MASTER),
    (exceptions.BusyLoadingError, "", Unavailable, "this Redis is still loading its data: it answers when it has"),
    (exceptions.NoPermissionError, "", Invalid, _FORBIDDEN),
    (exceptions.MovedError, "", Invalid, _ELSEWHERE),
    (exceptions.ResponseError, "READONLY", Unavailable, _REPLICA),
    (exceptions.ResponseError, "OOM command", Unavailable, _FULL),
    (exceptions.ResponseError, "DENIED", Invalid, "this Redis is in protected mode: give it a password, or bind it"),
    (exceptions.ResponseError, "DB index", Invalid, "there is no such database: use another number"),
    (exceptions.ResponseError, "unknown command", Invalid, "this server lacks a command that partq needs: use Redis"),
    (exceptions.ResponseError, "WRONGTYPE", Corrupt, _FOREIGN),
    (exceptions.ResponseError, r"^user_script:|: user_script:", Corrupt, _FOREIGN),
)


def _tls_problem(error: BaseException | None, files: Sequence[str]) -> str | None:
    """What is wrong with certificates or keys, looking at the causes too; None for any other error."""
    for _ in range(5):
        if isinstance(error, ssl.SSLCertVerificationError):
            return "its certificate is not trusted: name the authority's certificate, ?ssl_ca_certs=/path/ca.pem"
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return "TLS failed: use redis:// if the server speaks no TLS, and check the certificate's files"
        denied = isinstance(error, FileNotFoundError | PermissionError)  # by a firewall, too
        if denied and not all(os.access(file, os.R_OK) for file in files):
            return "a certificate's file cannot be read: check the paths in the URL"
        error = error and (error.__cause__ or error.__context__)
    return None


class Listener:
    """Messages of a few channels, on a connection of its own. For one thread at a time."""

    def __init__(self, client: RedisClient, command: str, *channels: str) -> None:
        self._client = client
        self._command = (command, *channels)
        self._connection: _Connection | None = None

    def wait(self, timeout_s: float) -> frozenset[str] | None:
        """The channels that had a message, empty if none had one in time; None where some may have been missed."""
        connection = self._connection
        if connection is None or connection.life != self._client.latest:  # of another server than calls speak to now
            self.close()
            try:
                self._subscribe()
            except Unavailable:
                self._client.closed.wait(max(0.0, min(timeout_s, _SUBSCRIBE_AGAIN_AFTER_S)))
            return None
        try:
            return self._read(connection, time.monotonic() + timeout_s)
        except (exceptions.RedisError, OSError, ValueError, TypeError, AttributeError):
            # The last three: `close` in another thread has taken the connection away while this one read from it.
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
        self._connection = connection

    def _read(self, connection: _Connection, deadline_s: float) -> frozenset[str]:
        channels: set[str] = set()
        while connection.can_read(timeout=0.0 if channels else max(0.0, deadline_s - time.monotonic())):
            message = connection.read_response()
            if isinstance(message, list) and message[0] in (b"message", b"pmessage"):
                channels.add(bytes(message[-2]).decode(errors="replace"))
        return frozenset(channels)
