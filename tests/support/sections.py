"""Documents whose sections are written by different commands: each replaces its own and leaves the others alone.

A section stands between two comments that name it. Its text is a template with the places `{{command}}`, `{{machine}}`
and `{{report}}`. What is reported is the commands' own.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.environment import Environment

TITLE: Final = "# Reliability\n"


def spread(values_ms: Sequence[float]) -> str:
    """Median and 99th percentile."""
    if not values_ms:
        return "none was seen"
    ordered = sorted(values_ms)
    worst = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"median {statistics.median(ordered):.0f} ms, p99 {worst:.0f} ms"


def filled(template: str, *, command: str, machine: Environment, lines: Sequence[str]) -> str:
    """The template with its places filled; every line of the report becomes an item of a list."""
    where = (
        f"Run {machine.date} at commit {machine.commit} on {machine.cpu}, {machine.cores} cores, {machine.memory}, "
        f"{machine.system}; load of the machine before: {machine.load:.1f}."
    )
    text = template.replace("{{command}}", command).replace("{{machine}}", where)
    return text.replace("{{report}}", "\n".join(f"- {line}" for line in lines))


def put_section(target: Path, name: str, text: str) -> None:
    """Replace the section `name` of a document; one that it does not have yet comes last."""
    page = target.read_text(encoding="utf-8") if target.exists() else TITLE
    begin, end = f"<!-- section {name} -->\n", f"<!-- end of {name} -->\n"
    section = f"{begin}{text.strip()}\n{end}"
    found = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if found.search(page):
        page = found.sub(lambda _: section, page)
    else:
        page = f"{page.rstrip()}\n\n{section}"
    target.write_text(page, encoding="utf-8")
