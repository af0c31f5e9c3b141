"""The simulated world: no seed breaks a promise, a seed is one history, and the judge sees what it should."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import pytest

from tests.support.histories import histories_of
from tests.world.__main__ import shrunk, simulate
from tests.world.facts import Acknowledged, Befell, Checkpointed, Durable, Fact, Given, Handled, Lying, Row, Sent
from tests.world.guards import without
from tests.world.judge import Judge, Place, Violation
from tests.world.plan import HABITS, KINDS, Event, Plan, seeds_of
from tests.world.world import World, run_seed

SEEDS: Final = 15
APPLICATIONS: Final = 30
QUERIES: Final = 40
MANY_SEEDS: Final = 150
HAPPENED: Final = (
    *("stop", "kill", "freeze", "twin", "cut between two lines", "switched between two lines", "batches repeated"),
    *("storm", "outage", "refusals", "request lost", "answer lost", "late", "flush", "empty", "rollback"),
    *("kill on a call", "freeze on a call", "late on a call", "alter", "rewound", "compact", "marked"),
)
OF_QUERIES: Final = (
    *("batches repeated", "planned again", "handling fails", "tasks tried twice", "a write is refused", "Resolved"),
    *("kill the driver", "kill the reader", "freeze", "restore", "logs cut", "twin", "successor", "ownership"),
    *("acknowledged late", "acknowledged again", "acknowledgements refused", "cut off before Spark's commit"),
)
APPLICATION: Final = ("refused", "cancelled", "signals", "switches", *sorted(set(HABITS["all"].operations)))


def test_a_few_worlds_are_all_right() -> None:
    total = simulate([Plan.draw(seed) for seed in range(200_000, 200_000 + SEEDS)])
    assert not total.failures, told(total.failures)


@pytest.mark.conformance("API-03", "API-05")
def test_no_application_loses_or_doubles_a_message_however_it_uses_its_consumer() -> None:
    total = simulate([Plan.draw(seed) for seed in islice(seeds_of("application", 100_000), APPLICATIONS)])
    assert not total.failures, told(total.failures)
    for what in APPLICATION:
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"


@pytest.mark.conformance("HAN-10", "CHK-04", "SEQ-01", "DIS-08", "DIS-09", "DIS-10")
def test_no_query_loses_or_repeats_in_silence_and_no_sink_drops_or_doubles_a_row() -> None:
    seeds = [*islice(seeds_of("queries", 100_000), QUERIES), *islice(seeds_of("sinks", 100_000), QUERIES)]
    total = simulate([Plan.draw(seed) for seed in seeds])
    assert not total.failures, told(total.failures)
    for what in OF_QUERIES:
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.conformance("OWN-05", "CHK-04", "REB-15")
def test_no_seed_breaks_a_promise() -> None:
    total = simulate([Plan.draw(seed) for seed in range(MANY_SEEDS)])
    assert not total.failures, told(total.failures)
    for what in HAPPENED:
        assert total.counts[what] > 0, f"no seed shows {what!r}: the simulation has become weaker"


def told(failures: Sequence[tuple[Plan, str]]) -> str:
    return "\n".join(f"seed {plan.seed}: {error}; repeat it by: {plan.line}" for plan, error in failures[:10])


def test_each_seed_run_twice_gives_the_same_facts() -> None:
    for seed in range(300_000, 300_000 + len(KINDS)):
        first, second = World(Plan.draw(seed)), World(Plan.draw(seed))
        assert first.play().history == second.play().history
        assert first.facts == second.facts


@pytest.mark.slow
def test_the_history_does_not_depend_on_hashes() -> None:
    assert len(histories_of(run_seed, tuple(range(300_000, 300_000 + len(KINDS))))) == 1


def test_a_failure_is_shrunk_to_the_events_that_it_needs() -> None:
    plan = Plan(seed=7, events=tuple(Event(float(number), "stop", "one") for number in range(12)))
    least = shrunk(plan, lambda plan: {2.0, 9.0} <= {event.at_s for event in plan.happening})
    assert [event.at_s for event in least.happening] == [2.0, 9.0]
    assert least.line == "scripts/simulate --world --first 7 --seeds 1 --without 0,1,3,4,5,6,7,8,10,11"


def test_a_missing_guard_is_noticed() -> None:
    killed = Plan(
        messages=60, handles_s=4.0, max_handoff_time_s=6.0, pause_s=0.3, events=(Event(8.0, "kill", "one", 60.0),)
    )
    with without("announced before delivered"):
        ((_, error),) = simulate([killed]).failures
    assert error.startswith("Violation")


# --- the judge, without a world ---------------------------------------------------------------------------------------

MARKED: Final = Row(0, 0, "k", "k:0", True)
FIRST, SECOND = Row(0, 0, "k", "k:0", False), Row(0, 1, "k", "k:1", False)
SENT: Final = (Sent(1, "p", "k", 0, "k:0"), Sent(1, "p", "k", 1, "k:1"))
OWNED: Final = Checkpointed(2, "g", 0, 1, "a", "a1", 0, 0)
ACCIDENT: Final = Befell(1, "kill", "a", True)
BEFORE: Final = (*SENT, OWNED)


def batch(*rows: Row, at: int = 10, flow: str = "a") -> Given:
    return Given(at, at - 5, "g", flow, f"{flow}/1", rows)


def owned(*, epoch: int = 1, flow: str = "a", offset: int = 0, at: int = 20) -> Checkpointed:
    return Checkpointed(at, "g", 0, epoch, flow, f"{flow}1", offset, 0)


BROKEN: Final[dict[str, tuple[Fact, ...]]] = {
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
    "it does not count": (*BEFORE, batch(FIRST), Acknowledged(12, "g", "a", (FIRST,), frozenset({0}))),
}


@pytest.mark.parametrize("says", BROKEN)
def test_the_judge_notices(says: str) -> None:
    judge = Judge(within_s=10.0)
    *before, last = BROKEN[says]
    for fact in before:
        judge.take(fact)
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


def judged(facts: Sequence[Fact], log: Mapping[Place, Lying] = LOG) -> None:
    judge = Judge(within_s=10.0)
    for fact in facts:
        judge.take(fact)
    judge.complete({"q": log}, {"g": "q"}, source="q")


def test_the_judge_has_nothing_to_say_where_all_is_well() -> None:
    judged(DONE)


def test_the_judge_notices_in_the_end() -> None:
    later = {(0, 0): Lying("k", "k:1", 3), (0, 1): Lying("k", "k:0", 3)}
    with pytest.raises(Violation, match="was told to lie at"):
        judged(DONE, {(0, 0): Lying("k", "k:0", 3)})
    with pytest.raises(Violation, match="is in the queue twice"):
        judged(DONE, {**LOG, (0, 2): Lying("k", "k:1", 3)})
    with pytest.raises(Violation, match="out of order"):
        judged([each for each in DONE if not isinstance(each, Durable)], later)
    with pytest.raises(Violation, match="never got"):
        judged([*DONE, Sent(1, "p", "k", 2, "k:2")], {**LOG, (0, 2): Lying("k", "k:2", 3)})
    with pytest.raises(Violation, match="has acknowledged 0 up to 0 of 2"):
        judged(DONE[:-1])
    slow: Given = batch(FIRST, SECOND, at=20_000_000)
    with pytest.raises(Violation, match="waited 20"):
        judged([*BEFORE, Durable(3, "k:0", 0, 0), slow, Handled(20_000_001, "g", "a", slow.rows), owned(offset=2)])
    other = {(0, 0): Lying("k", "k:0", 3), (1, 0): Lying("k", "k:1", 3)}
    moved = Row(1, 0, "k", "k:1", False)
    both = Handled(11, "g", "a", (FIRST, moved))
    owners = (OWNED, OWNED._replace(partition=1))
    ends = (owned(offset=1), owned(offset=1)._replace(partition=1))
    with pytest.raises(Violation, match="was handled"):
        judged([*SENT, *owners, batch(FIRST, moved), both, *ends], other)
