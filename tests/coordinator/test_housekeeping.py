"""Which housekeeping is due when: from few facts, with the time as an argument; and what becomes of a failing queue."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from msgspec import structs

from coordinator.due_housekeeping import Done, QueueFacts, Task, Work, due, queue_facts
from coordinator.heads import Heads
from coordinator.housekeeper import LEASE_LOOKS, LEASE_THREAD, RENEW_MOST_S, Housekeeper, TaskReport, lease_key
from coordinator.leadership import StoreLife
from coordinator.settings import Settings, load_settings
from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt, Unavailable
from partq_spark.log import admin
from partq_spark.log.model import QueueConfig
from partq_spark.log.sizes import LogSizes
from partq_spark.objects.memory import MemoryStore
from tests.log.queues import World, send, values
from tests.support.ownership import OwnershipServer
from tests.support.waiting import wait_until

S = 1_000_000
SETTINGS = Settings(collection_grace_s=86_400.0, compaction_min_age_s=300.0)
NOW_US = 1_795_000_000 * S
FACTS = QueueFacts(queue_id="q1", sequence=7, retention_s=60.0, oldest_us=NOW_US - 90 * S, chunks_us=None)


def works(
    facts: QueueFacts, done: dict[Work, Done] | None = None, *, settings: Settings = SETTINGS, now_s: float = 1000.0
) -> list[Work]:
    """What is due for one queue."""
    tasks = {Task("orders", facts.queue_id, work): each for work, each in (done or {}).items()}
    return [task.work for task in due({"orders": facts}, tasks, settings, now_s=now_s, now_us=NOW_US)]


def ended(ago_s: float, empty_at: int | None = None) -> Done:
    return Done(at_s=1000.0 - ago_s, at_us=NOW_US - int(ago_s * S), empty_at=empty_at)


# --- deciding ---------------------------------------------------------------------------------------------------------


def test_a_queue_without_retention_keeps_everything() -> None:
    assert works(replace(FACTS, retention_s=None)) == [Work.COLLECT]


def test_nothing_is_trimmed_before_the_oldest_message_is_old_enough() -> None:
    assert Work.RETAIN in works(FACTS)
    assert Work.RETAIN not in works(replace(FACTS, oldest_us=NOW_US - 59 * S))
    assert Work.RETAIN not in works(replace(FACTS, oldest_us=None)), "nothing can be read"


@pytest.mark.parametrize(
    ("retention_s", "interval_s"), [(0.0, 5), (1.0, 5), (60.0, 15), (240.0, 60), (7 * 86_400.0, 60)]
)
def test_trimming_comes_four_times_in_a_retention_within_limits(retention_s: float, interval_s: float) -> None:
    facts = replace(FACTS, retention_s=retention_s, oldest_us=0)
    assert Work.RETAIN not in works(facts, {Work.RETAIN: ended(interval_s - 0.1)})
    assert Work.RETAIN in works(facts, {Work.RETAIN: ended(interval_s)})


@pytest.mark.parametrize(("grace_s", "interval_s"), [(1.0, 30), (60.0, 30), (86_400.0, 21_600)])
def test_collection_comes_four_times_in_a_grace(grace_s: float, interval_s: float) -> None:
    settings = structs.replace(SETTINGS, collection_grace_s=grace_s)
    assert Work.COLLECT not in works(FACTS, {Work.COLLECT: ended(interval_s - 0.1)}, settings=settings)
    assert Work.COLLECT in works(FACTS, {Work.COLLECT: ended(interval_s)}, settings=settings)


def test_compaction_waits_for_chunks_that_are_old_enough() -> None:
    assert Work.COMPACT not in works(FACTS), "no chunk"
    young, old = NOW_US - 299 * S, NOW_US - 300 * S
    assert Work.COMPACT not in works(replace(FACTS, chunks_us=(young, young)))
    assert Work.COMPACT in works(replace(FACTS, chunks_us=(old, young)))
    assert Work.COMPACT not in works(replace(FACTS, chunks_us=(old, young)), {Work.COMPACT: ended(29.9)})
    assert Work.COMPACT in works(replace(FACTS, chunks_us=(old, young)), {Work.COMPACT: ended(30)})


def test_a_head_that_had_nothing_to_compact_is_not_looked_through_again() -> None:
    old = replace(FACTS, chunks_us=(NOW_US - 999 * S, NOW_US - 500 * S))
    assert Work.COMPACT not in works(old, {Work.COMPACT: ended(40, empty_at=7)})
    assert Work.COMPACT in works(replace(old, sequence=8), {Work.COMPACT: ended(40, empty_at=7)}), "it has changed"
    grown = replace(FACTS, chunks_us=(NOW_US - 999 * S, NOW_US - 310 * S))
    assert Work.COMPACT in works(grown, {Work.COMPACT: ended(40, empty_at=7)}), "more of it is old enough now"


def test_a_compaction_that_did_something_is_due_again_at_once() -> None:
    old = replace(FACTS, chunks_us=(NOW_US - 999 * S, NOW_US - 500 * S))
    assert works(old, {Work.COMPACT: replace(ended(0), more=True), Work.COLLECT: ended(0), Work.RETAIN: ended(20)}) == [
        Work.RETAIN,
        Work.COMPACT,
    ], "after what waits longer"
    assert Work.COLLECT not in works(old, {Work.COLLECT: replace(ended(0), more=True)}), "it takes all there is"


def test_a_queue_made_again_under_its_name_begins_anew() -> None:
    done = {Work.COLLECT: ended(1)}
    tasks = {Task("orders", "former", work): each for work, each in done.items()}
    assert Task("orders", "q1", Work.COLLECT) in due({"orders": FACTS}, tasks, SETTINGS, now_s=1000.0, now_us=NOW_US)


def test_what_waits_longest_comes_first() -> None:
    quiet = replace(FACTS, retention_s=None)
    queues = {"a": quiet, "b": quiet, "c": quiet}
    done = {Task("a", "q1", Work.COLLECT): ended(90_000), Task("b", "q1", Work.COLLECT): ended(95_000)}
    assert [task.queue for task in due(queues, done, SETTINGS, now_s=1000.0, now_us=NOW_US)] == ["c", "b", "a"]


def test_the_facts_of_a_head() -> None:
    store = MemoryStore(clock=lambda: 0.0, rng=random.Random(7))
    queue = admin.create_queue(store, "default", "orders", 2, QueueConfig(retention_s=60.0))
    facts = queue_facts(queue.head)
    assert facts == QueueFacts(
        queue_id=queue.head.queue_id, sequence=1, retention_s=60.0, oldest_us=None, chunks_us=None
    )


@pytest.mark.parametrize("publishes", [1, 8])
def test_a_head_that_was_led_a_year_ahead_once_is_kept_house_for_as_others(publishes: int) -> None:
    world = World()
    world.sizes = LogSizes(inline_entries=4)
    queue = world.create(1, config=QueueConfig(retention_s=3600.0))
    world.clock.now_us += (year_us := 365 * 24 * 3600 * S)
    for number in range(publishes):
        send(queue, values(number))
    world.clock.now_us -= year_us
    for number in range(8):
        send(queue, values(number))
    facts = queue_facts(queue.refresh())
    now_us = world.clock.now_us + 2 * 3600 * S
    found = due({"orders": facts}, {}, SETTINGS, now_s=1000.0, now_us=now_us)
    assert {task.work for task in found} == {Work.RETAIN, Work.COMPACT, Work.COLLECT}


# --- doing ------------------------------------------------------------------------------------------------------------


class House:
    """Queues in memory, an ownership store, and housekeepers whose steps are told apart and may fail."""

    def __init__(self, *queues: str) -> None:
        self.now_s = 1000.0
        self.objects = MemoryStore(clock=lambda: self.now_s, rng=random.Random(7))
        self.server = OwnershipServer(now_s=lambda: self.now_s)
        self.log: list[tuple[str, str | None]] = []
        self.reasons: list[object] = []
        self.heads = Heads(self.objects, "default")
        for name in queues:
            admin.create_queue(self.objects, "default", name, 1)
            self.heads.look(name)

    def settings(self, name: str) -> Settings:
        environ = {"HOME": "/home/someone", "PARTQ_OWNERSHIP": "store", "PARTQ_COORDINATOR_NAME": name}
        return load_settings(None, {**environ, "PARTQ_COORDINATOR_HOUSEKEEPING_LOOK_S": "1"})

    def _say(self, level: str, event: str, /, **facts: object) -> None:
        self.log.append((event, str(facts["queue"]) if "queue" in facts else None))
        self.reasons.append(facts.get("reason"))

    def keeper(self, name: str, do: Callable[[Task], TaskReport]) -> Housekeeper:
        ownership = self.server.open()
        return Housekeeper(
            self.settings(name),
            store=self.objects,
            ownership=ownership,
            life=StoreLife(ownership),
            heads=self.heads,
            effects=Effects(now_s=lambda: self.now_s, time_us=lambda: int(self.now_s * S)),
            log=self._say,
            do=do,
            renewal_s=0.01,
        )

    def has_beaten(self, since: int) -> bool:
        return self.beats() > since

    def beats(self) -> int:
        """How often the lease was renewed."""
        document = self.server.open().read_lease(lease_key("default"))
        return document.lease.beat if document is not None else 0


def look(keeper: Housekeeper) -> None:
    """One step after the other, until nothing is due."""
    for _ in range(100):
        if keeper.step() > 0.0:
            return
    raise AssertionError("there is always something to do")


def nothing(_: Task) -> TaskReport:
    return TaskReport(event=None, facts={}, empty=True)


def test_a_queue_that_fails_is_told_once_and_stops_no_other() -> None:
    house = House("bad", "good")
    done: list[str] = []

    def do(task: Task) -> TaskReport:
        if task.queue == "bad" and house.now_s < 80_000:
            raise Corrupt("its log is damaged (test)")
        done.append(task.queue)
        return nothing(task)

    keeper = house.keeper("a", do)
    for _ in range(4):
        look(keeper)
        house.now_s += 21_600
    assert done == ["good", "good", "good", "good"]
    assert [each for each in house.log if each[1]] == [("housekeeping_failed", "bad")]
    look(keeper)
    assert done[-2:] == ["bad", "good"]
    assert house.log[-1] == ("housekeeping_recovered", "bad")


def test_a_mistake_in_a_step_ends_nothing() -> None:
    house = House("orders")
    keeper = house.keeper("a", lambda task: TaskReport(event="done", facts={"oops": str(1 // 0)}))
    look(keeper)
    assert ("housekeeping_failed", "orders") in house.log


def test_only_one_of_two_is_the_housekeeper_and_the_other_follows_when_it_is_silent() -> None:
    house = House("orders")
    done: list[str] = []

    def by(name: str) -> Callable[[Task], TaskReport]:
        def do(task: Task) -> TaskReport:
            done.append(name)
            return nothing(task)

        return do

    first, second = house.keeper("first", by("first")), house.keeper("second", by("second"))
    look(first)
    look(second)
    assert (first.leading, second.leading) == (True, False)
    for _ in range(LEASE_LOOKS * 3):  # both live
        house.now_s += 1
        look(first)
        look(second)
    assert done == ["first"]
    for _ in range(LEASE_LOOKS + 1):  # the first was killed
        house.now_s += 1
        look(second)
    assert second.leading
    assert done == ["first", "second"], "it knows nothing of what the first did, and looks at once"
    look(first)  # it was only asleep
    assert not first.leading
    assert ("housekeeping_lease_lost", None) in house.log


def test_a_step_does_one_thing_and_says_that_more_is_due() -> None:
    house = House("a", "b", "c")
    done: list[str] = []

    def do(task: Task) -> TaskReport:
        done.append(task.queue)
        return nothing(task)

    keeper = house.keeper("a", do)
    house.now_s += 1
    waits = [keeper.step() for _ in range(5)]
    assert done == ["a", "b", "c"]
    assert waits == [0.0, 0.0, 0.0, 0.0, 1.0], "the sweep is a step, too"


def test_queues_are_looked_through_once_for_all_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(*"abcde")
    looks: list[float] = []
    facts = house.heads.facts()

    def look_through() -> dict[str, QueueFacts]:
        looks.append(house.now_s)
        return facts

    monkeypatch.setattr(house.heads, "facts", look_through)
    done: list[str] = []

    def do(task: Task) -> TaskReport:
        house.now_s += 0.3
        done.append(task.queue)
        return nothing(task)

    look(house.keeper("a", do))
    assert done == [*"abcde"]
    assert looks == pytest.approx([1000.0, 1001.2, 1001.5]), "again after the time of a look, and when all is done"


def test_an_ownership_store_that_does_not_answer_ends_a_step_and_the_next_goes_on() -> None:
    house = House("orders")
    done: list[str] = []

    def do(task: Task) -> TaskReport:
        done.append(task.queue)
        return nothing(task)

    keeper = house.keeper("a", do)
    away = True

    def renew(verb: str) -> None:
        if away:
            raise Unavailable("it does not answer (test)")

    house.server.before = renew
    for _ in range(3):
        with pytest.raises(Unavailable, match="it does not answer"):
            keeper.step()
    assert done == []
    away = False
    look(keeper)
    assert done == ["orders"], "at once"


def test_a_queue_with_much_to_compact_is_compacted_without_a_pause_and_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    house = House("large", "small")
    chunks = (int((house.now_s - 999) * S), int((house.now_s - 500) * S))
    facts = {name: replace(each, chunks_us=chunks) for name, each in house.heads.facts().items()}
    monkeypatch.setattr(house.heads, "facts", lambda: facts)
    left = {"large": 4, "small": 1}
    done: list[str] = []

    def do(task: Task) -> TaskReport:
        if task.work is not Work.COMPACT:
            return nothing(task)
        house.now_s += 0.001
        done.append(task.queue)
        left[task.queue] -= 1
        return TaskReport(event=None, facts={}, empty=left[task.queue] < 0)

    keeper = house.keeper("a", do)
    look(keeper)
    assert done == ["large", "small", "large", "small", "large", "large", "large"], "one after the other"
    look(keeper)
    assert len(done) == 7, "and not when there is nothing left"


def test_the_sweep_has_its_turn_beside_endless_work(monkeypatch: pytest.MonkeyPatch) -> None:
    house = House("large")
    chunks = (int((house.now_s - 999) * S), int((house.now_s - 500) * S))
    facts = {name: replace(each, chunks_us=chunks) for name, each in house.heads.facts().items()}
    monkeypatch.setattr(house.heads, "facts", lambda: facts)
    swept: list[float] = []

    def sweep(older_than_s: float) -> int:
        swept.append(house.now_s)
        return 0

    monkeypatch.setattr(house.objects, "sweep_temporary", sweep)

    def do(task: Task) -> TaskReport:
        house.now_s += 0.01
        return TaskReport(event=None, facts={})

    keeper = house.keeper("a", do)
    waits = [keeper.step() for _ in range(150)]
    assert set(waits) == {0.0}
    assert swept == [pytest.approx(1001.0, abs=0.05)], "after the time of a look"


@pytest.mark.parametrize("hangs", [False, True])
def test_a_step_that_takes_long_keeps_the_lease_for_a_bounded_time(hangs: bool) -> None:
    house = House("orders")
    done: list[str] = []

    def renewing() -> bool:
        return any(each.name == LEASE_THREAD for each in threading.enumerate())

    def quick(task: Task) -> TaskReport:
        done.append("second")
        return nothing(task)

    def long(task: Task) -> TaskReport:
        done.append("first")
        if hangs:
            house.now_s += RENEW_MOST_S
            wait_until(lambda: not renewing(), "the end of the renewals")
        for _ in range(LEASE_LOOKS * 3):
            seen = house.beats()
            house.now_s += 1
            if not hangs:
                wait_until(partial(house.has_beaten, seen), "a renewal beside the step")
            look(second)
        return nothing(task)

    first, second = house.keeper("first", long), house.keeper("second", quick)
    look(first)
    assert ("housekeeping_failed", "orders") not in house.log, house.reasons
    assert done == (["first", "second"] if hangs else ["first"])
    assert not renewing()
    look(first)
    assert first.leading is not hangs
