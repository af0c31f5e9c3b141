"""What processes write down of what they saw: facts of `tests.world.facts`, one JSON line each, before they go on.
Times are of the machine's wall clock, which all of them share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import partq
from tests.world import facts
from tests.world.facts import Fact, Lying, Place, Row

NAME: Final = "facts.jsonl"
LOG: Final = "log.jsonl"
EVENTS: Final = "events.jsonl"
"""What becomes of a query or a consumer: that it began, or failed."""


def now_us() -> int:
    """The wall clock."""
    return time.time_ns() // 1000


class Journal:
    """Of one process, in a file of its own."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, fact: Fact) -> None:
        """One line at once, also of a process that is killed."""
        os.write(self._file, f"{json.dumps([type(fact).__name__, *fact])}\n".encode())


def read_facts(folder: Path) -> list[Fact]:
    """Those of all journals of a run, in their order."""
    paths = [*folder.glob(NAME), *folder.glob(f"*/{NAME}")]
    return sorted((fact for path in paths for fact in _facts(path)), key=lambda fact: fact.at_us)


def _facts(path: Path) -> Iterator[Fact]:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.endswith("]"):  # a killed process' last line may be a part
            name, *fields = json.loads(line)
            kind: Any = getattr(facts, name)
            fact = kind(*fields)
            yield fact._replace(rows=tuple(Row(*row) for row in fact.rows)) if "rows" in kind._fields else fact


def write_log(path: Path, queue: partq.Queue) -> None:
    """What lies in a queue."""
    with path.open("w", encoding="utf-8") as file:
        for each in queue.browse():
            at_us = round(each.timestamp.timestamp() * 1e6)
            file.write(json.dumps([each.partition, each.offset, each.key, each.value.decode(), at_us]) + "\n")


def read_log(path: Path) -> dict[Place, Lying]:
    """What `write_log` wrote."""
    found = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {(partition, offset): Lying(*lying) for partition, offset, *lying in found}
