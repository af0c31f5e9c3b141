"""The import contracts of pyproject.toml catch what they forbid: each is broken once, in a copy of the tree."""

from __future__ import annotations

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
    ("partq_spark/query/offsets.py", "import partq_spark.spark.options", "Command line and Spark edge above"),
    ("partq_spark/log/names.py", "def f():\n    import partq_spark.log.queue", "No circles"),
    ("coordinator/core/handoff.py", "import coordinator.core.machine", "No circles"),
    ("coordinator/core/handoff.py", "import coordinator.logs", "What decides imports"),
    ("partq_spark/extra.py", "# a module that has no layer", "Command line and Spark edge above"),
    ("partq_spark/query/extra.py", "# a module that has no layer", "Behind a streaming query"),
    ("partq_spark/spark/extra.py", "# a module that has no layer", "The Spark edge"),
    ("partq_spark/objects/local.py", "from azure.storage.blob import BlobClient", "Only partq_spark.objects.azure"),
    ("partq_spark/log/names.py", "from azure.core.exceptions import AzureError", "Only partq_spark.objects.azure"),
    ("partq_spark/log/names.py", "import redis.client", "Only partq_spark.group.documents"),
    ("coordinator/metrics.py", "def f():\n    import prometheus_client", "Only partq_spark.base.metrics"),
    ("partq_spark/client/x.py", "def f():\n    from opentelemetry import trace", "Only partq_spark.base.tracing"),
    ("partq_spark/log/names.py", "import click", "Only the command line"),
    ("partq_spark/spark/source.py", "from rich.console import Console", "Only the command line"),
]
"""A module, what is added to it, and how the name of the contract begins that forbids it."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of both packages and of the contracts."""
    for package in ("partq_spark", "coordinator"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(tree: Path) -> list[str]:
    """The names of the contracts that do not hold; import-linter finds the packages in its working directory."""
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
    # "name BROKEN (n ignored imports)"
    broken = [line.partition(" BROKEN")[0] for line in done.stdout.splitlines() if " BROKEN" in line]
    assert done.returncode == bool(broken)
    return broken


@pytest.mark.conformance("API-01")
def test_the_tree_holds(tree: Path) -> None:
    assert broken_contracts(tree) == []


def test_each_contract_is_broken_here_once() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    broken = tuple(contract for _, _, contract in FORBIDDEN)
    assert [each["name"] for each in contracts if not each["name"].startswith(broken)] == []


@pytest.mark.slow
@pytest.mark.parametrize(("module", "line", "contract"), FORBIDDEN)
def test_a_forbidden_import_is_caught(tree: Path, module: str, line: str, contract: str) -> None:
    with (tree / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    broken = broken_contracts(tree)
    assert any(each.startswith(contract) for each in broken)
    # An import that runs upwards mostly closes a circle too.
    assert all(each.startswith((contract, "No circles")) for each in broken)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("partq_spark/spark/source.py", "import pyspark.sql.datasource, partq_spark.spark.reader, partq_spark.log"),
        ("partq_spark/spark/reader.py", "from pyspark.sql.datasource import DataSourceStreamReader"),
        ("partq_spark/objects/azure.py", "from azure.storage.blob import BlobClient"),
        ("partq_spark/cli/extra.py", "import click, rich.table, partq_spark.client.queue, partq_spark.base.errors"),
        ("coordinator/runtime.py", "import partq_spark.base.errors"),
    ],
)
def test_what_the_design_allows_is_allowed(tree: Path, module: str, line: str) -> None:
    with (tree / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    assert broken_contracts(tree) == []
