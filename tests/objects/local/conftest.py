"""A local store for what only the local store promises, and a look at the files it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from partq_spark.objects.local import LocalStore
from partq_spark.objects.local_folders import LOCK_NAME


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The store's folder, which is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    """A store that waits only a little for a lock."""
    return LocalStore(str(root), lock_wait_s=0.3)


def files(root: Path) -> list[str]:
    """The names of all files below a folder, hidden ones too; not the locks, which stay."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file() and path.name != LOCK_NAME)
