"""The options that a document's Spark code gives to `format("partq")`, judged by the code that judges them for Spark.

The code is read, not run: a chain of calls such as `spark.readStream.format("partq").option(…).load(…)`. What only
Spark can tell, such as whether a column exists, is left to the tests that run queries.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from partq_spark.spark import options

_CHECKS: Final[Mapping[str, Callable[[Mapping[str, str]], Any]]] = {
    "read": options.batch_source_options,
    "readStream": options.stream_source_options,
    "write": lambda given: options.batch_sink_options(given, topic_column="path" not in given),
    "writeStream": lambda given: options.stream_sink_options(given, topic_column="path" not in given),
}
_ENDS: Final = ("load", "save", "start")
# What stands for a value that is no constant in the code.
_SAMPLES: Final = {"store": "file:///srv/queues", "ownership": "store", "flow": "a", "checkpointLocation": "/tmp/a"}

Calls = list[tuple[str, list[ast.expr]]]


def checked_options(tree: ast.AST) -> Iterator[tuple[str, dict[str, str], Any]]:
    """Each use of the format: in which role, its options, and what partq made of them. Raises `Invalid` as Spark's user
    would see it.
    """
    for role, calls in _uses(tree):
        given: dict[str, str] = {} if any(name in _ENDS for name, _ in calls) else {"path": "sample"}
        for name, arguments in calls:
            if name == "option":
                key, value = arguments
                assert isinstance(key, ast.Constant)
                given[str(key.value)] = _text(value, str(key.value))
            elif name in _ENDS and arguments:
                given["path"] = _text(arguments[0], "queue")
        yield role, given, _CHECKS[role](given)


def _text(value: ast.expr, name: str) -> str:
    if not isinstance(value, ast.Constant):
        return _SAMPLES.get(name, "sample")
    return str(value.value).lower() if isinstance(value.value, bool) else str(value.value)


def _uses(tree: ast.AST) -> Iterator[tuple[str, Calls]]:
    """Each `read`, `readStream`, `write` or `writeStream` whose format is partq, with the calls behind it."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    inner |= {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call | ast.Attribute) and id(node) not in inner:
            parts: list[tuple[str, Calls]] = []
            for name, arguments in _chain(node):
                if name in _CHECKS:
                    parts.append((name, Calls()))
                elif parts:
                    parts[-1][1].append((name, arguments))
            yield from (part for part in parts if _is_partq(part[1]))


def _is_partq(calls: Calls) -> bool:
    formats = [each for name, arguments in calls if name == "format" for each in arguments]
    return any(isinstance(each, ast.Constant) and each.value == "partq" for each in formats)


def _chain(node: ast.expr) -> Calls:
    """The names and arguments of a chain, first to last; a name that is not called has none."""
    calls = Calls()
    arguments: list[ast.expr] = []
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Call):
            arguments, node = node.args, node.func
        else:
            calls.append((node.attr, arguments))
            arguments, node = [], node.value
    return calls[::-1]
