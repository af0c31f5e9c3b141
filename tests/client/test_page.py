"""docs/python.md runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import partq

PAGE = Path(__file__).parents[2] / "docs/python.md"


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_STORE", f"file://{tmp_path}/store")
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("customer,item\nann,tea\nbob,pot\n")
    names: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(block, "docs/python.md", "exec"), names)  # noqa: S102 - our own page
    assert isinstance(names["report"], partq.PublishReport)
    assert names["report"].messages == 2
    assert partq.open_queue("orders").describe().messages == names["lag"] == 4


def test_the_page_has_every_method_of_a_queue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    methods = [name for name, member in vars(partq.Queue).items() if callable(member) and not name.startswith("_")]
    assert [name for name in methods if f"`{name}`" not in text] == []
