"""Watches the Python workers of executors: nothing of the driver's disk is touched.

Python imports it at start, when its folder is on PYTHONPATH and the environment names a folder in PARTQ_TEST_WITNESS.
Code that names a path below PARTQ_TEST_FORBIDDEN to Python (open, list, make, rename, delete …) gets a PermissionError,
as if the disk were another machine's, and is reported in `trespasses`; this holds for root as well, unlike file modes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    for argument in arguments:
        path = os.fsdecode(argument) if isinstance(argument, bytes | os.PathLike) else argument
        if isinstance(path, str) and path.startswith(_FORBIDDEN):
            with (_FOLDER / "trespasses").open("a") as report:
                report.write(f"{event} {path}\n")
            raise PermissionError(f"{event} of {path}, which is on the driver's disk")


if "PARTQ_TEST_WITNESS" in os.environ:
    _FOLDER = Path(os.environ["PARTQ_TEST_WITNESS"])
    _FORBIDDEN = os.environ["PARTQ_TEST_FORBIDDEN"]
    _FOLDER.mkdir(parents=True, exist_ok=True)
    sys.addaudithook(_guard)
