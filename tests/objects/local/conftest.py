"""A local store for what only the local store promises, and a look at the files it has."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partq_spark.objects.local import LocalStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The store's folder, which is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(str(root), lock_wait_s=0.3)  # for a lock only a little


def files(root: Path) -> list[str]:
    """The names of all files below a folder, hidden ones too; not the locks, which stay."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != ".lock")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that a user without rights may enter, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="partq-test-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read and write everything: another user for the length of a block."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
