"""A checkpoint on the disk that this user may not read hides no others, and says what is wrong."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from partq_spark.base.errors import Corrupt, Invalid
from partq_spark.group.checkpoints import CheckpointStore
from partq_spark.objects.local import LocalStore
from tests.group.checkpoints.conftest import A1, KEY, QUEUE_ID

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
