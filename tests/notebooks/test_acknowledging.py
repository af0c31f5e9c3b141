"""The notebooks about acknowledging, with a real Redis and a real coordinator beside them."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.cast.sidecars import Sidecar
from tests.support.servers import ROOT, RedisServer

pytestmark = [pytest.mark.spark, pytest.mark.redis]

FOLDER = ROOT / "notebooks"


def printed(name: str, folder: Path) -> str:
    """What a notebook prints when it runs from top to bottom."""
    from nbclient import NotebookClient

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    return "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ()))


@pytest.fixture
def beside(redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sidecar:
    """What the notebooks ask for: both variables, for them and for the coordinator."""
    environ = {"PARTQ_STORE": f"file://{tmp_path}/store", "PARTQ_OWNERSHIP": redis_server.url}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Sidecar(tmp_path, "coordinator", environ)


@pytest.mark.conformance("SEQ-02")
@pytest.mark.timeout(240)
def test_state_in_a_shared_database_lets_a_second_flow_continue(beside: Sidecar, tmp_path: Path) -> None:
    with beside:
        said = printed("04_state_before_acknowledging", tmp_path)
    assert "every invoice once and in order: True · every balance right: True" in said
    assert "sequences that were continued by the second consumer: True" in said
    lines = re.findall(r"^customer-\d 210 1:one 2:one 3:one 4:(\w+) 5:(\w+) 6:(\w+)$", said, re.MULTILINE)
    assert len(lines) == 8
    assert {flow for line in lines for flow in line} == {"one", "two"}


@pytest.mark.conformance("SEQ-01")
@pytest.mark.timeout(240)
def test_an_unfinished_sequence_comes_again_whole(beside: Sidecar, tmp_path: Path) -> None:
    with beside:
        said = printed("05_acknowledge_whole_sequences", tmp_path)
    assert "every sequence whole and in order: True" in said
    assert "the second consumer got unfinished ones from the first message, marked: True" in said
    assert "finished by two packed (again) sent (again) delivered\n" in said
    assert "finished by one packed sent delivered\n" in said
    assert "left: 0" in said


def test_the_documented_consumer_is_the_one_that_runs() -> None:
    (shown,) = re.findall(r"```python\n(class .*?)```", (ROOT / "docs/acknowledging.md").read_text(), re.DOTALL)
    notebook = nbformat.read(FOLDER / "05_acknowledge_whole_sequences.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert any(shown.strip() in cell.source for cell in notebook.cells)
