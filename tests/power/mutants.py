"""Small changes of the code that decides, each of which a test should notice: which there are, how some are drawn by
lot, how one is made.

A mutant is named by what it changes and not by a line number, so that it is the same one after the file has changed
elsewhere: module, function, the changed text, which of its occurrences there, and what stands in its place.
"""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DRAWN: Final = Path(__file__).with_name("mutants.json")
"""Those that were drawn, and whose code is still there."""

MODULES: Final = (
    *(f"partq_spark/log/{name}.py" for name in ("publish", "tree", "layouts", "housekeeping", "compaction")),
    *(f"partq_spark/group/{name}.py" for name in ("claims", "checkpoints", "left_out", "binding")),
    *(f"partq_spark/query/{name}.py" for name in ("planning", "acknowledgements", "offsets")),
    "coordinator/core",
    *(f"coordinator/{name}.py" for name in ("acting", "leadership")),
    *(f"partq_spark/client/{name}.py" for name in ("consumer", "publisher")),
)
"""The deciding modules; each gives as many mutants as another, if it has so many."""

_COMPARED: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_WRITTEN: Final[Mapping[type[ast.cmpop], str]] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """`found` is the source text of what is changed, the `nth` one (from 0) of that text in `function`, which is "" at
    the top of the module.
    """

    module: str
    function: str
    found: str
    nth: int
    instead: str

    @property
    def name(self) -> str:
        """One line, the same for the same mutant."""
        return f"{self.module}:{self.function or '<module>'}: {self.found!r} ({self.nth}) -> {self.instead!r}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a mutant is now: byte range of the file, and the lines of what it changes."""

    start: int
    end: int
    lines: range


class Gone(Exception):
    """The code that a mutant changes is not there any more."""


def files(root: Path) -> dict[str, tuple[str, ...]]:
    """The files of each deciding module, relative to `root`."""
    return {
        name: (name,)
        if name.endswith(".py")
        else tuple(sorted(str(path.relative_to(root)) for path in (root / name).glob("*.py")))
        for name in MODULES
    }


def every(module: str, source: str) -> Iterator[tuple[Mutant, Place]]:
    """All mutants of a file, in the order of its text."""
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: defaultdict[tuple[str, str], int] = defaultdict(int)

    def text(node: ast.expr | ast.stmt) -> str:
        start, end = _range(node, starts)
        return data[start:end].decode()

    changes = _Changes(text)
    for top in ast.parse(source).body:
        if isinstance(top, ast.FunctionDef | ast.ClassDef):
            changes.visit(top, "")
    for function, node, instead in changes.found:
        start, end = _range(node, starts)
        found = data[start:end].decode()
        nth = seen[function, found]
        seen[function, found] += 1
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        for each in instead:
            yield (
                Mutant(module=module, function=function, found=found, nth=nth, instead=each),
                Place(start=start, end=end, lines=lines),
            )


def drawn(root: Path, executed: Mapping[str, Collection[int]], count: int, seed: int) -> tuple[Mutant, ...]:
    """`count` mutants by lot, evenly over the deciding modules, only of lines in `executed` (by file)."""
    lot = random.Random(seed)
    left: dict[str, list[Mutant]] = {}
    for module, paths in files(root).items():
        there = [
            mutant
            for path in paths
            for mutant, place in every(path, (root / path).read_text())
            if place.lines[0] in executed.get(path, ())
        ]
        lot.shuffle(there)
        left[module] = there
    chosen: list[Mutant] = []
    while len(chosen) < count and any(left.values()):
        for there in left.values():
            if there and len(chosen) < count:
                chosen.append(there.pop())
    return tuple(sorted(chosen, key=lambda mutant: mutant.name))


def place_of(mutant: Mutant, source: str) -> Place:
    """Where it is in the file as it is now. Raises `Gone`."""
    for each, place in every(mutant.module, source):
        if each == mutant:
            return place
    raise Gone(mutant.name)


def mutated(mutant: Mutant, source: str) -> str:
    """The file with the change made. Raises `Gone`."""
    place = place_of(mutant, source)
    data = source.encode()
    return (data[: place.start] + mutant.instead.encode() + data[place.end :]).decode()


# --- which changes there are ------------------------------------------------------------------------------------------


_Change = tuple[str, ast.expr | ast.stmt, tuple[str, ...]]
"""Function, what is changed, and what may stand in its place."""


class _Changes:
    """Collects the changes of one file, in the order of its text."""

    def __init__(self, text: Callable[[ast.expr | ast.stmt], str]) -> None:
        self._text = text
        self.found: list[_Change] = []

    def visit(self, node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for inner in node.body:
                self.visit(inner, f"{function}.{node.name}".lstrip("."))
            return
        if isinstance(node, ast.expr | ast.stmt) and (instead := tuple(_instead(node, self._text))):
            self.found.append((function, node, instead))
        test = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else None
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):  # others are changed by what they compare
            self.found.append((function, test, (f"(not {self._text(test)})",)))
        for child in _parts(node):
            self.visit(child, function)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Where else something may be changed: not in annotations, nor in what an error says."""
    if isinstance(node, ast.AnnAssign):
        yield from () if node.value is None else (node.value,)
    elif not isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert):
        yield from ast.iter_child_nodes(node)


def _instead(node: ast.expr | ast.stmt, said: Callable[[ast.expr | ast.stmt], str]) -> Iterator[str]:
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield f"({said(left)}) {_COMPARED[type(op)]} ({said(right)})"
        case ast.BoolOp(op=op, values=values):
            word = " or " if isinstance(op, ast.And) else " and "
            yield "(" + word.join(f"({said(value)})" for value in values) + ")"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({said(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            yield f"(({said(left)}) {'-' if isinstance(op, ast.Add) else '+'} ({said(right)}))"
        case ast.Constant(value=bool() as value):
            yield str(not value)
        case ast.Constant(value=int() as value):
            yield str(value + 1)
        case ast.Call(func=ast.Name(id="max" | "min" as name)):
            yield ("min" if name == "max" else "max") + said(node)[3:]
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break():
            yield "pass"


def _range(node: ast.expr | ast.stmt, starts: Sequence[int]) -> tuple[int, int]:
    end_line = node.end_lineno if node.end_lineno is not None else node.lineno
    end_column = node.end_col_offset if node.end_col_offset is not None else node.col_offset
    return starts[node.lineno - 1] + node.col_offset, starts[end_line - 1] + end_column
