"""The log's protocol under seeded interleavings and faults, and the proof that a missing guard would be noticed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable

import pytest

from tests.log.guards import GUARDS, Guard, first_finding
from tests.log.interleave import repeat_line, run_seed
from tests.support.histories import histories_of
from tests.support.servers import ROOT

SEEDS = 400
CONTROL_SEEDS = range(480)
FAULTS = (
    "answer lost",
    "request lost",
    "effect late",
    "landed late",
    "contradicted",
    "crash",
    "damage",
    "nap",
    "replaced while asleep",
)
KEPT = ("resized", "compacted", "acknowledged", "rewound", "group removed", "group made", "trimmed by checkpoints")
TYPED = ("altered", "a value did not fit")


def test_a_few_interleavings_do_not_break_the_log() -> None:
    for seed in range(10_000, 10_012):
        run_seed(seed)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_interleaving_breaks_the_log(report: Callable[[str], None]) -> None:
    total: Counter[str] = Counter()
    steps = changes = 0
    for seed in range(SEEDS):
        try:
            outcome = run_seed(seed)
        except Exception:
            print(f"seed {seed} failed; repeat it by: {repeat_line(seed)}")  # noqa: T201 - shown with the failure
            raise
        total += outcome.counts
        steps += outcome.steps
        changes += outcome.changes
    for what in (*FAULTS, *KEPT, *TYPED, "recreated", "collected", "repetition", "outdated"):
        assert total[what] > 0, f"no seed shows {what!r}: the check has become weaker"
    faults = ", ".join(f"{what} {total[what]}" for what in FAULTS)
    report(f"interleaving: {SEEDS} seeds, {steps} steps, {changes} changes of a head; {faults}")


@pytest.mark.slow
@pytest.mark.parametrize("guard", [guard for guard in GUARDS if not guard.fatal], ids=lambda guard: guard.name)
def test_a_missing_guard_is_noticed(guard: Guard, report: Callable[[str], None]) -> None:
    finding = first_finding(guard, CONTROL_SEEDS)
    assert finding is not None, f"{len(CONTROL_SEEDS)} seeds did not notice that this guard was off: {guard.name}"
    report(f"without {guard.name}: noticed by seed {finding.seed}: {finding.error[:70]}")


@pytest.mark.slow
@pytest.mark.parametrize("guard", [guard for guard in GUARDS if guard.fatal], ids=lambda guard: guard.name)
def test_a_missing_guard_is_noticed_in_a_process_of_its_own(guard: Guard, report: Callable[[str], None]) -> None:
    command = [sys.executable, "-m", "tests.log.guards", "--guard", guard.name, "--seeds", str(len(CONTROL_SEEDS))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    # Arrow takes a damaged slice for what it says it is, and may crash on it.
    assert done.returncode < 0 or "seed " in done.stdout, done.stdout + done.stderr
    report(f"without {guard.name}: {done.stdout.strip()[:110] or f'the process ended by signal {-done.returncode}'}")


@pytest.mark.slow
def test_one_seed_is_one_history() -> None:
    seeds = (0, 1, 2, 3)
    histories = histories_of(run_seed, seeds)
    assert len(histories) == 1
    assert len(set(histories.pop().split())) == len(seeds)


def test_another_seed_is_another_history() -> None:
    assert run_seed(10).history != run_seed(11).history
