"""Ownership as objects: as it lies in the store, heartbeats that land late, and answers that are lost on their way
from a real Azurite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Unavailable
from partq_spark.group.checksums import checksum_of
from partq_spark.group.documents.objects import ObjectDocuments
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import FOLDER, KEY, a_record, delivery
from tests.objects.conftest import azure_store
from tests.support.ownership import in_objects
from tests.support.proxy import Fault, Proxy
from tests.support.servers import Azurite


def test_the_names_are_those_of_seed_004(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    store = in_objects(objects)
    claim = OwnershipRecord(key=KEY, partition=12, owner=None, epoch=7, version="", modified="")
    claimed = store.claim_ownership([claim])[12]
    (info,) = objects.list(FOLDER)
    assert info.name == "default/orders/billing/ownership/12"
    assert info.metadata == {
        "namespace": "default",
        "queue": "orders",
        "group": "billing",
        "partition": "12",
        "epoch": "7",
        "modified": claimed.modified,
        "claim": info.metadata["claim"],
        "checksum": checksum_of(info.metadata),
    }
    assert claimed.version == info.etag


def test_a_claim_that_says_the_same_at_the_same_time_is_another_one(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    first, second = (Ownership(ObjectDocuments(objects), Effects(time_us=lambda: 7)) for _ in range(2))
    claim = OwnershipRecord(key=KEY, partition=12, owner=None, epoch=7, version="", modified="")
    claimed = first.claim_ownership([claim])
    assert second.claim_ownership([claim]) == {}
    assert second.list_ownership(KEY) == claimed


def test_ages_are_the_stores_own_and_grow(tmp_path: Path) -> None:
    now_s = [100.0]
    objects = LocalStore(str(tmp_path / "store"))
    store = in_objects(objects, now_s=lambda: now_s[0])
    store.take_lease(KEY, Lease(token="l", name="n", beat=0), expected=None)

    def age_s() -> float:
        found = store.read_lease(KEY)
        assert found is not None
        return found.age_s

    assert age_s() < 5
    now_s[0] += 50
    assert 50 <= age_s() < 55
    in_objects(objects).renew_lease(KEY, Lease(token="l", name="n", beat=1))
    assert age_s() == 0
    now_s[0] += 2
    assert age_s() == 2


@pytest.mark.azurite
def test_a_record_is_a_blob_without_a_body_and_a_heartbeat_too(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch)
    store = in_objects(objects)
    store.bind(KEY, a_record(), replaces=None)
    store.claim_ownership([OwnershipRecord(key=KEY, partition=1, owner=None, epoch=1, version="", modified="")])
    for name in ("beats/billing-1", "1"):
        found = objects.load(FOLDER + name)
        assert isinstance(found, Document)
        assert found.metadata
        assert not found.body
    objects.close()


class Late(LocalStore):
    """Holds one swap of a heartbeat back, and may refuse to answer when records are asked for."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.holds = False
        self.refuses = ""
        self.held: list[Callable[[], object]] = []

    def swap(self, name: str, content: Any, *, expected: str | None) -> str:
        if self.holds and "/beats/" in name:
            self.holds = False
            self.held.append(lambda: LocalStore.swap(self, name, content, expected=expected))
            raise Unavailable("no answer came (test)")
        self._answer("swap", name)
        return super().swap(name, content, expected=expected)

    def load(self, name: str, *, known: str | None = None) -> Any:
        self._answer("load", name)
        return super().load(name, known=known)

    def _answer(self, verb: str, name: str) -> None:
        if self.refuses == verb and "/flows/" in name:
            raise Unavailable("no answer came (test)")


@pytest.mark.parametrize("refused", ["swap", "load"])
def test_a_beat_that_counts_was_written_since_its_call_began(tmp_path: Path, refused: str) -> None:
    """Else the flow takes itself for alive for longer than others who watch its heartbeat."""
    objects = Late(str(tmp_path / "store"))
    store, watcher, record = in_objects(objects), in_objects(LocalStore(str(tmp_path / "store"))), a_record()
    store.bind(KEY, record, replaces=None)

    def beat() -> object:
        return store.beat(KEY, "billing-1", record.instance)

    objects.holds = True
    with pytest.raises(Unavailable):
        beat()
    objects.refuses = refused
    if refused == "load":  # nobody knows the record either
        store._own[KEY, "billing-1"].doubt()
    with pytest.raises(Unavailable):
        store.report(KEY, "billing-1", record.instance, {1: delivery(1)})
    objects.refuses = ""
    objects.held.pop()()
    landed = watcher.read_beats(KEY)["billing-1"].token
    beat()
    assert watcher.read_beats(KEY)["billing-1"].token != landed


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[Proxy]:
    """A proxy before it."""
    with Proxy(azurite.port).running() as made:
        yield made


def lose_answer(proxy: Proxy, path: str, act: Callable[[], object]) -> None:
    """The service does it, and the call ends as unknown."""
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and path in seen.path and left and left.pop() else None
    )
    with pytest.raises(Unavailable):
        act()
    assert not left


@pytest.mark.azurite
def test_a_lost_answer_is_settled_by_reading_or_repeating(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store, other = in_objects(objects), in_objects(objects)
    record = a_record()
    me = record.instance
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    lose_answer(proxy, "/state", lambda: store.swap_state(KEY, b"{}", token="t2", expected="t1"))
    found = store.read_state(KEY)
    assert isinstance(found, StateDocument)
    assert found.token == "t2"
    for path in ("/flows/", "/beats/"):
        lose_answer(proxy, path, lambda: store.bind(KEY, record, replaces=None))
    store.bind(KEY, record, replaces=None)
    assert other.read_flows(KEY) == {"billing-1": record}

    for number, path in enumerate(("/flows/", "/beats/")):
        new = {1: delivery(10 + number)}
        lose_answer(proxy, path, lambda: store.deliver(KEY, "billing-1", me, new, state_token="t2"))  # noqa: B023
        assert store.deliver(KEY, "billing-1", me, new, state_token="t2")
        assert other.read_flows(KEY)["billing-1"].deliveries == new
        lose_answer(proxy, path, lambda: store.report(KEY, "billing-1", me, {1: delivery(1)}))
        store.report(KEY, "billing-1", me, {1: delivery(1)})
        assert other.read_flows(KEY)["billing-1"].deliveries == {1: delivery(1)}
    lose_answer(proxy, "/beats/", lambda: store.beat(KEY, "billing-1", me))
    assert store.beat(KEY, "billing-1", me) == "t2"

    lease = Lease(token="l", name="n", beat=0)
    lose_answer(proxy, "/leader", lambda: store.take_lease(KEY, lease, expected=None))
    held = store.read_lease(KEY)
    assert held is not None
    assert held.lease == lease
    lose_answer(proxy, "/leader", lambda: store.renew_lease(KEY, Lease(token="l", name="n", beat=1)))
    assert store.renew_lease(KEY, Lease(token="l", name="n", beat=2)).state_token == "t2"
    objects.close()


@pytest.mark.azurite
@pytest.mark.conformance("OWN-02")
def test_a_claim_whose_answer_is_lost_counts_as_not_claimed(
    azurite: Azurite, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = azure_store(azurite, monkeypatch, port=proxy.port)
    store = in_objects(objects)
    claims = [
        OwnershipRecord(key=KEY, partition=number, owner=None, epoch=1, version="", modified="") for number in range(3)
    ]
    store.swap_state(KEY, b"{}", token="t1", expected=None)
    left = [1]
    proxy.next_fault = lambda seen: (
        Fault.LOSE_ANSWER if seen.method == "PUT" and "ownership/1" in seen.path and left and left.pop() else None
    )
    assert sorted(store.claim_ownership(claims)) == [0, 2]
    found = store.list_ownership(KEY)
    assert sorted(found) == [0, 1, 2]
    assert sorted(store.claim_ownership([found[1]])) == [1]
    objects.close()
