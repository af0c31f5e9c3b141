"""A store of its own for each test, and files to publish."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import Partq, json_lines

__all__ = ["Partq", "json_lines"]


@pytest.fixture
def partq(tmp_path: Path) -> Partq:
    return Partq(tmp_path / "store")


@pytest.fixture
def orders(partq: Partq) -> Partq:
    """A store with the queue `orders` of one partition, in which messages lie in the order of publishing."""
    partq("queue", "create", "orders", "--partitions", 1)
    return partq


def written(path: Path, content: str | bytes) -> Path:
    """`path` with this content; gzipped if its name says so."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    """`path` as a Parquet file with these columns."""
    pq.write_table(pa.table(columns), path)
    return path


def source(folder: Path, name: str, content: Any) -> dict[str, Any]:
    """How `content` is published: from a file of this name (a mapping as the columns of a Parquet file), or from
    standard input where there is no name.
    """
    if not name:
        return {"words": (), "stdin": content}
    path = folder / name
    return {
        "words": ("--file", parquet(path, **content) if isinstance(content, dict) else written(path, content)),
        "stdin": "",
    }
