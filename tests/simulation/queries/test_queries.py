"""Seeded simulations of the loop behind streaming queries: no seed loses, skips or repeats a message without a word,
and no guard may be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.simulation.__main__ import FAULTS, QUERIES, Total, simulate
from tests.simulation.queries.guards import GUARDS, Guard, first_finding
from tests.simulation.queries.plan import KINDS, MODES, NO_GROUP, TO_GROUPS, TO_QUERIES, Plan
from tests.simulation.queries.spark import QueryFailed, SparkCheckpoint
from tests.simulation.queries.world import World, run_seed
from tests.support.histories import histories_of
from tests.support.scheduler import SECOND_US

SEEDS = 300  # of each of four tests
TWICE_SEEDS = 60
CONTROL_SEEDS = range(1500)
UNSEEN = ("outage", "flush", "empty", "rollback")  # not among these faults, or counted with accidents


def told(total: Total) -> str:
    return "\n".join(
        f"seed {seed}: {error}; repeat it by: {QUERIES.repeat_line(seed)}" for seed, error in total.failures[:10]
    )


def test_a_few_worlds_are_all_right() -> None:
    total = simulate(100_000, 2 * len(KINDS), suite=QUERIES)
    assert not total.failures, told(total)
    assert total.counts["batches"] > 0
    assert total.counts["messages repeated"] > 0


def test_a_forgotten_ownership_is_put_right_when_all_is_calm() -> None:
    """The group was made by the run that forgot it, and so is shared as that one had it."""
    drawn = next(plan for plan in map(Plan.draw, range(1000)) if plan.kind == "auto shared" and _is_simple(plan))
    world = World(replace(drawn, queries=drawn.queries[:1], accidents=(), rates=replace(drawn.rates, crash=0.0)))
    world.queries[0].otherwise = {"ownership": "none", "sessionTimeout": None, "maxPollInterval": None}
    world.play()
    assert world.counts["shared as told"] == 1
    assert world.queue.head.groups["billing"].ownership == "redis"


def test_who_acknowledges_by_itself_looks_at_every_batch() -> None:
    """By hand a batch may be ignored: it comes again. A run that is by hand no more would acknowledge it."""
    drawn = next(plan for plan in map(Plan.draw, range(1000)) if plan.kind == "by hand shared" and _is_simple(plan))
    ignoring = replace(drawn.queries[0], ignores=1.0)
    world = World(replace(drawn, queries=(ignoring,), accidents=(), rates=replace(drawn.rates, crash=0.0)))
    world.queries[0].other_ack_mode = True
    world.play()
    assert world.counts["batches"] > 0
    assert world.counts["ignored"] == 0


def test_queries_stay_down_until_the_last_operator_is_done_with_their_group() -> None:
    """partq refuses to remove a group while a flow of it lives. An operator who came later may be done earlier."""
    drawn = next(plan for plan in map(Plan.draw, range(1000)) if plan.kind == "by hand alone" and _is_simple(plan))
    world = World(replace(drawn, queries=drawn.queries[:1], accidents=(), calm_us=10 * SECOND_US))
    query = world.queries[0]
    ends_us: list[int] = []

    def remove() -> None:
        world.accidents.happen("remove", 0)
        ends_us.append(query.held_until_us)

    for number in range(8):
        world.scheduler.push(remove, 5 * SECOND_US + number)
    world.play()
    assert ends_us[0] > 0
    assert ends_us == sorted(ends_us)
    assert world.counts["remove"] == 1, "a query ran between two of them, and made its group again"


def _is_simple(plan: Plan) -> bool:
    first = plan.queries[0]
    return len(plan.groups) == len(first.sources) == 1 and first.trigger == "processing" and not first.fails


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.conformance("HAN-10", "CHK-04", "SEQ-01")
@pytest.mark.parametrize("first", range(0, 4 * SEEDS, SEEDS))
def test_no_seed_loses_or_repeats_in_silence(first: int, report: Callable[[str], None]) -> None:
    total = simulate(first, SEEDS, suite=QUERIES)
    report(f"queries: {total.text()}")
    assert not total.failures, told(total)
    happened = [
        *(fault for fault in FAULTS if fault not in UNSEEN),
        *(what for what in (*TO_QUERIES, *TO_GROUPS) if what != "lose"),
        "acknowledged again",
        "acknowledged late",
        "acknowledgements refused",
        "batches repeated",
        "begun anew",
        "frozen while it plans",
        "handling fails",
        "ignored",
        "messages repeated",
        "planned again",
        "query refused",
        "readers replaced",
    ]
    missing = [what for what in happened if not total.counts[what]]
    assert not missing, f"no seed shows {missing}: the simulation has become weaker"


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(12_279, id="a forgotten ownership that nobody notices while all else is refused"),
        pytest.param(22_592, id="a removed partition that is rewound behind the group's start"),
        pytest.param(28_721, id="a batch that was repeated by hand, and then forgotten by Spark and made anew"),
        pytest.param(34_037, id="a run that forgot to be by hand, and ignores a batch"),
        pytest.param(33_834, id="a group that is removed while its partitions are taken"),
        pytest.param(23_260, id="a run alone that stands still between its last look and the reading"),
        pytest.param(37_504, id="an acknowledgement by what was in hand before a rewind"),
        pytest.param(43_532, id="two loads of an AvailableNow query that wait for each other"),
        pytest.param(6029, id="two threads of an application that asked one KeySequences"),
        pytest.param(40_360, id="a group that is removed while another operator's change lets its query run"),
        pytest.param(46_071, id="a leader whose state was lost fences what the next one has fenced"),
        pytest.param(14_286, id="a run that stood still writes its batch into an older Spark checkpoint"),
    ],
)
def test_a_seed_that_once_failed(seed: int) -> None:
    run_seed(seed)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_each_seed_run_twice_gives_the_same_history() -> None:
    total = simulate(10_000, TWICE_SEEDS, twice=True, suite=QUERIES)
    assert not total.failures, told(total)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_history_does_not_depend_on_hashes() -> None:
    seeds = tuple(range(20_000, 20_000 + 2 * len(KINDS)))
    histories = histories_of(run_seed, seeds)
    assert len(histories) == 1
    assert len(set(histories.pop().split())) == len(seeds)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.name)
def test_a_missing_guard_is_noticed(guard: Guard, report: Callable[[str], None]) -> None:
    finding = first_finding(guard, CONTROL_SEEDS)
    assert finding is not None, f"{len(CONTROL_SEEDS)} seeds did not notice that this guard was off: {guard.name}"
    report(f"without {guard.name}: noticed by seed {finding.seed}: {finding.error[:80]}")


def test_every_way_to_use_a_group_is_drawn() -> None:
    plans = [Plan.draw(seed) for seed in range(400)]
    assert {plan.kind for plan in plans} == set(KINDS)
    modes = {(group.shared, group.keeps, group.by_hand) for group in MODES.values() if group.name}
    # ackMode=manual has nothing to write acknowledgements into without checkpoints, and is refused.
    assert modes == {(s, k, h) for s in (False, True) for k in (False, True) for h in (False, True) if k or not h}
    queries = [query for plan in plans for query in plan.queries]
    assert {query.trigger for query in queries} == {"processing", "available", "once"}
    assert {len(query.sources) for query in queries} == {1, 2}
    assert {len({source.group for source in query.sources}) for query in queries} == {1, 2}
    assert {query.logs_every for query in queries} == {1, 3}
    assert {what for plan in plans for _, what, _ in plan.accidents} == {*TO_QUERIES, *TO_GROUPS}
    assert any("maxPollInterval" in source.options for query in queries for source in query.sources)


def test_queries_without_a_group_meet_everything_that_may_befall_them() -> None:
    plans = [plan for plan in map(Plan.draw, range(4000)) if plan.kind == NO_GROUP]
    queries = [query for plan in plans for query in plan.queries]
    assert {query.trigger for query in queries} == {"processing", "available", "once"}
    assert {tuple(bool(source.group) for source in query.sources) for query in queries} >= {
        *((False,), (False, False), (False, True))
    }
    accidents = {what for plan in plans for _, what, _ in plan.accidents}
    assert accidents >= {"kill", "stop", "freeze", "restore", "twin", "successor", "resize"}
    given = {name for query in queries for source in query.sources if not source.group for name in source.options}
    assert given == {
        "queue",
        "startingOffsets",
        "retryTimeout",
        "pollInterval",
        "maxMessagesPerTrigger",
        "maxDeliveredUnackedMsgsPerFlow",
    }


def test_no_load_leaves_its_group_while_another_one_of_its_query_waits() -> None:
    """An AvailableNow load waits for its share before Spark asks the next one."""
    found = 0
    for plan in map(Plan.draw, range(10_000)):
        longest_s = plan.rebalance_delay_s + plan.handoff_s + plan.session_timeout_s
        for query in plan.queries:
            if query.trigger == "available" and len(query.sources) > 1:
                limits = [
                    source.options["maxPollInterval"] for source in query.sources if "maxPollInterval" in source.options
                ]
                assert all(float(limit.removesuffix("s")) > longest_s for limit in limits), plan.seed
                found += len(limits)
    assert found > 0


def test_a_spark_checkpoint_is_written_once_and_restored_as_it_was() -> None:
    spark = SparkCheckpoint()
    spark.write_offsets(0, ("a",))
    spark.write_commit(0)
    spark.write_offsets(1, ("b",))
    with pytest.raises(QueryFailed, match="offsets/1"):
        spark.write_offsets(1, ("c",))
    with pytest.raises(QueryFailed, match="commits/0"):
        spark.write_commit(0)
    spark.restore(2)
    assert (spark.offsets, spark.commits) == ({0: ("a",)}, set())
    spark.restore(5)
    assert (spark.offsets, spark.commits) == ({}, set())
