"""Guards of the product that seeds of the world shall notice: each is taken out as `tests/power/guards.toml` says, in
this process and for a while.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from tests.power.patches import patched, patches

ROOT: Final = Path(__file__).parents[2]
_OF_THE_LOG: Final = ("log", "publish", "writers", "collection", "trimming", "compaction", "altering")
BY_NAME: Final = {each.name: each for each in patches("guards")}


def kind_for(name: str) -> str | None:
    """Of the seeds that have to do with this guard; None: all kinds."""
    room, colon, _ = name.partition(":")
    return "log" if room in _OF_THE_LOG and colon else {"consumer": "application", "sink": "sinks"}.get(room)


@contextmanager
def without(name: str) -> Iterator[None]:
    """The product is without this guard."""
    patch = BY_NAME[name]
    texts = patched(patch, lambda module: (ROOT / module).read_text())
    former: list[tuple[FunctionType, CodeType]] = []
    try:
        for change in patch.changes:
            module = importlib.import_module(change.module.removesuffix(".py").replace("/", "."))
            function = _function(module, change.function)
            former.append((function, function.__code__))
            whole = compile(texts[change.module], str(ROOT / change.module), "exec", dont_inherit=True)
            function.__code__ = _code(whole, change.function)
        yield
    finally:
        for function, code in reversed(former):
            function.__code__ = code


def _function(module: ModuleType, name: str) -> FunctionType:
    """Of a property, its getter."""
    found: Any = module
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    found = inspect.unwrap(getattr(found, "fget", None) or getattr(found, "__func__", found))
    assert isinstance(found, FunctionType), f"{name} is no function"
    return found


def _code(inside: CodeType, name: str) -> CodeType:
    return next(each for each in _codes(inside) if each.co_qualname == name)


def _codes(inside: CodeType) -> Iterator[CodeType]:
    for each in inside.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)
