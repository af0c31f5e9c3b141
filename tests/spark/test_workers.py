"""What partq costs the Python processes that Spark runs it in, and what it has Spark send to them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import partq
from partq_spark.spark.options import batch_source_options
from partq_spark.spark.reader import PartqBatchReader, read_task
from tests.spark.columns import create, sent, spark
from tests.support.data_source import Calls
from tests.support.spark import Lab
from tools.servers import Azurite

COUNT_FROZEN = """
import gc
from pyspark.sql.datasource import InputPartition
from partq_spark.spark.reader import read_task
for _ in range(3):
    list(read_task(InputPartition(None)))
    print(gc.get_freeze_count() > 10_000)
"""

ANSWER_TASKS = """
import gc, os, socket
from pyspark.sql.datasource import InputPartition
from partq_spark.spark.reader import read_task
first = os.open(os.devnull, os.O_RDONLY)
with socket.create_server(("127.0.0.1", 0)) as server:
    worker = socket.create_connection(server.getsockname())
    jvm = server.accept()[0]
os.close(first)
for _ in range(15):
    of_the_task = os.dup(worker.fileno())
    jvm.sendall(b"what to do" * 1000)
    jvm.sendall(b"and with what")
    task = b""
    while len(task) < 10_013:
        task += worker.recv(65_536)
    list(read_task(InputPartition(None)))
    jvm.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)  # which is of this process, too, but not in Spark
    worker.sendall(b"the answer")
    jvm.recv(65_536)
    os.close(of_the_task)
    gc.collect()
print(worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) > 0)
print(worker.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) > 0)
"""

ASK_FOR_THE_FIRST_OFFSET = """
import sys
from tests.support.data_source import Calls
from tests.support.waiting import wait_until
stream = Calls(url=sys.argv[1]).stream("orders", group="billing", ownership="redis://127.0.0.1:1/0")
stream.batch()
client = "partq_spark.group.documents.redis"
wait_until(lambda: hasattr(sys.modules.get(client), "RedisDocuments"), "Redis' client", 30)
print("redis" in sys.modules)
stream.reader.stop()
"""

READ = """
import sys
from pyspark.sql.types import StructType
from partq_spark.spark.source import PartqDataSource
source = PartqDataSource({"path": "orders", "store": sys.argv[1], "includeheaders": "true"})
untyped = StructType().add("key", "string").add("value", "binary").add("timestamp", "timestamp")
reader = source.reader(untyped if isinstance(source.schema(), str) else source.schema())
assert sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task)) == 1
print("pandas" in sys.modules)
"""


def output(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


def test_what_lives_at_the_second_task_is_left_out_of_later_collections() -> None:
    assert output(COUNT_FROZEN) == ["False", "True", "True"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a program acknowledge at once")
def test_a_task_is_acknowledged_before_its_answer() -> None:
    """Else the second half of every task comes 40 ms after the first."""
    assert output(ANSWER_TASKS) == ["True", "True"]


@pytest.mark.parametrize("schema", [None, "at TIMESTAMP, value STRING"])
def test_workers_import_no_pandas_and_redis_client_beside_the_first_batch(tmp_path: Path, schema: str | None) -> None:
    """The client takes 0.1 s, for which the second batch had to wait; pandas takes 0.2 s and 30 MB in each worker,
    and PyArrow imports it behind one's back.
    """
    store = f"file://{tmp_path}"
    orders = partq.create_queue("orders", partitions=1, schema=schema, store=store)
    with orders.publisher() as publisher:
        publisher.send(b"1") if schema is None else publisher.send({"value": "1"})
    assert output(READ, store) == ["False"]
    if schema is not None:
        assert output(ASK_FOR_THE_FIRST_OFFSET, store) == ["True"]


@pytest.mark.conformance("TYP-01")
def test_a_task_decodes_the_columns_that_are_wanted_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(spark=None, folder=tmp_path, url=f"file://{tmp_path}")  # type: ignore[arg-type] # without Spark
    queue = lab.create("orders")
    lab.publish("orders", [("a", b"1")])
    asked: list[object] = []
    read_slice = sys.modules["partq_spark.log.reading"].read_slice

    def noted(*where: Any, only: Any, **more: Any) -> Any:
        asked.append({*only})
        return read_slice(*where, only=only, **more)

    monkeypatch.setattr("partq_spark.log.reading.read_slice", noted)
    wanted = StructType().add("offset", "long").add("value", "string")
    options = batch_source_options({"queue": "orders", "store": lab.url})
    (task,) = PartqBatchReader(options, wanted).partitions()
    (batch,) = read_task(task)
    assert batch.to_pylist() == [{"offset": 0, "value": "1"}]
    assert pa.table(queue.read(columns=["key", "partition"])).to_pylist() == [{"key": "a", "partition": 0}]
    assert asked == [{"value"}, {"key"}]


@pytest.mark.azurite
def test_no_secret_is_in_what_spark_sends_to_its_tasks(azurite: Azurite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors have credentials of their own: readers, partitions and writers travel after the store was used."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string)
    monkeypatch.setenv("PARTQ_REDIS_PASSWORD", "hunter2")
    calls, schema = Calls(url=azurite.fresh_url()), spark("id INT")
    create(calls, "id INT")
    calls.append("orders", schema, sent(schema, [1]))
    source, grouped = calls.source("orders"), calls.source("orders", group="billing", ownership="redis://127.0.0.1:1/0")
    reader = source.reader(calls.load("orders"))
    travels = [source, reader, *reader.partitions(), source.writer(schema, False)]
    pickled = pickle.dumps([*travels, source.streamWriter(schema, False), grouped.streamReader(schema)])
    assert b"orders" in pickled
    assert b"hunter2" not in pickled
    assert azurite.key.encode() not in pickled
    assert b"AccountKey" not in pickled
