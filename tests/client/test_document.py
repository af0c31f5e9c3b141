"""docs/python.md, and what docs/groups.md has of plain Python, run as they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import partq
from tests.cast.sidecars import Place
from tests.docs.blocks import ROOT, blocks

DOCUMENTS = ROOT / "docs"
PAGE = DOCUMENTS / "python.md"


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTQ_STORE", f"file://{tmp_path}/store")
    monkeypatch.chdir(tmp_path)
    Path("orders.csv").write_text("customer,item\nann,tea\nbob,pot\n")
    names: dict[str, object] = {}
    for block in blocks(PAGE):
        if block.language == "python":
            exec(compile(block.text, "docs/python.md", "exec"), names)  # noqa: S102 - our own page
    assert isinstance(names["report"], partq.PublishReport)
    assert names["report"].messages == 2
    assert partq.open_queue("orders").describe().messages == names["lag"] == 4
    assert partq.open_queue("orders").checkpoints("billing").lag == 0


def test_the_page_has_every_method_of_a_queue() -> None:
    text = PAGE.read_text(encoding="utf-8")
    methods = [name for name in dir(partq.Queue) if callable(getattr(partq.Queue, name)) and not name.startswith("_")]
    assert [name for name in methods if f"`{name}`" not in text] == []


@pytest.mark.crash
@pytest.mark.slow
def test_the_flow_of_the_page_on_flows_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, "store")
    monkeypatch.setenv("PARTQ_STORE", place.url)
    queue = partq.create_queue("orders", partitions=2)
    with queue.publisher() as publisher:
        for number in range(10):
            publisher.send(str(number))
    queue.create_group("billing", starting="earliest", ownership="store")
    seen: list[object] = []

    def work_on(batch: partq.Batch) -> None:
        seen.extend(batch)
        if len(seen) == 10:
            names["consumer"].stop()

    names: dict[str, Any] = {"ownership_url": "store", "work_on": work_on}
    (block,) = (each.text for each in blocks(DOCUMENTS / "groups.md") if ".consumer(" in each.text)
    with place.sidecar():
        exec(compile(block, "docs/groups.md", "exec"), names)  # noqa: S102 - our own page
    assert queue.checkpoints("billing").lag == 0
