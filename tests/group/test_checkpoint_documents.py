"""Checkpoints as they lie in every store, and those that cannot be read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from partq_spark.base.errors import Corrupt, Fenced, Invalid
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.group.checksums import sealed
from partq_spark.objects.api import Document
from partq_spark.objects.local import LocalStore
from tests.group.ownership.conftest import KEY
from tests.group.test_checkpoints import A1, B1, QUEUE_ID, Lossy, checkpoints_in
from tests.objects.conftest import azure_store, memory_store

NOBODY: Final = 65534


@pytest.fixture(params=["local", pytest.param("azure", marks=pytest.mark.azurite)])
def real(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lossy]:
    local = request.param == "local"
    made = LocalStore(str(tmp_path)) if local else azure_store(request.getfixturevalue("azurite"), monkeypatch)
    yield Lossy(made)
    made.close()


@pytest.mark.conformance("CHK-01", "CHK-02", "CHK-05")
def test_a_checkpoint_is_an_empty_blob_with_metadata_and_one_listing_gives_all(real: Lossy) -> None:
    checkpoints = checkpoints_in(real)
    assert checkpoints.list_checkpoints() == {}
    assert checkpoints.read(7) is None
    made = {p: checkpoints.fence(p, to=A1, epoch=3, start=40, delivered=45) for p in (11, 7, 0)}
    found = real.store.load("default/orders/billing/checkpoint/7")
    assert isinstance(found, Document)
    assert found.body == b""
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
    late = made[7]
    made[7] = checkpoints.update_checkpoint(checkpoints.fence(7, to=B1, epoch=4, start=None, delivered=None), 41)
    with pytest.raises(Fenced):
        checkpoints.update_checkpoint(late, 41)
    for name in ("notes", "07", "1/x"):  # no partition's name
        real.store.swap(f"default/orders/billing/checkpoint/{name}", {"epoch": "1"}, expected=None)
    real.calls.clear()
    listed = checkpoints.list_checkpoints()
    assert real.calls == {"list": 1}
    assert listed == {p: replace(each, etag=None) for p, each in made.items()}
    assert list(listed) == [0, 7, 11]


WHOLE: Final = {"epoch": "1", "redelivered_below": "0", "queue_id": QUEUE_ID, "since": "0"}


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        *((sealed(WHOLE | {"epoch": epoch}), f"'epoch' is '{epoch}'") for epoch in ("one", "-1", "01", "1" * 20)),
        *((sealed({k: WHOLE[k] for k in WHOLE if k != key}), f"'{key}' is missing") for key in WHOLE if key != "epoch"),
        *((sealed(WHOLE | {"publish": each}), f"'publish' is '{each}'") for each in ("7", "7:x:token")),
        (sealed(WHOLE | {"since": "-3"}), "'since' is '-3'"),
        (sealed(WHOLE | {"flow": "a"}), "'instance' is missing"),
        (sealed(WHOLE | {"offset": "1.5"}), "'offset' is '1.5'"),
        (WHOLE, "has no metadata key 'checksum': an earlier version of partq wrote it, it is damaged"),
        (sealed(WHOLE) | {"offset": "2000"}, "damaged, or was edited by hand.*restore the blob.*delete it"),
        (sealed(WHOLE) | {"more": "1"}, "damaged, or was edited by hand.*restore the blob.*delete it"),
    ],
)
def test_what_was_edited_by_hand_is_refused_by_name_and_both_next_steps_mend_it(
    metadata: dict[str, str], complaint: str
) -> None:
    store = memory_store()
    checkpoints = checkpoints_in(store)
    name = checkpoints.name_of(4)
    checkpoints.fence(4, to=None, epoch=7, start=1000, delivered=1200)
    good = store.load(name)
    assert isinstance(good, Document)
    etag = store.swap(name, metadata, expected=good.etag)
    nobody_writes_over_it = lambda: checkpoints.fence(4, to=A1, epoch=8, start=0, delivered=None)  # noqa: E731
    for act in (lambda: checkpoints.read(4), checkpoints.list_checkpoints, nobody_writes_over_it):
        with pytest.raises(Corrupt, match=f"{name}.*{complaint}"):
            act()
    assert list(checkpoints.list_readable()[1]) == [4]
    store.swap(name, good.metadata, expected=etag)
    assert checkpoints.list_checkpoints()[4].offset == 1000
    store.delete(name)
    assert checkpoints.fence(4, to=A1, epoch=8, start=30, delivered=1200).offset == 30


def test_one_that_may_not_be_read_is_told_and_hides_no_others() -> None:
    # Pytest's own folders may not be entered by a user without rights, as which root has to look here.
    folder, root = Path(tempfile.mkdtemp(prefix="partq-test-")), os.geteuid() == 0
    folder.chmod(0o777)
    if root:
        os.seteuid(NOBODY)
    try:
        checkpoints = CheckpointStore(LocalStore(str(folder / "store")), KEY, QUEUE_ID)
        for partition in (0, 1):
            checkpoints.fence(partition, to=A1, epoch=1, start=0, delivered=None)
        (folder / "store" / checkpoints.name_of(1)).chmod(0)
        found, damaged = checkpoints.list_readable()
        assert (list(found), list(damaged)) == ([0], [1])
        assert "checkpoint/1 cannot be read: " in str(damaged[1])
        assert not root or f"{NOBODY}" in str(damaged[1]), "who may not"
        with pytest.raises(Corrupt):
            checkpoints.list_checkpoints()
        with pytest.raises(Invalid):
            checkpoints.read(1)
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)
