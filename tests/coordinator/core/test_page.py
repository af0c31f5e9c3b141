"""docs/handoff.md, written from the table of handoff states: `scripts/draw-handoff` writes it, a test compares it."""

from __future__ import annotations

from pathlib import Path

from coordinator.core.handoff import TABLE, Edge
from partq_spark.group.model import Phase

FILE = Path(__file__).parents[3] / "docs/handoff.md"

PHASES = {
    Phase.FREE: "nobody has the partition, and its checkpoint says so (status Unassigned)",
    Phase.OWNED: "a flow has it, and its checkpoint says so (status Ready; Unbound if that flow is not bound)",
    Phase.PAUSED: "a flow has it and gets nothing new, until what it was given is acknowledged (status Paused)",
    Phase.FENCING: "its checkpoint is being rewritten, nobody delivers anything "
    "(status Paused; Unbound or Unassigned if the receiver is lost or nobody)",
}

HEAD = """# How a partition gets from flow to flow

<!-- Written by scripts/draw-handoff from the table in coordinator/core/handoff.py: change that, not this. -->

A partition of a group is always in one of four states. What may happen to it is a table with one row for each edge; a
step that the table does not have raises an error and changes nothing. The coordinator decides when a step is taken
(`coordinator/core/rebalance.py` and `flow_events.py`), writes the new state, and only then does what follows from it.
"""

RULES = """
## What keeps this safe

- **FENCING is left only by completing, or by another fence with a higher epoch.** So whichever of several fences is
  late, it finds itself below the last one and changes nothing.
- **A checkpoint that is not the former owner's is replaced only if the store still has the state that asks for it.** A
  store that loses the state loses how high the epochs of its fences were: a fence that is late may then find itself
  above those of the next leader.
- **The epoch is raised with every fence.** The one exception is `owned` → `restore`: a flow that came back with its
  mapping gets its own partition under the same epoch, for its new instance, so that nothing is handed over (LOS-01).
- **Every pause has a deadline**, and ends at once when its owner or its receiver is lost: nothing is stuck in PAUSED.
- **While a partition is fenced, the reports that count are the former owner's**: nobody can have delivered anything
  since. What it delivered and did not acknowledge is marked as redelivered.
- **Nobody waits for a checkpoint that cannot be rewritten** (`stuck`): the rebalance of the others ends without it, it
  counts as its receiver's, and its fence is tried again until it is in place.
- **A new leader needs nothing but the state**: the fences to finish are the partitions in FENCING.
"""


def _name(phase: Phase | None) -> str:
    return "gone" if phase is None else phase.value


def diagram() -> str:
    """A mermaid state diagram: one arrow for each pair of states, with the steps that lead along it."""
    arrows: dict[tuple[Phase, Phase | None], list[Edge]] = {}
    for row in TABLE:
        arrows.setdefault((row.phase, row.then), []).append(row)
    lines = ["stateDiagram-v2", "    [*] --> free"]
    for (phase, then), rows in arrows.items():
        target = "[*]" if then is None else then.value
        lines.append(f"    {phase.value} --> {target} : {', '.join(row.step.value for row in rows)}")
    return "\n".join(["```mermaid", *lines, "```"])


def table() -> str:
    """The rows, as a table in Markdown."""
    lines = ["| in | step | when | then | follows |", "|---|---|---|---|---|"]
    for row in TABLE:
        follows = row.action.__name__ if row.action is not None else ""
        lines.append(f"| {row.phase.value} | {row.step.value} | {row.when} | {_name(row.then)} | {follows} |")
    return "\n".join(lines)


def page() -> str:
    """The whole document."""
    states = "\n".join(f"- **{phase.value}**: {text}" for phase, text in PHASES.items())
    return f"{HEAD}\n{states}\n\n{diagram()}\n\n## The table\n\n{table()}\n{RULES}"


def test_the_document_is_up_to_date() -> None:
    assert FILE.read_text(encoding="utf-8") == page(), "run scripts/draw-handoff"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
