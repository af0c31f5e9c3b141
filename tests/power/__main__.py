"""Which mutants, guards that are taken out and repairs that are taken out a suite notices.

Mutants: `python -m tests.power draw` and `judge`, after a run of the suite told its reach:

    PARTQ_REACH=build/reach python -m pytest -p tests.power.reach --ignore tests/world --ignore tests/scenarios
    PARTQ_REACH=build/reach PARTQ_STRANDS=yes python -m pytest -p tests.power.reach tests/scenarios
    python -m tests.power draw --reach build/reach                     (once: the mutants stay the same ones)
    python -m tests.power judge --reach build/reach --verdicts FILE --minutes 170 [tests/world]

Of the 400 mutants of 2026-11-25, drawn from the suite of commit 7a059ad, `mutants.json` has those whose code is still
there, by its name of today; that suite's verdicts are in `old_verdicts.jsonl`: what it noticed, a later suite has to
notice.

`judge` may be stopped and goes on where it was: a verdict is a line of FILE. Each mutant is made in a copy of the tree
and meets the tests that execute its line, the quickest first and those with a JVM last, until one fails; between the
two come seeds of the simulations. What is not noticed has `by` null.

Guards and repairs (`guards.toml`, `repairs.toml`) need no reach. Each meets the steps that are given, one after the
other, until one fails: what pytest is to run, or a module with its arguments. Without a step a patch meets the test
that its entry names, or seeds of the world. Exit code 1: one of them was not noticed.

    python -m tests.power guards --verdicts FILE "tests/log -m 'not slow'" "tests.world --seeds 300"
    python -m tests.power repairs --verdicts FILE --only 0123abc
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Final

from tests.power.mutants import DRAWN, Gone, Mutant, drawn, mutated, place_of
from tests.power.patches import Patch, patched, patches
from tests.power.reach import Reach, read

ROOT: Final = Path(__file__).parents[2]
SEED: Final = 20261125
COUNT: Final = 400
STEP_S: Final = 300.0
"""For one step of one mutant: what has not failed by then has not noticed it."""

SEEDS: Final = "tests.world --seeds 300"
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_NOT_THERE: Final = re.compile(r"^ERROR: .*not found.*", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "judge", "guards", "repairs"))
    parser.add_argument("steps", nargs="*", help="what to run, each one text; for mutants in place of seeds")
    parser.add_argument("--only", default="", help="those with this in their name: of a mutant, its module")
    parser.add_argument("--without-seeds", action="store_true", help="mutants: they meet tests only")
    parser.add_argument("--reach", type=Path, help="what the plugin has written")
    parser.add_argument("--verdicts", type=Path, help="file of verdicts, to which new ones are added")
    parser.add_argument("--minutes", type=float, default=170.0, help="begin no mutant after that")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_intermixed_args()
    if arguments.what != "draw" and arguments.verdicts is None:
        parser.error(f"{arguments.what} needs --verdicts FILE")
    until_s = time.monotonic() + arguments.minutes * 60
    if arguments.what in {"guards", "repairs"}:
        chosen = [each for each in patches(arguments.what) if arguments.only in each.name]
        work = {each.name: partial(patch_noticed_by, each, arguments.steps) for each in chosen}
        judge(work, arguments.verdicts, until_s=until_s, jobs=arguments.jobs)
        noticed = _verdicts(arguments.verdicts)
        return 0 if all(noticed.get(name) for name in work) else 1
    if arguments.reach is None:
        parser.error(f"{arguments.what} needs --reach FOLDER")
    reach = read(arguments.reach)
    if arguments.what == "draw":
        executed = {path: frozenset(lines) for path, lines in reach.lines.items()}
        lot = drawn(ROOT, executed, COUNT, SEED)
        DRAWN.write_text(json.dumps([asdict(each) for each in lot], indent=0) + "\n")
        sys.stdout.write(f"{len(lot)} mutants in {DRAWN.relative_to(ROOT)}\n")
        return 0
    mutants = [Mutant(**each) for each in json.loads(DRAWN.read_text())]
    seeds = () if arguments.without_seeds else arguments.steps or (SEEDS,)
    work = {each.name: partial(noticed_by, each, reach, seeds) for each in mutants if arguments.only in each.name}
    judge(work, arguments.verdicts, until_s=until_s, jobs=arguments.jobs)
    return 0


def judge(work: Mapping[str, Callable[[Path], str | None]], verdicts: Path, *, until_s: float, jobs: int) -> None:
    """Judge those that `verdicts` does not have yet, by name, each in a copy of the tree, and add what is found."""
    known = _verdicts(verdicts)
    left = [name for name in work if name not in known]
    lock = threading.Lock()

    def run() -> None:
        with _copy() as tree:
            while time.monotonic() < until_s:
                with lock:
                    if not left:
                        return
                    name = left.pop(0)
                begun_s = time.monotonic()
                by = work[name](tree)
                line = {"name": name, "by": by, "seconds": round(time.monotonic() - begun_s, 1)}
                with lock, verdicts.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                    sys.stdout.write(f"{len(left):4} left  {by or 'NOT NOTICED'}  {name}\n")
                    sys.stdout.flush()

    threads = [threading.Thread(target=run) for _ in range(jobs)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def _verdicts(path: Path) -> dict[str, str | None]:
    """By name, who noticed it."""
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return {line["name"]: line["by"] for line in lines}


def noticed_by(mutant: Mutant, reach: Reach, seeds: Sequence[str], tree: Path) -> str | None:
    """The test or seed that notices it, in a copy of the tree, which is as before afterwards."""
    path = tree / mutant.module
    source = path.read_text()
    try:
        place = place_of(mutant, source)
    except Gone:
        return "gone: the code that it changes is not there any more"
    tests = reach.tests(mutant.module, place.lines)
    path.write_text(mutated(mutant, source))
    try:
        return (
            _tests(tree, [test for test in tests if test not in reach.jvm])
            or next((found for each in seeds if (found := _step(tree, each))), None)
            or _tests(tree, [test for test in tests if test in reach.jvm])
        )
    finally:
        path.write_text(source)


def patch_noticed_by(patch: Patch, steps: Sequence[str], tree: Path) -> str | None:
    """The test or step that notices it, in a copy of the tree, which is as before afterwards."""
    before = {change.module: (tree / change.module).read_text() for change in patch.changes}
    try:
        after = patched(patch, before.__getitem__)
    except Gone:
        return "gone: the code that it changes is not there any more"
    try:
        for module, text in after.items():
            (tree / module).write_text(text)
        return next((by for step in steps or [patch.noticed_by or SEEDS] if (by := _step(tree, step))), None)
    finally:
        for module, text in before.items():
            (tree / module).write_text(text)


def _step(tree: Path, step: str) -> str | None:
    module, *arguments = shlex.split(step)
    if not module.startswith("tests."):
        return _tests(tree, [module, *arguments])
    code, output = _run(tree, module, *arguments)
    if code not in (None, 0, 1):
        raise ValueError(f"{step} ends with {code}: {output[-400:]}")  # of what did not run no verdict can come
    return step if code else None


def _tests(tree: Path, tests: Sequence[str]) -> str | None:
    if not tests:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(tests))
        chosen.flush()
        options = ("-x", "-q", "--no-header", "-rfE", "--timeout=120", "-p", "no:cacheprovider")
        code, output = _run(tree, "pytest", *options, f"@{chosen.name}")
    if code == 4 and (gone := _NOT_THERE.search(output)):
        raise ValueError(gone[0])  # of tests that are not there no verdict can come
    if code in (None, 0, 5):
        return None
    found = _FAILED.search(output)
    return found[1] if found else f"pytest ends with {code}"


def _run(tree: Path, module: str, *arguments: str) -> tuple[int | None, str]:
    """Its exit code, None if it has not ended in time, and what it said."""
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PARTQ_REACH", None)
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=STEP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return None, ""
    return process.returncode, output


@contextmanager
def _copy() -> Iterator[Path]:
    """The files that git knows, as they are now, in a folder of their own."""
    folder = Path(tempfile.mkdtemp(prefix="partq-power-"))
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
        for name in listed.stdout.splitlines():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        (folder / ".venv").symlink_to(ROOT / ".venv")  # where the servers' programs are
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
