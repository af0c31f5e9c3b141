"""The simulated world: no seed breaks a promise, a seed is one history, and the judge sees what it should."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import count, islice
from typing import Any, Final

import pytest

from tests.world.__main__ import shrunk, simulate
from tests.world.facts import (
    DROPPED,
    Acknowledged,
    Beaten,
    Befell,
    Checkpointed,
    Decided,
    Durable,
    Fact,
    Given,
    Handled,
    Led,
    Lying,
    Part,
    Place,
    Resolved,
    Row,
    Sent,
    Violation,
    Writing,
    Wrote,
)
from tests.world.judge import Judge
from tests.world.log_plan import KEEPERS
from tests.world.plan import HABITS, KINDS, Event, Plan, kind_of
from tests.world.scheduler import SECOND_US, Scheduler
from tests.world.world import World
from tools import ROOT

MANY: Final = (
    *("stop", "kill", "freeze", "twin", "cut between two lines", "switched between two lines"),
    *("storm", "outage", "refusals", "request lost", "answer lost", "late", "flush", "empty", "rollback"),
    *("kill on a call", "freeze on a call", "late on a call", "alter", "settings", "remake", "rewound", "compact"),
    "marked",
)
BY_KIND: Final = {
    "processes": (24, MANY),
    "application": (24, ("refused", "cancelled", "signals", "switches", *sorted(set(HABITS["all"].operations)))),
    "log": (12, ("repetition", "slept", "compacted", "gave up", "alterer", *KEEPERS)),
    "queries": (
        36,
        (
            *("batches repeated", "planned again", "handling fails", "kill the driver", "kill the reader", "freeze"),
            *("restore", "logs cut", "twin", "successor", "ownership", "acknowledged late", "acknowledged again"),
            *("acknowledgements refused", "cut off before Spark's commit"),
        ),
    ),
    "sinks": (40, ("tasks tried twice", "a write is refused", "Resolved", "restore", "logs cut")),
}
"""How many seeds of each kind, less than a minute of processor time in all, and what is to be seen in them together:
else the simulation has become weaker. The kinds that are not named are those of processes and their stores.
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.conformance(
    *("API-03", "API-05", "HAN-10", "CHK-04", "SEQ-01", "DIS-08", "DIS-09", "DIS-10", "OWN-05", "REB-15")
)
@pytest.mark.parametrize("kind", BY_KIND)
def test_no_seed_breaks_a_promise(kind: str) -> None:
    seeds, happens = BY_KIND[kind]
    drawn = (seed for seed in count(100_059) if (kind_of(seed) if kind_of(seed) in BY_KIND else "processes") == kind)
    holds([Plan.draw(seed) for seed in islice(drawn, seeds)], happens)


def holds(plans: Sequence[Plan], happens: Sequence[str]) -> None:
    total = simulate(plans)
    assert not total.failures, told(total.failures)
    assert not [what for what in happens if not total.counts[what]], "no seed shows it"


def told(failures: Sequence[tuple[Plan, str]]) -> str:
    return "\n".join(f"seed {plan.seed}: {error}; repeat it by: {plan.line}" for plan, error in failures[:10])


AGAIN: Final = (49, 88, 93, 143, 300_000, 300_002, 300_004, 300_006, 300_007, 300_009, 300_010, 300_027)
"""One of each kind, and four whose history did depend on hashes: a coordinator with two groups looked after the one or
the other first.
"""


@pytest.mark.slow
def test_a_seed_is_one_history_in_every_process() -> None:
    """In another order there, so that none depends on those before it; and whatever the hashes of texts are."""
    told = {seed: World(Plan.draw(seed)).play() for seed in AGAIN}
    assert {kind_of(seed) for seed in AGAIN} == set(KINDS)
    program = "from tests.world.test_world import *\n"
    program += "for seed in AGAIN[::-1]: world = World(Plan.draw(seed)).play(); print(seed, world.history)"
    environ = {**os.environ, "PYTHONHASHSEED": "1"}  # here they are drawn by lot
    said = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=environ, text=True, timeout=300)
    assert said.splitlines() == [f"{seed} {told[seed].history}" for seed in AGAIN[::-1]]


def test_a_frozen_process_stands_still_while_its_own_clock_runs_on_and_what_never_ends_is_noticed() -> None:
    scheduler, seen = Scheduler(random.Random(0)), list[float]()
    process = scheduler.process("p", origin_s=600.0, rate=2.0)

    def main() -> None:
        while True:
            process.sleep(1.0)
            seen.append(process.now_s())

    process.spawn("main", main)
    scheduler.push(lambda: process.freeze(10 * SECOND_US), SECOND_US + 1)
    with pytest.raises(RuntimeError, match="there is no end: p/main"):
        scheduler.run(100 * SECOND_US, 4)
    assert seen == pytest.approx([601.0, 602.0, 622.0], abs=1e-4)


def test_a_failure_is_shrunk_to_the_events_that_it_needs() -> None:
    plan = Plan(seed=7, events=tuple(Event(float(number), "stop", "one") for number in range(12)))
    least = shrunk(plan, lambda plan: {2.0, 9.0} <= {event.at_s for event in plan.happening})
    assert [event.at_s for event in least.happening] == [2.0, 9.0]
    assert least.line == "scripts/simulate --first 7 --seeds 1 --without 0,1,3,4,5,6,7,8,10,11"


# --- the judge, without a world ---------------------------------------------------------------------------------------

MARKED: Final = Row(0, 0, "k", "k:0", True)
FIRST, SECOND = Row(0, 0, "k", "k:0", False), Row(0, 1, "k", "k:1", False)
SENT: Final = (Sent(1, "p", "k", 0, "k:0"), Sent(1, "p", "k", 1, "k:1"))
OWNED: Final = Checkpointed(2, "g", 0, 1, "a", "a1", 0, 0, may_reach=10)
ACCIDENT: Final = Befell(1, "kill", "a", True)
BEFORE: Final = (*SENT, OWNED)


def batch(*rows: Row, at: int = 10, flow: str = "a") -> Given:
    return Given(at, at - 5, "g", flow, f"{flow}/1", rows)


def planned(name: str, *rows: Row, at: int = 10) -> Given:
    return batch(*rows, at=at)._replace(batch=name, since_us=5)


WRITING: Final = Writing(2, 1, "w", 1, (("r", ("k:0@w/1", "k:1@w/1")),))


def owned(*, epoch: int = 1, flow: str = "a", offset: int = 0, at: int = 20) -> Checkpointed:
    return Checkpointed(at, "g", 0, epoch, flow, f"{flow}1", offset, 0, may_reach=offset + 10)


BROKEN: dict[str, tuple[Fact, ...]] = {
    "twice and not marked": (*BEFORE, ACCIDENT, batch(FIRST), batch(FIRST, at=30)),
    "marked, and nothing had happened": (*BEFORE, batch(MARKED)),
    "skipped": (*BEFORE, batch(SECOND)),
    "a gap within": (*BEFORE, batch(FIRST, SECOND._replace(offset=2))),
    "an empty batch": (*BEFORE, batch()),
    "nobody sent": (OWNED, batch(FIRST)),
    "not its partition": (*BEFORE, owned(epoch=2, flow="b", at=3), batch(FIRST)),
    "acknowledged and not handled": (*BEFORE, batch(FIRST), owned(offset=1)),
    "offset went from 1 back": (*BEFORE, batch(FIRST), Handled(11, "g", "a", (FIRST,)), owned(offset=1), owned()),
    "two flows at one epoch": (*BEFORE, owned(flow="b")),
    "acknowledged by a fence": (*BEFORE, Handled(11, "g", "a", (FIRST,)), owned(epoch=2, flow="b", offset=1)),
    "a repeated batch has other messages or marks": (*BEFORE, planned("b", FIRST), planned("b", FIRST, SECOND, at=30)),
    "planned, and its lease was over": (
        *(*BEFORE, Beaten(3, "g", "a/1", "a", "a1", True), planned("b", FIRST, at=9_000_000)),
    ),
    "a query in good order was refused": (WRITING, Wrote(3, 1, "refused", True)),
    "a part of a refused batch is there": (WRITING, Wrote(3, 1, "refused", False, "", frozenset({("r", "k:0@w/1")}))),
    "it does not count": (*BEFORE, batch(FIRST), Acknowledged(12, "g", "a", (FIRST,), frozenset({0}))),
}


# --- who leads, who is given up, what moves ---------------------------------------------------------------------------

ONE, TWO = ("a", "a1"), ("b", "b1")


def beaten(at: int, *, is_bound: bool = True) -> Beaten:
    return Beaten(at, "g", "a/1", *ONE, is_bound)


def decided(at: int, *, by: str = "c/1", bound: Collection[tuple[str, str]] = (ONE, TWO), **part: Any) -> Decided:
    fields = {"epoch": 1, "phase": "owned", "owner": ONE, "left_s": 0.0, **part}
    return Decided(at, "g", by, tuple(bound), {0: Part(**fields)})


LED: Final = (Led(1, "g", "c/1", "t1"), Led(2, "g", "d/1", "t2"))
PAUSED: Final = (*SENT, beaten(2), OWNED, batch(FIRST), decided(20), decided(30, phase="paused", left_s=3.0))
BROKEN |= {
    "the next leader has written": (*LED, decided(3, by="d/1"), decided(4, by="c/1")),
    "an epoch went back": (*LED, decided(3, epoch=2), decided(4)),
    "was given up, and silent for": (beaten(1), decided(2), beaten(4_000_000), decided(6_000_000, bound=(TWO,))),
    "fenced, and no state has decided it": (*BEFORE, decided(20), owned(epoch=2, flow="b", at=30)),
    "moves before its time": (*PAUSED, decided(1_000_000, phase="fencing")),
    "moves, and not all is acknowledged": (*PAUSED, decided(33, phase="fencing", drained=True)),
    "given after its lease": (*SENT, beaten(2), OWNED, batch(FIRST, at=6_000_000)),
    "marked, and nobody can have had it": (*BEFORE, owned(epoch=2, flow="b", at=30)._replace(redelivered_below=11)),
    "given, and no checkpoint says that it may be": (*SENT, OWNED._replace(may_reach=0), batch(FIRST)),
    "the checkpoint forgets it": (*BEFORE, batch(FIRST), owned(epoch=2, flow="b", at=30)._replace(may_reach=0)),
}


def judged(facts: Iterable[Fact], within_s: float = 10.0) -> Judge:
    """By one that they are all right for."""
    judge = Judge(within_s=within_s, session_timeout_s=100 * within_s if within_s > 10.0 else 5.0)
    for fact in facts:
        judge.take(fact)
    return judge


def test_the_judge_lets_pass_what_coordinators_may_do() -> None:
    acknowledged = (Handled(31, "g", "a", (FIRST,)), owned(offset=1, at=32))
    judged((*LED, *PAUSED, *acknowledged, decided(33, phase="fencing", drained=True), decided(9_000_000, bound=(TWO,))))
    taken_over = (decided(31, epoch=2, phase="paused", left_s=3.0), decided(32, epoch=2, phase="fencing", drained=True))
    judged((*PAUSED[:-1], decided(30, phase="fencing"), *taken_over))  # what was given at the epoch before is nobody's
    stood_still = (Befell(20, "freeze", "c", is_accident=True), decided(6_000_000, phase="paused", left_s=3.0))
    judged((*PAUSED[:-1], *stood_still, decided(6_000_001, phase="fencing")))  # since it began to, its time has run
    judged((beaten(1), decided(2), Befell(3, DROPPED, "", is_accident=True), decided(4, bound=(TWO,))))


@pytest.mark.parametrize("says", BROKEN)
def test_the_judge_notices(says: str) -> None:
    *before, last = BROKEN[says]
    judge = judged(before)
    with pytest.raises(Violation, match=says):
        judge.take(last)


LOG: Final = {(0, 0): Lying("k", "k:0", 3), (0, 1): Lying("k", "k:1", 3)}
DONE: Final = (
    *BEFORE,
    Durable(3, "k:0", 0, 0),
    Durable(3, "k:1", 0, 1),
    batch(FIRST, SECOND),
    Handled(11, "g", "a", (FIRST, SECOND)),
    owned(offset=2),
)


SLOW: Final = batch(FIRST, SECOND, at=20_000_000)
MOVED: Final = Row(1, 0, "k", "k:1", False)
ENDS: Final[dict[str, tuple[Sequence[Fact], Mapping[Place, Lying]]]] = {
    "": (DONE, LOG),
    "was told to lie at": (DONE, {(0, 0): LOG[0, 0]}),
    "is in the queue twice": (DONE, {**LOG, (0, 2): LOG[0, 1]}),
    "out of order": (
        [each for each in DONE if not isinstance(each, Durable)],
        {(0, 0): LOG[0, 1], (0, 1): LOG[0, 0]},
    ),
    "never got": ([*DONE, Sent(1, "p", "k", 2, "k:2")], {**LOG, (0, 2): Lying("k", "k:2", 3)}),
    "has acknowledged 0 up to 0 of 2": (DONE[:-1], LOG),
    "waited for 20": ([*BEFORE, SLOW, Handled(20_000_001, "g", "a", SLOW.rows), owned(offset=2)], LOG),
    r"before .* was acknowledged": (
        [
            *(*SENT, OWNED, OWNED._replace(partition=1), batch(FIRST, MOVED), Handled(11, "g", "a", (FIRST, MOVED))),
            *(owned(offset=1), owned(offset=1)._replace(partition=1)),
        ],
        {(0, 0): LOG[0, 0], (1, 0): LOG[0, 1]},
    ),
}


@pytest.mark.parametrize("says", ENDS)
def test_the_judge_notices_in_the_end(says: str) -> None:
    facts, log = ENDS[says]
    judge = judged(facts)
    with pytest.raises(Violation, match=says) if says else nullcontext():
        judge.complete({"q": log}, {"g": "q"}, source="q")


def test_the_judge_refuses_that_a_partition_waits_for_minutes_after_a_resize() -> None:
    """As in a run of real processes with resizes, in which every single step was quick enough: 511 s."""
    told, log = list[Fact]([OWNED, OWNED._replace(partition=1), Befell(10, "alter", "", False)]), dict[Place, Lying]()
    for number in range(12):
        at, row = 1_000_000 + 45_000_000 * number, Row(0, number, "k", f"k:{number}", False)
        log[0, number] = Lying(row.key, row.value, 20 + number)
        told += [Sent(5, "p", "k", number, row.value), batch(row, at=at), Handled(at + 1, "g", "a", (row,))]
        told.append(owned(offset=number + 1, at=at + 2))
    last = Row(1, 0, "m", "m:0", False)
    log[1, 0] = Lying("m", "m:0", 40)
    told += [Sent(5, "p", "m", 0, "m:0"), batch(last, at=511_000_000), Handled(511_000_001, "g", "a", (last,))]
    told.append(owned(offset=1, at=511_000_002)._replace(partition=1))
    judge = judged(told, within_s=50.0)
    with pytest.raises(Violation, match="waited in all for"):
        judge.complete({"q": log}, {"g": "q"}, source="q")


WRITTEN: Final = (*SENT, WRITING, Wrote(3, 1, "accepted", True))


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (("k:0@w/1",), "lacks what was accepted"),
        (("k:0@w/1", "k:1@w/1", "k:1@w/1"), "is no whole one of its tries"),
        (("k:0@w/1", "k:1@w/1", "k:0@w/2"), "has what nobody wrote"),
        (("k:1@w/1", "k:0@w/1"), "out of order"),
        (("k:0@w/1", "k:1@w/1"), ""),
    ],
)
def test_the_judge_notices_what_is_wrong_with_results(values: Sequence[str], says: str) -> None:
    judge = judged(WRITTEN)
    lying = {(0, offset): Lying("k", value, 3) for offset, value in enumerate(values)}
    moved = {(len(values) - offset, 0): Lying("k", value, 3 + offset) for offset, value in enumerate(values)}  # resized
    for results in (lying, moved):
        with pytest.raises(Violation, match=says) if says else nullcontext():
            judge.complete({"q": {}, "r": results}, {}, source="q")


def test_what_a_person_said_to_be_published_may_come_later() -> None:
    judge = judged((*WRITTEN, Resolved(4, "w", 1, is_published=True)))
    results = {(0, 0): Lying("k", "k:1@w/1", 3), (0, 1): Lying("k", "k:0@w/1", 4)}
    judge.complete({"q": {}, "r": results}, {}, source="q")
