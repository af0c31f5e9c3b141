"""What makes Spark quick: on one machine a home whose Python workers start quickly, and a setting for its own logs;
and in every process that runs tasks two habits less.

The home is a folder of links to the installed PySpark's programs and jars, no more. Spark puts `python/lib/pyspark.zip`
of its home first on the path of every Python worker, and what comes from there is compiled anew in each process: a
second of processor time for every query that starts. A home without that archive makes workers import the installed
package, as the driver does (decision 0013). No pyspark is imported here: the command line, the demo and the tests use
this before Spark starts. A folder that was not made here is never touched.

The processes in which Spark runs Python tasks collect garbage in full after every task, and they and the JVM wait for
each other's acknowledgements on their connection, which costs more than the work of a small micro-batch (decision
0013). Both are changed once for each process (`prepare_worker`); what the process does stays as it is.
"""

from __future__ import annotations

import gc
import os
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from ipaddress import ip_address
from itertools import count
from pathlib import Path
from typing import Final, TypeVar

from partq_spark.base.errors import Invalid

T = TypeVar("T")

QUICK_LOGS: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""A setting for sessions whose Spark checkpoints are on a local disk: Spark's two logs without the programs that each
write starts by default where Hadoop's native library is missing, as in PySpark by pip (spark-traps.md 41). What it
gives up: docs/operate.md.
"""

_LINKS: Final = ("bin", "jars", "sbin")
_PACKAGE: Final = "pyspark"


@dataclass(frozen=True, kw_only=True, slots=True)
class SparkHome:
    """`folder` is for the environment variable SPARK_HOME; `pyspark` is the package that its links lead to."""

    folder: Path
    pyspark: Path


def make_home(folder: Path) -> SparkHome:
    """Make `folder` a Spark home for the PySpark of this Python; one that was made before is brought up to date.

    Several processes may do it at once. Right only where workers run on this machine with this Python. Raises `Invalid`
    if that has no PySpark with Spark in it, and if `folder` is anything that was not made here.
    """
    pyspark = _installed()
    folder = folder.absolute()
    try:
        if not os.path.lexists(folder):
            _make(folder, pyspark)
        _refuse_others(folder)  # also after another process was quicker
        for name in _LINKS:
            if (folder / name).readlink() != pyspark / name:
                _replace(folder / name, pyspark / name)
    except OSError as error:
        raise Invalid(f"the Spark home {folder} cannot be made ({error}): name a folder in a writable place") from error
    return SparkHome(folder=folder, pyspark=pyspark)


def _installed() -> Path:
    spec = find_spec(_PACKAGE)  # which imports nothing
    package = Path(spec.origin).parent if spec and spec.origin else None
    if package is None or not all((package / name).is_dir() for name in _LINKS):
        raise Invalid(
            f"{sys.executable} has no PySpark with Spark in it: run pip install 'partq[demo]' for this Python"
        )
    return package


def _make(folder: Path, pyspark: Path) -> None:
    """Under another name first: a process that finds the folder finds it complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unnamed = folder.with_name(f"{folder.name}.{os.getpid()}")
    unnamed.mkdir()
    try:
        for name in _LINKS:
            (unnamed / name).symlink_to(pyspark / name)
        unnamed.rename(folder)
    except OSError:
        shutil.rmtree(unnamed, ignore_errors=True)
        if not os.path.lexists(folder):
            raise


def _refuse_others(folder: Path) -> None:
    """What was made here has links into a package of this name, whichever Python it belonged to."""
    links = [folder / name for name in _LINKS]
    if not all(link.is_symlink() and link.readlink().parts[-2:] == (_PACKAGE, link.name) for link in links):
        raise Invalid(f"{folder} exists and was not made by partq spark-home: name a new folder, or remove this one")


def _replace(link: Path, target: Path) -> None:
    unnamed = link.with_name(f"{link.name}.{os.getpid()}")
    unnamed.symlink_to(target)
    unnamed.replace(link)


# --- the processes of Spark's that run tasks -------------------------------------------------------------------------

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
            # A collection after every task takes 20 ms for no more than Spark's own imports (50,000 objects), 40 ms
            # with pandas. The second call of a process finds all imports done and a collection just over: what lives
            # then lives on, and is left out of all later collections.
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
