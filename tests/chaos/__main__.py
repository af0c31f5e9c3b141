"""`python -m tests.chaos`, the command of scripts/chaos: one run, told as text and, with `--write-docs`, as a section
of docs/reliability.md. With `--judge` a run that was kept is judged once more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.cast.reports import DOCUMENT, conclude, filled, folder_of, parser_of, put_section, tell
from tests.chaos.course import NAME, Course, Mode, Outcome, outcome_of
from tests.chaos.run import run
from tests.chaos.stage import CONSUMERS

TEMPLATE: Final = Path(__file__).with_name("reliability.md")
STORES: Final = {
    "file": "a local disk",
    "azurite": "Azurite",
    "s3": "an S3 server",
    "careless": "an S3 server that drops swaps' conditions",
}
MOST_DRIVERS: Final = 8
_MOST_TOLD: Final = 60


def told(outcome: Outcome) -> list[str]:
    """The report: one fact a line, then what must not have been."""
    course = outcome.course
    errors = ", ".join(f"{number} × {what}" for what, number in sorted(outcome.errors.items()))
    faults = [f"{count} {what}" for what, count in sorted(course.done.items())]
    troubled = f"{sum(course.done.values())} faults: {', '.join(faults)}; {course.missed} found nobody to strike"
    consumers = f" and {len(CONSUMERS)} consumers in plain Python" if course.python else ""
    return [
        f"{course.drivers} Spark drivers{consumers} on {STORES[course.store]}, seed {course.seed}",
        f"{course.minutes:g} minutes of faults, {course.took_s:.0f} s in all",
        troubled,
        f"{course.published} messages in {' → '.join(map(str, course.counts))} partitions",
        *(
            f"{mode.value}: {each.rows} rows in {each.batches} batches, {each.marked} of them marked redelivered, "
            f"{each.repeated} repeated; the longest wait of a message {each.longest_s:.1f} s"
            for mode, each in outcome.verdicts.items()
        ),
        f"what ended queries: {errors or 'nothing'}",
        f"violations: {len(outcome.failures)}",
        *outcome.failures[:_MOST_TOLD],
    ]


def write_document(outcome: Outcome, target: Path = DOCUMENT) -> None:
    """Put the report into its section of the document."""
    course = outcome.course
    run_of_one = TEMPLATE.read_text(encoding="utf-8").split("\n---\n")[1]
    is_resized = len(course.counts) > 1
    if is_resized:
        counts = " → ".join(map(str, course.counts))
        run_of_one = run_of_one.replace("On {{store}}", f"{counts} partitions under load, on {{{{store}}}}")
    if len(course.modes) > 1:
        run_of_one = run_of_one.replace("On {{store}}", "All modes, on {{store}}")
    if course.python:
        run_of_one = run_of_one.replace("{{store}}\n", "{{store}}, with consumers in plain Python\n", 1)
    assert course.machine is not None
    text = filled(run_of_one, command=course.command, machine=course.machine, lines=told(outcome))
    name = f"chaos resize {course.store}" if is_resized else f"chaos {course.store}"
    name = f"{name} modes" if len(course.modes) > 1 else name
    name = f"{name} python" if course.python else name
    put_section(target, name, text.replace("{{store}}", STORES[course.store]))


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(word) for word in text.split(","))
    if min(counts) < 1 or any(a == b for a, b in pairwise(counts)):
        raise ValueError(f"{text!r}: partition counts from 1 on, each other than the one before")
    return counts


def _modes(text: str) -> tuple[Mode, ...]:
    modes = tuple(map(Mode, text.split(",")))
    if len(set(modes)) != len(modes) or Mode.AUTO not in modes:
        raise ValueError(f"{text!r}: auto, and others beside it, each once")
    return modes


def main(arguments: Sequence[str]) -> int:
    """0: nothing that must not be has been; 1: something; 2: wrong use."""
    parser = parser_of(
        "chaos",
        "Kills and freezes Spark drivers, coordinators and Redis, and judges what applications were given.",
        minutes=10,
        of="of faults, after everybody has begun",
    )
    parser.add_argument("--seed", type=int, default=None, help="what decides by chance; by default another every time")
    parser.add_argument("--drivers", type=int, default=3, help="each needs 1.2 GiB; default 3")
    parser.add_argument(
        "--resize", type=_counts, default=(8,), metavar="N,M,…", help="partition counts, one after another"
    )
    parser.add_argument(
        "--modes",
        type=_modes,
        default=(Mode.AUTO,),
        metavar="auto,manual,unkept",
        help="beside the drivers that share a group one that acknowledges by hand, one with checkpoints=none",
    )
    parser.add_argument(
        "--python", action="store_true", help="one consumer in plain Python of each kind among the drivers' flows"
    )
    parser.add_argument("--store", choices=tuple(STORES), default="file", help="a run on `careless` has to fail")
    parser.add_argument("--judge", type=Path, metavar="FOLDER", help="run nothing: judge what a run left there")
    found = parser.parse_args(arguments)
    if found.minutes <= 0 or not (0 if found.python else 2) <= found.drivers <= MOST_DRIVERS:
        parser.error(f"--minutes is above 0, --drivers from 2 to {MOST_DRIVERS}")
    if found.judge is not None and not (found.judge / NAME).exists():
        parser.error(f"{found.judge} has no {NAME}: it is not the folder of a run that came to its end")
    folder = found.judge or folder_of("chaos", found.folder)
    if found.judge is None:
        course = Course(
            minutes=found.minutes,
            seed=found.seed if found.seed is not None else time.time_ns() % 100_000,
            drivers=found.drivers,
            store=found.store,
            counts=found.resize,
            modes=found.modes,
            python=found.python,
        )
        tell(f"seed {course.seed}, everything is written to {folder}")
        try:
            run(folder, course, tell)
        except AssertionError as error:  # somebody never begins, or too much goes wrong
            tell(f"{error}\n{folder} is kept; to repeat it: {course.command}")
            return 1
    outcome = outcome_of(folder)
    tell("\n".join(told(outcome)))
    if found.write_docs:
        write_document(outcome)
        tell(f"wrote {DOCUMENT}")
    return conclude(outcome.failures, folder, outcome.course.command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
