"""The notebooks run from top to bottom, and are stored without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import psutil
import pytest

from tests.support.waiting import wait_until

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PRINTED = {
    # A thousand events, five of the nightly import once.
    "01_quickstart": ["1005", "1005 messages in the first run, 0 in the second"],
    "02_watch_a_handoff": ["one → three, paused", "two → three, paused", "0 missing, 0 twice without a mark"],
    "03_inspect_checkpoints": ["600 messages read", "400 messages read", "\n10 messages read", '"redelivered_below":'],
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
ELSEWHERE = {"04_state_before_acknowledging", "05_acknowledge_whole_sequences"}  # test_acknowledging has what they need
NOT_PRINTED = {"01_quickstart": ["false"]}  # every key in order


def _read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_stored_without_outputs(path: Path) -> None:
    notebook = _read(path)
    for cell in notebook.cells:
        assert not cell.get("outputs"), f"{path.name} has outputs: clear them before committing"
        assert cell.get("execution_count") is None


@pytest.mark.spark
@pytest.mark.timeout(240)
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem not in ELSEWHERE], ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    notebook = _read(path)
    client = NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    try:
        client.execute()
        wait_until(lambda: not _running_in(tmp_path), "end of what the notebook started")
    finally:
        for process in _running_in(tmp_path):
            process.kill()
    printed = "".join(
        output.get("text", "") + "".join(output.get("data", {}).get("text/plain", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    for words in PRINTED[path.stem]:
        assert words in printed
    for words in NOT_PRINTED.get(path.stem, ()):
        assert words not in printed


def _running_in(folder: Path) -> list[psutil.Process]:
    """Processes of this test's own directory: the kernel, and what it started."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
