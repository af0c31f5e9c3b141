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
OF_COORDINATION: Final = (
    *("epoch equality", "one's own name in the checkpoint", "lease token", "self-fencing", "condition of the fence"),
    *("state before effect", "incarnation", "the lease is still held after the state was read"),
    *("silence is what was observed", "announced before delivered", "delivered in the state that was seen"),
    *("condition of the state", "drained by records read after the pause", "a fence only at a higher epoch"),
    *("only the owner moves a checkpoint", "lost reports count as all delivered", "an earlier layout is waited for"),
    *("what is waited for is acknowledged", "a removed partition is delivered to its end"),
    *("rewinds are counted in the head", "acknowledged at the same epoch only"),
)
OF_THE_LOG: Final = (
    "log: the store's swap condition",
    "publish: a writer's batch is there already",
    "publish: an unknown outcome is settled",
    "publish: the stage floor",
    "publish: the layout",
    "publish: placed anew after a conflict",
    "publish: time grows strictly",
    "writers: pages",
    "collection: only what was marked",
    "collection: one grace after marking",
    "trimming: what a group needs stays",
    "trimming: tokens that are gone",
    "compaction: the run as it was chosen",
    "altering: a change whose answer was lost",
)
OF_CONSUMERS: Final = (
    "consumer: a loop begun again gives back what the former one was left with",
    "consumer: a second question is refused",
    "consumer: what nobody looked into is given back",
    "consumer: what a cancelled wait had taken comes with the next question",
    "consumer: an acknowledgement names its round",
)
BY_NAME: Final = {each.name: each for each in patches("guards")}


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
