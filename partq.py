"""partq: partitioned queues for Apache Spark Structured Streaming, and what a program does with them without Spark.

The public names, and nothing else: `create_queue`, `open_queue` and `list_queues` are the doors (docs/python.md).
Importing this brings neither Spark nor a JVM; a name's module is imported when the name is used for the first time.
Those that need no Spark are the client's list; what Spark's edge gives stands here, for the client knows no Spark.
"""

from __future__ import annotations

import importlib
from typing import Any

from partq_spark import __version__, client, register

_FROM_SPARK = {"supervise": "partq_spark.spark.supervision", "processing": "partq_spark.spark.tracing"}

__all__ = ["__version__", "register"]
__all__ += client.__all__
__all__ += list(_FROM_SPARK)


def __getattr__(name: str) -> Any:
    if name in _FROM_SPARK:
        found = getattr(importlib.import_module(_FROM_SPARK[name]), name)
    elif name in __all__:
        found = getattr(client, name)
    else:  # what makes the client a package (`__path__`) would make this one of a second copy of its modules
        raise AttributeError(f"partq has no {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__all__", "__doc__", "__file__", "__name__"]
