"""Who leads, and whose silence counts: leaders over one store in memory, each with a clock that tests move."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Final

import pytest

from coordinator.leadership import FailureDetector, Leadership, Timers, timers_of, with_timers
from coordinator.logs import Log
from coordinator.settings import Settings
from partq_spark.base.errors import Conflict, Unavailable
from partq_spark.group.model import FlowRecord, GroupSettings, GroupState, Lease, Owner, Partition, Phase
from tests.coordinator.runtimes import KEY, World

A: Final = Owner("a", "a1")

# --- silence ----------------------------------------------------------------------------------------------------------

Look = tuple[float, float, Hashable, float, bool]
"""When it was asked, when the answer was heard, what it was (None: nothing was there), for how long the watched has
stood still then, and whether the look was late."""

LOOKS: Final[dict[str, tuple[float, list[Look]]]] = {
    "what moves is not still": (3.0, [(n, n, n, 0.0, False) for n in range(10)]),
    "only what was observed counts": (
        3.0,
        [
            (0.0, 0.5, 1, 0.0, False),  # one look tells nothing
            (2.0, 3.4, 1, 1.5, False),  # it may have moved since the question arrived
            (3.5, 3.6, 1, 3.0, False),
            (4.0, 4.0, 2, 0.0, False),  # a new value begins anew
            (5.0, 5.0, None, 0.0, False),
            (6.0, 6.0, 2, 0.0, False),  # who is missing is forgotten
            (6.5, 6.5, 2, 0.5, False),
        ],
    ),
    "of the time that a watcher did not look a second counts": (
        3.0,
        [
            (0.0, 0.0, 1, 0.0, False),
            (0.5, 0.5, 1, 0.5, False),
            (3600.5, 3600.5, 1, 1.5, True),
            (3603.5, 3603.5, 1, 4.5, False),  # at the bound it is still a look in time
            (3607.0, 3607.0, 1, 5.5, True),
        ],
    ),
    "a short patience counts a part of itself": (0.3, [(0.0, 0.0, 1, 0.0, False), (3.5, 3.5, 1, 0.1, True)]),
    "a late answer counts no more than a late look": (
        3.0,
        [(0.0, 0.0, 1, 0.0, False), (0.1, 60.0, 1, 0.0, True), (61.0, 61.0, 1, 2.0, False)],
    ),
    "looks that all come late find the silent in the end": (
        3.0,
        [(n * 3.2, n * 3.2, 1, float(n), n > 0) for n in range(12)],
    ),
}


@pytest.mark.parametrize("case", LOOKS, ids=lambda case: case.replace(" ", "-"))
def test_for_how_long_somebody_was_silent(case: str) -> None:
    patience_s, looks = LOOKS[case]
    detector = FailureDetector(frozen_after_s=patience_s)
    for number, (asked_s, heard_s, value, still_s, late) in enumerate(looks):
        values = {"living": number, **({} if value is None else {"a": value})}
        assert detector.look(values, asked_s=asked_s, heard_s=heard_s) == late, number
        assert detector.still_s("a") == pytest.approx(still_s), number
        assert detector.still_s("living") == detector.still_s("never seen") == 0.0


# --- the lease --------------------------------------------------------------------------------------------------------


class Stage(World):
    """A store, a clock, and those who would lead, each with a view of the store of its own."""

    def leader(self, name: str) -> Leadership:
        settings = Settings(name=name, lease_timeout_s=5.0, frozen_after_s=3.0)
        return Leadership(self.server.open(), KEY, settings=settings, effects=self.effects(), log=Log(name))

    @property
    def told(self) -> list[tuple[str, object]]:
        return [(event, facts["reason"]) for _, event, facts in self.log.all]

    def lease(self) -> Lease:
        found = self.server.open().read_lease(KEY)
        assert found is not None
        return found.value

    def pass_s(self, seconds: int, *looking: Leadership) -> None:
        """All look once a second; the names of the last one that led stay in the store."""
        for _ in range(seconds):
            self.now_s += 1.0
            for each in looking:
                try:
                    each.look()
                except Conflict:
                    continue


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_one_leads_and_the_other_follows_when_it_was_silent_for_the_timeout(stage: Stage) -> None:
    first, second = stage.leader("c1"), stage.leader("c2")
    assert first.terms == second.terms == 0
    assert first.look() is not None
    assert second.look() is None
    stage.pass_s(20, first, second)
    assert (first.held, second.held, stage.lease().name, stage.lease().beat) == (True, False, "c1", 21)
    stage.pass_s(4, second)
    assert not second.held, "that long it may be on its way"
    stage.pass_s(1, second)
    assert (second.held, second.terms) == (True, 1)
    with pytest.raises(Conflict):
        first.look()
    assert (first.held, first.look()) == (False, None)
    assert [event for event, _ in stage.told] == ["lease_taken", "lease_taken", "lease_lost"]
    assert [reason for _, reason in stage.told][:2] == ["it was free", "c1 was silent"]


def test_of_two_who_take_it_at_once_one_leads_and_what_it_gives_up_is_taken_at_once(stage: Stage) -> None:
    first, second = stage.leader("c1"), stage.leader("c2")

    def faster(verb: str) -> None:
        if verb == "take_lease":
            stage.server.before = lambda _: None
            assert second.look() is not None

    stage.server.before = faster
    assert first.look() is None
    first.release()
    assert (first.held, stage.lease().name) == (False, "c2"), "nobody gives up what is another's"
    second.release()
    assert first.look() is not None
    assert (second.held, stage.lease().name) == (False, "c1")


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("taken", [False, True], ids=["the request", "the answer"])
def test_a_lease_whose_taking_got_no_answer_is_asked_again_or_left(stage: Stage, taken: bool, gives_up: bool) -> None:
    only, other = stage.leader("c1"), stage.leader("c2")

    def lose(verb: str) -> None:
        if verb == "take_lease":
            stage.server.before = stage.server.after = lambda _: None
            raise Unavailable("lost")

    setattr(stage.server, "after" if taken else "before", lose)
    with pytest.raises(Unavailable):
        only.look()
    assert not only.held
    if gives_up:
        only.release()
        assert stage.server.open().read_lease(KEY) is None, "who does not know whether it leads leaves nothing behind"
        return
    if taken:
        assert other.look() is None
    assert only.look() is not None
    assert stage.told == [("lease_taken", "the answer to taking it had been lost" if taken else "it was free")]
    assert stage.lease().beat == 1


def test_a_new_leader_grants_every_flow_a_full_period_and_one_that_froze_grants_it_again(stage: Stage) -> None:
    first, second, flows = stage.leader("c1"), stage.leader("c2"), stage.server.open()
    flow = FlowRecord(flow="a", instance="a1", queue_id="q", bound=True, session_timeout_s=10.0)
    flows.bind(KEY, flow, replaces=None)
    for _ in range(8):
        stage.now_s += 1.0
        first.look()
    assert first.flows.still_s("a") == 7.0
    first.release()
    second.look()
    stage.now_s += 1.0
    second.look()
    assert second.flows.still_s("a") == 1.0
    stage.now_s += 60.0
    second.look()
    assert second.flows.still_s("a") == 2.0
    assert stage.told[-1] == ("all_flows_granted", "this leader did not look for more than 3 s")
    assert len(stage.told) == 3


# --- timers -----------------------------------------------------------------------------------------------------------

PAUSED: Final = Partition(partition=0, phase=Phase.PAUSED, epoch=1, owner=A, to=Owner("b", "b1"), deadline_s=1009.0)
OWNED: Final = Partition(partition=1, phase=Phase.OWNED, epoch=1, owner=A)
STATE: Final = GroupState(
    queue_id="q", settings=GroupSettings(), partitions={0: PAUSED, 1: OWNED}, holddown_until_s=1030.0
)


def test_what_runs_goes_on_with_the_next_leader(stage: Stage) -> None:
    first, second = stage.leader("c1"), stage.leader("c2")
    first.look()
    first.timers = timers_of(STATE, "token")
    assert first.timers == Timers(state_token="token", deadlines_s={"0": 1009.0, "holddown": 1030.0})
    stage.pass_s(2, first)
    stage.pass_s(6, second)
    assert second.held
    # As they were when the first leader was last heard of, by the second one's clock.
    deadlines_s = {"0": stage.now_s + 7.0, "holddown": stage.now_s + 28.0}
    assert second.timers == Timers(state_token="token", deadlines_s=deadlines_s)
    assert stage.lease().timers == {"0": 7.0, "holddown": 28.0}


QUIET: Final = replace(STATE, partitions={1: OWNED}, holddown_until_s=None)


@pytest.mark.parametrize(
    ("state", "deadlines_s", "then"),
    [
        (
            STATE,
            {"0": 1.0, "1": 2.0, "holddown": 3.0},
            replace(STATE, partitions={0: replace(PAUSED, deadline_s=1.0), 1: OWNED}, holddown_until_s=3.0),
        ),
        (STATE, {}, STATE),
        (QUIET, {"1": 2.0, "holddown": 3.0}, QUIET),
    ],
)
def test_a_state_gets_timers_known_better(state: GroupState, deadlines_s: dict[str, float], then: GroupState) -> None:
    assert with_timers(state, Timers(deadlines_s=deadlines_s)) == then
