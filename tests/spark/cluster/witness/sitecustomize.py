"""Watches the Python workers of executors: nothing of the driver's disk is touched, and what they are sent is kept.

Python imports it at start, when its folder is on PYTHONPATH and the environment names a folder in PARTQ_TEST_WITNESS.
Code that names a path below PARTQ_TEST_FORBIDDEN to Python (open, list, make, rename, delete …) gets a PermissionError,
as if the disk were another machine's, and is reported in `trespasses`; this holds for root as well, unlike file modes.
All bytes that a worker unpickles, and so every closure and partition that Spark sends with its tasks, are kept in
`pickles/<executor>-<pid>`.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


def _guard(event: str, arguments: tuple[Any, ...]) -> None:
    for argument in arguments:
        path = os.fsdecode(argument) if isinstance(argument, bytes | os.PathLike) else argument
        if isinstance(path, str) and path.startswith(_FORBIDDEN):
            with (_FOLDER / "trespasses").open("a") as report:
                report.write(f"{event} {path}\n")
            raise PermissionError(f"{event} of {path}, which is on the driver's disk")


def _keep(module: Any) -> None:
    def keeping(loads: Any) -> Any:
        def kept_loads(serializer: Any, data: bytes, *rest: Any, **named: Any) -> Any:
            # An executor's working directory is <work folder>/<application>/<executor>.
            with (_FOLDER / "pickles" / f"{Path.cwd().name}-{os.getpid()}").open("ab") as file:
                file.write(data)
            return loads(serializer, data, *rest, **named)

        return kept_loads

    for name in ("PickleSerializer", "CloudPickleSerializer"):
        serializer = getattr(module, name)
        serializer.loads = keeping(serializer.loads)


class _Finder:
    """Finds pyspark's serializers as Python would, and has them keep what they read."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if name == "pyspark.serializers" else None
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_keep(module: ModuleType) -> None:
            run(module)
            if module.__name__ == name:  # a zip file has one loader for all its modules
                _keep(module)

        spec.loader.exec_module = run_and_keep  # type: ignore[method-assign]
        return spec


if "PARTQ_TEST_WITNESS" in os.environ:
    _FOLDER = Path(os.environ["PARTQ_TEST_WITNESS"])
    _FORBIDDEN = os.environ["PARTQ_TEST_FORBIDDEN"]
    (_FOLDER / "pickles").mkdir(parents=True, exist_ok=True)
    sys.meta_path.insert(0, _Finder)
    sys.addaudithook(_guard)
