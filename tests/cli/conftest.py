"""`partq` as tests call it: in this process, each test on a store of its own. Real processes are in `processes.py`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from partq_spark.cli.main import cli


class Partq:
    """Runs `partq ARGUMENTS` and checks the exit code. `store` is the directory of the store."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.url = f"file://{store}"
        self._environment = {"PARTQ_STORE": self.url, "COLUMNS": "100"}

    def __call__(self, *arguments: object, code: int = 0, stdin: str | bytes = "", **environment: str | None) -> Result:
        result = CliRunner().invoke(
            cli, [str(each) for each in arguments], input=stdin, env={**self._environment, **environment}
        )
        assert result.exit_code == code, f"{arguments}: {result.exit_code}\n{result.output}{result.exception!r}"
        return result

    def json(self, *arguments: object, **more: Any) -> Any:
        """What `--json` printed, when that is one document."""
        return json.loads(self(*arguments, "--json", **more).stdout)

    def error(self, *arguments: object, **more: Any) -> str:
        """The one line on standard error of a command that failed with exit code 1, without its `Error: `."""
        stderr = self(*arguments, code=1, **more).stderr
        assert stderr.startswith("Error: ")
        assert stderr.count("\n") == 1, stderr
        return stderr.removeprefix("Error: ").rstrip("\n")

    def misuse(self, *arguments: object, **more: Any) -> str:
        """The last line on standard error of a command that failed with exit code 2."""
        return self(*arguments, code=2, **more).stderr.rstrip("\n").splitlines()[-1]

    def browse(self, queue: str, *arguments: object) -> list[dict[str, Any]]:
        """All messages of a queue, by `partq browse --json`."""
        lines = self("browse", queue, "--json", "--limit", 1_000_000, *arguments).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def messages(self, queue: str) -> list[tuple[str | None, str]]:
        """Key and value of all messages of a queue."""
        return [(each["key"], each["value"]) for each in self.browse(queue)]


@pytest.fixture
def partq(tmp_path: Path) -> Partq:
    return Partq(tmp_path / "store")


@pytest.fixture
def orders(partq: Partq) -> Partq:
    """A store with the queue `orders` of one partition, in which messages lie in the order of publishing."""
    partq("queue", "create", "orders", "--partitions", 1)
    return partq


def json_lines(rows: Iterable[object]) -> str:
    """One line of JSON per row."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def written(path: Path, content: str | bytes) -> Path:
    """`path` with this content; gzipped if its name says so."""
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def parquet(path: Path, **columns: Any) -> Path:
    """`path` as a Parquet file with these columns."""
    pq.write_table(pa.table(columns), path)
    return path


def nothing_is_published(partq: Partq) -> bool:
    """Whether the queue `orders` is as it was made."""
    shown = partq.json("queue", "describe", "orders")
    return bool(shown["messages"] == 0 and shown["head"]["sequence"] == 1)
