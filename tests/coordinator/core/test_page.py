"""Diagram and table of docs/handoff.md: `scripts/draw-handoff` draws them from the table of handoff states."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.handoff import TABLE
from partq_spark.group.model import Phase

FILE = Path(__file__).parents[3] / "docs/handoff.md"

BEGIN, END = "```mermaid\n", "\n## What keeps this safe"
"""Between these it is drawn."""


def diagram() -> str:
    """A mermaid state diagram: one arrow for each pair of states, with what leads along it."""
    arrows: dict[tuple[Phase, Phase | None], list[str]] = {}
    for row in TABLE:
        arrows.setdefault((row.phase, row.then), []).extend(cause.value for cause in row.causes)
    lines = ["stateDiagram-v2", "    [*] --> free"]
    for (phase, then), causes in arrows.items():
        target = "[*]" if then is None else then.value
        lines.append(f"    {phase.value} --> {target} : {', '.join(causes)}")
    return "\n".join(["```mermaid", *lines, "```"])


def table() -> str:
    """The rows, as a table in Markdown."""
    lines = ["| in | step | cause | when | then |", "|---|---|---|---|---|"]
    for row in TABLE:
        then = "gone" if row.then is None else row.then.value
        for cause, when in row.causes.items():
            lines.append(f"| {row.phase.value} | {row.step.value} | {cause.value} | {when} | {then} |")
    return "\n".join(lines)


def page() -> str:
    """The document, with what is drawn drawn anew."""
    text = FILE.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    return f"{head}{diagram()}\n\n## The table\n\n{table()}\n{tail}"


def test_the_document_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "run scripts/draw-handoff"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
