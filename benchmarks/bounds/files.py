"""How fast files and frames become messages (`files`), and how long the demo takes (`demo`): by the command line and
the public API alone, each time in a process of its own that finds partq as this one's PYTHONPATH says. So the very same
code measures an earlier commit (part `against`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from benchmarks.parts import PARTITIONS, Settings
from tools.report import Measure, figure

_ROWS: Final = 500_000
_LIMIT_S: Final = 600.0
_DDL: Final = "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, city STRING, note STRING"
_KINDS: Final = ("csv", "jsonl", "parquet")

# A frame, which is there already: what its publish takes, without the process' start.
_FRAME: Final = """
import sys, time
import pyarrow.parquet
import partq
table = pyarrow.parquet.read_table(sys.argv[1])
if sys.argv[4] == "untyped":
    table = table.select(["customer", "note"]).rename_columns(["key", "value"])
queue = partq.open_queue(sys.argv[2], store=sys.argv[3])
begun_s = time.perf_counter()
with queue.publication() as publication:
    publication.add(table)
    publication.commit()
print(time.perf_counter() - begun_s)
"""


def files(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Rows of six columns into a typed queue, and as JSON objects with a key into an untyped one; frames (a table in
    memory) into the typed one, and as keys and values. A file's time is that of the whole command.
    """
    rows = _ROWS // 10 if settings.quick else _ROWS
    table = _table(rows)
    _write(table, settings.work)
    found: dict[str, list[float]] = {}
    for _ in range(settings.rounds + 1):  # the first round warms up and does not count
        store = f"file://{settings.work}/store"
        for shape in ("typed", "untyped"):
            _partq("queue", "create", shape, "--store", store, "--partitions", str(PARTITIONS), *_columns(shape))
            for kind in _KINDS:
                file = str(settings.work / f"rows.{kind}")
                key = () if shape == "typed" else ("--key-column", "customer")
                took_s = _partq("publish", shape, "--store", store, "--file", file, *key)
                found.setdefault(f"partq publish of .{kind}, {shape}", []).append(rows / took_s)
            parquet = str(settings.work / "rows.parquet")
            told = _python("-c", _FRAME, parquet, shape, store, shape)
            found.setdefault(f"frames, {shape}", []).append(rows / float(told))
        shutil.rmtree(settings.work / "store")
    return [figure(what, samples[1:], "rows/s") for what, samples in found.items()], []


def demo(settings: Settings) -> tuple[list[Measure], list[str]]:
    """The whole demo, from its start to its proof."""
    took: list[float] = []
    for _ in range(settings.rounds):
        with TemporaryDirectory(prefix="pq-", dir="/tmp") as folder:  # sockets lie below it, whose paths are short
            took.append(_partq("demo", "--json", temporary=folder))
    return [figure("the demo, from start to end", took, "s")], []


def _columns(shape: str) -> Sequence[str]:
    return ("--schema", _DDL, "--key", "customer") if shape == "typed" else ()


def _table(rows: int) -> pa.Table:
    numbers = range(rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "customer": [f"customer-{number % 9973}" for number in numbers],
            "amount": [number * 7 % 100_000 / 100 for number in numbers],
            "paid": [number % 3 == 0 for number in numbers],
            "city": [f"city {number % 40}" for number in numbers],
            "note": [f"order {number} of somebody, with “quotes” and a comma" for number in numbers],
        }
    )


def _write(table: pa.Table, folder: Path) -> None:
    pyarrow.csv.write_csv(table, folder / "rows.csv")
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    lines = (
        f'{{"id":{row["id"]},"customer":"{row["customer"]}","amount":{row["amount"]},'
        f'"paid":{str(row["paid"]).lower()},"city":"{row["city"]}","note":"{row["note"]}"}}\n'
        for row in table.to_pylist()
    )
    (folder / "rows.jsonl").write_text("".join(lines))


def _partq(*arguments: str, temporary: str | None = None) -> float:
    """How long a command takes, in seconds. Raises `RuntimeError` with what it says if it fails."""
    begun_s = time.perf_counter()
    _python("-m", "partq_spark", *arguments, temporary=temporary)
    return time.perf_counter() - begun_s


def _python(*arguments: str, temporary: str | None = None) -> str:
    """What a Python that finds nothing in its working directory prints. Raises as `_partq`."""
    environment = dict(os.environ) if temporary is None else {**os.environ, "TMPDIR": temporary}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments[:4])}: {done.stderr[-1000:]}")
    return done.stdout
