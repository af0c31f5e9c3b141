"""Half a minute of faults over two Spark drivers and consumers in plain Python; `scripts/chaos` is the long run,
docs/reliability.md its report. What a run is judged by is the judge of the world, whose own tests show what it notices.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.cast.consumers import FAILURE
from tests.cast.journal import Journal, read_facts
from tests.cast.publisher import KEYS, key_of
from tests.cast.verdict import WITHIN_S, judge_group
from tests.chaos.__main__ import main, told, write_document
from tests.chaos.course import NO_WORKER, READER_GONE, Course, Mode, kind_of, outcome_of
from tests.chaos.faults import FREEZING, Kind, plan
from tests.chaos.run import run
from tests.world.facts import Befell, Checkpointed, Fact, Given, Handled, Lying, Refused, Row

SEED = 1220  # has every kind of fault within so short a time


@pytest.mark.spark
@pytest.mark.redis
@pytest.mark.crash
@pytest.mark.timeout(600)
@pytest.mark.conformance("LOS-06", "LOS-07", "OWN-03")
def test_faults_lose_nothing_and_repeat_nothing_unmarked(tmp_path: Path) -> None:
    """Of drivers and of consumers in plain Python, who share a group. Then what was found is told."""
    run(tmp_path, Course(minutes=0.6, seed=SEED, drivers=2, python=True))
    found = outcome_of(tmp_path)
    assert found.failures == ()
    done = Counter(found.course.done)
    assert done[Kind.DRIVER_KILLED] == 1
    assert done[Kind.REDIS_EMPTIED] >= 1
    assert done[Kind.LEADER_KILLED] >= 1
    assert done[Kind.READER_FROZEN] + done[Kind.JVM_FROZEN] + done[Kind.BOTH_FROZEN] >= 2
    assert done["Python consumers killed"] >= 1
    verdict = found.verdicts[Mode.AUTO]
    assert verdict.rows > found.course.published > 2500
    assert verdict.marked > 0
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
    assert "### On a local disk, with consumers in plain Python\n" in text
    assert "`scripts/chaos --minutes 0.6 --seed 1220 --drivers 2 --store file --python --write-docs`" in text
    assert "{{" not in text


def test_wrong_use_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("drivers", "1"), ("resize", "4,4"), ("modes", "auto,auto"), ("judge", "/none")):
        with pytest.raises(SystemExit) as ended:
            main([f"--{option}", value])
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


@pytest.mark.parametrize("seed", range(3))
def test_every_kind_of_fault_comes_and_nobody_is_struck_while_he_is_down(seed: int) -> None:
    found = plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, store_served=True)
    assert found == plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, store_served=True)
    assert {fault.kind for fault in found} == set(Kind)
    assert all(fault.at_s <= after.at_s for fault, after in pairwise(found))
    assert all(fault.for_s > 5.0 for fault in found if fault.kind in FREEZING)
    for driver in range(3):
        for fault, after in pairwise(fault for fault in found if fault.driver == driver):
            assert after.at_s >= fault.at_s + fault.for_s


# --- the judgement ----------------------------------------------------------------------------------------------------

S: Final = 1_000_000
LOG: Final = {(0, n): Lying(key_of(n), str(n), S) for n in range(6)}


def given(at_s: int, start: int, end: int, by: str, below: int = 0) -> tuple[Given, Handled]:
    rows = tuple(Row(0, n, key_of(n), str(n), n < below) for n in range(start, end))
    return Given(at_s * S, at_s * S - 1, "g", by, by, rows), Handled(at_s * S + 1, "g", by, rows)


def seen(at_s: int, offset: int, epoch: int, by: str, below: int = 0) -> Checkpointed:
    return Checkpointed(at_s * S, "g", 0, epoch, by, "", offset, below)


KILLED: Final = (seen(1, 0, 1, "one"), *given(2, 0, 3, "one"), seen(4, 3, 1, "one"), given(5, 3, 6, "one")[0])
MOVED: Final = (Befell(6 * S, "killed", "one", is_accident=True), seen(7, 3, 2, "two", 6))
"""One reads 0 to 6 in two batches and is killed in the second; two takes over at 3."""
LAST, DONE = given(8, 3, 6, "two", 6)
END: Final = seen(10, 6, 2, "two", 6)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ((LAST, DONE, END), ""),
        ((*given(8, 3, 6, "two"), END), "twice and not marked"),
        ((LAST, DONE, Refused(9 * S, "g", "two", LAST.rows[2:]), END), "acknowledged and not handled"),
        ((LAST, DONE, END, seen(11, 6, 1, "two", 6)), "epoch went from 2 back to 1"),
        ((LAST, DONE), "has acknowledged 0 up to 3 of 6"),
        ((LAST, DONE, END._replace(at_us=round((10 + WITHIN_S) * S))), "was handled, and not acknowledged"),
    ],
)
def test_what_real_processes_wrote_down_is_judged(facts: tuple[Fact, ...], problem: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "facts.jsonl")
    facts = (*KILLED, *MOVED, *facts)
    for fact in facts:
        journal.write(fact)
    with (tmp_path / "facts.jsonl").open("a") as file:
        file.write('["Given", 1, 2, "g')  # by one that was killed
    assert read_facts(tmp_path) == list(facts)
    found = judge_group("g", facts, LOG, 6)
    assert len(found.violations) == bool(problem)
    assert problem in "".join(found.violations)
    assert (found.rows, found.batches, found.marked, found.repeated) == (9, 3, 3 if LAST in facts else 0, 3)
    if not problem:
        lost = "7 messages were published, the queue has 6"
        assert judge_group("g", facts, LOG, 7).violations == (lost,)


def test_a_key_that_changes_its_partition_waits_for_what_it_has_from_before() -> None:
    """Until it is handled: nobody saw when that was written down."""
    log = {(n // KEYS, n % KEYS): Lying(key_of(n), str(n), S) for n in range(KEYS + 1)}
    *earlier, later = (Row(p, offset, key, value, False) for (p, offset), (key, value, _) in log.items())
    for at_s, violations in ((5, 0), (3, 1)):
        facts: list[Fact] = [
            Given(2 * S, S, "g", "one", "one", tuple(earlier)),
            Handled(4 * S, "g", "one", tuple(earlier)),
            Given(at_s * S, at_s * S - 1, "g", "two", "two", (later,)),
            Handled(6 * S, "g", "two", (later,)),
            *(Checkpointed(7 * S, "g", p, 1, "f", "", end, 0) for p, end in ((0, KEYS), (1, 1))),
        ]
        found = judge_group("g", sorted(facts, key=lambda fact: fact.at_us), log, KEYS + 1)
        assert len(found.violations) == violations
        assert all("before (0, 0) was acknowledged" in each for each in found.violations)
