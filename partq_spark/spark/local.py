"""What makes Spark quick on one machine: a home whose Python workers start quickly, and a setting for its own logs.

The home is a folder of links to the installed PySpark's programs and jars, no more. Spark puts `python/lib/pyspark.zip`
of its home first on the path of every Python worker, and what comes from there is compiled anew in each process: a
second of processor time for every query that starts. A home without that archive makes workers import the installed
package, as the driver does (decision 0013). No pyspark is imported here: the command line, the demo and the tests use
this before Spark starts. A folder that was not made here is never touched.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from partq_spark.base.errors import Invalid

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
