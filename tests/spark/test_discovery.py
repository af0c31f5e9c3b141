"""How a session comes to know `format("partq")`: by itself, or by `register`, or with an error that says what to set.

A plain Python script with classic Spark is the session of all other tests: nothing there registers anything. Here are
the other ways to start Spark, each in a process of its own whose environment has nothing but what it names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest

from partq_spark.log import admin
from partq_spark.objects import open_store
from tests.support.processes import Program, spark_environment

DRIVER = Path(__file__).parent / "discovery" / "driver.py"
ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
SUBMIT = str(SPARK_HOME / "bin" / "spark-submit")
EVERYTHING = [str(number) for number in range(10)]


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has Spark, Arrow and all else that partq needs, but not partq."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Path files of a folder that is itself named by a path file are not followed: an editable install is one of those.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    probe = "import importlib.util as u, pyspark, pyarrow, xxhash; assert u.find_spec('partq_spark') is None"
    subprocess.run([str(python), "-c", probe], check=True, cwd="/", timeout=60)
    return python


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """partq as one file for `--py-files`."""
    path = tmp_path_factory.mktemp("archive") / "partq.zip"
    with zipfile.ZipFile(path, "w") as file:
        shipped = [ROOT / "pyspark_partq.py", ROOT / "partq.py", *(ROOT / "partq_spark").rglob("*.py*")]
        for module in [path for path in shipped if path.suffix in (".py", ".pyi")]:
            file.write(module, module.relative_to(ROOT))
    return path


def run(folder: Path, *command: str, environment: Mapping[str, str | None] | None = None, **arguments: Any) -> Any:
    """What the driver found; `command` runs the script that follows it, `environment` changes the usual one."""
    store = f"file://{folder}/store"
    admin.create_queue(open_store(store), "default", "orders", 3)
    written = folder / "arguments.json"
    written.write_text(json.dumps({"store": store, "output": str(folder / "output"), **arguments}))
    changed: dict[str, str | None] = {**spark_environment(folder), **(environment or {})}
    with Program(
        [*command, str(DRIVER), str(written)],
        name="driver",
        folder=folder,
        environment={name: value for name, value in changed.items() if value is not None},
    ) as program:
        code = program.wait_end()
        lines = [line for line in program.text().splitlines() if line.startswith("{")]
        assert code == 0, program.tail()
        assert lines, program.tail()
        return json.loads(lines[-1])


@pytest.mark.connect
@pytest.mark.spark
def test_a_connect_client_finds_it(tmp_path: Path) -> None:
    found = run(tmp_path, sys.executable, remote=True)
    assert found == {"classic": False, "streamed": EVERYTHING, "read": EVERYTHING}


@pytest.mark.spark
def test_spark_submit_finds_it(tmp_path: Path) -> None:
    """With the installed Spark home, as everywhere but in tests."""
    found = run(tmp_path, SUBMIT, "--master", "local[2]", "--driver-memory", "1g", environment={"SPARK_HOME": None})
    assert found == {"classic": True, "streamed": EVERYTHING, "read": EVERYTHING}


@pytest.mark.spark
def test_a_venv_that_is_not_on_path_is_told_what_to_set(tmp_path: Path, bare_python: Path) -> None:
    """The driver runs in a venv that nobody activated; the workers are `python3` from PATH, which is another Python."""
    environment = {
        "PYSPARK_PYTHON": None,
        "PYSPARK_DRIVER_PYTHON": None,
        "PATH": f"{bare_python.parent}:{without_venv(os.environ['PATH'])}",
    }
    found = run(tmp_path, sys.executable, environment=environment, register=True)
    assert found["register"].startswith("Invalid: ")
    assert "'python3', which cannot import partq" in found["register"]
    assert f"set PYSPARK_PYTHON={sys.executable} before the session starts" in found["register"]
    assert "DATA_SOURCE_NOT_FOUND" in found["use"]


@pytest.mark.spark
def test_py_files_with_register(tmp_path: Path, bare_python: Path, archive: Path) -> None:
    environment = {"PYSPARK_PYTHON": str(bare_python), "PYSPARK_DRIVER_PYTHON": str(bare_python)}
    command = [SUBMIT, "--master", "local[2]", "--driver-memory", "1g", "--py-files", str(archive)]
    found = run(tmp_path, *command, environment=environment, register=True)
    assert ".zip/" in found.pop("imported from")
    assert found == {"classic": True, "streamed": EVERYTHING, "read": EVERYTHING}


@pytest.mark.spark
def test_add_py_file_with_register(tmp_path: Path, bare_python: Path, archive: Path) -> None:
    environment = {"PYSPARK_PYTHON": str(bare_python), "PYSPARK_DRIVER_PYTHON": str(bare_python)}
    found = run(tmp_path, str(bare_python), environment=environment, register=True, add_py_file=str(archive))
    assert ".zip/" in found.pop("imported from")
    assert found == {"classic": True, "streamed": EVERYTHING, "read": EVERYTHING}


def without_venv(path: str) -> str:
    """PATH without the folder of this Python."""
    here = Path(sys.executable).parent
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if Path(folder) != here)
