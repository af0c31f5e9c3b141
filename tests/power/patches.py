"""What the product would be without one of its guards, or without a repair of its past: as data, which tests have to
notice (`guards.toml`, `repairs.toml`).

A patch is a few changes of text. Each names a function ("" is the whole module) in which its text stands exactly once,
so that it outlives changes elsewhere in the file; where that text itself is changed, a test tells.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.power.mutants import Gone

HERE: Final = Path(__file__).parent


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """`found` in `function` ("Class.method", or the name of a function) becomes `instead`."""

    module: str
    function: str
    found: str
    instead: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Patch:
    """`without`: what goes wrong then, in a sentence. `noticed_by`: a test that was seen to fail."""

    name: str
    without: str
    changes: tuple[Change, ...]
    noticed_by: str | None


def patches(kind: str) -> tuple[Patch, ...]:
    """All of `guards.toml` or `repairs.toml`."""
    return tuple(_patch(each) for each in tomllib.loads((HERE / f"{kind}.toml").read_text())["patch"])


def _patch(raw: dict[str, Any]) -> Patch:
    return Patch(
        name=raw["name"],
        without=raw["without"],
        changes=tuple(Change(**change) for change in raw["change"]),
        noticed_by=raw.get("noticed_by"),
    )


def patched(patch: Patch, read: Callable[[str], str]) -> dict[str, str]:
    """The modules with the changes made, by path; `read` gives what they are. Raises `Gone`."""
    texts: dict[str, str] = {}
    for change in patch.changes:
        text = texts[change.module] if change.module in texts else read(change.module)
        texts[change.module] = _changed(patch.name, change, text)
    return texts


def _changed(name: str, change: Change, text: str) -> str:
    places = [
        at
        for start, end in _ranges(text, change.function)
        for at in range(start, end - len(change.found) + 1)
        if text.startswith(change.found, at)
    ]
    if len(places) != 1:
        where = f"{change.module}:{change.function or '<module>'}"
        raise Gone(f"{name}: {where} has this text {len(places)} times, and once is right:\n{change.found}")
    return text[: places[0]] + change.instead + text[places[0] + len(change.found) :]


def _ranges(text: str, function: str) -> Iterator[tuple[int, int]]:
    """Where the functions of this name stand: a property's getter and setter are two."""
    if not function:
        yield 0, len(text)
        return
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _named(ast.parse(text).body, function.split(".")):
        yield starts[node.lineno - 1], starts[node.end_lineno or node.lineno]


def _named(
    body: Sequence[ast.stmt], path: Sequence[str]
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name == path[0]:
            if len(path) == 1:
                yield node
            else:
                yield from _named(node.body, path[1:])
