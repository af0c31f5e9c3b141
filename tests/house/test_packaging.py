"""What the distribution holds, and what an import of it costs."""

from __future__ import annotations

import ast
import email
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.release.check import ROOT, build

PACKAGES = ("partq_spark", "coordinator")
FILES = ("*.py", "*.pyi", "*.html", "*.css", "*.js", "*.svg")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


def test_the_wheel_holds_the_packages_two_modules_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    ours = {name for name in names if ".dist-info/" not in name}
    modules = {"partq.py", "partq-stubs", "pyspark_partq.py"}
    assert {name.partition("/")[0] for name in ours} == {*PACKAGES, *modules}
    files = (path for package in PACKAGES for kind in FILES for path in (ROOT / package).rglob(kind))
    source = {str(path.relative_to(ROOT)) for path in files}
    assert source - names == set()
    assert {f"{package}/py.typed" for package in PACKAGES} - names == set()


def test_the_wheel_brings_the_command_the_licence_and_a_description_without_dead_links(wheel: Path) -> None:
    """The description has no link that means a file beside it, and every address is a whole one."""
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    assert "partq = partq_spark.cli.main:main" in archive.read(f"{folder}/entry_points.txt").decode()
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    metadata = email.message_from_bytes(archive.read(f"{folder}/METADATA"))
    assert (metadata["License-Expression"], metadata["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert metadata["Description-Content-Type"] == "text/markdown"
    text = str(metadata.get_payload())
    links = re.findall(r"\]\(([^)]+)\)|(?:src|href)=[\"']([^\"']+)", text)
    assert [link for pair in links for link in pair if link and not link.startswith("https://")] == []
    assert {f"`{path}`" for path in ("README.md", "docs/quickstart.md")} <= set(re.findall(r"`[^`]+\.md`", text))


@pytest.mark.slow
def test_a_type_checker_knows_what_the_installed_partq_gives(wheel: Path, tmp_path: Path) -> None:
    python = tmp_path / "venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(packages)
    program = tmp_path / "program.py"
    program.write_text("import partq\nreveal_type(partq.open_queue)\npartq.open_queue('orders', partitions=3)\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "--python-executable", str(python)]
    done = subprocess.run(
        [*command, str(program)], check=False, cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "-> partq_spark.client.queue.Queue" in done.stdout, done.stdout
    assert 'Unexpected keyword argument "partitions" for "open_queue"' in done.stdout


def test_an_archive_without_the_list_of_names_is_refused_in_words(tmp_path: Path) -> None:
    archive = tmp_path / "partq.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for module in [ROOT / "partq.py", *(ROOT / "partq_spark").rglob("*.py")]:
            file.write(module, module.relative_to(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", "import partq"],
        check=False,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(archive)},
    )
    assert done.stderr.splitlines()[-1].endswith("pack the *.pyi with partq, too")


def modules_after(*imports: str) -> set[str]:
    """The modules of a fresh interpreter after these imports, without the help of an already imported test run."""
    code = "import json, sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    code += "print(json.dumps(list(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code, *imports], cwd="/", check=True, capture_output=True, text=True, timeout=60
    )
    return set(json.loads(done.stdout))


LIGHT = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in ("objects", "log")
    for path in sorted((ROOT / "partq_spark" / folder).rglob("*.py"))
    if path.stem not in ("azure", "azure_access", "s3", "s3_client")  # loaded only where the store is there
]
CLIENTS = {"pyspark", "azure", "botocore", "redis", "rich", "click", "pandas"}


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        (["partq_spark", "partq"], CLIENTS | {"py4j", "coordinator"}),
        # Spark's workers import these afresh, once per task in the worst case: every module here is paid for again.
        (LIGHT, CLIENTS | {"asyncio", "urllib3", "requests", "logging.config"}),
    ],
)
def test_an_import_brings_no_spark_no_client_and_no_terminal(modules: list[str], heavy: set[str]) -> None:
    assert modules
    assert modules_after(*modules) & heavy == set()


def test_the_shim_is_one_line() -> None:
    """Spark runs it in every session, and one that fails to import disables all data sources (spark-traps.md 18)."""
    tree = ast.parse((ROOT / "pyspark_partq.py").read_text(encoding="utf-8"))
    docstring, line = tree.body
    assert isinstance(docstring, ast.Expr)
    assert ast.unparse(line) == "from partq_spark.spark.source import PartqDataSource as DefaultSource"
