"""Whether a seeded simulation is the same in every process. Nothing is known here of what is simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.support.servers import ROOT


class HasHistory(Protocol):
    """What a run came to."""

    @property
    def history(self) -> str: ...


def histories_of(run_seed: Callable[[int], HasHistory], seeds: Sequence[int]) -> set[str]:
    """The histories of `seeds`, one text for all of them, in this process and in two with other hashes: one text if all
    is well, because sets and dictionaries of strings must not decide anything.
    """
    program = f"from {run_seed.__module__} import run_seed\nprint(*[run_seed(seed).history for seed in {seeds}])"
    histories = {" ".join(run_seed(seed).history for seed in seeds)}
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        histories.add(done.stdout.strip())
    return histories
