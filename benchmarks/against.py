"""Part `against`: other parts at an earlier commit and here, in turns, so that a change that costs time is seen.

Each commit's code is measured by the benchmark of that commit, or by today's where that knows public names alone, each
round in a process of its own, with the libraries of today's environment. Compared is what both have a line of by the
same name. A machine that slows down meanwhile slows both: what counts is the ratio of each round.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from benchmarks.parts import BY_COMMANDS, OUTCOMES, Settings
from tools import ROOT
from tools.report import Measure, Outcome, Series, load

LEAST: Final = 0.97  # of the earlier speed; what stays below it in every round has lost something
_PART_LIMIT_S: Final = 1800
_GIT_LIMIT_S: Final = 60

logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """A line for everything that both commits measure; a part that fails at one of them is named, and the others are
    compared. Raises `ValueError` for a commit that is not there, and what the last part raised if all fail.
    """
    former = commit_of(settings.commit)
    measures: list[Measure] = []
    failed: list[str] = []
    folder = settings.work / "former"
    with checked_out(former, folder):
        for part in settings.of:
            try:
                measures += _compared(part, folder, former, settings)
            except subprocess.SubprocessError as error:
                failed.append(part)
                logger.error("%s is not compared: %s", part, error)
                if len(failed) == len(settings.of):
                    raise
    slower = losers(measures)
    return measures, [
        f"Compared with commit {former}, each part one round a time in turns.",
        f"Slower than {LEAST} of it in every round: {', '.join(slower) or 'nothing'}.",
        *([f"Not compared, because a round failed: {', '.join(failed)}."] if failed else []),
    ]


def _compared(part: str, folder: Path, commit: str, settings: Settings) -> list[Measure]:
    found: dict[Path, list[Outcome]] = {folder: [], ROOT: []}
    for number in range(settings.rounds):
        for root in (folder, ROOT) if number % 2 == 0 else (ROOT, folder):
            found[root].append(_round(part, root, settings))
        logger.info("%s, round %d of %d", part, number + 1, settings.rounds)
    return paired(part, found[folder], found[ROOT], commit)


def commit_of(name: str | None) -> str:
    """The short id of a commit of this repository. Raises `ValueError` if there is none of this name."""
    done = _git("rev-parse", "--verify", "--quiet", "--short=12", f"{name}^{{commit}}", check=False)
    if done.returncode:
        raise ValueError(f"{name!r} names no commit of this repository: look at git log")
    return done.stdout.strip()


def paired(part: str, former: Sequence[Outcome], here: Sequence[Outcome], commit: str) -> list[Measure]:
    """The lines that all outcomes have, of here and of `commit`, round by round; none whose former value is 0 in a
    round, which has no ratio.
    """
    lines = []
    sides = [[_samples(outcome) for outcome in side] for side in (former, here)]
    for key in sides[1][0]:
        what, name, unit = key
        if not all(key in found for side in sides for found in side):
            continue
        before, now = (tuple(found[key] for found in side) for side in sides)
        if 0 in before:
            continue
        # A part may compare several subjects in the same words.
        several = sum(other[0] == what for other in sides[1][0]) > 1
        lines.append(
            Measure(
                what=f"{part}: {what}" + (f", {name}" if several else ""),
                subject=Series(name=name, unit=unit, samples=now),
                reference=Series(name=commit, unit=unit, samples=before),
            )
        )
    return lines


def losers(measures: Iterable[Measure]) -> list[str]:
    """What was slower than `LEAST` of the earlier speed in every round. All but rates are better where less."""
    return [
        each.what
        for each in measures
        if all((ratio if "/s" in each.subject.unit else 1 / ratio if ratio else 1) < LEAST for ratio in each.ratios)
    ]


def _samples(outcome: Outcome) -> dict[tuple[str, str, str], float]:
    """One value of partq's for each line; several lines may compare the same with others."""
    return {
        (line.what, line.subject.name, line.subject.unit): statistics.median(line.subject.samples)
        for line in outcome.measures
    }


def _round(part: str, root: Path, settings: Settings) -> Outcome:
    """One round of the part by the code below `root`."""
    kept = OUTCOMES / "trials" / f"{part}.json"
    kept.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks", part, "--rounds", "1", "--rows", str(settings.rows)]
    subprocess.run(
        command + ["--quick"] * settings.quick,
        cwd=ROOT if part in BY_COMMANDS else root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.DEVNULL,
        timeout=_PART_LIMIT_S,
        check=True,
    )
    return load(kept)


@contextmanager
def checked_out(commit: str, folder: Path) -> Iterator[None]:
    """The commit's files in `folder`, which shares this one's environment; removed afterwards."""
    _git("worktree", "prune")  # what a run that was killed left
    _git("worktree", "add", "--detach", str(folder), commit)
    try:
        (folder / ".venv").symlink_to(ROOT / ".venv")
        yield
    finally:
        _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=_GIT_LIMIT_S, check=check
    )
