"""What a run is judged by sees what must not be: evidence in which just that is wrong is refused, and some is well."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.cast.journal import Journal, read_facts
from tests.cast.publisher import KEYS, key_of
from tests.cast.verdict import WITHIN_S, judge_group
from tests.chaos.faults import FREEZING, Kind, plan
from tests.world.facts import Befell, Checkpointed, Fact, Given, Handled, Lying, Refused, Row

# --- what was given, handled and acknowledged -------------------------------------------------------------------------

S: Final = 1_000_000
LOG: Final = {(0, n): Lying(key_of(n), str(n), S) for n in range(6)}


def row(offset: int, below: int = 0) -> Row:
    return Row(0, offset, key_of(offset), str(offset), offset < below)


def given(at_s: float, start: int, end: int, *, by: str = "one", below: int = 0, batch: str = "") -> Given:
    rows = tuple(row(n, below) for n in range(start, end))
    return Given(round(at_s * S), round(at_s * S) - 1, "g", by, by, rows, batch)


def handled(at_s: float, start: int, end: int, *, by: str = "one") -> Handled:
    return Handled(round(at_s * S), "g", by, tuple(row(n) for n in range(start, end)))


def seen(at_s: float, offset: int, *, epoch: int = 1, by: str = "one", below: int = 0) -> Checkpointed:
    return Checkpointed(round(at_s * S), "g", 0, epoch, by, "", offset, below)


# One reads 0 to 6 in two batches and is killed in the second; two takes over at 3.
WELL: Final[tuple[Fact, ...]] = (
    seen(1, 0),
    given(2, 0, 3),
    handled(3, 0, 3),
    seen(4, 3),
    given(5, 3, 6),
    Befell(6 * S, "killed", "one", is_accident=True),
    seen(7, 3, epoch=2, by="two", below=6),
    given(8, 3, 6, by="two", below=6),
    handled(9, 3, 6, by="two"),
    seen(10, 6, epoch=2, by="two", below=6),
)
LATE: Final = 10 + WITHIN_S


def but(place: int, *facts: Fact) -> tuple[Fact, ...]:
    return (*WELL[:place], *facts, *WELL[place + 1 :])


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        (WELL, ""),
        (but(7, given(8, 3, 6, by="two")), "twice and not marked"),
        ((*WELL[:7], given(8, 4, 6, by="two", below=6), handled(9, 4, 6), WELL[9]), "acknowledged and not handled"),
        (but(4, given(5, 4, 6)), "skipped"),
        (but(1, given(2, 0, 3)._replace(rows=(row(0), row(2)))), "a gap within a batch"),
        (but(1, given(2, 0, 3)._replace(rows=(row(1), row(0), row(2)))), "skipped"),
        (but(1, given(2, 0, 3)._replace(rows=(row(0)._replace(value="9"),))), "nobody sent"),
        (but(1, given(2, 0, 3)._replace(rows=(row(0)._replace(key="other"),))), "nobody sent"),
        (but(8), "acknowledged and not handled"),
        (but(8, handled(9, 3, 6, by="two"), Refused(9 * S, "g", "two", (row(5),))), "acknowledged and not handled"),
        (but(3, seen(4, 5)), "acknowledged and not handled"),
        ((*WELL, seen(11, 3, epoch=2, by="two", below=6)), "offset went from 6 back to 3"),
        ((*WELL, seen(11, 6, by="two", below=6)), "epoch went from 2 back to 1"),
        ((*WELL, seen(11, 6, epoch=2, by="two")), "redelivered_below went from 6 back to 0"),
        ((*WELL, seen(11, 6, epoch=2, by="one", below=6)), "two flows at one epoch"),
        (WELL[:4], "never got [(0, 3), (0, 4), (0, 5)]"),
        (WELL[:9], "has acknowledged 0 up to 3 of 6"),
        ((*WELL[:9], seen(LATE, 6, epoch=2, by="two", below=6)), "was handled, and not acknowledged"),
        ((seen(1, 0), given(LATE, 0, 6), handled(LATE, 0, 6), seen(LATE, 6)), "waited"),
        ((seen(1, 0), given(2, 0, 3, batch="a"), given(2, 0, 3, batch="a", below=1)), "other messages or marks"),
    ],
)
def test_what_must_not_be_of_flows_that_share_a_group(facts: tuple[Fact, ...], problem: str, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "facts.jsonl")
    for fact in facts:
        journal.write(fact)
    with (tmp_path / "facts.jsonl").open("a") as file:
        file.write('["Given", 1, 2, "g')  # by one that was killed
    read = read_facts(tmp_path)
    assert read == list(facts)
    found = judge_group("g", read, LOG, 6)
    assert len(found.violations) == bool(problem)
    assert problem in "".join(found.violations)
    if not problem:
        assert (found.rows, found.batches, found.marked, found.repeated) == (9, 3, 3, 3)


def test_what_is_not_in_the_queue_is_lost() -> None:
    assert judge_group("g", WELL, LOG, 7).violations == ("7 messages were published, the queue has 6",)


def test_a_key_that_changes_its_partition_waits_for_what_it_has_from_before() -> None:
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


@pytest.mark.parametrize("seed", range(10))
def test_every_kind_of_fault_comes_and_nobody_is_struck_while_he_is_down(seed: int) -> None:
    found = plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, slow_store=True)
    assert found == plan(seed, duration_s=600, drivers=3, session_timeout_s=5.0, slow_store=True)
    assert {fault.kind for fault in found} == set(Kind)
    assert all(fault.at_s <= after.at_s for fault, after in pairwise(found))
    assert all(fault.for_s > 5.0 for fault in found if fault.kind in FREEZING)
    for driver in range(3):
        for fault, after in pairwise(fault for fault in found if fault.driver == driver):
            assert after.at_s >= fault.at_s + fault.for_s
