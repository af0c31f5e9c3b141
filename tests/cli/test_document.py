"""The examples of docs/cli.md, run in its order on one store: what they print is what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from partq_spark.cli.checkpoints_commands import COMMANDS as CHECKPOINTS_COMMANDS
from partq_spark.cli.group_commands import COMMANDS as GROUP_COMMANDS
from partq_spark.cli.main import COMMANDS
from partq_spark.cli.queue_commands import COMMANDS as QUEUE_COMMANDS

DOCUMENT = Path(__file__).parents[2] / "docs/cli.md"


def examples() -> list[tuple[str, str]]:
    """Every command of the document's console blocks, with what is printed below it."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```console\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def without_chance(text: str) -> str:
    """`text` without what differs from run to run: times, ids, where things are, sizes (compression decides)."""
    for pattern, name in (
        (r"file:///[\w/.-]+", "STORE"),
        (r"(?<=SPARK_HOME=)\S+", "FOLDER"),
        (r"\d{4}-\d\d-\d\d[ T][\d:]+(\.\d+)?Z?", "TIME"),
        (r"\b[0-9a-f]{16}\b", "ID"),
        (r"in \d+\.\d s", "in SECONDS"),
        (r"\b\d+ (s|min) ago", "AGE ago"),
        (r" *\b[\d.]+ k?B\b", " SIZE"),
    ):
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.mark.slow
def test_the_examples_print_what_the_document_says(tmp_path: Path) -> None:
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PARTQ_STORE": f"file://{tmp_path}/store",
        "COLUMNS": "100",
    }
    told = examples()
    assert len(told) > 15
    for command, expected in told:
        done = subprocess.run(
            ["bash", "-c", f"{command} 2>&1"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert without_chance(done.stdout) == without_chance(expected), command


def test_every_command_is_in_the_document() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in (*COMMANDS, *(f"queue {name}" for name in ("create", "alter", "delete", "trim", "list"))):
        assert f"`partq {name}" in text
    for name in QUEUE_COMMANDS:
        assert re.search(rf"`(partq queue )?{name}`", text)
    for name in GROUP_COMMANDS:
        assert re.search(rf"`(partq group )?{name}`", text)
    for name in CHECKPOINTS_COMMANDS:
        assert re.search(rf"`(partq checkpoints )?{name}( NAME)?`", text)
