"""What a rolling restart costs, and who may have a name: twelve flows and two processes that want to be one flow."""

from __future__ import annotations

from pathlib import Path

import pytest

from partq_spark.log.admin import alter_queue
from tests.ownership.cast import Cast, Observer
from tests.ownership.checker import judge
from tests.ownership.facts import Bound, Claimed, Failed
from tests.ownership.flow import NAME_TAKEN

pytestmark = [pytest.mark.redis, pytest.mark.crash]

LONG_S = 3600.0
WAIT_S = 60.0  # for what comes as soon as the machine gets to it


@pytest.mark.timeout(400)
@pytest.mark.conformance("LOS-01", "REB-06")
def test_a_rolling_restart_within_the_delay_moves_nothing(tmp_path: Path) -> None:
    """Twelve flows are stopped and started one after the other; each comes back with the mapping that it knew. Once all
    have joined, the delay is longer than any machine takes for a restart; a flow that is slow is not lost.
    """
    names = [f"flow-{number:02d}" for number in range(12)]
    with Cast(tmp_path, partitions=32, rebalance_delay_s=0.2, session_timeout_s=60.0) as cast, Observer(cast):
        cast.start_coordinator("coordinator-1")
        publisher = cast.start_publisher(32, 0.2)
        for name in names:
            cast.start_flow(name, keep_mapping=str(tmp_path / f"{name}.mapping"))
        cast.wait_until(cast.imbalance, WAIT_S)
        alter_queue(cast.queue, rebalance_delay_s=LONG_S)
        cast.wait_until(lambda: "" if _delay_s(cast) == LONG_S else "the coordinator goes by the former delay", WAIT_S)
        before, handoffs = cast.epochs(), _pauses(cast)
        for name in names:
            cast.flows[name].terminate()
            assert cast.flows[name].wait(WAIT_S) == 0
            cast.start_flow(name, keep_mapping=str(tmp_path / f"{name}.mapping"))
            cast.wait_until(cast.imbalance, WAIT_S)
        assert cast.epochs() == before
        assert _pauses(cast) == handoffs
        publisher.terminate()
        publisher.wait(WAIT_S)
        ends = cast.queue.refresh().next
        cast.wait_until(lambda: cast.behind(ends), WAIT_S)
    verdict = judge(cast.facts(), dict(enumerate(ends)))
    assert verdict.violations == ()
    assert verdict.repeated == 0


def _delay_s(cast: Cast) -> float:
    state = cast.state()
    return -1.0 if state is None else state.settings.rebalance_delay_s


def _pauses(cast: Cast) -> int:
    return sum(line["event"] == "pause" for line in cast.decisions())


@pytest.mark.conformance("FLO-08")
def test_a_second_process_with_the_same_name_is_refused(tmp_path: Path) -> None:
    with Cast(tmp_path, partitions=4, rebalance_delay_s=0.5) as cast, Observer(cast):
        cast.start_coordinator("coordinator-1")
        cast.start_publisher(8, 0.2)
        first = cast.start_flow("only")
        cast.wait_until(cast.imbalance, 15)
        epochs = cast.epochs()
        second = cast.start_flow("only")
        assert second.wait(cast.session_timeout_s + 5) == NAME_TAKEN
        failed = [fact for fact in cast.facts_of("only") if isinstance(fact, Failed) and fact.doing == "name"]
        assert "in use by another live process" in failed[-1].error
        assert first.alive
        assert cast.epochs() == epochs  # neither shared nor taken
        assert len({fact.instance for fact in cast.facts_of("only") if isinstance(fact, Claimed)}) == 1


@pytest.mark.conformance("FLO-08", "LOS-02")
def test_a_flow_that_was_killed_is_told_from_a_twin_and_comes_back(tmp_path: Path) -> None:
    """Its heartbeat stands still: after at most one session timeout the name is free."""
    with Cast(tmp_path, partitions=4, rebalance_delay_s=0.5) as cast:
        cast.start_coordinator("coordinator-1")
        cast.start_publisher(8, 0.2)
        first = cast.start_flow("only")
        cast.wait_until(lambda: "" if _binds(cast) else "not bound", 15)
        first.kill()
        child = cast.start_flow("only")
        cast.wait_until(lambda: "" if len(_binds(cast)) == 2 else "not bound again", cast.session_timeout_s + 5)
        cast.wait_until(cast.imbalance, 5)
        assert child.alive
        before, after = _binds(cast)
        assert after.instance != before.instance
        assert after.done_s - after.sent_s < cast.session_timeout_s + 2


def _binds(cast: Cast) -> list[Bound]:
    return [fact for fact in cast.facts_of("only") if isinstance(fact, Bound)]
