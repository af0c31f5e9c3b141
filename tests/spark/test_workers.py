"""What partq costs the Python processes that Spark runs it in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import partq
from partq_spark.log.segment import read_slice
from partq_spark.spark.options import batch_source_options
from partq_spark.spark.reader import PartqBatchReader, read_task

COUNT_FROZEN = """
import gc
from pyspark.sql.datasource import InputPartition
from partq_spark.spark.reader import read_task
for _ in range(3):
    list(read_task(InputPartition(None)))
    print(gc.get_freeze_count() > 10_000)
"""

ANSWER_TASKS = """
import gc, os, socket, statistics, time
from pyspark.sql.datasource import InputPartition
from partq_spark.spark.reader import read_task
first = os.open(os.devnull, os.O_RDONLY)
with socket.create_server(("127.0.0.1", 0)) as server:
    worker = socket.create_connection(server.getsockname())
    jvm = server.accept()[0]
os.close(first)
waits = []
for _ in range(15):
    of_the_task = os.dup(worker.fileno())
    jvm.sendall(b"what to do" * 1000)
    jvm.sendall(b"and with what")
    begun = time.monotonic()
    task = b""
    while len(task) < 10_013:
        task += worker.recv(65_536)
    waits.append(time.monotonic() - begun)
    list(read_task(InputPartition(None)))
    jvm.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)  # which is of this process, too, but not in Spark
    worker.sendall(b"the answer")
    jvm.recv(65_536)
    os.close(of_the_task)
    gc.collect()
print(worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) > 0)
print(statistics.median(waits[1:]) < 0.02)
"""

MAKE_BATCHES = """
import sys
import pyarrow as pa
from partq_spark.query.columns import batches
from partq_spark.log.reading import Piece
from partq_spark.log.segment_columns import PLAIN
from partq_spark.query.schema import default_columns, wanted_columns
text = wanted_columns([("value", "string"), ("timestamp", "timestamp")])
values = pa.Array.from_buffers(pa.binary(), 3, [None, pa.py_buffer(bytes(16)), pa.py_buffer(b"")], null_count=0)
piece = Piece(0, 5, 7, pa.RecordBatch.from_arrays([pa.nulls(3, pa.string()), values], schema=PLAIN))
for below in ({}, {0: 6}, {0: 100}):
    for wanted in (default_columns(True), text):
        made = list(batches([piece, piece], queue="orders", wanted=wanted, redelivered_below=below))
        assert [batch.num_rows for batch in made] == [6]
print("pandas" in sys.modules)
"""

ASK_FOR_THE_FIRST_OFFSET = """
import sys, tempfile
from pyspark.sql.streaming.datasource import ReadAllAvailable
import partq
from partq_spark.query.offsets import INITIAL
from partq_spark.spark.reader import PartqStreamReader
from pyspark.sql.types import StructType
from tests.support.waiting import wait_until
with tempfile.TemporaryDirectory() as folder:
    partq.create_queue("orders", partitions=1, store=f"file://{folder}")
    given = {"queue": "orders", "store": f"file://{folder}", "group": "billing", "ownership": "redis://127.0.0.1:1/0"}
    reader = PartqStreamReader(given, StructType().add("value", "binary"))
    reader.latestOffset(dict(INITIAL), ReadAllAvailable())
    client = "partq_spark.group.documents.redis"
    wait_until(lambda: hasattr(sys.modules.get(client), "RedisDocuments"), "Redis' client", 30)
    print("redis" in sys.modules)
    reader.stop()
"""


def test_what_lives_at_the_second_task_is_left_out_of_later_collections() -> None:
    assert output(COUNT_FROZEN) == ["False", "True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program acknowledge at once")
def test_a_task_is_acknowledged_before_its_answer() -> None:
    """Else the second half of every task comes 40 ms after the first."""
    assert output(ANSWER_TASKS) == ["True", "True"]


def test_redis_client_is_imported_while_spark_has_its_first_batch() -> None:
    """It takes a tenth of a second, for which the second batch had to wait."""
    assert output(ASK_FOR_THE_FIRST_OFFSET) == ["True"]


def test_making_batches_imports_no_pandas() -> None:
    """It takes 0.2 s and 30 MB in each worker, and PyArrow imports it behind one's back."""
    assert output(MAKE_BATCHES) == ["False"]


@pytest.mark.conformance("TYP-01")
def test_a_task_decodes_the_columns_that_are_wanted_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = f"file://{tmp_path}"
    queue = partq.create_queue("orders", partitions=1, store=store)
    with queue.publication() as publication:
        publication.add(pa.table({"key": ["a"], "value": ["1"]}))
        publication.commit()
    asked: list[object] = []

    def noted(*where: Any, only: Any, **more: Any) -> pa.RecordBatch:
        asked.append(only)
        return read_slice(*where, only=only, **more)

    monkeypatch.setattr("partq_spark.log.reading.read_slice", noted)
    wanted = StructType().add("offset", "long").add("value", "string")
    options = batch_source_options({"queue": "orders", "store": store})
    (task,) = PartqBatchReader(options, wanted).partitions()
    (batch,) = read_task(task)
    assert batch.to_pylist() == [{"offset": 0, "value": "1"}]
    assert pa.table(queue.read(columns=["key", "partition"])).to_pylist() == [{"key": "a", "partition": 0}]
    assert asked == [("value",), ("key",)]


def output(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.split()
