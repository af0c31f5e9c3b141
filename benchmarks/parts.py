"""The parts of the benchmark: what each is called, where its code is, how long it takes and may take at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.settings import DEFAULT_ROUNDS, DEFAULT_ROWS, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """`call` is `module:function`, imported only in the process that runs the part.

    `takes` is told to people: minutes with default arguments on two cores. `limit_s` ends the part. One that has a
    document of its own does not stand in docs/benchmarks.md.
    """

    name: str
    call: str
    about: str
    takes: str
    limit_s: int
    has_own_document: bool = False
    any_rows: bool = False  # both sides have as many

    def is_full(self, settings: Settings) -> bool:
        """Whether the outcome may go into the document: everything less is a trial."""
        enough = self.any_rows or settings.rows == DEFAULT_ROWS
        return not settings.quick and enough and settings.rounds >= DEFAULT_ROUNDS


AGAINST: Final = "against"
PARTS: Final = (
    Part(
        name="read",
        call="benchmarks.throughput:read",
        about="all columns and two into noop, with both Spark homes, against Spark's Parquet source (and Kafka)",
        takes="10 min, with Kafka 15",
        limit_s=5400,
    ),
    Part(
        name="publish",
        call="benchmarks.throughput:publish",
        about="a Parquet stream into a queue, against Spark's Parquet sink and a bare Python sink (and Kafka)",
        takes="6 min, with Kafka 16",
        limit_s=5400,
    ),
    Part(
        name="rows",
        call="benchmarks.rows:measure",
        about="rows of 19 columns in a typed queue, against Parquet files (and Kafka with JSON and Avro)",
        takes="8 min, with Kafka 40",
        limit_s=7200,
    ),
    Part(
        name="microbatch",
        call="benchmarks.microbatch:measure",
        about="micro-batches of 5 rows, partq to partq, against a bare Python source and sink, with both kinds of logs",
        takes="12 min",
        limit_s=3600,
    ),
    Part(
        name="latency",
        call="benchmarks.latency:measure",
        about="one message until foreachBatch has it, alone and in a group (against Kafka)",
        takes="8 min, with Kafka 20",
        limit_s=5400,
    ),
    Part(
        name="memory",
        call="benchmarks.memory:measure",
        about="peak memory of reading, against reading eight times as much",
        takes="6 min",
        limit_s=5400,
    ),
    Part(
        name="start",
        call="benchmarks.starting:measure",
        about="a session's first write and a query's start to end, with and without PySpark's archive in Spark's home",
        takes="5 min",
        limit_s=1800,
    ),
    Part(
        name="workers",
        call="benchmarks.workers:measure",
        about="publishing, reading and small batches with two of Spark's settings for Python workers, and without",
        takes="15 min",
        limit_s=5400,
    ),
    Part(
        name="planning",
        call="benchmarks.planning:measure",
        about="planning a batch for a query that is 10,000 and 100,000 publishes behind",
        takes="6 min",
        limit_s=1800,
    ),
    Part(
        name="compaction",
        call="benchmarks.compaction:measure",
        about="reading 10,000 small publishes before and after compaction, against one publish of all",
        takes="2 min",
        limit_s=1800,
    ),
    Part(
        name="head",
        call="benchmarks.head:measure",
        about="size of a queue's head over 100,000 publishes to 64 partitions",
        takes="4 min",
        limit_s=1800,
    ),
    Part(
        name="publishers",
        call="benchmarks.publishers:measure",
        about="eight processes publish to one queue, on file: and on Azurite",
        takes="2 min",
        limit_s=1200,
    ),
    Part(
        name="decide",
        call="benchmarks.ownership:decide",
        about="deciding who has what, for 1,000 flows and 10,000 partitions",
        takes="1 min",
        limit_s=600,
    ),
    Part(
        name="flow",
        call="benchmarks.ownership:flow",
        about="a flow's heartbeat, and its way from bind to its first partitions",
        takes="1 min",
        limit_s=600,
    ),
    Part(
        name="flows",
        call="benchmarks.flows:measure",
        about="streaming queries as flows: reading, small batches, idle time, pauses of handoffs",
        takes="6 min",
        limit_s=2400,
    ),
    Part(
        name="groups",
        call="benchmarks.groups:measure",
        about="one coordinator for 200 groups of 50 flows: processor time and memory",
        takes="6 min",
        limit_s=1800,
    ),
    Part(
        name="page",
        call="benchmarks.page:measure",
        about="the web page with 200 partitions of 50 flows: drawing in Chromium, and what three browsers cost",
        takes="3 min",
        limit_s=900,
    ),
    Part(
        name="cost",
        call="benchmarks.cost:measure",
        about="requests to Azure Blob Storage for everything that partq does, and dollars (docs/cost.md)",
        takes="3 min",
        limit_s=900,
        has_own_document=True,
    ),
    Part(
        name=AGAINST,
        call="benchmarks.against:measure",
        about="other parts (--of) at an earlier commit (--commit) and here, in turns",
        takes="a round of each part, ten times",
        limit_s=6 * 3600,
        any_rows=True,
    ),
)
