"""Which mutants a suite notices: `python -m tests.power draw` and `judge`, after a run of the suite told its reach:

    PARTQ_REACH=build/reach python -m pytest -p tests.power.reach      (once for each suite; -n as scripts/test has)
    python -m tests.power draw --reach build/reach                     (once: the mutants stay the same ones)
    python -m tests.power judge --reach build/reach --verdicts FILE --minutes 170

`judge` may be stopped and goes on where it was: a verdict is a line of FILE. Each mutant is made in a copy of the tree
and meets the tests that execute its line, the quickest first and those with a JVM last, until one fails; between the
two come seeds of the simulations. What is not noticed has `by` null.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.power.mutants import Gone, Mutant, drawn, mutated, place_of
from tests.power.reach import Reach, read

ROOT: Final = Path(__file__).parents[2]
DRAWN: Final = Path(__file__).with_name("mutants.json")
SEED: Final = 20261125
COUNT: Final = 400
STEP_S: Final = 300.0
"""For one step of one mutant: what has not failed by then has not noticed it."""

SIMULATIONS: Final = (("--seeds", "300"), ("--queries", "--seeds", "300"))
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "judge"))
    parser.add_argument("--reach", type=Path, required=True, help="what the plugin has written")
    parser.add_argument("--verdicts", type=Path, help="file of verdicts, to which new ones are added")
    parser.add_argument("--minutes", type=float, default=170.0, help="begin no mutant after that")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    reach = read(arguments.reach)
    if arguments.what == "draw":
        executed = {path: frozenset(lines) for path, lines in reach.lines.items()}
        chosen = drawn(ROOT, executed, COUNT, SEED)
        DRAWN.write_text(json.dumps([asdict(each) for each in chosen], indent=0) + "\n")
        sys.stdout.write(f"{len(chosen)} mutants in {DRAWN.relative_to(ROOT)}\n")
        return 0
    if arguments.verdicts is None:
        parser.error("judge needs --verdicts FILE")
    mutants = [Mutant(**each) for each in json.loads(DRAWN.read_text())]
    judge(mutants, reach, arguments.verdicts, until_s=time.monotonic() + arguments.minutes * 60, jobs=arguments.jobs)
    return 0


def judge(mutants: Sequence[Mutant], reach: Reach, verdicts: Path, *, until_s: float, jobs: int) -> None:
    """Judge those that `verdicts` does not have yet, and add what is found."""
    known = {json.loads(line)["mutant"] for line in verdicts.read_text().splitlines()} if verdicts.exists() else set()
    left = [mutant for mutant in mutants if mutant.name not in known]
    lock = threading.Lock()

    def work() -> None:
        with _copy() as tree:
            while time.monotonic() < until_s:
                with lock:
                    if not left:
                        return
                    mutant = left.pop(0)
                begun_s = time.monotonic()
                by = noticed_by(mutant, reach, tree)
                line = {"mutant": mutant.name, "by": by, "seconds": round(time.monotonic() - begun_s, 1)}
                with lock, verdicts.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                    sys.stdout.write(f"{len(left):4} left  {by or 'NOT NOTICED'}  {mutant.name}\n")
                    sys.stdout.flush()

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


def noticed_by(mutant: Mutant, reach: Reach, tree: Path) -> str | None:
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
            or next((found for each in SIMULATIONS if (found := _seeds(tree, each))), None)
            or _tests(tree, [test for test in tests if test in reach.jvm])
        )
    finally:
        path.write_text(source)


def _tests(tree: Path, tests: Sequence[str]) -> str | None:
    if not tests:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as chosen:
        chosen.write("\n".join(tests))
        chosen.flush()
        options = ("-x", "-q", "--no-header", "-rfE", "--timeout=120", "-p", "no:cacheprovider")
        code, output = _run(tree, "pytest", *options, f"@{chosen.name}")
    if code == 0 or code is None:
        return None
    found = _FAILED.search(output)
    return found[1] if found else f"pytest ends with {code}"


def _seeds(tree: Path, which: Sequence[str]) -> str | None:
    code, _ = _run(tree, "tests.simulation", *which)
    return f"simulation {' '.join(which)}" if code else None


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
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
