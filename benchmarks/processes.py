"""Processes: what is measured in one of its own, in which nothing has been imported or warmed up; what one takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any, Final

import psutil

from tools import ROOT

_LOOK_S: Final = 0.5


def in_new_process(module: str, *arguments: object, limit_s: float, spark_home: object = None) -> Any:
    """What `python -m module arguments` prints at last, as JSON. `spark_home`: its Spark home (None: the installed)."""
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    environment |= {"SPARK_HOME": str(spark_home)} if spark_home else {}
    done = subprocess.run(
        (sys.executable, "-m", module, *map(str, arguments)),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def watched(process: psutil.Process, for_s: float) -> tuple[float, float]:
    """Percent of one core over so long, and the largest resident size in MB (10^6 bytes)."""
    begun, begun_s = process.cpu_times(), time.monotonic()
    most = 0
    while (left_s := begun_s + for_s - time.monotonic()) > 0:
        most = max(most, process.memory_info().rss)
        time.sleep(min(_LOOK_S, left_s))
    ended = process.cpu_times()
    took_s = time.monotonic() - begun_s
    return 100 * (ended.user + ended.system - begun.user - begun.system) / took_s, most / 1e6
