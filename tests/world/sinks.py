"""How a query's batch is written into queues, in Spark's order: tasks stage, some of them twice, then another process
commits, and aborts if that fails (spark-traps.md 8, 9, 10). And what a person does when a batch is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

import partq
from partq_spark.spark.source import PartqDataSource
from tests.support.data_source import sent
from tests.world.facts import Row, Writing, Wrote
from tests.world.processes import RETRY_S
from tests.world.query_plan import SUBSCRIPTIONS, attracts, topic_of
from tests.world.spark import Context

if TYPE_CHECKING:
    from tests.world.world import World

Parts = Sequence[tuple[str, Sequence[str]]]
_FORM: Final = (("key", pa.string()), ("value", pa.binary()))


@dataclass(frozen=True, kw_only=True)
class Write:
    """One write of a batch into a queue, or into all that attract its rows. `application`: the txnAppId of a batch
    write; None: a streaming sink. `again`: whether a task is tried twice.
    """

    world: World
    query: str
    batch: int
    queue: str | None
    application: str | None
    rows: Sequence[Row]
    tasks: int
    is_healthy: Callable[[], bool]
    again: Callable[[], bool]

    @property
    def writer(self) -> str:
        """The name under which the queues know it."""
        return self.application or self.query

    def run(self) -> None:
        """Stage, commit, and perhaps abort. Raises as the sink does."""
        world = self.world
        values = {name: tuple(row.value for row in self.rows if self._gets(name, row)) for name in self._queues}
        parts = tuple((name, found) for name, found in values.items() if found)
        number = next(world.count)
        world.take(Writing(world.now_us, number, self.writer, self.batch, parts))
        ended = partial(Wrote, number=number)
        try:
            self._run()
        except partq.PartqError as error:
            ending = "refused" if is_refusal(error) else "failed"
            world.counts[f"a write is {ending}"] += 1
            present = self._present(parts) if ending == "refused" else frozenset()
            world.take(
                ended(
                    at_us=world.now_us, ending=ending, is_healthy=self.is_healthy(), problem=str(error), present=present
                )
            )
            raise
        world.take(ended(at_us=world.now_us, ending="accepted", is_healthy=self.is_healthy()))

    def _present(self, parts: Parts) -> frozenset[tuple[str, str]]:
        """By a look at the queues."""
        found = [(name, each.value.decode()) for name, _ in parts for each in self.world.queue(name).browse()]
        return frozenset(found) & {(name, value) for name, values in parts for value in values}

    @property
    def _queues(self) -> Sequence[str]:
        return (self.queue,) if self.queue is not None else tuple(SUBSCRIPTIONS)

    def _gets(self, name: str, row: Row) -> bool:
        return self.queue is not None or attracts(name, row.key)

    def _run(self) -> None:
        source, schema = self._source(), StructType().add("key", "string").add("value", "binary")
        if self.queue is None:
            schema.add("topic", "string")
        streams = self.application is None
        number = (self.batch,) if streams else ()
        planned: Any = sent(source.streamWriter(schema, False) if streams else source.writer(schema, False))
        makers = iter([planned])

        def writer() -> Any:
            return next(makers, sent(source).streamWriter(schema, False) if streams else planned)

        written(writer, [partial(self._attempted, task=task) for task in range(self.tasks)], *number)

    def _attempted(self, planned: Any, task: int) -> Any:
        if self.again():  # a speculative attempt, which may end much later, or the first one, which fails
            self.world.counts["tasks tried twice"] += 1
            self.world.machine.spawn("task", partial(self._try, planned, task))
        return self._staged(planned, task)

    def _source(self) -> PartqDataSource:
        options = {"store": self.world.url, "retryTimeout": f"{RETRY_S:g}s"}
        if self.queue is not None:
            options["path"] = self.queue
        if self.application is not None:
            options |= {"txnAppId": self.application, "txnVersion": f"{self.batch}"}
        return PartqDataSource(CaseInsensitiveDict(options))

    def _try(self, planned: Any, task: int) -> None:
        try:
            self._staged(planned, task)
        except partq.PartqError:
            self.world.counts["a second attempt failed"] += 1

    def _staged(self, planned: Any, task: int) -> Any:
        # A key's messages lie in one partition of the source, and Spark makes tasks of partitions.
        rows = [row for row in self.rows if row.partition % self.tasks == task]
        columns: dict[str, list[Any]] = {
            "key": [row.key for row in rows],
            "value": [row.value.encode() for row in rows],
        }
        form: tuple[tuple[str, Any], ...] = _FORM
        if self.queue is None:
            columns["topic"] = [topic_of(row.key) for row in rows]
            form = (*_FORM, ("topic", pa.string()))
        given = pa.table(columns, pa.schema(form))
        with self.world.around.as_task(Context(self.query, self.batch, task)):
            return planned.write(iter(given.to_batches()))


def written(make: Callable[[], Any], tasks: Sequence[Callable[[Any], Any]], *batch: int) -> None:
    """One write, in Spark's order: tasks stage by a writer that planned; then commit, and where something fails abort,
    by writers of other processes. `batch`: its number, of a streaming sink.
    """
    planned = make()
    messages: list[Any] = []
    try:
        messages += [task(planned) for task in tasks]
        make().commit(messages, *batch)
    except Exception:
        make().abort(messages, *batch)
        raise


def is_refusal(error: BaseException) -> bool:
    """Not something that another try may end otherwise."""
    passes = isinstance(error, partq.Unavailable) or type(error).__name__ in {"Outdated", "Full"}
    return isinstance(error, partq.PartqError) and not passes


def ways_out(error: str, deed: str) -> list[dict[str, str]]:
    """The commands that a refusal names for this deed, `published` or `new`: queue, writer and batch."""
    found = []
    for command in re.findall(r"partq queue resolve [^`;,]+", error):
        _, _, _, queue, *rest = shlex.split(command)
        options = [each for each in rest if each != "--yes"]
        told = {"queue": queue, **dict(zip(options[::2], options[1::2], strict=True))}
        if told["--as"] == deed:
            found.append({"queue": told["queue"], "writer": told["--writer"], "batch": told["--batch"]})
    return found
