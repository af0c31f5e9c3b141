"""partq: partitioned queues for Apache Spark Structured Streaming, and what a program does with them without Spark.

The public names, and nothing else: `create_queue`, `open_queue` and `list_queues` are the doors (docs/python.md).
Importing this brings neither Spark nor a JVM; a name's module is imported when the name is used for the first time.
"""

from __future__ import annotations

from typing import Any

from partq_spark import __version__, client, register

__all__ = ["__version__", "register"]
__all__ += client.__all__


def __getattr__(name: str) -> Any:
    return getattr(client, name)
