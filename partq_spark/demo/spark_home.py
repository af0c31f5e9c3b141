"""A Spark home that is the installed one without the archive in which PySpark lies a second time.

Spark puts `python/lib/pyspark.zip` of its home first on the path of every Python worker, and what comes from there is
compiled anew in each process: a second of processor time for every streaming query that starts, and for the first use
of everything else. Where a home has no such archive, workers import the installed package, as the driver does.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from partq_spark.base.errors import Invalid

_NEEDED: Final = ("bin", "jars", "sbin")


def make_home(folder: Path) -> Path:
    """Links to the installed PySpark's programs and jars, in `folder`, for the environment variable SPARK_HOME.

    Several processes may do it at once. Right only where workers run on this machine with this Python. Raises `Invalid`
    if that has no PySpark with Spark in it.
    """
    spec = find_spec("pyspark")  # which imports nothing
    installed = Path(spec.origin).parent if spec and spec.origin else None
    if installed is None or not all((installed / name).is_dir() for name in _NEEDED):
        raise Invalid(
            f"{sys.executable} has no PySpark with Spark in it: run pip install 'partq[demo]' for this Python"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in _NEEDED:
        link, target = folder / name, installed / name
        if not (link.is_symlink() and link.readlink() == target):
            unnamed = folder / f"{name}.{os.getpid()}"
            unnamed.symlink_to(target)
            unnamed.replace(link)
    return folder
