"""One minute of faults over two Spark drivers; `scripts/chaos` is the long run, docs/reliability.md its report."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cast.consumers import FAILURE
from tests.chaos.__main__ import main, told, write_document
from tests.chaos.course import Course, Mode
from tests.chaos.faults import Kind
from tests.chaos.outcome import NO_WORKER, READER_GONE, kind_of, outcome_of
from tests.chaos.run import run

SEED = 24  # has every kind of fault


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.conformance("LOS-06", "LOS-07", "OWN-03")
def test_a_minute_of_faults_loses_nothing_and_repeats_nothing_unmarked(tmp_path: Path) -> None:
    run(tmp_path, Course(minutes=1, seed=SEED, drivers=2))
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


@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_some_faults_over_python_consumers_alone(tmp_path: Path) -> None:
    run(tmp_path, Course(minutes=0.35, seed=3, drivers=0, python=True))
    found = outcome_of(tmp_path)
    assert found.failures == ()
    assert found.verdicts[Mode.AUTO].rows > found.course.published > 1000
    assert found.course.done["Python consumers killed"] >= 1
    for errors, course, failures in (
        ({"Corrupt": 2, "Unavailable": 1}, {}, ["a query failed, 2 times: Corrupt"]),
        ({READER_GONE: 3}, {"done": {Kind.READER_KILLED.value: 2}}, ["2 readers were killed, 3 have ended"]),
        ({}, {"troubles": ("driver-1 ended",)}, ["driver-1 ended"]),
        ({FAILURE: 3, NO_WORKER: 1}, {}, []),
    ):
        other = replace(found, errors=Counter(errors), course=replace(found.course, **course))
        assert list(other.failures) == failures
        assert told(other)[-1 - len(failures) :] == [f"violations: {len(failures)}", *failures]
    page = tmp_path / "page.md"
    write_document(found, page)
    text = page.read_text()
    write_document(found, page)
    assert page.read_text() == text, "a section replaces itself"
    assert text.index("## Spark queries\n") < text.index("### On a local disk, with consumers in plain Python\n")
    assert "`scripts/chaos --minutes 0.35 --seed 3 --drivers 0 --store file --python --write-docs`" in text
    assert "{{" not in text


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
