"""The parts of the benchmark: what each is called, where its code is, how long it takes and may take at most; and what
a part is asked to do: values that the command line fills and every part reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import ROOT

KEPT: Final = ROOT / ".venv/bench"  # what outlives a run: Kafka's jars, the outcomes
OUTCOMES: Final = KEPT / "outcomes"
NAMESPACE: Final = "bench"
PARTITIONS: Final = 8
DEFAULT_ROWS: Final = 8_000_000
DEFAULT_ROUNDS: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """`work` is an empty folder on the disk that is measured, removed at the end. `peer`: `kafka` or None.
    `prices`: another table of prices than the project's. `commit` and `of`: what part `against` compares with, and
    which parts.
    """

    work: Path
    rows: int
    rounds: int
    quick: bool
    peer: str | None
    prices: Path | None = None
    commit: str | None = None
    of: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """`call` is `module:function` below `benchmarks`, imported only in the process that runs the part.

    `minutes` are those that it takes with default arguments on two cores, for people; ten times as long ends it. A deed
    of part `bounds` is `within` it: it may be named alone, and stands in the document as a line of that part. A part
    that has a document of its own does not stand in docs/benchmarks.md.
    """

    name: str
    call: str
    about: str
    minutes: int
    with_kafka: int = 0
    within: str = ""
    takes: str = ""  # in place of the minutes
    has_own_document: bool = False
    any_rows: bool = False  # both sides have as many

    @property
    def limit_s(self) -> int:
        return 600 * max(self.minutes, self.with_kafka)

    def __str__(self) -> str:
        kafka = f", with Kafka {self.with_kafka}" if self.with_kafka else ""
        return f"{self.name:<11}{self.about}: {self.takes or f'{self.minutes} min'}{kafka}"

    def is_full(self, settings: Settings) -> bool:
        """Whether the outcome may go into the document: everything less is a trial."""
        enough = self.any_rows or settings.rows == DEFAULT_ROWS
        return not settings.quick and enough and settings.rounds >= DEFAULT_ROUNDS


AGAINST: Final = "against"
BOUNDS: Final = "bounds"
_COMPARED: Final = (
    Part(
        name="read",
        call="throughput:read",
        about="all columns and two into noop, with both Spark homes, against Spark's Parquet source (and Kafka)",
        minutes=10,
        with_kafka=15,
    ),
    Part(
        name="publish",
        call="throughput:publish",
        about="a Parquet stream into a queue, against Spark's Parquet sink and bare Python sinks (and Kafka)",
        minutes=6,
        with_kafka=16,
    ),
    Part(
        name="rows",
        call="rows:measure",
        about="rows of 19 columns in a typed queue, against Parquet files (and Kafka with JSON and Avro)",
        minutes=8,
        with_kafka=40,
    ),
    Part(
        name="microbatch",
        call="microbatch:measure",
        about="micro-batches of 5 rows, partq to partq, against a bare Python source and sink, with both kinds of logs",
        minutes=12,
    ),
    Part(
        name="latency",
        call="latency:measure",
        about="one message until foreachBatch has it, alone and in a group (against Kafka)",
        minutes=8,
        with_kafka=20,
    ),
    Part(
        name="memory",
        call="memory:measure",
        about="peak memory of reading, against reading eight times as much",
        minutes=6,
    ),
    Part(
        name="flows",
        call="flows:measure",
        about="streaming queries as flows: reading, small batches, idle time, pauses of handoffs",
        minutes=6,
    ),
    Part(
        name="planning",
        call="planning:measure",
        about="planning a batch for a query that is 10,000 and 100,000 publishes behind",
        minutes=6,
    ),
    Part(
        name="cost",
        call="cost:measure",
        about="requests to Azure Blob Storage for everything that partq does, and dollars (docs/cost.md)",
        minutes=3,
        has_own_document=True,
    ),
    Part(
        name=AGAINST,
        call="against:measure",
        about="other parts, or bounds (--of), at an earlier commit (--commit) and here, in turns",
        minutes=36,
        takes="a round of each, ten times",
        any_rows=True,
    ),
)
_DEEDS: Final = (  # what is done, where it is, and its minutes
    ("start", "drivers:start", "a session's first write and a query, with and without PySpark's archive", 5),
    ("workers", "drivers:workers", "publishing and reading with two of Spark's settings for Python workers", 15),
    ("compaction", "log:compaction", "reading 10,000 small publishes before and after compaction", 2),
    ("head", "log:head", "size of a queue's head over 100,000 publishes to 64 partitions", 4),
    ("publishers", "log:publishers", "1, 4 and 8 processes publish to one queue, on file:, Azurite, S3", 6),
    ("decide", "flow:decide", "deciding who has what, for 1,000 flows and 10,000 partitions", 1),
    ("flow", "flow:flow", "a flow's heartbeat, and its way from bind to its first partitions", 1),
    ("groups", "groups:measure", "processor time and memory of one coordinator for 200 groups of 50 flows", 6),
    ("page", "page:measure", "200 partitions of 50 flows: drawing in Chromium, and serving three browsers", 3),
    ("files", "files:files", "publishing CSV, JSON lines, Parquet and frames, typed and untyped", 4),
    ("demo", "files:demo", "the demo, from its start to its proof", 4),
)
DEEDS: Final = tuple(
    Part(name=name, call=f"{BOUNDS}.{call}", about=about, minutes=minutes, within=BOUNDS)
    for name, call, about, minutes in _DEEDS
)
PARTS: Final = (*_COMPARED[:-1], *DEEDS, _COMPARED[-1])
"""In the order of the document."""

BY_COMMANDS: Final = frozenset(part.name for part in PARTS if part.call.startswith(f"{BOUNDS}.files:"))
"""They know the command line and public names alone, so the same code measures an earlier commit."""

SHOWN: Final = {part.name: part.within or part.name for part in PARTS if not part.has_own_document}
"""As which part of the document each stands."""


def help_text() -> str:
    """All parts, for people."""
    lines = [f"  {part}" for part in _COMPARED]
    lines += [f"  {BOUNDS:<11}what must stay small, each a process of its own, which may be named alone:"]
    return "\n".join((*lines, *(f"    {deed}" for deed in DEEDS)))


def named(names: list[str]) -> list[str]:
    """The parts that are meant by these names, deeds in place of part `bounds`."""
    return [each for name in names for each in ([deed.name for deed in DEEDS] if name == BOUNDS else [name])]
