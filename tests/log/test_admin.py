"""Making, listing and deleting queues, and making groups: each once, whatever is lost and others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest

from partq_spark.base.errors import Corrupt, Invalid, Unavailable
from partq_spark.log import admin
from partq_spark.log.groups import remove_group
from partq_spark.log.model import Group, QueueConfig
from partq_spark.log.queue import QueueLog
from tests.log.queues import World, document_of, head_of, lost, read_flat, send, values
from tests.support.way import Hooked

# --- creating ---------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_once(world: World) -> None:
    queue = world.create(4)
    send(queue, values(1))
    before = head_of(world.store)
    with pytest.raises(Invalid, match=r"'orders' .* exists already with 4 partitions: choose another name"):
        world.create(4)
    with pytest.raises(Invalid, match="exists already"):
        world.create(4, name="ORDERS")  # names are lower-cased
    assert head_of(world.store) == before


def test_of_two_who_create_one_queue_one_wins(world: World) -> None:
    hooked = world.hooked("before", "swap", lambda: world.create(7))
    with pytest.raises(Invalid, match="exists already with 7 partitions"):
        admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert head_of(world.store).partitions == 7


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_creation_or_deletion_whose_request_or_answer_is_lost_is_made_once(
    world: World, when: Literal["before", "after"]
) -> None:
    hooked = world.hooked(when, "swap", lost)
    queue = admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert queue.head == head_of(world.store)
    assert sum(kind == "swap" for kind, _ in hooked.calls) == (1 if when == "after" else 2)
    send(world.handle(), values(1))
    admin.delete_queue(world.meeting(when, "remove", lost))
    assert list(world.store.list("")) == []


def test_each_attempt_of_a_creation_has_an_id_of_its_own(world: World) -> None:
    # Else one that lands late, after the queue was deleted, would bring back a queue that others know as gone.
    hooked = Hooked(world.store)
    sent: list[bytes] = []
    swap = hooked.store.swap

    def record(name: str, content: Any, *, expected: str | None) -> str:
        sent.append(content)
        if len(sent) < 3:
            lost()
        return swap(name, content, expected=expected)

    hooked.swap = record  # type: ignore[method-assign]
    queue = admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert len({content[content.index(b"queue_id") :][:40] for content in sent}) == 3
    assert queue.head == head_of(world.store)


def test_creating_ends_within_the_time_out(world: World) -> None:
    hooked = Hooked(world.store)
    hooked.before = lambda kind, name: lost() if kind == "swap" else None
    with pytest.raises(Unavailable):
        admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects(), retry_timeout_s=10)


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
def test_settings_are_taken_up_to_the_ends_of_their_ranges(
    world: World, setting: str, allowed: list[Any], refused: list[Any]
) -> None:
    queue = world.create(3)
    for value in allowed:
        head = admin.alter_queue(queue, **{setting: value})
        found = str(head.partitions) if setting == "partitions" else getattr(head.config, setting)
        assert found == (value if setting != "partitions" else str(value).strip())
    before = head_of(world.store)
    name = setting.removesuffix("_s").replace("_", "-")
    for value in refused:
        with pytest.raises(Invalid, match=f"{name}=.* is not allowed: give"):
            admin.alter_queue(queue, **{"rebalance_delay_s": 1.0, setting: value})
        made = (value, QueueConfig()) if setting == "partitions" else (1, replace(QueueConfig(), **{setting: value}))
        with pytest.raises(Invalid, match=f"{name}=.* is not allowed: give"):
            world.create(made[0], "other", made[1])
    assert head_of(world.store) == before
    assert [*admin.list_queues(world.store, "default").readable] == ["orders"]


@pytest.mark.parametrize("name", ["", ".hidden", "-a", "_a", "a/b", "../a", "a b", "a" * 64, "größe", "a\n", "a\x00"])
def test_names_that_no_queue_namespace_or_group_can_have_are_refused(world: World, name: str) -> None:
    queue = world.create(1)
    with pytest.raises(Invalid, match=r"queue name .* is not allowed"):
        world.create(name=name)
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        QueueLog(world.store, name, "orders")
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        admin.list_queues(world.store, name)
    with pytest.raises(Invalid, match=r"group name .* is not allowed"):
        admin.create_group(queue, name, (0,))
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


def test_a_deleted_queue_leaves_nothing(world: World) -> None:
    queue, other = world.create(), world.create(name="orders-2")
    for number in range(5):
        send(queue, values(number))
        send(other, values(number))
    everything = {item.name for item in world.store.list("default/orders/")}
    assert admin.delete_queue(queue) == len(everything) == 6
    assert list(world.store.list("default/orders/")) == []
    assert len(read_flat(other)) == 5
    with pytest.raises(Invalid, match="does not exist"):
        admin.delete_queue(world.handle())


def test_a_deletion_does_not_take_a_queue_created_meanwhile(world: World) -> None:
    send(world.create(), values(1))

    def recreate() -> None:
        admin.delete_queue(world.handle())
        send(world.create(9), values(2))
        lost()

    admin.delete_queue(world.meeting("before", "remove", recreate))
    assert head_of(world.store).partitions == 9
    assert read_flat(world.handle()) == [b"2"]


@pytest.mark.parametrize("meanwhile", [False, True])
def test_remains_of_a_deletion_that_was_cut_off_are_removed_later_and_of_no_later_queue(
    world: World, meanwhile: bool
) -> None:
    """Also of none that is created `meanwhile`."""
    queue = world.create()
    send(queue, values(1))
    queue.swap(None)

    def again() -> None:
        send(world.create(), values(2))

    if not meanwhile:
        again()
    assert admin.remove_remains(world.meeting("before", "load", again) if meanwhile else world.handle()) == 1
    assert admin.remove_remains(world.handle()) == 0
    assert read_flat(world.handle()) == [b"2"]


def test_what_cannot_be_deleted_keeps_nothing_else(world: World) -> None:
    queue = world.create()
    for number in range(3):
        send(queue, values(number))
    folder = f"default/orders/_segments/{queue.head.queue_id}/"
    first = next(world.store.list(folder)).name
    hooked = Hooked(world.store)

    def refuse(kind: str, name: str) -> None:
        if kind == "delete" and name == first:
            raise Invalid(f"deleting {name} is not allowed")

    hooked.before = refuse
    with pytest.raises(Invalid, match=f"{first} is not allowed"):
        admin.delete_queue(world.handle(store=hooked))
    assert [item.name for item in world.store.list("")] == [first]
    assert admin.remove_remains(world.handle()) == 1


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
    made = admin.create_group(queue, "Billing", (0, 3))
    assert made == Group(since_sequence=2, start=(0, 3))
    assert admin.create_group(world.handle(), "billing", (9, 9)) == made
    assert dict(head_of(world.store).groups) == {"billing": made}


def test_a_group_needs_one_offset_for_every_partition_and_is_named_by_those_that_are_there(world: World) -> None:
    queue = world.create(4)
    with pytest.raises(Invalid, match=r"was given 3 starting offsets, .* has 4 partitions"):
        admin.create_group(queue, "billing", (0, 0, 0))
    with pytest.raises(Invalid, match=r"has no group 'biling' \(its groups: none yet\)"):
        admin.count_rewind(queue, "biling")
    admin.create_group(queue, "billing", (0, 0, 0, 0))
    with pytest.raises(Invalid, match=r"\(its groups: billing\)"):
        admin.count_rewind(queue, "biling")


def test_groups_make_a_head_only_so_large_and_the_refusal_says_what_to_do(world: World) -> None:
    """1,000 groups of 100 partitions made every publish read and write 0.7 MB."""
    queue = world.create(100)
    start = [9_999_999] * 100
    queue.change(lambda head: replace(head, next=tuple(start), sequence=head.sequence + 1))
    made = 0

    def many() -> None:
        nonlocal made
        for made in range(1000):
            admin.create_group(queue, f"group-{made:04}", start)

    with pytest.raises(Invalid) as refused:
        many()
    assert 250 < made < 1000
    assert len(document_of(world.store, "default/orders/_head.json")) < 300_000
    said = str(refused.value)
    assert f"group 'group-{made:04}' would be number {made + 1} of queue 'orders'" in said
    assert "at most 262144 are allowed" in said
    assert "`partq group remove orders --group G --yes`" in said
    assert admin.create_group(queue, "group-0000", start) == queue.head.groups["group-0000"], "an existing one is found"
    remove_group(queue, "group-0001", queue.head.groups["group-0001"])
    admin.create_group(queue, f"group-{made:04}", start)
