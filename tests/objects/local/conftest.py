"""A local store for what only the local store promises, and a look at the files it has."""

from __future__ import annotations

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
