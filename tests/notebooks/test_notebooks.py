"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.cast.sidecars import Sidecar
from tests.support import jvm
from tests.support.waiting import wait_until
from tools import ROOT
from tools.servers import RedisServer

FOLDER = ROOT / "notebooks"
FLOWS = r"(?m)^customer-\d 210 1:one 2:one 3:one 4:(?:one|two) 5:(?:one|two) 6:(?:one|two)$"
PRINTED = {
    # A thousand events, five of the nightly import once.
    "01_quickstart": ["1005", "1005 messages in the first run, 0 in the second"],
    "02_watch_a_handoff": ["one → three, paused", "two → three, paused", "0 missing, 0 twice without a mark"],
    "03_inspect_checkpoints": ["600 messages read", "400 messages read", "\n10 messages read", '"redelivered_below":'],
    "04_state_before_acknowledging": [
        "every invoice once and in order: True · every balance right: True",
        "sequences that were continued by the second consumer: True",
    ],
    "05_acknowledge_whole_sequences": [
        "every sequence whole and in order: True",
        "the second consumer got unfinished ones from the first message, marked: True",
        "finished by two packed (again) sent (again) delivered\n",
        "finished by one packed sent delivered\n",
        "left: 0",
    ],
    "06_rows_not_bytes": [
        "column 'minutes' has type STRING, the queue's is INT: cast it",
        "2000 trips copied, without a column coupon",
        "|spring|  500|",
        "minutes BIGINT, since version 1, before: INT",
        "coupon STRING, since version 2",
        "2001 trips, ",
        "the same answer: True",
    ],
}
PROOFS = {
    "04_state_before_acknowledging": pytest.mark.conformance("SEQ-02"),
    "05_acknowledge_whole_sequences": pytest.mark.conformance("SEQ-01"),
}


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def test_they_are_stored_without_outputs() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(PRINTED)
    for name in PRINTED:
        for cell in read(name).cells:
            assert not cell.get("outputs"), f"{name} has outputs: clear them before committing"
            assert cell.get("execution_count") is None


def test_the_documented_consumer_is_the_one_that_runs() -> None:
    (shown,) = re.findall(r"```python\n(class .*?)```", (ROOT / "docs/groups.md").read_text(), re.DOTALL)
    assert any(shown.strip() in cell.source for cell in read("05_acknowledge_whole_sequences").cells)


@pytest.fixture
def beside(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """What the notebooks about acknowledging ask for: both variables, for them and for a coordinator that runs."""
    with ExitStack() as stack:

        def start() -> None:
            environ = {"PARTQ_STORE": f"file://{tmp_path}/store", "PARTQ_OWNERSHIP": redis_server.url}
            for name, value in environ.items():
                monkeypatch.setenv(name, value)
            stack.enter_context(Sidecar(tmp_path / "beside", "coordinator", environ))

        (tmp_path / "beside").mkdir()
        yield start


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [pytest.param(name, marks=PROOFS.get(name, ())) for name in PRINTED])
def test_it_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: Callable[[], None]) -> None:
    from nbclient import NotebookClient

    for variable, value in jvm.environment().items():  # the kernel starts Spark itself: here it starts quickly
        monkeypatch.setenv(variable, value)
    if name in PROOFS:
        beside()
    notebook, folder = read(name), tmp_path / "notebook"
    folder.mkdir()
    for cell in notebook.cells:  # how long it takes is nothing to a test
        cell.source = cell.source.replace("ROWS = 200_000\n", "ROWS = 2_000\n")
    client = NotebookClient(notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    try:
        client.execute()
        wait_until(lambda: not _running_in(folder), "end of what the notebook started")
    finally:
        for process in _running_in(folder):
            process.kill()
    printed = "".join(
        output.get("text", "") + "".join(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    for words in PRINTED[name]:
        assert words in printed
    if name == "01_quickstart":
        assert "false" not in printed, "every key in order"
    if name == "04_state_before_acknowledging":
        lines = re.findall(FLOWS, printed)
        assert len(lines) == 8
        assert "two" in "".join(lines), "a second flow continued"


def _running_in(folder: Path) -> list[psutil.Process]:
    """Processes of this notebook's own directory: the kernel, and what it started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
