"""How a session comes to know `format("partq")`: by itself, or by `register`, or with an error that says what to set.

A plain Python script with classic Spark is the session of all other tests: nothing there registers anything. Here are
the other ways to start Spark, each in a process of its own whose environment has nothing but what it names; for Spark
Connect, where the client has no Spark of its own, also what comes of rows, refusals and supervision.
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

import partq
from tests.support.jvm import spark_environment
from tools import ROOT
from tools.processes import Program

FOLDER = Path(__file__).parent / "discovery"
SUBMIT = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
FOUND = {"classic": True, "streamed": [str(number) for number in range(10)], "read": [str(n) for n in range(10)]}


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


def run(
    folder: Path,
    *command: str,
    script: str = "driver.py",
    environment: Mapping[str, str | None] | None = None,
    **arguments: Any,
) -> Any:
    """What the driver found; `command` runs the script that follows it, `environment` changes the usual one."""
    store = f"file://{folder}/store"
    partq.create_queue("orders", partitions=3, store=store)
    written = folder / "arguments.json"
    written.write_text(json.dumps({"store": store, "output": str(folder / "output"), **arguments}))
    changed: dict[str, str | None] = {**spark_environment(folder), **(environment or {})}
    kept = {name: value for name, value in changed.items() if value is not None}
    words = [*command, str(FOLDER / script), str(written)]
    with Program(words, name="driver", folder=folder, environment=kept) as program:
        code = program.wait_end()
        lines = [line for line in program.text().splitlines() if line.startswith("{")]
        assert code == 0, program.tail()
        assert lines, program.tail()
        return json.loads(lines[-1])


@pytest.mark.spark
def test_spark_submit_finds_it(tmp_path: Path) -> None:
    """With the installed Spark home, as everywhere but in tests."""
    assert run(tmp_path, *SUBMIT, environment={"SPARK_HOME": None}) == FOUND


@pytest.mark.spark
def test_a_venv_that_is_not_on_path_is_told_what_to_set(tmp_path: Path, bare_python: Path) -> None:
    """The driver runs in a venv that nobody activated; the workers are `python3` from PATH, which is another Python."""
    here = Path(sys.executable).parent
    others = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if Path(each) != here)
    environment = {"PYSPARK_PYTHON": None, "PYSPARK_DRIVER_PYTHON": None, "PATH": f"{bare_python.parent}:{others}"}
    found = run(tmp_path, sys.executable, environment=environment, register=True)
    assert found["register"].startswith("Invalid: ")
    assert "'python3', which cannot import partq" in found["register"]
    assert f"set PYSPARK_PYTHON={sys.executable} before the session starts" in found["register"]
    assert "DATA_SOURCE_NOT_FOUND" in found["use"]


@pytest.mark.spark
@pytest.mark.parametrize("how", ["py-files", pytest.param("addPyFile", marks=pytest.mark.nightly)])
def test_shipped_with_the_job_it_needs_register(tmp_path: Path, bare_python: Path, archive: Path, how: str) -> None:
    """spark-traps.md 27."""
    environment = {"PYSPARK_PYTHON": str(bare_python), "PYSPARK_DRIVER_PYTHON": str(bare_python)}
    command = [*SUBMIT, "--py-files", str(archive)] if how == "py-files" else [str(bare_python)]
    given = {"add_py_file": str(archive)} if how == "addPyFile" else {}
    found = run(tmp_path, *command, environment=environment, register=True, **given)
    assert ".zip/" in found.pop("imported from")
    assert found == FOUND


@pytest.mark.connect
@pytest.mark.conformance("TYP-02")
def test_a_connect_client_finds_it_and_rows_go_in_and_come_out(tmp_path: Path) -> None:
    """By batch, by a stream from queue to queue, with `.schema()` and without; what does not fit is told, and a
    supervised query is started again, or refused.
    """
    found = run(tmp_path, sys.executable, script="client.py", environment={"PYTHONPATH": str(ROOT)})
    names = [*(f"n{number}" for number in range(9)), None]
    assert found["classic"] is False
    assert found["columns"] == [["tags", True], ["name", True], ["id", False], ["_metadata", True]]
    assert found["batch"] == [[number, name, [name]] for number, name in enumerate(names)]
    assert found["stream"] == [[name, True] for name in (None, *names[:9])]
    assert "column 'name' has type interval day, the queue's is STRING: cast or convert it" in found["refused"]
    assert found["starts"] == 2, "one failed, the next ended well"
    assert found["invalid"].startswith("option 'endingOffsets' (value 'latest') is for batch reads")
