"""Holds processes at chosen instants, for tests that kill there. Python imports it at start, when its folder is on
PYTHONPATH and the environment names a folder in PARTQ_TEST_FAULTS.

The product knows nothing of it: functions of partq are wrapped when their module is imported, in whatever process
Spark runs it. A file `<point>.<queue>.<batch>` in the folder stops the one process that comes there first, which adds
its process id to the file's name and goes on when the file is gone. Points: `writing` (a task has written part of its
segment), `staged` (the task's segment is durable, Spark does not know yet), `before-publish` and `after-publish` (of
the driver's side). What each publish came to is left in `outcome.<queue>.<batch>.<pid>`: `new` or `duplicate`.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

_LONGEST_S = 390.0  # a little less than these tests may take: on a busy machine two drivers' lives come before the end


def _pause(point: str, queue: str, batch: str) -> None:
    order = _FOLDER / f"{point}.{queue}.{batch}"
    held = order.with_name(f"{order.name}.{os.getpid()}")
    try:
        order.rename(held)
    except FileNotFoundError:
        return  # nobody is to be held here, or somebody else is
    deadline_s = time.monotonic() + _LONGEST_S
    while held.exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


def _patch_publish(module: Any) -> None:
    publish = module.publish

    def held(queue: Any, segments: Any, identity: Any = None) -> Any:
        batch = "none" if identity is None else str(identity.batch)
        _pause("before-publish", queue.name, batch)
        done = publish(queue, segments, identity)
        outcome = _FOLDER / f"outcome.{queue.name}.{batch}.{os.getpid()}"
        outcome.write_text("duplicate" if done.duplicate else "new")
        _pause("after-publish", queue.name, batch)
        return done

    module.publish = held


def _patch_staging(module: Any) -> None:
    written: Any = sys.modules["partq_spark.log.segment"]
    finish, checksum = module.Stager.finish, written._HashingFile.slice_checksum
    working: list[Any] = []  # a task's process does one task at a time

    def where(stager: Any) -> tuple[str, str]:
        return stager._stage.queue, stager._seed.split("/")[1]

    def held_finish(stager: Any) -> Any:
        working[:] = [stager]
        segment = finish(stager)
        working.clear()
        _pause("staged", *where(stager))
        return segment

    def held_checksum(file: Any) -> Any:
        for stager in working:
            _pause("writing", *where(stager))
        return checksum(file)

    module.Stager.finish = held_finish
    written._HashingFile.slice_checksum = held_checksum


_PATCHES: dict[str, Callable[[Any], None]] = {
    "partq_spark.log.publish": _patch_publish,
    "partq_spark.log.staging": _patch_staging,
}


class _Finder:
    """Finds a module as Python would, and has it patched as soon as it is there."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = _PATCHES.get(name)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target) if patch else None
        if patch is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            run(module)
            patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


if "PARTQ_TEST_FAULTS" in os.environ:
    _FOLDER = Path(os.environ["PARTQ_TEST_FAULTS"])
    sys.meta_path.insert(0, _Finder)
