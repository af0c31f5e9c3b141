"""Texts that are none: `partq publish` refuses them by row."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.conftest import Partq
from tests.support.texts import BAD, headers_of, texts


@pytest.mark.parametrize(
    ("columns", "words", "said"),
    [
        ({"key": texts(b"a", BAD), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"key": pa.array([b"a", BAD]), "value": texts(b"1", b"2")}, (), "row 2 has a key that is not UTF-8"),
        ({"id": texts(b"a", BAD), "n": pa.array([1, 2])}, ("--key-column", "id"), "row 2 has text in 'id'"),
        ({"n": pa.array([1, 2]), "t": texts(b"a", BAD)}, (), "row 2 has text in 't' that is not UTF-8"),
        (
            {"value": texts(b"1", b"2"), "headers": headers_of(b"ok", BAD)},
            (),
            "row 2 has a header's key that is not UTF-8",
        ),
    ],
)
def test_parquet_that_holds_such_is_refused_by_row(
    partq: Partq, tmp_path: Path, columns: dict[str, pa.Array], words: tuple[str, ...], said: str
) -> None:
    partq("queue", "create", "orders", "--partitions", 2)
    path = tmp_path / "bad.parquet"
    pq.write_table(pa.table(columns), path)
    assert f"bad.parquet {said}" in partq.error("publish", "orders", "--file", path, *words)
    assert partq.json("queue", "describe", "orders")["messages"] == 0
