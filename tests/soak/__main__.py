"""`python -m tests.soak`, the command of scripts/soak: one run, told as text and, with `--write-docs`, as the section
Soak of docs/reliability.md.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.cast.publisher import KEYS
from tests.cast.reports import DOCUMENT, conclude, filled, folder_of, parser_of, put_section, tell
from tests.soak.run import Compared, Course, Outcome, compared, run
from tools.environment import Environment, observe

TEMPLATE: Final = Path(__file__).with_name("soak.md")


def command(course: Course) -> str:
    """What repeats a run."""
    return f"scripts/soak --minutes {course.length_s / 60:g}"


def told(outcome: Outcome) -> list[str]:
    """The report: one fact a line, then what must not have been."""
    course, samples = outcome.course, outcome.samples
    figures = [] if len(samples) < 6 else compared(samples)
    cpu = ", ".join(
        f"{name} {seconds / course.length_s:.1%} of a core" for name, seconds in sorted(outcome.cpu_s.items())
    )
    heads = [each.head_bytes for each in samples]
    sent = f"one publish every {course.interval_s:g} s of {course.messages} messages with {KEYS} keys"
    times = f"retention {course.retention_s:g} s, collection grace {course.grace_s:g} s"
    passed = f"{outcome.published:,} messages published, {outcome.received:,} received; {outcome.trimmed:,} trimmed"
    readable = [each.messages for each in samples]
    references, entries = max(each.references for each in samples), max(each.entries for each in samples)
    return [
        f"{course.length_s / 60:g} minutes: {sent}, {course.partitions} partitions",
        f"{times}, compaction after {course.min_age_s:g} s",
        f"{passed}, {outcome.deleted:,} objects deleted, {outcome.compactions} compactions",
        *(_compared(each) for each in figures),
        f"head: {min(heads) / 1000:.1f} to {max(heads) / 1000:.1f} kB, up to {references} chunks and {entries} entries",
        f"messages that could be read: median {statistics.median(readable):,.0f}, most {max(readable):,}",
        f"processor: {cpu}",
        f"violations: {len(outcome.failures)}",
        *outcome.failures,
    ]


def _compared(each: Compared) -> str:
    if each.name == "planning":
        return f"planning, median: {each.second:.2f} ms in the second third, {each.last:.2f} ms in the last"
    factor = each.last / max(each.second, 1.0)
    return f"{each.name}, most: {each.second:,.0f} in the second third, {each.last:,.0f} in the last ({factor:.2f} ×)"


def write_document(outcome: Outcome, machine: Environment, target: Path = DOCUMENT) -> None:
    """Put the report into its section of the document."""
    text = TEMPLATE.read_text(encoding="utf-8")
    put_section(target, "soak", filled(text, command=command(outcome.course), machine=machine, lines=told(outcome)))


def main(arguments: Sequence[str]) -> int:
    """0: all stayed bounded and in order; 1: something did not; 2: wrong use."""
    parser = parser_of(
        "soak", "Publishes, consumes and cleans up for a while, and watches what is stored.", minutes=30, of="how long"
    )
    found = parser.parse_args(arguments)
    if found.minutes <= 0:
        parser.error("--minutes is above 0")
    folder = folder_of("soak", found.folder)
    machine = observe(folder)
    tell(f"everything is written to {folder}")
    try:
        outcome = run(folder, Course(length_s=found.minutes * 60), tell)
    except AssertionError as error:
        tell(f"{error}\n{folder} is kept")
        return 1
    tell("\n".join(told(outcome)))
    if found.write_docs:
        write_document(outcome, machine)
        tell(f"wrote {DOCUMENT}")
    return conclude(outcome.failures, folder, command(outcome.course))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
