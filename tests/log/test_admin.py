"""Making, listing and deleting queues, and making groups: each once, whatever is lost and others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, NoReturn

import pytest

from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.log import admin, groups
from partq_spark.log.admin import Namespace
from partq_spark.log.groups import remove_group
from partq_spark.log.model import Group
from partq_spark.log.queue import QueueLog
from partq_spark.log.settings import QueueConfig
from tests.log.queues import World, document_of, head_of, lost, read_flat, send, values
from tests.support.way import Hooked

# --- creating ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meanwhile", [False, True])
def test_of_all_who_create_a_queue_the_first_wins(world: World, meanwhile: bool) -> None:
    """Whatever its letters: names are lower-cased."""
    store = world.hooked("before", "swap", lambda: world.create(7)) if meanwhile else world.create(7).store
    with pytest.raises(Invalid, match=r"'orders' .* exists already with 7 partitions: choose another name"):
        admin.create_queue(store, "default", "ORDERS", 3, None, world.clock.effects())
    assert head_of(world.store).partitions == 7


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creation_or_deletion_of_lost_calls_is_made_once(world: World, when: Literal["before", "after"]) -> None:
    hooked = world.hooked(when, "swap", lost)
    queue = admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert queue.head == head_of(world.store)
    assert sum(kind == "swap" for kind, _ in hooked.calls) == (1 if when == "after" else 2)
    send(world.handle(), values(1))
    admin.delete_queue(world.meeting(when, "remove", lost))
    assert list(world.store.list("")) == []


def test_the_attempts_of_a_creation_have_ids_of_their_own_and_an_end(world: World) -> None:
    # Else one that lands late, after the queue was deleted, would bring back a queue that others know as gone.
    hooked = Hooked(world.store)
    ids: list[bytes] = []

    def record(name: str, content: Any, *, expected: str | None) -> NoReturn:
        ids.append(content[content.index(b"queue_id") :][:40])
        lost()

    hooked.swap = record  # type: ignore[method-assign] # a hook is told no contents
    with pytest.raises(Unavailable):
        admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects(), retry_timeout_s=10)
    assert len({*ids}) == len(ids) > 2


# --- what is not allowed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "allowed", "refused"),
    [
        ("partitions", [1, 1000, "8", " 16 "], [0, 1001, -1, 2.5, "x", "", "٣", "1e2", True, "9" * 5000]),
        ("rebalance_delay_s", [0.0, 604_800.0], [-0.1, 604_800.1, float("nan")]),
        ("max_handoff_time_s", [0.0, 604_800.0], [-1, float("inf")]),
        ("access_type", ["exclusive", "non-exclusive"], ["shared", "Exclusive", "exclusive\n"]),
        ("max_message_bytes", [1, 1_000_000_000], [0, 1_000_000_001]),
        ("retention_s", [1.0, None], [0.5, float("nan")]),
        ("quota_bytes", [1, 2**60, None], [0, 2**60 + 1]),
    ],
)
def test_settings_are_taken_to_their_limits(world: World, setting: str, allowed: list[Any], refused: list[Any]) -> None:
    queue = world.create(3)
    for value in allowed:
        head = admin.alter_queue(queue, **{setting: value})
        found = getattr(head if setting == "partitions" else head.config, setting)
        assert found == (int(value) if setting == "partitions" else value)
    before = head_of(world.store)
    said = f"{setting.removesuffix('_s').replace('_', '-')}=.* is not allowed: give"
    for value in refused:
        with pytest.raises(Invalid, match=said):
            admin.alter_queue(queue, **{"rebalance_delay_s": 1.0, setting: value})
        made = (value, QueueConfig()) if setting == "partitions" else (1, replace(QueueConfig(), **{setting: value}))
        with pytest.raises(Invalid, match=said):
            world.create(made[0], "other", made[1])
    assert head_of(world.store) == before
    assert [queue.name for queue in Namespace(world.store, "default").queues()] == ["orders"]


@pytest.mark.parametrize("name", ["", ".hidden", "-a", "_a", "a/b", "../a", "a b", "a" * 64, "größe", "a\n", "a\x00"])
def test_names_that_no_queue_namespace_or_group_can_have_are_refused(world: World, name: str) -> None:
    queue = world.create(1)
    with pytest.raises(Invalid, match=r"queue name .* is not allowed"):
        world.create(name=name)
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        QueueLog(world.store, name, "orders")
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        Namespace(world.store, name)
    with pytest.raises(Invalid, match=r"group name .* is not allowed"):
        groups.create_group(queue, name, (0,))
    for good in ("a", "0", "a" * 63, "orders.eu_west-1", "ORDERS-2"):
        assert world.create(name=good).name == good.lower()


@pytest.mark.conformance("OBS-06")
@pytest.mark.parametrize("value", [1e9, True, -1, 2**63, "1", [1]])
def test_a_head_that_nobody_could_read_is_not_written(world: World, value: Any) -> None:
    queue = world.create()
    before = document_of(world.store, queue.head_name)
    with pytest.raises(
        Invalid, match=r"the head that this makes .* - at `\$\.config\.quota_bytes`.*: nothing was written"
    ):
        queue.change(lambda head: replace(head, config=replace(head.config, quota_bytes=value)))
    assert document_of(world.store, queue.head_name) == before
    world.handle().refresh()


# --- listing and deleting ---------------------------------------------------------------------------------------------


def test_a_deleted_queue_leaves_nothing_but_what_cannot_be_deleted_yet(world: World) -> None:
    queue, other = world.create(), world.create(name="orders-2")
    for number in range(3):
        send(queue, values(number))
        send(other, values(number))
    first = next(world.store.list(queue.segment_folder)).name
    hooked = Hooked(world.store)

    def refuse(kind: str, name: str) -> None:
        if kind == "delete" and name == first:
            raise Invalid(f"deleting {name} is not allowed")

    hooked.before = refuse
    with pytest.raises(Invalid, match=f"{first} is not allowed"):
        admin.delete_queue(world.handle(store=hooked))
    assert [item.name for item in world.store.list("default/orders/")] == [first]
    with pytest.raises(Invalid, match="does not exist"):
        admin.delete_queue(world.handle())
    assert admin.remove_remains(world.handle()) == 1
    assert list(world.store.list("default/orders/")) == []
    assert len(read_flat(other)) == 3


def test_a_deletion_does_not_take_a_queue_created_meanwhile(world: World) -> None:
    send(world.create(), values(1))

    def recreate() -> None:
        admin.delete_queue(world.handle())
        send(world.create(9), values(2))
        lost()

    admin.delete_queue(world.meeting("before", "remove", recreate))
    assert head_of(world.store).partitions == 9
    assert read_flat(world.handle()) == [b"2"]


def test_remains_of_a_cut_off_deletion_are_removed_and_nothing_of_a_queue_created_meanwhile(world: World) -> None:
    queue = world.create()
    send(queue, values(1))
    queue.swap(None)
    late = world.meeting("before", "load", lambda: send(world.create(), values(2)))
    assert [admin.remove_remains(late), admin.remove_remains(world.handle())] == [1, 0]
    assert read_flat(world.handle()) == [b"2"]


def test_remains_are_not_removed_by_a_head_that_cannot_be_read(world: World) -> None:
    queue = world.numbered(1)
    world.store.delete(queue.head_name)
    world.store.swap(queue.head_name, b'{"damaged": 1}', expected=None)
    with pytest.raises(Corrupt):
        admin.remove_remains(world.handle())
    assert len(list(world.store.list(queue.segment_folder))) == 1


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_begins_where_the_first_to_create_it_said(world: World) -> None:
    queue = world.create(2)
    with pytest.raises(Invalid, match=r"was given 3 starting offsets, .* has 2 partitions"):
        groups.create_group(queue, "billing", (0, 0, 0))
    with pytest.raises(Invalid, match=r"has no group 'biling' \(its groups: none yet\)"):
        groups.count_rewind(queue, "biling")
    made = groups.create_group(queue, "Billing", (0, 3))
    assert made == Group(since_sequence=2, start=(0, 3))
    assert groups.create_group(world.handle(), "billing", (9, 9)) == made
    assert dict(head_of(world.store).groups) == {"billing": made}
    with pytest.raises(Invalid, match=r"\(its groups: billing\)"):
        groups.count_rewind(queue, "biling")


def test_groups_make_a_head_only_so_large_and_the_refusal_says_what_to_do(world: World) -> None:
    """1,000 groups of 100 partitions made every publish read and write 0.7 MB."""
    queue = world.create(100)
    start = [9_999_999] * 100
    queue.change(lambda head: replace(head, next=tuple(start), sequence=head.sequence + 1))
    said = r"at most 262144 are allowed.*`partq group remove orders --group G --yes`"
    with pytest.raises(Invalid, match=said) as full:
        [groups.create_group(queue, f"group-{number}", start) for number in range(1000)]
    made = queue.refresh().groups
    assert 250 < len(made) < 1000
    assert f"group 'group-{len(made)}' would be number {len(made) + 1} of queue 'orders'" in str(full.value)
    assert len(document_of(world.store, queue.head_name)) < 300_000
    assert groups.create_group(queue, "group-0", start) == made["group-0"], "an existing one is found"
    remove_group(queue, "group-1", made["group-1"])
    groups.create_group(queue, f"group-{len(made)}", start)
