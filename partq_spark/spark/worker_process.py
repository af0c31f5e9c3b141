"""What partq changes in the Python process in which Spark runs its tasks, so that a small task takes milliseconds.

Such a process has two habits that cost more than the work of a small micro-batch: it collects garbage in full after
every task, and it and the JVM wait for each other's acknowledgements on their connection (decision 0013). Both are
changed once for each process; what the process does stays as it is. No pyspark.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

_calls = count(1)

_LISTINGS: Final = (Path("/proc/self/fd"), Path("/dev/fd"))
"""Of a process' own descriptors: on Linux, on macOS."""

_QUICKACK: Final[int | None] = getattr(socket, "TCP_QUICKACK", None)  # Linux


def prepare_worker() -> None:
    """Every entry that Spark calls in a Python worker that it uses again calls this once."""
    match next(_calls):
        case 1:
            _never_wait(_local_connections())
        case 2:
            _spare_collector()


def _spare_collector() -> None:
    """A collection after every task takes 20 ms for no more than Spark's own imports (50,000 objects), 40 ms with
    pandas. The second call of a process finds all imports done and a collection just over: what lives then lives on,
    and is left out of all later collections.
    """
    gc.freeze()


def _never_wait(connections: Sequence[int]) -> None:
    """The JVM sends a task in two small writes. TCP keeps the second one back until the first one is acknowledged, and
    a side that mostly answers acknowledges late, to do it with its answer: 40 ms in each task. So each task is
    acknowledged at once, and what is sent to the JVM is never kept back.

    Sending an answer makes late acknowledgements the rule again. What runs between a task's answer and the next task is
    the collection after each task, so that is where it is taken back. Spark's Unix domain sockets need none of it.
    """
    for connection in connections:
        _switch_on(connection, socket.TCP_NODELAY)
    if _QUICKACK is None or not connections:
        return

    def acknowledge_at_once(phase: str, collection: Mapping[str, int]) -> None:
        if phase == "stop" and collection["generation"] == 2:  # a full one
            for connection in connections:
                _switch_on(connection, _QUICKACK)

    gc.callbacks.append(acknowledge_at_once)


def _switch_on(descriptor: int, option: int) -> None:
    """Of the connection that has this descriptor now: it is Spark's as long as the worker lives, and does others no
    harm.
    """
    _asked(descriptor, lambda connection: connection.setsockopt(socket.IPPROTO_TCP, option, 1))


def _local_connections() -> list[int]:
    """The descriptors of TCP connections that this process has to others on this machine. Spark's connection has three
    of them, two of which end with each task.
    """
    return [descriptor for descriptor in _descriptors() if _asked(descriptor, _is_local)]


def _is_local(connection: socket.socket) -> bool:
    is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM
    return is_tcp and ip_address(connection.getpeername()[0]).is_loopback


def _asked(descriptor: int, question: Callable[[socket.socket], T]) -> T | None:
    """Of a socket that others have opened and will close; None if it is no socket, or the question is not for it."""
    with suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            return question(connection)
        finally:
            connection.detach()
    return None


def _descriptors() -> list[int]:
    for folder in _LISTINGS:
        with suppress(OSError):
            return [int(path.name) for path in folder.iterdir()]
    return []
