"""What partq costs the Python processes that Spark runs it in."""

from __future__ import annotations

import subprocess
import sys

COUNT_FROZEN = """
import gc
from pyspark.sql.datasource import InputPartition
from partq_spark.spark.reader import read_task
for _ in range(3):
    list(read_task(InputPartition(None)))
    print(gc.get_freeze_count() > 10_000)
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


def test_what_lives_at_the_second_task_is_left_out_of_later_collections() -> None:
    assert output(COUNT_FROZEN) == ["False", "True", "True"]


def test_making_batches_imports_no_pandas() -> None:
    """It takes 0.2 s and 30 MB in each worker, and PyArrow imports it behind one's back."""
    assert output(MAKE_BATCHES) == ["False"]


def output(program: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    return done.stdout.split()
