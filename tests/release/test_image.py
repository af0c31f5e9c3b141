"""The Dockerfile's words are right; building it is not tried (the file and docs/kubernetes.md say so)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from partq_spark.cli.main import cli

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def copied() -> list[str]:
    """What is copied from the project into the image."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for line in lines for name in line.split()]


def test_what_is_copied_is_there_and_let_through() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*", "all but what is named"
    let_through = {line[1:] for line in lines if line.startswith("!")}
    assert set(copied()) == let_through
    assert [name for name in copied() if not (ROOT / name).exists()] == []


def test_the_wheel_can_be_built_from_what_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in copied():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=60)
    (wheel,) = tmp_path.glob("*.whl")
    assert fnmatch(wheel.name, "partq-*.whl"), "as the Dockerfile finds it"


def test_the_image_runs_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(click.Command, "invoke", lambda command, context: None)
    stage = DOCKERFILE.partition(" AS coordinator\n")[2].partition("\nFROM ")[0]
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", stage, re.MULTILINE)
    (command,) = re.findall(r"^CMD (.*)$", stage, re.MULTILINE)
    assert json.loads(entry) == ["partq"]
    assert CliRunner().invoke(cli, json.loads(command)).exit_code == 0
    assert re.search(r"^USER 10001$", stage, re.MULTILINE), "not as root, as the manifests ask"
