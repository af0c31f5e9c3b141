"""docs/handoff.md is what the table says."""

from __future__ import annotations

from coordinator.core.handoff import TABLE
from tests.coordinator.core.page import FILE, diagram, page


def test_the_document_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "run scripts/draw-handoff"


def test_every_row_is_drawn() -> None:
    drawn = diagram()
    for row in TABLE:
        target = row.then.value if row.then else "[*]"
        (arrow,) = [line for line in drawn.splitlines() if line.strip().startswith(f"{row.phase.value} --> {target} :")]
        assert row.step.value in arrow.partition(" : ")[2].split(", ")
