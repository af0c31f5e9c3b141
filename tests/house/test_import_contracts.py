"""The import contracts of pyproject.toml hold, and catch what they forbid: all are broken in one copy of the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FORBIDDEN = [
    ("partq_spark/log/names.py", "import coordinator", "The coordinator imports partq_spark"),
    ("partq_spark/log/names.py", "def f():\n    import pyspark.sql", "Only the Spark edge"),
    ("partq_spark/cli/extra.py", "from pyspark.sql import SparkSession", "Only the Spark edge"),
    ("partq_spark/cli/extra.py", "import partq_spark.spark.source", "Command line and Spark edge above"),
    ("partq_spark/cli/extra.py", "def f():\n    import partq_spark.log.queue", "Command line, page and demo reach"),
    ("partq_spark/page/extra.py", "import partq_spark.group.status", "Command line, page and demo reach"),
    ("partq_spark/page/extra.py", "import partq_spark.cli.output", "Command line and Spark edge above"),
    ("partq_spark/demo/proof.py", "import partq_spark.group.ownership", "Command line, page and demo reach"),
    ("partq_spark/objects/api.py", "import partq_spark.log.names", "Command line and Spark edge above"),
    ("partq_spark/group/session.py", "import partq_spark.spark.options", "Command line and Spark edge above"),
    ("partq_spark/log/names.py", "def f():\n    import partq_spark.log.queue", "No circles"),
    ("coordinator/core/handoff.py", "import coordinator.core.machine", "No circles"),
    ("coordinator/core/handoff.py", "import coordinator.logs", "What decides imports"),
    ("partq_spark/extra.py", "", "Command line and Spark edge above"),
    ("partq_spark/query/extra.py", "", "Behind a streaming query"),
    ("partq_spark/spark/extra.py", "", "The Spark edge"),
    ("partq_spark/objects/local.py", "from azure.storage.blob import BlobClient", "Only partq_spark.objects.azure"),
    ("partq_spark/log/names.py", "from azure.core.exceptions import AzureError", "Only partq_spark.objects.azure"),
    ("partq_spark/log/names.py", "import redis.client", "Only partq_spark.group.documents"),
    ("coordinator/metrics.py", "def f():\n    import prometheus_client", "Only partq_spark.base.metrics"),
    ("partq_spark/client/x.py", "def f():\n    from opentelemetry import trace", "Only partq_spark.base.tracing"),
    ("partq_spark/log/names.py", "import click", "Only the command line"),
    ("partq_spark/spark/source.py", "from rich.console import Console", "Only the command line"),
]
"""A module, what is added to it, and how the name of the contract begins that forbids it. A new module without a line
has no layer.
"""


def broken_contracts(tree: Path) -> dict[str, str]:
    """What is said of the contracts that do not hold; import-linter finds the packages in its working directory."""
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tree,
        env={"COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "Contracts: " in done.stdout, done.stdout + done.stderr
    _, _, told = done.stdout.partition("Broken contracts")
    assert done.returncode == bool(told)
    sections = re.split(r"^(.+)\n-+\n", told, flags=re.MULTILINE)[1:]
    return dict(zip(sections[::2], sections[1::2], strict=True))


def copied(folder: Path) -> Path:
    """A copy of both packages and of the contracts."""
    for package in ("partq_spark", "coordinator"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.conformance("API-01")
def test_the_tree_holds(tmp_path: Path) -> None:
    assert broken_contracts(copied(tmp_path)) == {}


@pytest.mark.slow
def test_each_contract_tells_what_it_forbids_and_whom(tmp_path: Path) -> None:
    tree = copied(tmp_path)
    for module, line, _ in FORBIDDEN:
        with (tree / module).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    broken = broken_contracts(tree)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert broken.keys() == {each["name"] for each in contracts}, "one is not broken here"
    for module, line, contract in FORBIDDEN:
        importer = module.removesuffix(".py").replace("/", ".")
        # Of other packages the top alone is told.
        imported = re.search(r"(?:import|from) ((?:partq_spark|coordinator)\S*|\w+)", line)
        (told,) = (text for name, text in broken.items() if name.startswith(contract))
        wanted = importer if imported is None else f"{importer} -> {imported[1]}"
        if contract == "No circles":  # which tells the names within the package
            wanted = re.sub(r"[\w.]*(\.\w+)", r"\1", wanted)
        assert f" {wanted}" in told, f"{contract} says nothing of {module}: {line}\n{told}"
