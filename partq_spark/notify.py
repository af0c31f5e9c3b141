"""The reader process' local socket: whoever learns that messages are dealt with says so here. No pyspark.

Unix datagrams of JSON in a folder that only this user may enter: no credentials, no port, nothing that leaves the
machine. A query's listener says that a batch is complete, an application with `ackMode=manual` says how far it is. Who
asks names the flow; the reader's socket is found by that, or by the address in the query's progress (`notify`). What is
said there is `consuming`'s business, what the application says of it `acknowledge`'s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import xxhash

from partq_spark import errors
from partq_spark.errors import Invalid, PartqError, Unavailable

VERSION: Final = 1
PAGE: Final = 24
"""Partitions in one message: macOS takes datagrams of 2 KiB."""

_MOST_BYTES: Final = 65536
_FIRST_LOOK_S: Final = 0.02
_MOST_LOOK_S: Final = 0.2
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
        """The same for everybody who knows the names, and short: a socket's path has about 100 bytes."""
        return xxhash.xxh3_64_hexdigest("\n".join(self).encode())


def folder() -> Path:
    """Where this user's sockets are; made if it is not there. Raises `Invalid` if others may enter it."""
    path = Path(tempfile.gettempdir()) / f"partq-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise Invalid(
            f"{path} is not a folder that only this user may enter: remove it, or set TMPDIR to another place"
        )
    return path


class Mailbox:
    """The receiving end. `handle` gets each message and returns the answer, None for none; its errors are answered."""

    def __init__(self, address: Address, handle: Callable[[Message], Message | None]) -> None:
        self._handle = handle
        path = folder() / f"{address.stem}-{os.getpid()}-{secrets.token_hex(2)}"
        self.path = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._open = True
        self._thread = threading.Thread(target=self._serve, name="partq mailbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Nothing is received any more. May be repeated."""
        if not self._open:
            return
        self._open = False
        with contextlib.suppress(OSError):
            Path(self.path).unlink()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while self._open:
            try:
                data, sender = self._receive()
            except OSError:
                return  # closed
            if not data:
                continue
            answer = self._answered(data)
            if answer is None or not sender:  # who has no address waits for nothing
                continue
            try:
                self._socket.sendto(_encoded(answer), socket.MSG_DONTWAIT, sender)
            except OSError as error:
                _log.info("whoever asked about the flow has gone: %s", error)

    def _receive(self) -> tuple[bytes, str | None]:
        return self._socket.recvfrom(_MOST_BYTES)

    def _answered(self, data: bytes) -> Message | None:
        number: object = None
        try:
            message = json.loads(data)
            if not isinstance(message, dict) or message.get("v") != VERSION:
                raise Invalid(f"the message is not of version {VERSION}: use one partq for reader and application")
            number = message.get("n")
            answer: Message | None = self._handle(message)
        except PartqError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            answer = {"error": "Invalid", "message": f"the message is malformed ({error!r})"}
        return None if answer is None else {**answer, "n": number}


def tell(path: str, message: Message) -> bool:
    """Send without waiting for anything; whether it could be sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(_encoded(message), socket.MSG_DONTWAIT, path)
        except OSError:
            return False
    return True


class Line:
    """The asking end: finds the flow's reader process, and the next one after it. One user at a time.

    Of several processes under the name the one that is bound counts: another is a twin about to be refused, or has just
    lost the flow (`"bound": false` in its answers).
    """

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def ask(self, message: Message) -> Message:
        """The answer. Raises `Unavailable` if no reader process of the flow answers within the time, and what the
        reader raised.
        """
        until_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_LOOK_S
        own = folder() / f"ask-{os.getpid()}-{secrets.token_hex(4)}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
            asker.bind(str(own))
            try:
                while (left_s := until_s - time.monotonic()) > 0:
                    unbound: Message | None = None
                    for path in self._found():
                        answer = _asked(asker, path, message, left_s)
                        if answer is not None and answer.get("bound", True):
                            return _checked(answer)
                        unbound = unbound or answer
                    if unbound is not None:
                        return _checked(unbound)
                    time.sleep(min(pause_s, max(left_s, 0.0)))
                    pause_s = min(pause_s * 2, _MOST_LOOK_S)
            finally:
                own.unlink(missing_ok=True)
        raise Unavailable(
            f"{self._address} has no reader process here that answered within {self._timeout_s:g} s: its query must "
            "run on this machine, by this user, with the same store, namespace, queue, group and flow"
        )

    def _found(self) -> list[str]:
        """The sockets of this flow, newest first: a process that was killed leaves its own behind."""
        return [str(path) for path in sorted(folder().glob(f"{self._address.stem}-*"), key=_made_ns, reverse=True)]


def _made_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _asked(asker: socket.socket, path: str, message: Message, timeout_s: float) -> Message | None:
    """The answer of whoever listens there; None if nobody does."""
    number = secrets.token_hex(4)
    try:
        asker.sendto(_encoded({**message, "n": number}), path)
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            Path(path).unlink()
        return None
    except OSError:
        return None
    until_s = time.monotonic() + timeout_s
    while (left_s := until_s - time.monotonic()) > 0:
        asker.settimeout(left_s)
        try:
            answer = json.loads(asker.recv(_MOST_BYTES))
        except TimeoutError:
            return None
        if isinstance(answer, dict) and answer.get("n", number) == number:  # not the late answer to an earlier question
            return answer
    return None


def _checked(answer: Message) -> Message:
    kind = answer.get("error")
    if kind is None:
        return answer
    error = getattr(errors, str(kind), None)
    if not (isinstance(error, type) and issubclass(error, PartqError)):
        error = Unavailable
    raise error(str(answer.get("message", "")))


def _encoded(message: Message) -> bytes:
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode()
