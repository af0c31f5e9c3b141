"""`python -m tests.support.folders [SECONDS]`: a Markdown table of the folders of tests, for CONTRIBUTING.md.

What a folder shows stands in `SHOWS`; its lines and test functions are counted, and its seconds are those of a run that
was given `--seconds SECONDS` (the sum over all processes, fixtures included).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[1]
SHOWS: Final = {
    "base": "texts, times, retries, checked documents, trace headers: rules without I/O",
    "cast": "real sidecars, flows and drivers, which other folders start",
    "chaos": "drivers, consumers and sidecars that are killed and frozen, judged as the world is; in short",
    "cli": "`partq`: arguments, output, exit codes, refusals, signals, pipes, the page of its examples",
    "client": "`import partq`: queues, tables, publishers and consumers as programs use them",
    "coordinator": "the decision core and its model check; sidecars as processes, their metrics and health",
    "demo": "`partq demo` as it stands",
    "docs": "the code and the commands in the documents, and the site",
    "group": "checkpoints, ownership and its stores: one contract for memory, objects and a real Redis",
    "house": "that documents, contracts, packages, alerts, costs and benchmarks are what they say",
    "log": "the log: rules, layouts, codecs, damage, types, and publishes that race",
    "notebooks": "the notebooks run",
    "objects": "one contract for each kind of object store, against files, a real Azurite and a real S3 server",
    "page": "the page over HTTP and in a real Chromium",
    "power": "which mutants, guards and repairs the suite notices",
    "query": "planning, offsets, columns and settings of queries: rules without Spark",
    "release": "wheel, sdist, image and manifests",
    "scenarios": "plans in words over the production code, one for each edge of a statement",
    "soak": "what is stored stays bounded; in short",
    "spark": "what only a real Spark shows",
    "support": "what all folders share, and that the judges are honest",
    "world": "seeded histories of the one simulated world, and their judge",
}
"""One line for each folder: what its tests show."""


def folders() -> list[str]:
    return sorted(path.name for path in TESTS.iterdir() if path.is_dir() and any(path.rglob("*.py")))


def counted(folder: str) -> tuple[int, int]:
    """Lines, and functions that are tests (each parametrized one once)."""
    lines = tests = 0
    for path in (TESTS / folder).rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        lines += len(text.splitlines())
        if path.name.startswith("test_"):
            names = (each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef))
            tests += sum(name.startswith("test_") for name in names)
    return lines, tests


def table(seconds: Mapping[str, float]) -> Iterator[str]:
    """The lines of the table. `seconds`: of each file."""
    yield "| folder of `tests` | shows | lines | tests | seconds |"
    yield "|---|---|---:|---:|---:|"
    total = [0, 0, 0.0]
    for name in folders():
        lines, tests = counted(name)
        taken_s = sum(each_s for file, each_s in seconds.items() if file.startswith(f"tests/{name}/"))
        total = [sum(pair) for pair in zip(total, (lines, tests, taken_s), strict=True)]
        yield f"| `{name}` | {SHOWS[name]} | {lines:,} | {tests:,} | {taken_s:,.0f} |"
    yield f"| all | | {total[0]:,} | {total[1]:,} | {total[2]:,.0f} |"


def main() -> None:
    given = sys.argv[1:]
    seconds: dict[str, float] = json.loads(Path(given[0]).read_text(encoding="utf-8")) if given else {}
    print("\n".join(table(seconds)))  # noqa: T201 - a script's output


if __name__ == "__main__":
    main()
