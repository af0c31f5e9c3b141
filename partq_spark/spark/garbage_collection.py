"""Keeps the garbage collector cheap in Spark's Python workers. No pyspark."""

from __future__ import annotations

import gc
from itertools import count

_calls = count(1)


def spare_collector() -> None:
    """Every entry that Spark calls in a Python worker that it uses again calls this once.

    Such a worker collects garbage in full after every task, which takes 20 ms for no more than Spark's own imports
    (50,000 objects), 40 ms with pandas. The second call of a process finds all imports done and that collection just
    over: what lives then lives on, and is left out of all later collections.
    """
    if next(_calls) == 2:
        gc.freeze()
