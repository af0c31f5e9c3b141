"""Which queues get the messages of one batch, and whether they can: decided once per batch, on the driver (DIS-07).

What is decided here travels to the batch's tasks as a `FanPlan`, so that all of them agree; `fanout` acts on it.
Messages that are rows go to typed queues alone, keys and values to untyped ones, and all of a batch to queues with the
same columns. No pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from partq_spark.base.errors import Invalid
from partq_spark.log.queue import QueueLog
from partq_spark.log.schema.columns import same_columns, shown_names
from partq_spark.log.staged import Stage, stage_of
from partq_spark.log.topics import Attraction

if TYPE_CHECKING:
    from partq_spark.log.schema.conform import Taking

SHOWN_DDL = 200  # characters


@dataclass(frozen=True, kw_only=True, slots=True)
class Destination:
    """A queue that messages may go to. `named`: by the user, and not only by what it attracts."""

    stage: Stage
    named: bool
    subscriptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FanPlan:
    """Where the messages of one batch go; free of secrets, the same for all of its tasks.

    `by_topic`: each message by its own topic, one without a topic to the named destination. Otherwise all messages go
    to all destinations, which are those that attract `topic` if there is one.
    """

    namespace: str
    destinations: tuple[Destination, ...]  # in order of their names
    by_topic: bool = False
    topic: str | None = None

    def check(self, given: pa.Schema | None) -> None:
        """Raises `Invalid` if it can be seen before anything is staged that the messages cannot be published: where all
        go to the same queues, one of these does not take them; else none does. `given`: the columns of messages that
        are rows; None: they are keys and values.
        """
        if self.by_topic:
            _check_any(self.destinations, given)
            return
        for destination in self.destinations:
            check_alike(self.destinations[0].stage, destination.stage)
            taking(destination.stage, given)


def plan_queue(queue: QueueLog) -> FanPlan:
    """All messages go to one queue; reads its head. Raises `Invalid` if there is no such queue."""
    return FanPlan(namespace=queue.namespace, destinations=(Destination(stage=stage_of(queue.refresh()), named=True),))


def plan_topic(namespace: str, queues: Iterable[QueueLog], topic: str, named: QueueLog | None = None) -> FanPlan:
    """All messages have one topic. `queues` are those of the namespace, their heads read.

    Raises `Invalid` if the named queue does not exist; it gets the messages only if it attracts them too.
    """
    every = _destinations(queues, named)
    owners = Attraction(each.subscriptions for each in every).owners(topic)
    attracted = tuple(
        Destination(stage=every[owner].stage, named=every[owner].named) for owner in owners
    )  # without their subscriptions, which the tasks do not need
    return FanPlan(namespace=namespace, destinations=attracted, topic=topic)


def plan_topics(namespace: str, queues: Iterable[QueueLog], named: QueueLog | None = None) -> FanPlan:
    """Each message has its own topic, or none: those go to the named queue. Raises `Invalid` if that does not exist."""
    return FanPlan(namespace=namespace, destinations=_destinations(queues, named), by_topic=True)


def _destinations(queues: Iterable[QueueLog], named: QueueLog | None) -> tuple[Destination, ...]:
    found = {
        queue.name: Destination(
            stage=stage_of(queue.head),
            named=named is not None and queue.name == named.name,
            subscriptions=queue.head.subscriptions,
        )
        for queue in queues
        if queue.head.subscriptions
    }
    if named is not None and named.name not in found:
        found[named.name] = Destination(stage=stage_of(named.refresh()), named=True)
    return tuple(found[name] for name in sorted(found))


def check_alike(stage: Stage, other: Stage) -> None:
    """Raises `Invalid` unless both queues have the same columns: a batch goes to such alone."""
    one, two = stage.columns, other.columns
    if (one is None) == (two is None) and (one is None or two is None or same_columns(one, two)):
        return
    raise Invalid(
        f"one batch would go to queue {stage.queue!r} ({_of(stage)}) and to queue {other.queue!r} ({_of(other)}), "
        "which do not have the same columns: let their subscriptions differ, or publish to each by its name"
    )


def _of(stage: Stage) -> str:
    if stage.columns is None:
        return "untyped: key and value"
    ddl = stage.columns.ddl
    return ddl if len(ddl) <= SHOWN_DDL else f"{ddl[:SHOWN_DDL]}…"


def _check_any(destinations: Sequence[Destination], given: pa.Schema | None) -> None:
    """Raises `Invalid` if no destination takes the messages."""
    problem: Invalid | None = None
    for destination in destinations:
        try:
            taking(destination.stage, given)
        except Invalid as error:
            problem = problem or error
        else:
            return
    if problem is not None:
        raise problem


def taking(stage: Stage, given: pa.Schema | None) -> Taking | None:
    """How a queue takes rows with columns `given`; None: an untyped one, which takes keys and values. Raises
    `Invalid`.
    """
    if stage.columns is None and given is None:
        return None
    if stage.columns is None or given is None:
        what = "keys and values" if given is None else f"rows ({shown_names(given.names)})"
        raise Invalid(
            f"queue {stage.queue!r} ({_of(stage)}) cannot take messages that are {what}: publish what it has columns "
            "for"
        )
    from partq_spark.log.schema.conform import Taking
    from partq_spark.log.schema.versions import schema_of

    try:
        return Taking.of(given, schema_of(stage.columns))
    except Invalid as error:
        raise Invalid(f"queue {stage.queue!r} cannot take these rows: {error}") from None
