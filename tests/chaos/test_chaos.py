"""One minute of faults over two Spark drivers; `scripts/chaos` is the long run, docs/reliability.md its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.environment import Environment
from tests.cast.consumers import FAILURE
from tests.chaos.__main__ import main, told, write_document
from tests.chaos.by_hand import judge_by_hand
from tests.chaos.checker import judge
from tests.chaos.evidence import NO_WORKER, READER_GONE, kind_of
from tests.chaos.faults import Kind
from tests.chaos.handoffs import Ending, Handoff, Handoffs
from tests.chaos.modes import Mode
from tests.chaos.outcome import STUCK_S, Course, Outcome, Unkept, outcome_of, read_course, write_course
from tests.chaos.run import run

SEED = 24  # has every kind of fault


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.conformance("LOS-06", "LOS-07", "OWN-03")
def test_a_minute_of_faults_loses_nothing_and_repeats_nothing_unmarked(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    run(work, "a minute", minutes=1, seed=SEED, drivers=2)
    found = outcome_of(work)
    assert found.failures == ()
    done = Counter(found.course.done)
    assert done[Kind.DRIVER_KILLED] == 1
    assert done[Kind.REDIS_EMPTIED] >= 1
    assert done[Kind.LEADER_KILLED] >= 1
    assert done[Kind.READER_FROZEN] + done[Kind.JVM_FROZEN] + done[Kind.BOTH_FROZEN] >= 2
    assert found.verdict.messages > 5000
    assert found.verdict.marked > 0
    assert found.verdict.ownerships > 16
    assert found.handoffs.ended
    write_document(found, tmp_path / "page.md", judged_at="abc")
    text = (tmp_path / "page.md").read_text()
    assert "{{" not in text
    assert "- violations: 0" in text
    assert "- judged once more, from what was kept, at commit abc" in text


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_some_faults_over_python_consumers_alone(tmp_path: Path) -> None:
    run(tmp_path, "some faults", minutes=0.35, seed=3, drivers=0, python=True)
    found = outcome_of(tmp_path)
    assert found.failures == ()
    assert found.consumers is not None
    assert found.consumers.rows == found.verdict.rows > found.verdict.messages > 1000
    assert found.consumers.unfinished > 0
    assert found.course.done["Python consumers killed"] >= 1
    assert any(line.startswith("consumers in plain Python: ") for line in told(found))


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


def outcome(
    *, violation: bool = False, stuck: bool = False, trouble: bool = False, errors: Mapping[str, int] | None = None
) -> Outcome:
    """A run of nothing, with what must not be."""
    handoff = Handoff(partition=3, begun_s=0.0, pause_s=STUCK_S + 1 if stuck else 0.02, ending=Ending.DRAINED)
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
        troubles=["driver-1 ended"] if trouble else [],
        machine=MACHINE,
        modes=(Mode.AUTO, Mode.MANUAL, Mode.UNKEPT),
    )
    return Outcome(
        course=course,
        verdict=judge([], [], [], {0: "a"} if violation else {}),
        handoffs=Handoffs(ended=(handoff,), unended=("partition 4, paused for two",) if stuck else ()),
        errors=Counter({FAILURE: 3, **(errors or {})}),
        by_hand=judge_by_hand([], [], {}),
        unkept=Unkept(violations=(), rows=5, repeated=1, left_out=2),
    )


@pytest.mark.parametrize(
    ("found", "failures"),
    [
        (outcome(), []),
        (outcome(violation=True), ["missing: message 0 of 'a'"]),
        (outcome(trouble=True), ["driver-1 ended"]),
        (outcome(errors={"Corrupt": 2, "Unavailable": 1}), ["a query failed, 2 times: Corrupt"]),
        (outcome(errors={READER_GONE: 3}), ["2 readers were killed, 3 have ended"]),
        (replace(outcome(), by_hand=judge_by_hand([], [], {0: "a"})), ["by hand, missing: message 0 of 'a'"]),
        (
            outcome(stuck=True),
            [
                "a handoff without an end: partition 4, paused for two",
                "a handoff that took too long: partition 3, 61 s",
            ],
        ),
    ],
)
def test_what_must_not_be_is_told(found: Outcome, failures: list[str], tmp_path: Path) -> None:
    assert list(found.failures) == failures
    assert told(found)[len(told(found)) - len(failures) :] == failures
    assert f"violations: {len(failures)}" in told(found)
    assert "1 handoffs: 1 drained, 0 forced, 0 kept, 0 cut short" in told(found)
    write_document(found, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    write_document(found, tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == text, "a section replaces itself"
    assert text.index("## Spark queries\n") < text.index("### All modes, on a local disk\n")
    assert "`scripts/chaos --seed 7 --write-docs`" in text
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
