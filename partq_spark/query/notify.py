"""The local socket of a reader process: a listener or an application says here what has been dealt with. No pyspark.

One stream socket for each flow, in a folder that only this user may enter: no credentials, no port, nothing that leaves
the machine. It is found by the flow's name, or by the address in the query's progress (`notify`); who is bound as the
flow takes it over from a process before. One connection carries a line of JSON, and the answer if there is
one. A listener says that a batch is complete, an application with `ackMode=manual` how far it is. What the words
mean is decided by the consumer and, for applications, in `client.acknowledge`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from partq_spark.base import errors
from partq_spark.base.errors import Invalid, PartqError, Unavailable
from partq_spark.base.process import private_folder

VERSION: Final = 1

_MOST_BYTES: Final = 1 << 22  # of a line: a thousand partitions take some 100 kB
_WAITING: Final = 64  # connections that nobody has looked at yet
_FIRST_LOOK_S: Final = 0.02
_MOST_LOOK_S: Final = 0.2
_PATIENCE_S: Final = 1.0  # with one who connects and says nothing, or who does not take the answer
_log = logging.getLogger("partq.flow")

Message = Mapping[str, Any]


class Address(NamedTuple):
    """Which flow of which group, by the names that the source's options have; `store` is its canonical URL."""

    store: str
    namespace: str
    queue: str
    group: str
    flow: str

    def __str__(self) -> str:
        return f"flow {self.flow!r} of group {self.namespace}/{self.queue}/{self.group}"

    @property
    def stem(self) -> str:
        """The same for every process that knows the names, and short: a socket's path has about 100 bytes."""
        return xxhash.xxh3_64_hexdigest("\n".join(self).encode())


def folder() -> Path:
    """Where this user's sockets are; made if it is not there. Raises `Invalid` if others may enter it."""
    return private_folder(Path(tempfile.gettempdir()) / f"partq-{os.getuid()}")


class Mailbox:
    """The receiving end, which has the flow's path from now on. `handle` gets each message and returns the answer, None
    for none; its errors are answered. One message after the other, in a thread of its own.

    Raises `Invalid` if no socket can be made here.
    """

    def __init__(self, address: Address, handle: Callable[[Message], Message | None]) -> None:
        self._handle = handle
        path = folder() / address.stem
        self.path = str(path)
        self._socket = _listening_at(path)
        self._inode = _inode(self.path)
        self._thread = threading.Thread(target=self._serve, name="partq mailbox", daemon=True)
        self._thread.start()

    @property
    def is_found(self) -> bool:
        """Whether the path still leads here: another process may have become the flow meanwhile."""
        return _inode(self.path) == self._inode

    def close(self) -> None:
        """Nothing is received any more. A successor's path stays. May be repeated."""
        if self.is_found:
            with contextlib.suppress(OSError):
                Path(self.path).unlink()
        self._inode = 0
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._inode == 0:
                    return  # closed
                time.sleep(0.1)  # no descriptor is free, say
                continue
            with connection, contextlib.suppress(OSError):  # the other end has gone
                connection.settimeout(_PATIENCE_S)
                with connection.makefile("rb") as lines:
                    answer = self._answered(lines.readline(_MOST_BYTES))
                if answer is not None:
                    connection.sendall(_line(answer))

    def _answered(self, data: bytes) -> Message | None:
        try:
            message = json.loads(data)
            if not isinstance(message, dict):
                raise TypeError("no object")
            if message.get("v") != VERSION:
                raise Invalid(f"the message is not of version {VERSION}: use one partq for reader and application")
            return self._handle(message)
        except PartqError as error:
            return {"error": type(error).__name__, "message": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            return {"error": "Invalid", "message": f"the message is malformed ({error!r})"}
        except Exception as error:  # noqa: BLE001 - logged, and the asker is told
            # Not this message's fault. The next one may do better, and without a mailbox nothing is ever acknowledged.
            _log.exception("a message to the reader was not dealt with")
            words = f"the reader could not deal with it ({error!r}): see its log, ask again"
            return {"error": "Unavailable", "message": words}


def is_taken(address: Address) -> bool:
    """Whether somebody listens for this flow. Raises `Invalid` if no socket can be made here."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.setblocking(False)
        path = str(folder() / address.stem)
        with contextlib.suppress(OSError):  # the path is too long
            return asker.connect_ex(path) in (0, errno.EAGAIN)  # or somebody is there and busy
    return False


def send(path: str, message: Message) -> bool:
    """Send without waiting for anything, not even for a reader that is frozen; whether it could be sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sender:
        sender.setblocking(False)
        try:
            sender.connect(path)
            line = _line(message)
            return sender.send(line) == len(line)
        except OSError:
            return False


class Requester:
    """The asking end: finds the flow's reader process, and the next one after it. One user at a time."""

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def ask(self, message: Message) -> Message:
        """The answer. Raises `Unavailable` if no reader process of the flow answers within the time, what the reader
        raised, and `Invalid` if no socket can be made here.
        """
        path = str(folder() / self._address.stem)
        until_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_LOOK_S
        while (left_s := until_s - time.monotonic()) > 0:
            try:
                answer = _asked(path, message, until_s)
            except OSError as error:
                if error.errno is None:  # the path is too long
                    raise _unusable(path, error) from error
                answer = None  # nobody is there, or has gone while we asked
            if answer is not None:
                return _checked(answer)
            time.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 2, _MOST_LOOK_S)
        raise Unavailable(
            f"{self._address} has no reader process here that answered within {self._timeout_s:g} s: its query must "
            "run on this machine, by this user, with the same store, namespace, queue, group and flow"
        )


def _asked(path: str, message: Message, until_s: float) -> Message | None:
    """The answer; None if another process has become the flow meanwhile. Raises `OSError`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asked = _inode(path)
        asker.settimeout(_PATIENCE_S)
        asker.connect(path)
        asker.sendall(_line(message))
        data = b""
        while not data.endswith(b"\n"):
            try:
                part = asker.recv(65536)
            except TimeoutError:
                if _inode(path) != asked or time.monotonic() >= until_s:
                    return None
                continue
            if not part:
                return None
            data += part
    answer = json.loads(data)
    return answer if isinstance(answer, dict) else None


def _listening_at(path: Path) -> socket.socket:
    """A socket that has this path, whoever had it before. Raises `Invalid`."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    first = path.with_name(f"{path.name}-{secrets.token_hex(4)}")
    try:
        made.bind(str(first))
        made.listen(_WAITING)
        first.replace(path)  # at once: nobody meets a path that does not answer
    except OSError as error:
        made.close()
        with contextlib.suppress(OSError):
            first.unlink()
        raise _unusable(path, error) from error
    return made


def _unusable(path: Path | str, error: OSError) -> Invalid:
    return Invalid(f"no socket can be made at {path} ({error}): set TMPDIR to a writable place whose path is short")


def _inode(path: str) -> int:
    """What the path leads to, 0 if there is nothing."""
    try:
        return os.stat(path).st_ino  # noqa: PTH116 - asked for each answer that is late
    except OSError:
        return 0


def _checked(answer: Message) -> Message:
    kind = answer.get("error")
    if kind is None:
        if answer.get("v") != VERSION:
            raise Invalid(f"the reader's answer is not of version {VERSION}: use one partq for reader and application")
        return answer
    error = getattr(errors, str(kind), None)
    if not (isinstance(error, type) and issubclass(error, PartqError)):
        error = Unavailable
    raise error(str(answer.get("message", "")))


def _line(message: Message) -> bytes:
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode() + b"\n"
