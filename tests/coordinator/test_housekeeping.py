"""Which housekeeping is due when: from few facts, with the time as an argument; and what becomes of a failing queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from coordinator.heads import Done, Heads, QueueFacts, Seen, Task, Work, due, queue_facts
from coordinator.housekeeper import LEASE_LOOKS, RENEW_MOST_S, Housekeeper, TaskReport
from coordinator.settings import Settings
from partq_spark.base.errors import Corrupt
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import Owner
from partq_spark.log import admin, groups
from partq_spark.log.names import LogSizes
from partq_spark.log.settings import QueueConfig
from tests.coordinator.runtimes import KEY
from tests.coordinator.runtimes import World as Stage
from tests.log.queues import World, send, values

S = 1_000_000
SETTINGS = Settings(collection_grace_s=86_400.0, compaction_min_age_s=300.0)
NOW_US = 1_795_000_000 * S
FACTS = QueueFacts(queue_id="q1", sequence=7, retention_s=60.0, oldest_us=NOW_US - 90 * S, chunks_us=None)


def ended(ago_s: float, empty_at: int | None = None) -> Done:
    return Done(at_s=1000.0 - ago_s, at_us=NOW_US - int(ago_s * S), empty_at=empty_at)


# --- deciding ---------------------------------------------------------------------------------------------------------

OLD, YOUNG = NOW_US - 300 * S, NOW_US - 299 * S
KEEPS = replace(FACTS, retention_s=None)
LONG = replace(KEEPS, chunks_us=(NOW_US - 999 * S, NOW_US - 500 * S))


def works(facts: QueueFacts, done: dict[Work, Done], settings: Settings = SETTINGS) -> set[str]:
    """What is due for one queue."""
    tasks = {Task("orders", facts.queue_id, work): each for work, each in done.items()}
    return {each.work for each in due({"orders": facts}, tasks, settings, now_s=1000.0, now_us=NOW_US)}


@pytest.mark.parametrize(
    ("facts", "done", "is_due"),
    [
        (KEEPS, {}, "collect"),  # without a retention all is kept
        (FACTS, {}, "collect retain"),
        (replace(FACTS, oldest_us=NOW_US - 59 * S), {}, "collect"),  # not old enough
        (replace(FACTS, oldest_us=None), {}, "collect"),  # nothing can be read
        # Compaction waits for chunks that are old enough, and half a minute.
        (replace(KEEPS, chunks_us=(YOUNG, YOUNG)), {}, "collect"),
        (replace(KEEPS, chunks_us=(OLD, YOUNG)), {}, "collect compact"),
        (replace(KEEPS, chunks_us=(OLD, YOUNG)), {Work.COMPACT: ended(29.9)}, "collect"),
        (replace(KEEPS, chunks_us=(OLD, YOUNG)), {Work.COMPACT: ended(30)}, "collect compact"),
        # A head that had nothing to compact is looked through again when it has changed, or more of it is old enough.
        (LONG, {Work.COMPACT: ended(40, empty_at=7)}, "collect"),
        (replace(LONG, sequence=8), {Work.COMPACT: ended(40, empty_at=7)}, "collect compact"),
        (replace(LONG, chunks_us=(OLD, NOW_US - 310 * S)), {Work.COMPACT: ended(40, empty_at=7)}, "collect compact"),
        # One that did something is due again at once; a collection takes all there is.
        (LONG, {Work.COMPACT: replace(ended(0), more=True), Work.COLLECT: ended(0)}, "compact"),
        (KEEPS, {Work.COLLECT: replace(ended(0), more=True)}, ""),
    ],
)
def test_what_is_due(facts: QueueFacts, done: dict[Work, Done], is_due: str) -> None:
    assert works(facts, done) == set(is_due.split())


@pytest.mark.parametrize(
    ("work", "of_s", "every_s"),
    [(Work.RETAIN, of_s, every_s) for of_s, every_s in ((0.0, 5), (60.0, 15), (240.0, 60), (7 * 86_400.0, 60))]
    + [(Work.COLLECT, of_s, every_s) for of_s, every_s in ((1.0, 30), (60.0, 30), (86_400.0, 21_600))],
)
def test_trimming_and_collection_four_times_in_a_retention_and_a_grace(work: Work, of_s: float, every_s: float) -> None:
    facts = replace(FACTS, retention_s=of_s, oldest_us=0)
    settings = structs.replace(SETTINGS, collection_grace_s=of_s)
    assert [work in works(facts, {work: ended(ago_s)}, settings) for ago_s in (every_s - 0.1, every_s)] == [False, True]


def test_what_waits_longest_comes_first_and_a_queue_made_again_begins_anew() -> None:
    queues = {"a": KEEPS, "b": KEEPS, "c": KEEPS, "d": KEEPS}
    done = {Task("a", "q1", Work.COLLECT): ended(90_000), Task("b", "q1", Work.COLLECT): ended(95_000)}
    done[Task("d", "former", Work.COLLECT)] = ended(1)
    found = due(queues, done, SETTINGS, now_s=1000.0, now_us=NOW_US)
    assert [task.queue for task in found] == ["c", "d", "b", "a"]
    done = {Task("a", "q1", Work.COMPACT): replace(ended(0), more=True), Task("a", "q1", Work.RETAIN): ended(20)}
    done[Task("a", "q1", Work.COLLECT)] = ended(0)
    large = replace(LONG, retention_s=60.0)
    assert [task.work for task in due({"a": large}, done, SETTINGS, now_s=1000.0, now_us=NOW_US)] == [
        "retain",
        "compact",
    ]


def test_a_queue_that_was_led_a_year_ahead_once_is_kept_house_for_as_others() -> None:
    world = World()
    world.sizes = LogSizes(inline_entries=4)
    queue = world.create(1, config=QueueConfig(retention_s=3600.0))
    facts = queue_facts(queue.head)
    assert (facts.retention_s, facts.oldest_us, facts.chunks_us) == (3600.0, None, None)
    for ahead_us in (365 * 24 * 3600 * S, 0):
        world.clock.now_us += ahead_us
        for number in range(8):
            send(queue, values(number))
        world.clock.now_us -= ahead_us
    facts = queue_facts(queue.refresh())
    found = due({"orders": facts}, {}, SETTINGS, now_s=1000.0, now_us=world.clock.now_us + 2 * 3600 * S)
    assert {task.work for task in found} == {Work.RETAIN, Work.COMPACT, Work.COLLECT}


# --- doing ------------------------------------------------------------------------------------------------------------


class House(Stage):
    """Queues beside the stage's own one, and housekeepers. `done` has the queue of each step that came to its end;
    `does` may say what becomes of one.
    """

    def __init__(self, *queues: str, config: QueueConfig | None = None) -> None:
        super().__init__(partitions=1, config=config)
        self.heads = Heads(self.objects, KEY.namespace)
        self.done: list[str] = []
        self.does: Callable[[Task], bool] = lambda _: False  # whether there was something to do
        for name in queues:
            admin.create_queue(self.objects, KEY.namespace, name, 1)
            self.heads.look(name)

    def _do(self, task: Task) -> TaskReport | None:
        found = self.does(task)
        self.done.append(task.queue)
        return TaskReport("done", {}) if found else None

    def keeper(self, name: str = "a", *, works: bool = False) -> Housekeeper:
        """`works`: its steps are the real ones."""
        return Housekeeper(
            Settings(name=name, housekeeping_look_s=1.0),
            store=self.objects,
            ownership=self.server.open(),
            heads=self.heads,
            effects=self.effects(),
            do=None if works else self._do,
        )


def look(keeper: Housekeeper) -> None:
    """At the lease, then one step after the other, until nothing is due."""
    keeper.look()
    for _ in range(100):
        if keeper.step() > 0.0:
            return
    raise AssertionError("there is always something to do")


def test_what_every_group_has_acknowledged_goes_and_what_one_needs_stays() -> None:
    """By the real steps, of which `tests/soak` shows the rest with a process."""
    house = House(config=QueueConfig(retention_s=60.0))
    for number in range(3):
        send(house.queue, values(number))
    groups.create_group(house.queue, "audit", (0,))
    for group, offset in {"audit": 2, KEY.group: 3}.items():
        store = checkpoints_of(house.queue, group)
        held = store.fence(0, to=Owner("flow", "i1"), epoch=1, start=0)
        store.write(held, offset=offset, may_reach=offset, marked=0, origin=None, swap=False)
    house.now_s += 100.0
    house.heads.look(KEY.queue)
    look(house.keeper(works=True))
    assert house.queue.refresh().earliest == (2,)
    (trimmed,) = house.log.of("messages_trimmed")
    assert (trimmed["messages"], trimmed["held_back_by"]) == (2, "audit")
    assert "retention of 60 s" in str(trimmed["reason"])


@pytest.mark.parametrize("error", [Corrupt("its log is damaged (test)"), ZeroDivisionError("a mistake (test)")])
def test_a_queue_that_fails_is_told_once_and_stops_no_other(error: Exception) -> None:
    house = House("bad", "good")

    def fails(task: Task) -> bool:
        if task.queue == "bad" and house.now_s < 80_000:
            raise error
        return False

    house.does = fails
    keeper = house.keeper()
    for _ in range(4):
        look(keeper)
        house.now_s += 21_600
    assert house.done == ["good"] * 4
    assert [facts["queue"] for facts in house.log.of("housekeeping_failed")] == ["bad"]
    look(keeper)
    assert house.done[-2:] == ["bad", "good"]
    assert [facts["queue"] for facts in house.log.of("housekeeping_recovered")] == ["bad"]


def test_beside_endless_work_of_one_queue_others_and_the_sweep_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House("large", "small")
    chunks = (int((house.now_s - 999) * S), int((house.now_s - 500) * S))
    seen = {
        name: replace(each, facts=replace(each.facts, chunks_us=chunks)) for name, each in house.heads.seen().items()
    }
    compacted: list[str] = []
    swept: list[float] = []
    looked: list[list[str]] = []

    def look_through() -> dict[str, Seen]:
        looked.append(house.done.copy())
        return seen

    def sweep(_: float) -> int:
        swept.append(house.now_s)
        return 0

    def endless(task: Task) -> bool:
        house.now_s += 0.01
        if task.work is Work.COMPACT:
            compacted.append(task.queue)
        return task.queue == "large"

    monkeypatch.setattr(house.heads, "seen", look_through)
    monkeypatch.setattr(house.objects, "sweep_temporary", sweep)
    house.does = endless
    keeper = house.keeper()
    keeper.look()
    assert {keeper.step() for _ in range(150)} == {0.0}, "without a pause"
    assert swept == [pytest.approx(1001.0, abs=0.05)], "after the time of a look"
    assert sorted(looked[1]) == ["large"] * 2 + ["small"] * 2, "one look for all that is due"
    assert compacted[:3] == ["large", "small", "large"]
    assert compacted.count("small") == 1, "nothing is left of it"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_step_that_takes_long_keeps_the_lease_for_a_bounded_time(hangs: bool) -> None:
    house = House("one")
    first, second = house.keeper("first"), house.keeper("second")
    begun: list[str] = []

    def long(_: Task) -> bool:
        begun.append("first" if first.leading and not begun else "second")
        if begun[-1] == "first":
            if hangs:
                house.now_s += RENEW_MOST_S
            for _second in range(LEASE_LOOKS * 3):
                house.now_s += 1
                first.look()  # beside the task
                look(second)
        return False

    house.does = long
    look(first)
    assert house.log.of("housekeeping_failed") == []
    assert begun == (["first", "second"] if hangs else ["first"])
    look(first)
    assert first.leading is not hangs
    assert bool(house.log.of("housekeeping_lease_lost")) == hangs
