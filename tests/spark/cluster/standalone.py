"""A standalone Spark cluster on this machine: a master, and a worker that runs the executors in processes of their own.

Only starting and stopping lives here. Memory is bounded: 256 MB each for master and worker, 1 GB for each executor.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support import jvm
from tests.support.processes import Program
from tests.support.servers import free_port

EXECUTORS: Final = 2
_SMALL: Final = {"SPARK_DAEMON_MEMORY": "256m"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """`url` is for Spark's master setting; below `work` each executor has its working directory and its output."""

    url: str
    work: Path


def java_options(environment: Mapping[str, str]) -> str:
    """For a JVM that lives shortly and leaves nothing outside its own folder for temporary files."""
    return f"-Djava.io.tmpdir={environment['TMPDIR']} {jvm.options()}"


@contextlib.contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """A running cluster, whose worker and executors start in `folder` with `environment`."""
    folder.mkdir(parents=True, exist_ok=True)
    port, work = free_port(), folder / "work"
    url = f"spark://127.0.0.1:{port}"
    settings = {**environment, **_SMALL, "SPARK_DAEMON_JAVA_OPTS": java_options(environment)}

    def daemon(name: str, *arguments: str) -> Program:
        program = f"org.apache.spark.deploy.{name}.{name.capitalize()}"
        command = [str(jvm.home() / "bin/spark-class"), program, "--host", "127.0.0.1", "--webui-port", "0"]
        return Program([*command, *arguments], name=name, folder=folder, environment=settings)

    def listening() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    with daemon("master", "--port", str(port)) as master:
        master.wait_until(listening, "the master's port")
        size = ("--cores", str(EXECUTORS), "--memory", f"{EXECUTORS}g", "--work-dir", str(work))
        with daemon("worker", *size, url) as worker:
            worker.wait_until(lambda: "Successfully registered with master" in worker.text(), "the worker's place")
            yield Cluster(url=url, work=work)
