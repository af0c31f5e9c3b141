"""Creating, changing, listing and deleting queues, and groups: each once, whatever is lost and others do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from partq_spark.base.errors import Conflict, Corrupt, Invalid, Unavailable
from partq_spark.log import admin
from partq_spark.log.groups import remove_group
from partq_spark.log.model import Group, QueueConfig
from partq_spark.log.queue import QueueLog
from tests.log.queues import World, document_of, head_of, once, read_flat, send, values
from tests.support.way import Hooked

HEAD = "_head.json"


def unavailable() -> None:
    raise Unavailable("the answer was lost (test)")


# --- creating ---------------------------------------------------------------------------------------------------------


def test_a_new_queue_is_empty_and_has_what_was_asked_for(world: World) -> None:
    config = QueueConfig(
        rebalance_delay_s=0, max_handoff_time_s=60.5, access_type="exclusive", max_message_bytes=1_000_000
    )
    queue = world.create(1000, config=config)
    head = head_of(world.store)
    assert (head.namespace, head.queue, head.partitions, head.sequence) == ("default", "orders", 1000, 1)
    assert (head.config, head.messages, head.entries, head.next) == (config, 0, (), (0,) * 1000)
    assert queue.head == head


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
    hooked = Hooked(world.store)
    hooked.before = once("swap", HEAD, lambda: world.create(7))
    with pytest.raises(Invalid, match="exists already with 7 partitions"):
        admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert head_of(world.store).partitions == 7


@pytest.mark.parametrize("landed", [True, False])
def test_a_creation_whose_answer_is_lost_is_created_once(world: World, landed: bool) -> None:
    hooked = Hooked(world.store)
    if landed:
        hooked.after = once("swap", HEAD, unavailable)
    else:
        hooked.before = once("swap", HEAD, unavailable)
    queue = admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert queue.head == head_of(world.store)
    assert sum(kind == "swap" for kind, _ in hooked.calls) == (1 if landed else 2)


def test_every_creation_has_an_id_of_its_own(world: World) -> None:
    ids = set()
    for _ in range(3):
        ids.add(world.create().head.queue_id)
        admin.delete_queue(world.handle())
    assert len(ids) == 3


def test_each_attempt_of_a_creation_has_an_id_of_its_own(world: World) -> None:
    # Else one that lands late, after the queue was deleted, would bring back a queue that others know as gone.
    hooked = Hooked(world.store)
    sent: list[bytes] = []
    swap = hooked.store.swap

    def record(name: str, content: Any, *, expected: str | None) -> str:
        sent.append(content)
        if len(sent) < 3:
            unavailable()
        return swap(name, content, expected=expected)

    hooked.swap = record  # type: ignore[method-assign]
    queue = admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects())
    assert len({content[content.index(b"queue_id") :][:40] for content in sent}) == 3
    assert queue.head == head_of(world.store)


def test_creating_ends_within_the_time_out(world: World) -> None:
    hooked = Hooked(world.store)

    def lose(kind: str, name: str) -> None:
        if kind == "swap":
            unavailable()

    hooked.before = lose
    with pytest.raises(Unavailable):
        admin.create_queue(hooked, "default", "orders", 3, None, world.clock.effects(), retry_timeout_s=10)


# --- what is not allowed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1001, -1, "x", "", "1.5", 4.0, None, "٣", "1e2", True, "9" * 5000])
def test_bad_partition_counts_are_refused(count: object) -> None:
    with pytest.raises(Invalid, match="whole number from 1 to 1000") as caught:
        admin.checked_partitions(count)
    assert repr(count) in str(caught.value)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (1000, 1000), ("8", 8), (" 16 ", 16)])
def test_good_partition_counts_are_taken(count: object, expected: int) -> None:
    assert admin.checked_partitions(count) == expected


@pytest.mark.parametrize("partitions", [0, 1001])
def test_no_queue_with_a_bad_count_is_created(world: World, partitions: int) -> None:
    with pytest.raises(Invalid, match=f"partitions={partitions} is not allowed"):
        world.create(partitions)
    assert list(world.store.list("")) == []


@pytest.mark.parametrize(
    "name", ["", ".hidden", "-a", "_a", "a/b", "../a", "a b", "a" * 64, "größe", "a\n", "a\x00", "客"]
)
def test_bad_names_are_refused(world: World, name: str) -> None:
    with pytest.raises(Invalid, match=r"queue name .* is not allowed"):
        world.create(name=name)
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        QueueLog(world.store, name, "orders")
    with pytest.raises(Invalid, match=r"namespace name .* is not allowed"):
        admin.list_queues(world.store, name)
    assert list(world.store.list("")) == []


@pytest.mark.parametrize("name", ["a", "0", "a" * 63, "orders.eu_west-1", "ORDERS"])
def test_good_names_are_taken_in_lower_case(world: World, name: str) -> None:
    assert world.create(name=name).name == name.lower()


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


BAD_SETTINGS: list[tuple[str, Any, str]] = [
    ("rebalance_delay_s", -0.1, "rebalance-delay=-0.1"),
    ("rebalance_delay_s", 604_800.1, "rebalance-delay=604800.1"),
    ("rebalance_delay_s", float("nan"), "rebalance-delay=nan"),
    ("max_handoff_time_s", -1, "max-handoff-time=-1"),
    ("max_handoff_time_s", float("inf"), "max-handoff-time=inf"),
    ("access_type", "shared", "access-type='shared'"),
    ("access_type", "Exclusive", "access-type='Exclusive'"),
    ("max_message_bytes", 0, "max-message-bytes=0"),
    ("max_message_bytes", 1_000_000_001, "max-message-bytes=1000000001"),
]


@pytest.mark.parametrize(("setting", "value", "named"), BAD_SETTINGS)
def test_settings_out_of_range_are_refused(world: World, setting: str, value: Any, named: str) -> None:
    bad = replace(QueueConfig(), **{setting: value})
    with pytest.raises(Invalid, match=f"{named} is not allowed: give"):
        world.create(config=bad)
    assert list(world.store.list("")) == []
    queue = world.create()
    with pytest.raises(Invalid, match=f"{named} is not allowed: give"):
        admin.alter_queue(queue, **{setting: value})
    assert head_of(world.store).config == QueueConfig()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rebalance_delay_s", 0.0),
        ("rebalance_delay_s", 604_800.0),
        ("max_handoff_time_s", 0.0),
        ("max_message_bytes", 1),
        ("max_message_bytes", 1_000_000_000),
    ],
)
def test_settings_at_the_ends_of_their_ranges_are_taken(world: World, setting: str, value: Any) -> None:
    queue = world.create()
    admin.alter_queue(queue, **{setting: value})
    assert head_of(world.store).config == replace(QueueConfig(), **{setting: value})


# --- altering ---------------------------------------------------------------------------------------------------------


def test_altering_keeps_what_another_alters_meanwhile(world: World) -> None:
    world.create()
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    queue.refresh()
    hooked.before = once("swap", HEAD, lambda: admin.alter_queue(world.handle(), max_handoff_time_s=9.0))
    admin.alter_queue(queue, rebalance_delay_s=1.0)
    head = head_of(world.store)
    assert head.config == QueueConfig(rebalance_delay_s=1.0, max_handoff_time_s=9.0)
    assert head.sequence == 3


def test_altering_keeps_messages_that_are_published_meanwhile(world: World) -> None:
    world.create()
    hooked = Hooked(world.store)
    queue = world.handle(store=hooked)
    hooked.before = once("swap", HEAD, lambda: send(world.handle(), values(1, 2)))
    admin.alter_queue(queue, rebalance_delay_s=1.0)
    assert read_flat(queue) == [b"1", b"2"]


def test_altering_to_what_is_already_so_writes_nothing(world: World) -> None:
    hooked = Hooked(world.store)
    world.create()
    assert admin.alter_queue(world.handle(store=hooked), rebalance_delay_s=5.0).sequence == 1
    assert "swap" not in {kind for kind, _ in hooked.calls}


@pytest.mark.parametrize("landed", [True, False])
def test_a_change_whose_answer_is_lost_is_made_once(world: World, landed: bool) -> None:
    world.create()
    hooked = Hooked(world.store)
    if landed:
        hooked.after = once("swap", HEAD, unavailable)
    else:
        hooked.before = once("swap", HEAD, unavailable)
    admin.alter_queue(world.handle(store=hooked), rebalance_delay_s=1.0)
    assert (head_of(world.store).sequence, head_of(world.store).config.rebalance_delay_s) == (2, 1.0)


def test_a_queue_created_again_meanwhile_is_not_altered(world: World) -> None:
    queue = world.create()
    admin.delete_queue(world.handle())
    world.create()
    with pytest.raises(Invalid, match="deleted and created again"):
        admin.alter_queue(queue, rebalance_delay_s=1.0)
    assert head_of(world.store).config == QueueConfig()


def test_an_absent_queue_is_refused_with_the_next_step(world: World) -> None:
    with pytest.raises(Invalid, match=r"'orders' .* does not exist: create it with `partq queue create orders"):
        admin.alter_queue(world.handle(), rebalance_delay_s=1.0)


# --- listing and deleting ---------------------------------------------------------------------------------------------


def test_queues_are_listed_by_name(world: World) -> None:
    for name in ("b", "a", "a-b"):
        world.create(name=name)
    admin.delete_queue(world.handle("b"))
    world.store.create("default/foreign/_segments/x", b"no queue")
    assert sorted(admin.list_queues(world.store, "Default").readable) == ["a", "a-b"]
    assert admin.list_queues(world.store, "other") == admin.NamespaceQueues(readable={}, problems={})


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


def test_a_queue_is_deleted_although_others_publish(world: World) -> None:
    queue = world.create()
    hooked = Hooked(world.store)
    hooked.before = once("remove", HEAD, lambda: send(queue, values(1)))
    admin.delete_queue(world.handle(store=hooked))
    assert list(world.store.list("")) == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_deletion_whose_answer_is_lost_is_finished(world: World, landed: bool) -> None:
    send(world.create(), values(1))
    hooked = Hooked(world.store)
    if landed:
        hooked.after = once("remove", HEAD, unavailable)
    else:
        hooked.before = once("remove", HEAD, unavailable)
    admin.delete_queue(world.handle(store=hooked))
    assert list(world.store.list("")) == []


def test_a_deletion_does_not_take_a_queue_created_meanwhile(world: World) -> None:
    send(world.create(), values(1))
    hooked = Hooked(world.store)

    def recreate() -> None:
        admin.delete_queue(world.handle())
        send(world.create(9), values(2))
        unavailable()

    hooked.before = once("remove", HEAD, recreate)
    admin.delete_queue(world.handle(store=hooked))
    assert head_of(world.store).partitions == 9
    assert read_flat(world.handle()) == [b"2"]


def test_remains_of_a_deletion_that_was_cut_off_are_removed_later(world: World) -> None:
    queue = world.create()
    send(queue, values(1))
    queue.swap(None)
    fresh = world.create()
    send(fresh, values(2))
    assert admin.remove_remains(fresh) == 1
    assert admin.remove_remains(fresh) == 0
    assert read_flat(fresh) == [b"2"]


def test_remains_are_not_those_of_a_queue_created_meanwhile(world: World) -> None:
    queue = world.create()
    send(queue, values(1))
    queue.swap(None)
    hooked = Hooked(world.store)
    hooked.before = once("load", HEAD, lambda: send(world.create(), values(2)))
    assert admin.remove_remains(world.handle(store=hooked)) == 1
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
    send(world.create(), values(1))
    document = world.store.load("default/orders/_head.json")
    world.store.delete("default/orders/_head.json")
    world.store.swap("default/orders/_head.json", b'{"damaged": 1}', expected=None)
    assert document is not None
    with pytest.raises(Corrupt):
        admin.remove_remains(world.handle())
    assert len(list(world.store.list("default/orders/_segments/"))) == 1


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_begins_where_the_first_to_create_it_said(world: World) -> None:
    queue = world.create(2)
    made = admin.create_group(queue, "Billing", (0, 3))
    assert made == Group(since_sequence=2, start=(0, 3))
    assert admin.create_group(world.handle(), "billing", (9, 9)) == made
    assert dict(head_of(world.store).groups) == {"billing": made}


def test_two_who_create_a_group_at_once_agree(world: World) -> None:
    world.create(2)
    hooked = Hooked(world.store)
    first: list[Group] = []
    hooked.before = once("swap", HEAD, lambda: first.append(admin.create_group(world.handle(), "billing", (1, 1))))
    assert admin.create_group(world.handle(store=hooked), "billing", (2, 2)) == first[0]


@pytest.mark.parametrize("name", ["", "_system", "a/b", "a" * 64])
def test_bad_group_names_are_refused(world: World, name: str) -> None:
    with pytest.raises(Invalid, match=r"group name .* is not allowed"):
        admin.create_group(world.create(), name, (0,) * 4)


def test_a_group_needs_one_offset_for_every_partition(world: World) -> None:
    with pytest.raises(Invalid, match=r"was given 3 starting offsets, .* has 4 partitions"):
        admin.create_group(world.create(4), "billing", (0, 0, 0))


def test_rewinds_are_counted_while_others_count(world: World) -> None:
    queue = world.create(2)
    admin.create_group(queue, "billing", (0, 0))
    admin.create_group(queue, "audit", (0, 0))
    hooked = Hooked(world.store)
    hooked.before = once("swap", HEAD, lambda: admin.count_rewind(world.handle(), "billing"))
    assert admin.count_rewind(world.handle(store=hooked), "billing").rewinds == 2
    assert {name: group.rewinds for name, group in head_of(world.store).groups.items()} == {"billing": 2, "audit": 0}


def test_a_group_that_is_not_there_is_refused_with_those_that_are(world: World) -> None:
    queue = world.create(1)
    with pytest.raises(Invalid, match=r"has no group 'biling' \(its groups: none yet\)"):
        admin.count_rewind(queue, "biling")
    admin.create_group(queue, "billing", (0,))
    with pytest.raises(Invalid, match=r"\(its groups: billing\)"):
        admin.count_rewind(queue, "biling")


def test_conflicts_without_end_are_given_up(world: World) -> None:
    world.create()
    hooked = Hooked(world.store)

    def refuse(kind: str, name: str) -> None:
        if kind == "swap":
            raise Conflict("somebody was faster (test)")

    hooked.before = refuse
    with pytest.raises(Conflict, match="faster"):
        admin.create_group(world.handle(store=hooked), "billing", (0,) * 4)


# --- many groups ------------------------------------------------------------------------------------------------------


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
