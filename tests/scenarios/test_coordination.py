"""Leaders, flows and stores at the worst moment: in each of these stories nothing is lost, nothing comes twice without
a mark, nobody leads who was followed, and no partition moves early. Each needs a guard of the product, or several:
without one the judge has something to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest

from tests.scenarios.words import CALM, played
from tests.support.judge import Violation
from tests.world.guards import without
from tests.world.plan import URL, Event, Plan

REDIS: Final = replace(CALM, ownership=URL)
TWO_LEADERS: Final = replace(CALM, coordinators=("coordinator", "second-coordinator"))
BUSY: Final = replace(CALM, messages=150, pause_s=0.2, handles_s=0.3, max_handoff_time_s=0.5, session_timeout_s=8.0)
BEHIND: Final = replace(CALM, pause_s=0.1, handles_s=2.0, max_messages=3)
SLOW: Final = replace(CALM, pause_s=0.3, handles_s=4.0, max_handoff_time_s=6.0)
AGAIN: Final = Event(5.0, "stop", "two", 4.0)
"""The second flow leaves and comes back, and gets a partition of the first one."""


@dataclass(frozen=True, kw_only=True)
class Story:
    """`needs`: the guards that it needs, by their names in `tests/power/guards.toml`."""

    when: str
    needs: tuple[str, ...]
    plan: Plan
    events: tuple[Event, ...] = ()


STORIES: Final = (
    Story(
        when="a group is taken back again and again while its flows work",
        needs=("epoch equality", "acknowledged at the same epoch only"),
        plan=replace(CALM, handles_s=2.0),
        events=tuple(Event(at_s, "rewind", number=3) for at_s in (8.0, 13.0, 19.0)),
    ),
    Story(
        when="a group is taken back while a flow takes a partition over, and nobody leads",
        needs=("one's own name in the checkpoint",),
        plan=BUSY,
        events=(
            Event(6.0, "stop", "two", 4.0),
            Event(9.9, "freeze", "two", 0.8, on="load checkpoint"),
            Event(11.55, "freeze", "coordinator", 3.0),
            Event(11.6, "rewind", number=3),
        ),
    ),
    Story(
        when="an idle group is taken back",
        needs=("rewinds are counted in the head",),
        plan=replace(CALM, messages=10),
        events=(Event(30.0, "rewind", number=5),),
    ),
    Story(when="two want to lead", needs=("lease token",), plan=TWO_LEADERS),
    Story(
        when="a leader freezes after it has read the state that it takes over",
        needs=("the lease is still held after the state was read",),
        plan=TWO_LEADERS,
        events=(
            Event(5.0, "freeze", "second-coordinator", 7.0, on="after load state"),
            Event(5.0, "kill", "coordinator", 4.0),
        ),
    ),
    Story(
        when="a leader freezes between its decision and writing it down",
        needs=("condition of the state",),
        plan=TWO_LEADERS,
        events=(AGAIN, Event(9.0, "freeze", "coordinator", 7.0, on="load state", number=2)),
    ),
    Story(
        when="a leader is killed before its decision is written down",
        needs=("state before effect",),
        plan=BEHIND,
        events=(AGAIN, Event(9.0, "kill", "coordinator", 3.0, on="swap state", number=3)),
    ),
    Story(
        when="a pause is written late, and a message was given meanwhile",
        needs=("drained by records read after the pause",),
        plan=replace(CALM, seed=3, messages=24, pause_s=2.0, handles_s=1.0, max_handoff_time_s=8.0),
        events=(AGAIN, Event(9.0, "slow", "coordinator", 3.0, on="swap state", number=2)),
    ),
    Story(
        when="a flow freezes while it acknowledges, and its partition moves",
        needs=("condition of the fence",),
        plan=BUSY,
        events=(
            AGAIN,
            Event(9.5, "freeze", "one", 5.0, on="load checkpoint"),
            Event(9.5, "freeze", "one", 5.0, on="swap checkpoint"),
        ),
    ),
    Story(
        when="a flow is killed with a batch in hand",
        needs=("announced before delivered",),
        plan=SLOW,
        events=(Event(8.0, "kill", "one", 60.0),),
    ),
    Story(
        when="Redis is emptied, and then a flow is killed",
        needs=("lost reports count as all delivered",),
        plan=replace(SLOW, ownership=URL),
        events=(Event(8.0, "flush"), Event(8.05, "kill", "one", 20.0)),
    ),
    Story(
        when="Redis is set back to an old copy, and then a flow is killed",
        needs=("incarnation",),
        plan=REDIS,
        events=(Event(4.0, "stop", "two", 3.0), Event(9.0, "rollback"), Event(9.5, "kill", "one", 8.0)),
    ),
    Story(
        when="the partition count grows and shrinks under flows that are behind",
        needs=("an earlier layout is waited for",),
        plan=replace(CALM, seed=1, handles_s=2.0, pause_s=0.3),
        events=(Event(6.0, "alter", number=5), Event(12.0, "alter", number=3)),
    ),
    Story(
        when="it does so while a batch is always acknowledged one later",
        needs=("what is waited for is acknowledged",),
        plan=replace(BUSY, handles_s=1.5, manual=True, holds=True),
        events=(Event(6.0, "alter", number=5), Event(12.0, "alter", number=3)),
    ),
    Story(
        when="partitions are removed in which messages wait",
        needs=("a removed partition is delivered to its end",),
        plan=replace(BEHIND, handles_s=4.0, partitions=4),
        events=(Event(6.0, "alter", number=1),),
    ),
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.when.replace(" ", "-"))
def test_all_is_well_when(story: Story) -> None:
    played(story.plan, *story.events)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guard", "story"), [(guard, story) for story in STORIES for guard in story.needs], ids=lambda each: str(each)[:60]
)
def test_the_judge_notices_that_a_guard_is_missing(guard: str, story: Story) -> None:
    with without(guard), pytest.raises(Violation):
        played(story.plan, *story.events)
