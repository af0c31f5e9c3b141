"""Checkpoints: what they look like on every store, who may write them, and which way they move."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.checksums import sealed
from partq_spark.group.model import Owner
from partq_spark.objects.api import Document
from partq_spark.objects.local import LocalStore
from tests.group.checkpoints.conftest import A1, A2, B1, KEY, QUEUE_ID, Lossy, checkpoints_in, held
from tests.objects.conftest import azure_store

# --- what they look like ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", pytest.param("azure", marks=pytest.mark.azurite)])
def real(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    local = request.param == "local"
    made = LocalStore(str(tmp_path)) if local else azure_store(request.getfixturevalue("azurite"), monkeypatch)
    yield Lossy(made)
    made.close()


@pytest.mark.conformance("CHK-01", "CHK-02", "CHK-05")
def test_a_checkpoint_is_an_empty_blob_with_metadata(real: Lossy) -> None:
    store, checkpoints = real, checkpoints_in(real)
    checkpoints.fence(7, to=A1, epoch=3, start=40, delivered=45)
    found = store.store.load("default/orders/billing/checkpoint/7")
    assert isinstance(found, Document)
    assert found.body == b""
    late = checkpoints.read(7)
    assert late is not None
    assert found.metadata == {
        "epoch": "3",
        "flow": "a",
        "instance": "1111",
        "offset": "40",
        "queue_id": QUEUE_ID,
        "since": "0",
        "redelivered_below": "45",
        "updated": "2026-11-18T11:06:40.000000Z",
        "checksum": "82c54cb093457655",
    }
    checkpoints.fence(7, to=B1, epoch=4, start=None, delivered=None)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(late, 41)


@pytest.mark.conformance("CHK-02")
def test_one_listing_gives_all_checkpoints(real: Lossy) -> None:
    store, checkpoints = real, checkpoints_in(real)
    made = {p: checkpoints.fence(p, to=A1, epoch=1, start=p * 10, delivered=None) for p in (11, 2, 0)}
    made[2] = checkpoints.fence(2, to=None, epoch=2, start=None, delivered=25)
    store.calls.clear()
    listed = checkpoints.list_checkpoints()
    assert store.calls == {"list": 1}
    assert listed == {p: replace(each, etag=None) for p, each in made.items()}
    assert list(listed) == [0, 2, 11]
    assert listed[2].owner is None
    assert listed[2].offset == 20
    assert listed[2].redelivered_below == 25


def test_nothing_is_there_at_first(checkpoints: CheckpointStore) -> None:
    assert checkpoints.list_checkpoints() == {}
    assert checkpoints.read(0) is None


def test_a_checkpoint_from_a_listing_is_not_written_to(checkpoints: CheckpointStore) -> None:
    checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None)
    with pytest.raises(Invalid, match="read it first"):
        checkpoints.update_checkpoint(checkpoints.list_checkpoints()[0], 5)


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"epoch": "one"}, "'epoch' is 'one'"),
        ({"epoch": "-1"}, "'epoch' is '-1'"),
        ({"epoch": "01"}, "'epoch' is '01'"),
        ({"epoch": "1" * 20}, "'epoch' is"),
        ({"queue_id": None}, "'queue_id' is missing"),
        ({"since": None}, "'since' is missing"),
        ({"since": "-3"}, "'since' is '-3'"),
        ({"redelivered_below": None}, "'redelivered_below' is missing"),
        ({"flow": "a"}, "'instance' is missing"),
        ({"offset": "1.5"}, "'offset' is '1.5'"),
        ({"publish": "7"}, "'publish' is '7'"),
        ({"publish": "7:x:token"}, "'publish' is '7:x:token'"),
    ],
)
def test_nonsense_is_refused_by_name(
    store: Lossy, checkpoints: CheckpointStore, metadata: dict[str, str | None], complaint: str
) -> None:
    whole = {"epoch": "1", "redelivered_below": "0", "queue_id": QUEUE_ID, "since": "0", **metadata}
    damaged = {key: value for key, value in whole.items() if value is not None}
    store.store.swap(checkpoints.name_of(4), sealed(damaged), expected=None)
    for read in (lambda: checkpoints.read(4), checkpoints.list_checkpoints):
        with pytest.raises(Corrupt, match=complaint) as caught:
            read()
        assert "default/orders/billing/checkpoint/4" in str(caught.value)


def test_what_was_edited_by_hand_is_refused_and_both_next_steps_mend_it(
    store: Lossy, checkpoints: CheckpointStore
) -> None:
    name = checkpoints.name_of(4)
    checkpoints.fence(4, to=None, epoch=7, start=1000, delivered=1200)
    good = store.store.load(name)
    assert isinstance(good, Document)
    for metadata in ({**good.metadata, "offset": "2000"}, {**good.metadata, "more": "1"}):
        present = store.store.load(name)
        assert isinstance(present, Document)
        store.store.swap(name, metadata, expected=present.etag)
        for read in (lambda: checkpoints.read(4), checkpoints.list_checkpoints):
            with pytest.raises(Corrupt, match=f"{name} is damaged, or was edited by hand.*restore the blob.*delete it"):
                read()
        assert list(checkpoints.list_readable()[1]) == [4]
        with pytest.raises(Corrupt):  # nobody writes over it
            checkpoints.fence(4, to=A1, epoch=8, start=0, delivered=None)
    present = store.store.load(name)
    assert isinstance(present, Document)
    store.store.swap(name, good.metadata, expected=present.etag)
    assert checkpoints.list_checkpoints()[4].offset == 1000
    store.store.delete(name)
    assert checkpoints.fence(4, to=A1, epoch=8, start=30, delivered=1200).offset == 30


def test_a_checkpoint_without_its_checksum_is_refused(store: Lossy, checkpoints: CheckpointStore) -> None:
    old = {"epoch": "1", "redelivered_below": "0", "queue_id": QUEUE_ID, "offset": "5", "updated": "x"}
    store.store.swap(checkpoints.name_of(4), old, expected=None)
    with pytest.raises(
        Corrupt,
        match=r"checkpoint/4 has no metadata key 'checksum': an earlier version of partq wrote it, it is damaged",
    ):
        checkpoints.read(4)


def test_what_has_no_partitions_name_is_left_out(store: Lossy, checkpoints: CheckpointStore) -> None:
    for name in ("notes", "07", "1/x"):
        store.store.swap(f"default/orders/billing/checkpoint/{name}", {"epoch": "1"}, expected=None)
    assert checkpoints.list_checkpoints() == {}


# --- the owner moves forward ------------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
def test_a_checkpoint_only_moves_forward(store: Lossy, checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    store.calls.clear()
    moved = checkpoints.update_checkpoint(mine, 15)
    assert store.calls == {"swap": 1}
    assert moved == checkpoints.read(0)
    assert moved.offset == 15
    for behind in (15, 14, 0):
        assert checkpoints.update_checkpoint(moved, behind) == moved
    assert store.calls["swap"] == 1
    # One's own knowledge may be behind one's own writes: they are merged, never overwritten.
    merged = checkpoints.update_checkpoint(mine, 12)
    assert merged == moved
    assert checkpoints.update_checkpoint(mine, 17).offset == 17
    assert held(checkpoints.read(0)).offset == 17


@pytest.mark.conformance("CHK-05")
@pytest.mark.parametrize("to", [B1, A2, None])
def test_who_lost_a_partition_changes_nothing_however_late(checkpoints: CheckpointStore, to: Owner | None) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    fenced = checkpoints.fence(0, to=to, epoch=1 if to == A2 else 2, replaces=A1, start=None, delivered=12)
    for _ in range(2):
        with pytest.raises(Fenced, match=r"checkpoint/0 is .* not flow a's \(instance 1111\) at epoch 1"):
            checkpoints.update_checkpoint(mine, 99)
    assert checkpoints.read(0) == fenced
    assert fenced.offset == 10
    assert fenced.redelivered_below == 12


@pytest.mark.conformance("CHK-05")
def test_who_lost_a_partition_and_has_it_back_is_another_owner(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    checkpoints.fence(0, to=B1, epoch=2, start=None, delivered=None)
    again = checkpoints.fence(0, to=A1, epoch=3, start=None, delivered=None)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(mine, 11)
    assert checkpoints.update_checkpoint(again, 12).offset == 12


@pytest.mark.conformance("CHK-05")
def test_a_fence_between_reading_and_writing_wins(store: Lossy, checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    other = checkpoints_in(store.store)
    store.before_swap.append(lambda: other.fence(0, to=B1, epoch=2, start=None, delivered=20))
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(mine, 20)
    assert held(checkpoints.read(0)).offset == 10


def test_a_deleted_checkpoint_is_nobodys(store: Lossy, checkpoints: CheckpointStore) -> None:
    mine = checkpoints.fence(0, to=A1, epoch=1, start=10, delivered=None)
    store.store.delete(checkpoints.name_of(0))
    with pytest.raises(Fenced, match="is gone"):
        checkpoints.update_checkpoint(mine, 11)


# --- an owner that has the group to itself ----------------------------------------------------------------------------


def test_that_somebody_delivers_is_written_once(store: Lossy, checkpoints: CheckpointStore) -> None:
    mine = checkpoints.deliver(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None))
    assert held(checkpoints.read(0)).delivering
    store.calls.clear()
    assert checkpoints.deliver(mine) == mine
    assert not store.calls


@pytest.mark.conformance("CHK-04")
def test_who_leaves_takes_nothing_back(checkpoints: CheckpointStore) -> None:
    """Neither an acknowledgement nor a mark: what it says of both is merged forward."""
    mine = checkpoints.deliver(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=7))
    checkpoints.update_checkpoint(mine, 5)
    left = checkpoints.leave(mine, offset=3, delivered=6)
    assert (left.offset, left.redelivered_below, left.delivering) == (5, 7, False)
    assert held(checkpoints.read(0)) == left


def test_who_leaves_marks_what_he_did_not_acknowledge(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.deliver(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None))
    assert checkpoints.leave(mine, offset=3, delivered=6).redelivered_below == 6
    again = checkpoints.fence(0, to=A2, epoch=1, replaces=A1, start=0, delivered=None)
    assert checkpoints.leave(again, offset=9, delivered=9).redelivered_below == 6


def test_who_was_rewound_does_not_deliver_any_more(checkpoints: CheckpointStore) -> None:
    mine = checkpoints.deliver(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None))
    checkpoints.update_checkpoint(mine, 5)
    assert checkpoints.rewind(0, 2, fence=True, delivered=8).after.delivering is False


# --- what a group is done with ----------------------------------------------------------------------------------------


@pytest.mark.conformance("CHK-04")
@pytest.mark.parametrize(("finished", "offset"), [(5, 8), (12, 12)])
def test_what_is_finished_moves_forward(checkpoints: CheckpointStore, finished: int, offset: int) -> None:
    checkpoints.update_checkpoint(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None), 8)
    found = checkpoints.fence(0, to=None, epoch=2, start=0, delivered=None, finished=finished)
    assert found.offset == offset


def test_what_was_rewound_meanwhile_is_not_finished(checkpoints: CheckpointStore) -> None:
    checkpoints.update_checkpoint(checkpoints.fence(0, to=A1, epoch=1, start=0, delivered=None), 8)
    checkpoints.rewind(0, 2, fence=True, delivered=8)
    found = checkpoints.fence(0, to=None, epoch=3, start=0, delivered=None, finished=8)
    assert (found.offset, found.redelivered_below) == (2, 8)


NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that a user without rights may enter, which those of pytest are not; and for root to be such a user."""
    path = Path(tempfile.mkdtemp(prefix="partq-test-"))
    path.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield path
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(path)


def test_one_that_may_not_be_read_is_told_and_hides_no_others(folder: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(folder / "store")), KEY, QUEUE_ID)
    for partition in (0, 1):
        checkpoints.fence(partition, to=A1, epoch=1, start=0, delivered=None)
    blob = folder / "store" / checkpoints.name_of(1)
    blob.chmod(0)
    found, damaged = checkpoints.list_readable()
    assert list(found) == [0]
    assert list(damaged) == [1]
    assert "checkpoint/1 cannot be read: " in str(damaged[1])
    assert f"{NOBODY}" in str(damaged[1]) or os.geteuid() != NOBODY, "who may not"
    with pytest.raises(Corrupt):
        checkpoints.list_checkpoints()
    with pytest.raises(Invalid):
        checkpoints.read(1)
    blob.chmod(0o600)
    assert list(checkpoints.list_checkpoints()) == [0, 1]
