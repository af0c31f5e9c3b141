"""Ownership as objects, as it lies in the store: names, metadata, ages, and what is there and is not ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Corrupt
from partq_spark.group.checksums import checksum_of
from partq_spark.group.codec import decode_state
from partq_spark.group.documents.objects import ObjectDocuments
from partq_spark.group.model import Lease, OwnershipRecord
from partq_spark.group.ownership import Ownership, StateDocument
from partq_spark.objects import Document
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import FOLDER, KEY, a_record
from tests.objects.conftest import azure_store
from tests.support.ownership import in_objects
from tests.support.servers import Azurite


@pytest.mark.parametrize("name", ["leader", "beats/billing-1", "3"])
def test_a_foreign_object_is_corrupt_and_named(tmp_path: Path, name: str) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    store = in_objects(objects)
    metadata = name in ("beats/billing-1", "3")
    objects.swap(FOLDER + name, {"x": "1"} if metadata else b'{"x":1}', expected=None)
    reads: dict[str, Callable[[], object]] = {
        "leader": lambda: store.read_lease(KEY),
        "beats/billing-1": lambda: store.read_flows(KEY),
        "3": lambda: store.list_ownership(KEY),
    }
    with pytest.raises(Corrupt, match=f"{FOLDER}{name}"):
        reads[name]()


def test_a_foreign_state_is_one_that_nobody_can_read(tmp_path: Path) -> None:
    objects = LocalStore(str(tmp_path / "store"))
    objects.swap(f"{FOLDER}state", b'{"x":1}', expected=None)
    found = in_objects(objects).read_state(KEY)
    assert isinstance(found, StateDocument)
    with pytest.raises(Corrupt, match=r"state of group .* damaged"):
        decode_state(found.body, 0.0, f"state of group {KEY}")


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
