"""Every single-bit flip of every document that decides something, as it lies in a file: what is read is either the same
value or `Corrupt`, which names the object; and what the message advises mends it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.model import GroupKey, GroupSettings, GroupState, Lease, Owner, OwnershipRecord
from partq_spark.group.ownership import StateDocument
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import a_record, delivery
from tests.support.ownership import in_objects

KEY = GroupKey("default", "orders", "billing")
QUEUE_ID = "00aa00aa00aa00aa"
OWNER = Owner("billing-1", "0123456789abcdef")

Read = Callable[[], object]


def flips(path: Path) -> Iterator[bytes]:
    """The file with each of its bits turned in turn; it lies there damaged meanwhile, and whole again afterwards."""
    good = path.read_bytes()
    try:
        for at in range(len(good) * 8):
            bad = bytearray(good)
            bad[at // 8] ^= 1 << at % 8
            path.write_bytes(bad)
            yield bytes(bad)
    finally:
        path.write_bytes(good)


def attempt(read: Read) -> tuple[object, str | None]:
    """What is read, or what `Corrupt` says."""
    try:
        return read(), None
    except Corrupt as problem:
        return None, str(problem)


def check(path: Path, read: Read, *, named: str) -> int:
    """Every flip is read as what was written or as `Corrupt`; how many were."""
    good = read()
    refused = 0
    for bad in flips(path):
        found, said = attempt(read)
        if said is None:
            assert found == good, bad
        else:
            assert named in said, bad
            assert re.search(r"restore|remove|delete", said), f"no next step: {said}"
            refused += 1
    assert read() == good
    return refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def objects(folder: Path) -> LocalStore:
    return LocalStore(str(folder))


def checkpoints(objects: LocalStore) -> CheckpointStore:
    return CheckpointStore(objects, KEY, QUEUE_ID)


def without_etag(found: Checkpoint | None) -> Checkpoint | None:
    """An ETag says nothing but which version it is: another one makes the next swap look again."""
    return None if found is None else replace(found, etag=None)


@pytest.mark.parametrize("owner", [OWNER, None])
def test_a_checkpoint(folder: Path, objects: LocalStore, owner: Owner | None) -> None:
    made = checkpoints(objects)
    made.fence(3, to=owner, epoch=4, start=1000, delivered=1010)
    if owner is None:
        held = made.fence(3, to=OWNER, epoch=5, start=1000, delivered=1010)
        assert held.offset == 1000
        made.rewind(3, 7, fence=True, delivered=1020)
    path = folder / "default/orders/billing/checkpoint/3"
    size_bits = len(path.read_bytes()) * 8
    read = check(path, lambda: without_etag(made.read(3)), named="default/orders/billing/checkpoint/3")
    assert read > 0.8 * size_bits  # all but the ETag's
    listed = check(path, lambda: made.list_checkpoints()[3], named="default/orders/billing/checkpoint/3")
    assert listed > 0.8 * size_bits


@pytest.mark.slow
def test_a_heartbeat_a_record_and_a_delivery(folder: Path, objects: LocalStore) -> None:
    record = replace(a_record(p1=delivery(40, 33), p17=delivery(3)), instance=OWNER.instance)
    in_objects(objects).bind(KEY, record, replaces=None)
    beat, body = "ownership/beats/billing-1", f"ownership/flows/billing-1/{OWNER.instance}"

    def all_flows() -> object:
        return in_objects(objects).read_flows(KEY)

    def one_flow() -> object:
        found = in_objects(objects).read_flow(KEY, "billing-1")
        assert found is not None
        return found[0], found[1].instance

    def beats() -> object:
        return {flow: one.instance for flow, one in in_objects(objects).read_beats(KEY).items()}

    for read in (all_flows, one_flow):
        check(folder / f"{KEY}/{beat}", read, named=beat)
        check(folder / f"{KEY}/{body}", read, named=body)
    check(folder / f"{KEY}/{beat}", beats, named=beat)


def test_a_lease(folder: Path, objects: LocalStore) -> None:
    lease = Lease(token="0123456789abcdef", name="pod-1", beat=17, timers={"holddown": 4.25}, state_token="fedc")
    in_objects(objects).take_lease(KEY, lease, expected=None)

    def read() -> object:
        found = in_objects(objects).read_lease(KEY)
        return found and found.lease

    assert check(folder / f"{KEY}/ownership/leader", read, named="ownership/leader") > 1000


def test_a_state(folder: Path, objects: LocalStore) -> None:
    """Its token only tells one version from another: where that is flipped, everybody reads the same state again."""
    state = GroupState(queue_id=QUEUE_ID, incarnation="life", settings=GroupSettings(), partitions={}, flows={})
    in_objects(objects).swap_state(KEY, encode_state(state, 0.0), token="0123456789abcdef", expected=None)

    def read() -> object:
        found = in_objects(objects).read_state(KEY)
        assert isinstance(found, StateDocument)
        return decode_state(found.body, 0.0, f"object {KEY}/ownership/state")

    assert check(folder / f"{KEY}/ownership/state", read, named="ownership/state") > 1000


def test_an_ownership_record(folder: Path, objects: LocalStore) -> None:
    claim = OwnershipRecord(key=KEY, partition=12, owner=OWNER, epoch=7, version="", modified="")
    in_objects(objects).claim_ownership([claim])
    path = folder / f"{KEY}/ownership/12"

    def read() -> object:
        """Without its version, which only tells whether it was claimed since."""
        return {number: replace(each, version="") for number, each in in_objects(objects).list_ownership(KEY).items()}

    check(path, read, named="ownership/12")


def test_a_queues_head(folder: Path, objects: LocalStore) -> None:
    queue = admin.create_queue(objects, "default", "orders", 2)
    admin.create_group(queue, "billing", [0, 0])
    read = check(
        folder / "default/orders/_head.json",
        lambda: QueueLog(objects, "default", "orders").refresh(),
        named="default/orders/_head.json",
    )
    assert read > 3000


@pytest.mark.parametrize("where", ["state", "leader", "beats/billing-1", f"flows/billing-1/{OWNER.instance}", "12"])
def test_what_is_named_can_be_removed_and_everything_begins_anew(folder: Path, objects: LocalStore, where: str) -> None:
    """As the message advises, as often as it does."""
    record = replace(a_record(p1=delivery(40, 33)), instance=OWNER.instance)
    lease = Lease(token="t", name="pod-1", beat=1)
    claim = OwnershipRecord(key=KEY, partition=12, owner=OWNER, epoch=7, version="", modified="")
    state = GroupState(queue_id=QUEUE_ID, incarnation="life", settings=GroupSettings(), partitions={}, flows={})

    def begin() -> None:
        store = in_objects(objects)
        if store.read_state(KEY) is None:
            store.swap_state(KEY, encode_state(state, 0.0), token="s", expected=None)
        if store.read_lease(KEY) is None:
            store.take_lease(KEY, lease, expected=None)
        if "billing-1" not in store.read_flows(KEY):
            store.bind(KEY, record, replaces=None)
        if 12 not in store.list_ownership(KEY):
            assert store.claim_ownership([claim])
        found = store.read_state(KEY)
        assert isinstance(found, StateDocument)
        assert decode_state(found.body, 0.0, f"object {KEY}/ownership/state of here") == state

    begin()
    path = folder / f"{KEY}/ownership/{where}"
    good = path.read_bytes()
    path.write_bytes(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    removed: list[str] = []
    while (said := attempt(begin)[1]) is not None:
        assert len(removed) < 3, said
        assert "remove" in said
        name = re.findall(rf"{KEY}/ownership/[\w./-]+", said)[-1]
        assert objects.delete(name), said
        removed.append(name)
    assert removed[0].endswith(where)
    begin()
