"""What programs, the command line and the demo use to reach queues, groups and messages. No pyspark.

The names of `partq` are listed once, in `__init__.pyi`. A name's module is imported when the name is used for the first
time: importing this package, and so starting the command line, costs next to nothing.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from typing import Any, Final


def _listed() -> dict[str, str]:
    """The names that the list has, each with its module. Raises `ImportError` where the list was left behind."""
    try:
        text = pkgutil.get_data(__name__, "__init__.pyi")
    except OSError:
        text = None
    if not text:
        raise ImportError(
            f"{__name__} has no file __init__.pyi beside it, which lists its names: pack the *.pyi with partq, too"
        )
    imports = [each for each in ast.parse(text).body if isinstance(each, ast.ImportFrom)]
    return {name.name: str(each.module) for each in imports for name in each.names}


_MODULE_OF: Final = _listed()
__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"partq has no {name!r}")
    found = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return found
