"""The local socket of a reader process: a listener or an application says here what has been dealt with. No pyspark.

Messages are Unix datagrams of JSON in a folder that only this user may enter: no credentials, no port, nothing that
leaves the machine. A query's listener says that a batch is complete, an application with `ackMode=manual` how far it
is. The socket is found by the flow's name, or by the address in the query's progress (`notify`). What the words mean is
decided by the consumer and, for applications, in `client.acknowledge`.
"""

from __future__ import annotations

import contextlib
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
from partq_spark.base.folders import private_folder

VERSION: Final = 1
PAGE: Final = 24
"""Partitions in one message: macOS takes datagrams of 2 KiB."""

_MOST_BYTES: Final = 65536
_MOST_WORDS: Final = 1000  # characters of an error's message: the rest of a datagram is little
_FIRST_LOOK_S: Final = 0.02
_MOST_LOOK_S: Final = 0.2
_SILENCE_S: Final = 1.0  # after which the next process under the name is asked too
_SENDING_S: Final = 1.0  # to a process that does not read: then its queue is full
_BEING_BORN_S: Final = 1.0  # a socket has its path a moment before it answers there
_log = logging.getLogger("partq.flow")

Datagram = Mapping[str, Any]


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
    """The receiving end. `handle` gets each message and returns the answer, None for none; its errors are answered.

    Raises `Invalid` if no socket can be made here.
    """

    def __init__(self, address: Address, handle: Callable[[Datagram], Datagram | None]) -> None:
        self._handle = handle
        place = folder()
        _sweep(place)
        path = place / f"{address.stem}-{os.getpid()}-{secrets.token_hex(2)}"
        self.path = str(path)
        self._socket = _bound_to(path)
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
            if answer is None or not sender:  # a sender without an address waits for no answer
                continue
            try:
                self._socket.sendto(_encoded(answer), socket.MSG_DONTWAIT, sender)
            except OSError as error:
                _log.info("the process that asked about the flow has gone: %s", error)

    def _receive(self) -> tuple[bytes, str | None]:
        return self._socket.recvfrom(_MOST_BYTES)

    def _answered(self, data: bytes) -> Datagram | None:
        number: object = None
        try:
            message = json.loads(data)
            if not isinstance(message, dict):
                raise TypeError("no object")
            number = message.get("n")
            if message.get("v") != VERSION:
                raise Invalid(f"the message is not of version {VERSION}: use one partq for reader and application")
            answer = self._handle(message)
        except PartqError as error:
            answer = _failed(type(error).__name__, str(error))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            answer = _failed("Invalid", f"the message is malformed ({error!r})")
        except Exception as error:  # noqa: BLE001 - logged, and the asker is told
            # Not this message's fault. The next one may do better, and without a mailbox nothing is ever acknowledged.
            _log.exception("a message to the reader was not dealt with")
            answer = _failed("Unavailable", f"the reader could not deal with it ({error!r}): see its log, ask again")
        return None if answer is None else {**answer, "n": number}


def _failed(kind: str, words: str) -> Datagram:
    return {"error": kind, "message": words[:_MOST_WORDS]}


def send(path: str, message: Datagram) -> bool:
    """Send without waiting for anything; whether it could be sent."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            sender.sendto(_encoded(message), socket.MSG_DONTWAIT, path)
        except OSError:
            return False
    return True


class Requester:
    """The asking end: finds the flow's reader process, and the next one after it. One user at a time.

    Of several processes under the name the one that is bound counts: another is a twin about to be refused, or has just
    lost the flow (`"bound": false` in its answers). One that is silent, frozen perhaps, does not hide the others.
    """

    def __init__(self, address: Address, *, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s

    def ask(self, message: Datagram) -> Datagram:
        """The answer. Raises `Unavailable` if no reader process of the flow answers within the time, what the reader
        raised, and `Invalid` if no socket can be made here.
        """
        until_s = time.monotonic() + self._timeout_s
        pause_s = _FIRST_LOOK_S
        own = folder() / f"ask-{os.getpid()}-{secrets.token_hex(4)}"
        with _bound_to(own) as asker:
            try:
                while (left_s := until_s - time.monotonic()) > 0:
                    answer = self._asked(asker, message, until_s)
                    if answer is not None:
                        return _checked(answer)
                    time.sleep(min(pause_s, left_s))
                    pause_s = min(pause_s * 2, _MOST_LOOK_S)
            finally:
                own.unlink(missing_ok=True)
        raise Unavailable(
            f"{self._address} has no reader process here that answered within {self._timeout_s:g} s: its query must "
            "run on this machine, by this user, with the same store, namespace, queue, group and flow"
        )

    def _asked(self, asker: socket.socket, message: Datagram, until_s: float) -> Datagram | None:
        """The answer that counts, of all processes under the name that there are now; None if there is none."""
        waiting: set[str] = set()
        others: list[Datagram] = []
        paths = self._found()
        for path in paths:
            number = secrets.token_hex(4)
            if not _sent(asker, path, {**message, "n": number}):
                continue
            waiting.add(number)
            patience_s = min(until_s, time.monotonic() + _SILENCE_S) if path != paths[-1] else until_s
            while waiting and (answer := _received(asker, waiting, patience_s)) is not None:
                if answer.get("bound", answer.get("error") != "Unavailable"):
                    return answer
                others.append(answer)
        return others[0] if others else None

    def _found(self) -> list[str]:
        """The sockets of this flow, newest first: a process that was killed leaves its own behind."""
        return [str(path) for path in sorted(folder().glob(f"{self._address.stem}-*"), key=_made_ns, reverse=True)]


def _bound_to(path: Path) -> socket.socket:
    """A socket of this address. Raises `Invalid`."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        raise Invalid(
            f"no socket can be made at {path} ({error}): set TMPDIR to a writable place whose path is short"
        ) from error
    return made


def _sweep(place: Path) -> None:
    """Remove what killed processes left behind."""
    for path in filter(Path.is_socket, place.iterdir()):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            try:
                sender.connect(str(path))  # sends nothing
            except ConnectionRefusedError:
                _remove_if_left(path)
            except OSError:
                continue


def _remove_if_left(path: Path) -> None:
    """Nobody listens there."""
    if time.time_ns() - _made_ns(path) > _BEING_BORN_S * 1e9:
        with contextlib.suppress(OSError):
            path.unlink()


def _made_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _sent(asker: socket.socket, path: str, message: Datagram) -> bool:
    """Whether somebody listens there."""
    asker.settimeout(_SENDING_S)
    try:
        asker.sendto(_encoded(message), path)
    except ConnectionRefusedError:
        _remove_if_left(Path(path))
        return False
    except OSError:
        return False
    return True


def _received(asker: socket.socket, waiting: set[str], until_s: float) -> Datagram | None:
    """The next answer to one of the questions that are `waiting`, which it leaves; None if none comes in time."""
    while (left_s := until_s - time.monotonic()) > 0:
        asker.settimeout(left_s)
        try:
            answer = json.loads(asker.recv(_MOST_BYTES))
        except TimeoutError:
            return None
        except ValueError:
            continue
        number = answer.get("n") if isinstance(answer, dict) else None
        if isinstance(number, str) and number in waiting:  # not the late answer to an earlier question
            waiting.remove(number)
            return answer  # type: ignore[no-any-return] # a dict
    return None


def _checked(answer: Datagram) -> Datagram:
    kind = answer.get("error")
    if kind is None:
        if answer.get("v") != VERSION:
            raise Invalid(f"the reader's answer is not of version {VERSION}: use one partq for reader and application")
        return answer
    error = getattr(errors, str(kind), None)
    if not (isinstance(error, type) and issubclass(error, PartqError)):
        error = Unavailable
    raise error(str(answer.get("message", "")))


def _encoded(message: Datagram) -> bytes:
    return json.dumps({"v": VERSION, **message}, separators=(",", ":")).encode()
