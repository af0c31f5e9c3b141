"""The picture that metrics are made of: what the stores say, looked up only where it is not known already; and what is
counted of handoffs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from coordinator.core.events import NOBODY, Told
from coordinator.core.handoff import Cause
from coordinator.figures import LISTED_S, LOOKS_MOST_S, Figures
from coordinator.heads import Heads
from coordinator.health import Status
from coordinator.measuring import Handoffs, Outcome, Tally, measured
from coordinator.metrics import Picture, samples
from partq_spark.base.errors import Unavailable
from partq_spark.client import Queue, describing
from partq_spark.group import retention
from partq_spark.group.model import Progress
from partq_spark.log import admin
from partq_spark.log.compaction import compact
from partq_spark.log.names import LogSizes
from partq_spark.log.queue import QueueLog
from partq_spark.log.settings import QueueConfig
from tests.coordinator.runtimes import KEY, HandFlow, World
from tests.log.queues import send

AT_ONCE: Final = QueueConfig(rebalance_delay_s=0.0, max_handoff_time_s=3.0)


WELL: Final = Status(alive=True, ready=True, looked_s=0.0, groups=1, leading=1, failing=0)


class Scraped(World):
    """The one coordinator of a world, and who takes its picture."""

    def __init__(self, *, looks_most_s: float = LOOKS_MOST_S, quota_bytes: int | None = None) -> None:
        super().__init__(partitions=2, config=replace(AT_ONCE, quota_bytes=quota_bytes))
        sizes = LogSizes(inline_entries=4, fan_out=3)
        self.queue = QueueLog(self.objects, KEY.namespace, KEY.queue, self.effects(), sizes=sizes)
        self.shown = self.coordinator()
        self.heads = Heads(self.objects, KEY.namespace)
        self.tally = Tally()
        store = measured(self.objects, self.tally.store)
        how = {"name": "c1", "namespace": "default"}
        self.figures = Figures(store=store, tally=self.tally, effects=self.effects(), looks_most_s=looks_most_s, **how)

    def picture(self) -> Picture:
        self.heads.look(KEY.queue)
        groups = [(self.shown.runtime, facts) for facts in self.heads.groups().values()]
        return self.figures.picture(WELL, self.heads.seen(), groups)

    def lags(self) -> list[tuple[Any, Any]]:
        """Messages and seconds, by partition."""
        (group,) = self.picture().groups
        return [(group.lags.get(number), group.ages_s.get(number)) for number in group.state.partitions]

    def looks(self) -> dict[str, int]:
        """How often the store was asked for pictures."""
        return {operation: sum(h.distribution().counts) for operation, h in self.tally.store.durations.items()}

    def publish(self, publishes: int) -> tuple[int, ...]:
        """A publish a second, each of a message for both partitions at least; where the partitions end then."""
        for number in range(publishes):
            self.now_s += 1
            send(self.queue, [(f"key {row}", b"%d" % number) for row in range(8)])
        return self.queue.refresh().next

    def handled(self, publishes: int, *left: int) -> HandFlow:
        """A flow to which so much was delivered; it acknowledges all but so much of each partition, or a quarter."""
        flow = self.flow("a")
        self.settle()
        for number, end in enumerate(self.publish(publishes)):
            done = end - left[number] if left else end // 4
            flow.write(number, done, end)
            flow.says = replace(flow.says, progress={**(flow.says.progress or {}), number: Progress(end, done)})
        self.run(2)
        return flow


@pytest.fixture
def scraped() -> Scraped:
    return Scraped()


# --- lag --------------------------------------------------------------------------------------------------------------


def test_lag_costs_no_look_while_the_head_tells_it(scraped: Scraped) -> None:
    scraped.handled(3, 0, 1)
    found = scraped.lags()
    assert found == [(0, 0.0), (1, pytest.approx(2))]
    assert scraped.looks() == {}, "heartbeats and head say it all"
    view = describing.status(scraped.queue, scraped.server.open(), KEY.group)
    assert found == [(each.lag, each.lag_s) for each in view.partitions], "as `partq status` has them"


@pytest.mark.parametrize("compacted", [False, True])
def test_a_message_that_is_older_than_what_the_head_tells_is_looked_up_once(
    scraped: Scraped, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is away leaves out what is not known, and hides nothing else."""
    scraped.handled(40)
    if compacted:
        assert compact(scraped.queue, min_age_s=0.0) is not None
    with monkeypatch.context() as away:
        asked: list[str] = []

        def read(name: str, **_: object) -> memoryview:
            asked.append(name)
            raise Unavailable("away")

        away.setattr(scraped.objects, "read", read)
        picture = scraped.picture()
        assert all(picture.groups[0].lags.values())
        assert picture.groups[0].ages_s == {}
        assert scraped.tally.store.errors.all() == {("read", "Unavailable"): 1}
        assert len(asked) == 1, "one outage is met once in a picture"
    found = scraped.lags()
    assert all(25 < lag_s < 45 for _, lag_s in found)
    looks = scraped.looks()
    scraped.now_s += 60
    assert scraped.lags() == [(lag, pytest.approx(lag_s + 60)) for lag, lag_s in found]
    assert scraped.looks() == looks, "the message is the same"


def test_without_a_flow_checkpoints_are_asked_now_and_then(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group that nobody works for is the one whose lag matters most."""
    ends = scraped.publish(2)
    scraped.run(2)
    assert [lag for lag, _ in scraped.lags()] == list(ends), "also where there never was one"
    scraped.handled(1, 1, 1).unbind()
    scraped.run(LISTED_S)
    before = scraped.looks()["list"]
    assert [lag for lag, _ in scraped.lags()] == [1, 1]
    scraped.publish(1)
    for _ in range(3):
        scraped.lags()
    assert scraped.looks()["list"] == before + 1, "not for each picture"
    scraped.now_s += LISTED_S
    for _ in range(3):
        scraped.lags()
    assert scraped.looks()["list"] == before + 2
    scraped.now_s += LISTED_S
    scraped.lags()
    assert scraped.looks()["list"] == before + 2, "nothing was published since"
    queue = Queue(KEY.queue, store="file:///nowhere")
    monkeypatch.setattr(queue, "_opened", lambda: scraped.queue)
    queue.rewind(KEY.group, to="earliest", ownership="none")
    scraped.run(2)
    assert [lag for lag, _ in scraped.lags()] == list(scraped.queue.refresh().next), "a rewind is seen at once"


def test_looks_end_when_their_time_is_over() -> None:
    scraped = Scraped(looks_most_s=0.0)
    scraped.publish(2)
    scraped.run(2)
    assert scraped.lags() == [(None, None)] * 2
    assert scraped.looks() == {}


def test_groups_and_queues_are_told_that_are_there_and_led_here(scraped: Scraped) -> None:
    """What is told of them is in `test_metrics`."""
    scraped.handled(3, 0, 0)
    retention.trim(scraped.queue, scraped.queue.head.next)
    told = {(each.metric.name, each.labels[2:]): each.value for each in samples(scraped.picture())}
    assert told["partq_queue_messages", ()] == 0
    assert told["partq_queue_published_messages_total", ()] == 24, "what was trimmed counts as published"
    scraped.shown = scraped.coordinator("c2")
    scraped.shown.step()
    picture = scraped.picture()
    assert (picture.groups, picture.followed) == ([], [KEY]), "a group that another one leads is only named"
    admin.delete_queue(scraped.queue)
    picture = scraped.picture()
    assert (picture.queues, picture.groups) == ({}, [])


# --- handoffs ---------------------------------------------------------------------------------------------------------


def step(event: str, flow: str | None = None, to: str | None = None, cause: Cause | None = None) -> Told:
    return Told(event=event, partition=0, cause=cause, flow=flow, to=to, reason="it is so")


PAUSE: Final = (5.0, step("pause", "a", "b"))
DRAINED: Final = (6.0, step("fence", "a", "b", Cause.DRAINED))
ASSIGN: Final = (9.0, step("assign", "b"))


@pytest.mark.parametrize(
    ("steps", "ended", "pause_s"),
    [
        ([PAUSE, (7.0, step("fence", "a", "b", Cause.DRAINED)), ASSIGN], Outcome.DRAINED, 4.0),
        ([PAUSE, (7.0, step("fence", "a", "b", Cause.DEADLINE)), ASSIGN], Outcome.FORCED, 4.0),
        ([PAUSE, (7.0, step("fence", "a", "b", Cause.LOST)), ASSIGN], Outcome.LOST, 4.0),
        ([PAUSE, (7.0, step("fence", "a", "b", Cause.AHEAD)), ASSIGN], Outcome.OTHER, 4.0),
        ([PAUSE, (6.0, step("resume", "a"))], Outcome.KEPT, 1.0),
        ([(8.5, step("fence", "a", "b", Cause.MOVE)), ASSIGN], Outcome.FORCED, 0.5),
        ([(8.5, step("fence", "a", "b", Cause.GIVE)), ASSIGN], Outcome.LOST, 0.5),
        # A third flow gets it after the first pause began; and what was drained turns out not to be.
        ([PAUSE, DRAINED, (7.0, step("fence", "a", "c", Cause.GIVE)), ASSIGN], Outcome.DRAINED, 4.0),
        ([PAUSE, DRAINED, (7.0, step("force", "a", "b", Cause.DEADLINE)), ASSIGN], Outcome.FORCED, 4.0),
        # No handoffs: what was nobody's, what comes back to its flow, what was removed.
        ([(1.0, step("fence", None, "b", Cause.GIVE)), ASSIGN], None, 0.0),
        ([(1.0, step("fence", "b", "b", Cause.RESTORE)), ASSIGN], None, 0.0),
        ([PAUSE, (7.0, step("fence", "a", NOBODY, Cause.REMOVE)), (9.0, step("assign", NOBODY))], None, 0.0),
    ],
)
def test_each_way_through_it_ends(steps: list[tuple[float, Told]], ended: Outcome | None, pause_s: float) -> None:
    handoffs = Handoffs()
    for now_s, told in steps:
        handoffs.told([told], now_s)
    assert {outcome for outcome, count in handoffs.ended.items() if count} == ({ended} if ended else set())
    assert handoffs.pause().sum == pytest.approx(pause_s)
