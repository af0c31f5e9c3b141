"""Contract of every ownership store: the records of seed 004, and news."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.group.model import GroupKey, Owner, OwnershipRecord
from partq_spark.group.ownership import Ownership
from tests.group.ownership.conftest import World, a_record, delivery, together


def claim(
    key: GroupKey, partition: int, *, version: str = "", epoch: int = 1, flow: str | None = "a"
) -> OwnershipRecord:
    """What somebody wants."""
    owner = None if flow is None else Owner(flow, "0123456789abcdef")
    return OwnershipRecord(key=key, partition=partition, owner=owner, epoch=epoch, version=version, modified="")


@pytest.mark.conformance("OWN-02")
def test_a_record_has_what_seed_004_asks_for(world: World, key: GroupKey) -> None:
    store = world.open()
    assert store.list_ownership(key) == {}
    claimed = store.claim_ownership([claim(key, 12), claim(key, 3, flow=None, epoch=7)])
    assert sorted(claimed) == [3, 12]
    for reader in (store, world.open()):
        assert reader.list_ownership(key) == claimed
        assert list(reader.list_ownership(key)) == [3, 12]
    found = claimed[12]
    assert (found.key, found.owner, found.epoch) == (key, Owner("a", "0123456789abcdef"), 1)
    assert found.version
    assert claimed[3].owner is None
    assert abs(datetime.fromisoformat(found.modified).timestamp() - time.time()) < 60


@pytest.mark.conformance("OWN-02")
def test_a_claim_needs_the_version_that_is_there(world: World, key: GroupKey) -> None:
    store, other = world.open(), world.open()
    first = store.claim_ownership([claim(key, 0), claim(key, 1)])
    assert other.claim_ownership([claim(key, 0), claim(key, 1, version="old")]) == {}
    second = other.claim_ownership([claim(key, 0, version=first[0].version, epoch=2), claim(key, 1), claim(key, 2)])
    assert sorted(second) == [0, 2]
    assert second[0].version != first[0].version
    assert store.claim_ownership([claim(key, 0, version=first[0].version, epoch=3)]) == {}
    assert store.list_ownership(key) == {0: second[0], 1: first[1], 2: second[2]}
    again = other.claim_ownership([claim(key, 0, version=second[0].version, epoch=3)])
    assert store.list_ownership(key)[0] == again[0]


@pytest.mark.conformance("OWN-02")
def test_of_two_claims_for_one_version_exactly_one_wins(world: World, key: GroupKey) -> None:
    stores = [world.open(), world.open(), world.open()]
    for _ in range(5):
        versions = {number: one.version for number, one in stores[0].list_ownership(key).items()}
        wins: list[tuple[int, str]] = []

        def take(which: int, versions: dict[int, str] = versions, wins: list[tuple[int, str]] = wins) -> None:
            wanted = [claim(key, number, version=versions.get(number, ""), flow=f"f{which}") for number in range(4)]
            wins.extend((number, one.version) for number, one in stores[which].claim_ownership(wanted).items())

        together(take, len(stores))
        assert sorted(wins) == [(number, one.version) for number, one in stores[0].list_ownership(key).items()]
        assert len(wins) == 4


def test_claims_are_of_one_group(store: Ownership, key: GroupKey) -> None:
    assert store.claim_ownership([]) == {}
    with pytest.raises(Invalid, match="several groups"):
        store.claim_ownership([claim(key, 0), claim(GroupKey("default", "orders", "else"), 0)])


def test_thousands_are_claimed_in_one_call(world: World, key: GroupKey) -> None:
    if world.kind.startswith("objects"):
        pytest.skip("a synced write for each: 16 s")
    store = world.open()
    claimed = store.claim_ownership([claim(key, number) for number in range(2500)])
    assert store.list_ownership(key) == claimed
    assert len(claimed) == 2500


# --- news -------------------------------------------------------------------------------------------------------------


def wake(store: Ownership) -> None:
    """Whatever is known of the time before, is known now."""
    for _ in range(10):
        if store.wait_news(0.02) == frozenset():
            return
    if store.url != "store":
        raise AssertionError(f"{store!r} never came to rest")


def test_waiting_ends(store: Ownership) -> None:
    wake(store)
    started_s = time.monotonic()
    assert not store.wait_news(0.2)
    assert 0.05 < time.monotonic() - started_s < 2


def test_news_between_two_calls_is_not_lost(world: World, key: GroupKey) -> None:
    if not world.has_messages:
        pytest.skip("everybody has to look")
    coordinator, flow, stranger = world.open(), world.open(key), world.open(GroupKey("default", "orders", "else"))
    way_s = 0.02 if world.kind == "memory" else 0.15  # in which news arrives; in memory it is there at once
    record = a_record()
    doer = world.open()
    for store in (coordinator, flow, stranger):
        wake(store)

    def heard(store: Ownership) -> bool:
        """Whether there was news of the group; messages of one act may come in pieces, and in the end there is none."""
        found: set[GroupKey] = set()
        for _ in range(60):
            news = store.wait_news(way_s)
            if not news:
                return key in found
            found |= news
        raise AssertionError("there is news for ever")

    def seen(act: Callable[[], object]) -> tuple[bool, bool, bool]:
        act()
        return heard(coordinator), heard(flow), heard(stranger)

    instance = record.instance
    assert seen(lambda: doer.announce(key)) == (True, True, False)
    assert seen(lambda: doer.bind(key, record, replaces=None)) == (True, False, False)
    assert seen(lambda: doer.swap_state(key, b"{}", token="t1", expected=None)) == (False, True, False)
    assert seen(lambda: doer.beat(key, "billing-1", instance)) == (False, False, False)
    assert seen(lambda: doer.report(key, "billing-1", instance, {1: delivery(1)})) == (True, False, False)
    assert seen(lambda: doer.unbind(key, "billing-1", instance)) == (True, False, False)

    def often() -> None:
        for _ in range(50):
            doer.announce(key)

    assert seen(often) == (True, True, False)


def test_who_waits_is_woken(world: World, key: GroupKey) -> None:
    waiting, doer = world.open(key), world.open()
    wake(waiting)
    timer = threading.Timer(0.1, doer.announce, (key,))
    timer.start()
    started_s = time.monotonic()
    news = waiting.wait_news(20)
    assert time.monotonic() - started_s < 5
    timer.join()
    assert news == (frozenset({key}) if world.has_messages else None)
