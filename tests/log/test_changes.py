"""Every change of a queue's head: made once whatever is lost, beside what others change meanwhile, and never to another
queue of the name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from partq_spark.base.errors import Conflict, Invalid, Unavailable
from partq_spark.log import admin, groups
from partq_spark.log.admin import subscribe, unsubscribe
from partq_spark.log.housekeeping import GroupPositions, trim
from partq_spark.log.model import Head
from partq_spark.log.queue import QueueLog
from tests.log import typed
from tests.log.queues import World, head_of, lost
from tests.support.way import Hooked

pytestmark = [pytest.mark.conformance("DIS-09"), pytest.mark.conformance("RES-05")]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What two people, `mine` and `theirs`, may do to a queue, and whether a head shows that one of them did."""

    do: Callable[[QueueLog, str], object]
    seen: Callable[[Head, str], bool]


def configure(queue: QueueLog, who: str) -> object:
    setting: dict[str, Any] = {"rebalance_delay_s": 1.0} if who == "mine" else {"max_handoff_time_s": 9.0}
    return admin.alter_queue(queue, **setting).partitions


def configured(head: Head, who: str) -> bool:
    return (head.config.rebalance_delay_s == 1.0) if who == "mine" else (head.config.max_handoff_time_s == 9.0)


CHANGES: dict[str, Change] = {
    "settings": Change(do=configure, seen=configured),
    "partitions": Change(
        do=lambda queue, who: admin.alter_queue(queue, partitions=8 if who == "mine" else 3).partitions,
        seen=lambda head, who: head.partitions == (8 if who == "mine" else 3) or head.layout.generation == 2,
    ),
    "columns": Change(
        do=lambda queue, who: admin.alter_queue(queue, add_columns=f"{who} INT").columns is not None,
        seen=lambda head, who: head.columns is not None and head.columns.column(who) is not None,
    ),
    "subscribe": Change(do=subscribe, seen=lambda head, who: who in head.subscriptions),
    "unsubscribe": Change(
        do=lambda queue, who: unsubscribe(queue, f"no/{who}"),
        seen=lambda head, who: f"no/{who}" not in head.subscriptions,
    ),
    "group": Change(
        do=lambda queue, who: groups.create_group(queue, who, queue.head.next).rewinds,
        seen=lambda head, who: who in head.groups,
    ),
    "rewind": Change(
        do=lambda queue, who: groups.count_rewind(queue, "billing").rewinds > 0,
        seen=lambda head, who: head.groups["billing"].rewinds > 0,
    ),
    "trim": Change(
        do=lambda queue, who: trim(queue, queue.head.next, positions(queue)).earliest != (),
        # What came to be needed again by a rewind stays.
        seen=lambda head, who: max(head.earliest) > 0 or head.groups["billing"].rewinds > 0,
    ),
}


def positions(queue: QueueLog) -> dict[str, GroupPositions]:
    """The group has read all there is, as its checkpoints said before anything else happened."""
    group = queue.head.groups["billing"]
    done = dict(enumerate(queue.head.next))
    return {"billing": GroupPositions(since_sequence=group.since_sequence, rewinds=group.rewinds, offsets=done)}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> Change:
    return CHANGES[request.param]


@pytest.fixture
def queue(world: World) -> QueueLog:
    """With everything that can be changed; its group has read all there is."""
    return prepared(world)


def prepared(world: World) -> QueueLog:
    made = typed.create(world, "id INT, n INT", partitions=2)
    typed.send(made, [{"id": number} for number in range(9)])
    subscribe(made, "no/mine", "no/theirs")
    groups.create_group(made, "billing", made.head.next)
    return made


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_change_whose_request_or_answer_is_lost_is_made_once(
    world: World, queue: QueueLog, change: Change, when: Literal["before", "after"]
) -> None:
    before = queue.refresh()
    done = change.do(world.meeting(when, "swap", lost), "mine")
    head = head_of(world.store)
    assert change.seen(head, "mine")
    assert head.sequence == before.sequence + 1 or change is CHANGES["rewind"], "counting once too often does no harm"
    assert done == change.do(prepared(other := World()), "mine")
    assert head_of(other.store).next == head.next


@pytest.mark.parametrize("meanwhile", CHANGES.values(), ids=CHANGES)
def test_a_change_keeps_what_another_changes(world: World, queue: QueueLog, change: Change, meanwhile: Change) -> None:
    change.do(world.meeting("before", "swap", lambda: meanwhile.do(world.handle(), "theirs")), "mine")
    head = head_of(world.store)
    assert change.seen(head, "mine")
    assert meanwhile.seen(head, "theirs")
    if change is meanwhile is CHANGES["rewind"]:
        assert head.groups["billing"].rewinds == 2
    if (change, meanwhile) == (CHANGES["trim"], CHANGES["rewind"]):
        assert max(head.earliest) == 0, "what is to come again stays"
    assert head.messages == sum(head.next) - sum(head.earliest) == len(typed.read_flat(queue))


def test_what_is_so_already_is_not_written(world: World, queue: QueueLog, change: Change) -> None:
    """But a rewind counts each time, and a column that is there already is refused by its name."""
    change.do(queue, "mine")
    hooked, before = Hooked(world.store), head_of(world.store)
    if change is CHANGES["columns"]:
        with pytest.raises(Invalid, match="mine"):
            change.do(world.handle(store=hooked), "mine")
    else:
        change.do(world.handle(store=hooked), "mine")
    counts = change is CHANGES["rewind"]
    assert [kind for kind, _ in hooked.calls].count("swap") == (1 if counts else 0)
    assert (head_of(world.store) != before) == counts


@pytest.mark.parametrize("during", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_another_queue_is_not_changed(world: World, queue: QueueLog, change: Change, during: bool, again: bool) -> None:
    def replaced() -> None:
        admin.delete_queue(world.handle())
        if again:
            prepared(world)

    late = world.meeting("before", "swap", replaced) if during else world.handle()
    late.refresh()
    if not during:
        replaced()
    with pytest.raises(Invalid, match="deleted and created again" if again else "has been deleted: create it with"):
        change.do(late, "mine")
    left = world.handle().look()
    assert (left is not None) == again
    assert left is None or (left.sequence, left.messages) == (queue.head.sequence, queue.head.messages)


def test_a_queue_that_is_not_there_is_refused_with_the_next_step(world: World, change: Change) -> None:
    with pytest.raises(Invalid, match=r"'orders' .* does not exist: create it with `partq queue create orders"):
        change.do(world.handle(), "mine")


@pytest.mark.parametrize("busy", [False, True], ids=["away", "others are faster"])
@pytest.mark.parametrize("retry_timeout_s", [20.0, 0.0])
def test_a_store_that_gives_no_answer_is_given_up_within_the_time(
    world: World, queue: QueueLog, change: Change, busy: bool, retry_timeout_s: float
) -> None:
    """That others are faster is how a busy queue works: it is tried again for a while in any case."""
    hooked = Hooked(world.store)
    begin_us = world.clock.now_us

    def refuse(kind: str, name: str) -> None:
        if kind == "swap":
            raise Conflict("somebody was faster (test)") if busy else Unavailable("no answer (test)")

    hooked.before = refuse
    with pytest.raises((Unavailable, Conflict), match=r"\(test\)"):
        change.do(world.handle(store=hooked, retry_timeout_s=retry_timeout_s), "mine")
    least_s = max(retry_timeout_s, 10 * busy)
    assert least_s <= (world.clock.now_us - begin_us) / 1e6 <= 1.3 * least_s
    assert world.clock.pauses < 40, "they grow"
    assert head_of(world.store) == queue.refresh()
    assert not change.seen(queue.head, "mine")
