"""`python -m tests.ownership.shake`, the command of scripts/shake: storms over real processes, then the judgement.

Puts together what the other modules do, and tells it: as text, and with `--write-docs` as a section of
docs/reliability.md.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.environment import Environment, observe
from tests.ownership.cast import Cast, Observer
from tests.ownership.checker import Verdict, judge
from tests.ownership.facts import now_s
from tests.ownership.storm import Course, Storm, Weather
from tests.support.runs import DOCUMENT, folder_of, parser_of, tell
from tests.support.sections import filled, put_section, spread

TEMPLATE: Final = Path(__file__).with_name("reliability.md")
_DRAIN_WAIT_S: Final = 20.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a run came to. `decisions`: lines of the coordinators' logs, by event."""

    flows: int
    partitions: int
    seed: int
    took_s: float
    course: Course
    verdict: Verdict
    decisions: Counter[str]
    calm_s: float

    @property
    def failures(self) -> tuple[str, ...]:
        """Everything that must not have been; empty: all is well."""
        return (*self.verdict.violations, *self.course.troubles)


def shake(
    folder: Path,
    *,
    duration_s: float,
    seed: int,
    flows: int,
    partitions: int,
    storm_s: float = 20.0,
    redis_restarts: int = 2,
    on_objects: bool = False,
    slack_s: float = 0.0,
    tell: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run a whole course in `folder`, which must be empty, and judge it."""
    begun_s = now_s()
    names = [f"flow-{number:02d}" for number in range(1, flows + 1)]
    with Cast(folder, partitions=partitions, on_objects=on_objects) as cast:
        publisher = cast.start_publisher(partitions, 0.1)
        weather = Weather(duration_s=duration_s, storm_s=storm_s, redis_restarts=redis_restarts, slack_s=slack_s)
        storm = Storm(cast, names, weather, seed, tell)
        with Observer(cast):
            course = storm.run()
            if not publisher.alive:
                course.troubles.append(f"the publisher ended: {publisher.tail()}")
            publisher.terminate()
            publisher.wait()
            ends = cast.queue.refresh().next
            try:
                cast.wait_until(lambda: cast.behind(ends), _DRAIN_WAIT_S)
            except AssertionError as error:
                course.troubles.append(f"at the end {error}")
            for child in (*cast.flows.values(), *cast.coordinators.values()):
                if child.alive:
                    child.terminate()
                    if child.wait():
                        course.troubles.append(f"{child.name} ended with {child.code}: {child.tail()}")
        return Report(
            flows=flows,
            partitions=partitions,
            seed=seed,
            took_s=now_s() - begun_s,
            course=course,
            verdict=judge(cast.facts(), dict(enumerate(ends))),
            decisions=Counter(_decision(line) for line in cast.decisions()),
            calm_s=storm.calm_s,
        )


def _decision(line: dict[str, str]) -> str:
    """The event, with what tells a handoff that was waited out from one that was not."""
    forced = line["event"] == "fence" and "max-handoff-time" in line.get("reason", "")
    return "fence after the deadline" if forced else line["event"]


# --- telling ----------------------------------------------------------------------------------------------------------


def told(report: Report) -> str:
    """The report as text: one fact a line."""
    verdict, course = report.verdict, report.course
    pauses_ms = [handoff.pause_s * 1000 for handoff in verdict.handoffs]
    drained_ms = [handoff.pause_s * 1000 for handoff in verdict.handoffs if not handoff.forced]
    # A drained handoff is an event and a fence.
    decisions = report.decisions + Counter({"fence": -report.decisions["partition_drained"]})
    events = {"partition_drained": "drained", "fence after the deadline": "forced", "fence": "other fences"}
    events |= {"lease_taken": "terms", "adopting_again": "adoptions for doubt"}
    decided = ", ".join(f"{decisions[event]} {what}" for event, what in events.items())
    lines = [
        f"{report.flows} flow processes, {report.partitions} partitions, seed {report.seed}, {report.took_s:.0f} s",
        *(f"{count} {what}" for what, count in sorted(course.done.items())),
        f"{verdict.binds} binds, {verdict.claims} claims of a partition",
        f"{verdict.messages} messages in {verdict.deliveries} deliveries, {verdict.repeated} repeated and marked",
        f"handoffs between two live flows: {len(pauses_ms)}, of these forced {len(pauses_ms) - len(drained_ms)}",
        f"in the coordinators' logs: {decided}",
        f"pause of a handoff: {spread(pauses_ms)}; of a drained one: {spread(drained_ms)}",
        f"balance, in {len(course.balance_s)} calms: after {_seconds(course.balance_s)}, allowed {report.calm_s:g} s",
        f"what was published by then was acknowledged after {_seconds(course.flowing_s)} more",
        "errors that flows met: " + (", ".join(f"{n} {what}" for what, n in sorted(verdict.errors.items())) or "none"),
        f"verdict: {len(report.failures)} violations" + "".join(f"\n  {each}" for each in report.failures[:30]),
    ]
    return "\n".join(lines)


def _seconds(values_s: Sequence[float]) -> str:
    return f"{statistics.median(values_s):.1f} s (at most {max(values_s):.1f} s)" if values_s else "never"


def main(arguments: Sequence[str]) -> int:
    """0: nothing that must not be has been; 1: something; 2: wrong use."""
    parser = parser_of(
        "shake",
        "Kills, freezes and restarts flows, coordinators and Redis, and judges what the flows wrote down.",
        minutes=3,
        of="how long, before a calm",
    )
    parser.add_argument("--seed", type=int, default=None, help="what decides by chance; by default another every time")
    parser.add_argument("--flows", type=int, default=12)
    parser.add_argument("--partitions", type=int, default=32)
    parser.add_argument("--objects", action="store_true", help="ownership=store: beside the queue, without Redis")
    found = parser.parse_args(arguments)
    if found.objects and found.write_docs:
        parser.error("--write-docs is for a run with Redis")
    if found.minutes <= 0 or found.flows < 2 or found.partitions < 1:
        parser.error("--minutes is above 0, --flows from 2, --partitions from 1")
    seed = found.seed if found.seed is not None else time.time_ns() % 100_000
    folder = folder_of("shake", found.folder)
    tell(f"seed {seed}, everything is written to {folder}")
    machine = observe(folder)
    report = shake(
        folder,
        duration_s=found.minutes * 60,
        seed=seed,
        flows=found.flows,
        partitions=found.partitions,
        redis_restarts=0 if found.objects else 2,
        on_objects=found.objects,
        tell=tell,
    )
    tell(told(report))
    if found.write_docs:
        write_document(report, f"scripts/shake --minutes {found.minutes:g} --seed {seed}", machine)
        tell(f"wrote {DOCUMENT}")
    return 1 if report.failures else 0


def write_document(report: Report, command: str, machine: Environment, target: Path = DOCUMENT) -> None:
    """Put the report into its section of the document."""
    text = filled(
        TEMPLATE.read_text(encoding="utf-8"), command=command, machine=machine, lines=told(report).splitlines()
    )
    put_section(target, "shake", text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
