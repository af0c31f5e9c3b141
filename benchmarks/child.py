"""A measurement in a Python process of its own, in which nothing has been imported or warmed up before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tools import ROOT


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
