"""One minute of faults over two Spark drivers; `scripts/chaos` is the long run, docs/reliability.md its report."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.environment import Environment
from tests.cast.consumers import FAILURE
from tests.cast.verdict import WITHIN_S, Verdict
from tests.chaos.__main__ import main, told, write_document
from tests.chaos.faults import Kind
from tests.chaos.handoffs import Ending, Handoff, Handoffs
from tests.chaos.modes import Mode
from tests.chaos.outcome import NO_WORKER, READER_GONE, Course, Outcome, kind_of, outcome_of, read_course, write_course
from tests.chaos.run import run

SEED = 24  # has every kind of fault


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.conformance("LOS-06", "LOS-07", "OWN-03")
def test_a_minute_of_faults_loses_nothing_and_repeats_nothing_unmarked(tmp_path: Path) -> None:
    run(tmp_path, "a minute", minutes=1, seed=SEED, drivers=2)
    found = outcome_of(tmp_path)
    assert found.failures == ()
    done = Counter(found.course.done)
    assert done[Kind.DRIVER_KILLED] == 1
    assert done[Kind.REDIS_EMPTIED] >= 1
    assert done[Kind.LEADER_KILLED] >= 1
    assert done[Kind.READER_FROZEN] + done[Kind.JVM_FROZEN] + done[Kind.BOTH_FROZEN] >= 2
    verdict = found.verdicts[Mode.AUTO]
    assert verdict.rows > found.course.published > 5000
    assert verdict.marked > 0
    assert found.handoffs.ended


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_some_faults_over_python_consumers_alone(tmp_path: Path) -> None:
    run(tmp_path, "some faults", minutes=0.35, seed=3, drivers=0, python=True)
    found = outcome_of(tmp_path)
    assert found.failures == ()
    assert found.verdicts[Mode.AUTO].rows > found.course.published > 1000
    assert found.course.done["Python consumers killed"] >= 1


MACHINE = Environment(
    date="2026-11-21 12:00 UTC",
    commit="abcdef0",
    cpu="a processor",
    cores=2,
    memory="8 GiB",
    disk="ext4, write + fsync of 4 KiB: 0.50 ms",
    system="Linux 6.1",
    versions="Python 3.11.7",
    load=0.0,
)
ENDED = (("Corrupt", 2), (READER_GONE, 3))
FAILURES = {
    "billing: skipped: 0/3": ["billing: skipped: 0/3"],
    "driver-1 ended": ["driver-1 ended"],
    "Corrupt": ["a query failed, 2 times: Corrupt"],
    READER_GONE: ["2 readers were killed, 3 have ended"],
    "stuck": [
        "a handoff without an end: partition 4, paused for two",
        "a handoff that took too long: partition 3, 61 s",
    ],
    "nothing": [],
}


def outcome(problem: str) -> Outcome:
    """A run of nothing, with something that must not be."""
    verdict = Verdict(violations=(), rows=5, batches=2, marked=1, repeated=1, longest_s=0.5)
    broken = Verdict(violations=(problem,), rows=0, batches=0, marked=0, repeated=0, longest_s=0.0)
    pause_s = WITHIN_S + 1 if problem == "stuck" else 0.02
    course = Course(
        command="scripts/chaos --seed 7",
        drivers=3,
        store="file",
        seed=7,
        minutes=0.5,
        took_s=60.0,
        published=1,
        keys=1,
        done={Kind.READER_KILLED.value: 2},
        missed=0,
        troubles=[problem] if problem == "driver-1 ended" else [],
        machine=MACHINE,
        counts=(8, 4),
        modes=(Mode.AUTO, Mode.MANUAL),
    )
    return Outcome(
        course=course,
        verdicts={Mode.AUTO: broken if "skipped" in problem else verdict, Mode.MANUAL: verdict},
        handoffs=Handoffs(
            ended=(Handoff(partition=3, begun_s=0.0, pause_s=pause_s, ending=Ending.DRAINED),),
            unended=("partition 4, paused for two",) if problem == "stuck" else (),
        ),
        errors=Counter({FAILURE: 3, "Unavailable": 1, **{each: n for each, n in ENDED if each == problem}}),
    )


@pytest.mark.parametrize("problem", FAILURES)
def test_what_must_not_be_is_told(problem: str, tmp_path: Path) -> None:
    found, failures = outcome(problem), FAILURES[problem]
    assert list(found.failures) == failures
    assert told(found)[len(told(found)) - len(failures) :] == failures
    assert f"violations: {len(failures)}" in told(found)
    assert "1 handoffs: 1 drained, 0 forced, 0 kept, 0 cut short" in told(found)
    page = tmp_path / "page.md"
    write_document(found, page)
    text = page.read_text()
    write_document(found, page)
    assert page.read_text() == text, "a section replaces itself"
    assert text.index("## Spark queries\n") < text.index("### 8 → 4 partitions under load, on a local disk\n")
    assert "`scripts/chaos --seed 7 --write-docs`" in text
    assert "{{" not in text
    write_document(found, page, judged_at="abc")
    assert "- judged once more, from what was kept, at commit abc" in page.read_text()
    write_course(tmp_path, found.course)
    assert read_course(tmp_path) == found.course


def test_wrong_use_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (
        ["--drivers", "1"],
        ["--drivers", "9"],
        ["--minutes", "0"],
        ["--store", "memory"],
        ["--resize", "4,4"],
        ["--resize", "0,3"],
        ["--modes", "manual"],
        ["--modes", "auto,auto"],
        ["--modes", "auto,none"],
        ["--judge", "/none"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
    assert "--drivers from 2 to 8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("[STREAM_FAILED] Query terminated with exception:  SQLSTATE: XXKST (no cause message)\n=== Str", READER_GONE),
        ("Connection reset\n=== Streaming Query ===\nIdentifier: …", READER_GONE),
        ("Python worker failed to connect back.\n=== Streaming Query ===\n…", NO_WORKER),
        ("Traceback …\npartq_spark.errors.Unavailable: no coordinator\n SQLSTATE: 38000", "Unavailable"),
        ("Traceback …\npartq_spark.base.errors.Unavailable: ownership redis://… cannot be reached", "Unavailable"),
        ("Traceback …\nNameError: no name 'key'\n SQLSTATE: 38000\n=== Str", "NameError: no name 'key'"),
        (f"Py4JException … RuntimeError: {FAILURE} before it writes\n\tat …", FAILURE),
        ("", "no words"),
    ],
)
def test_what_ended_a_query_has_a_kind(error: str, kind: str) -> None:
    assert kind_of(error) == kind
