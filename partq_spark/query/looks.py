"""What a flow keeps of its last look: the end that it gave to Spark, or that there was nothing to give. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partq_spark.query.offsets import BatchEnd
from partq_spark.query.planning import Plan, Spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Announced:
    """An end that was given to Spark, what its batch delivers, and the instance in whose name that was announced.
    `planned`: Spark has asked for its partitions, so that it may have been delivered.
    """

    raw: dict[str, Any]
    end: BatchEnd
    spans: Spans
    instance: str | None
    planned: bool = False


@dataclass(frozen=True, slots=True)
class Quiet:
    """A whole look at `at_s` after which there was nothing to do."""

    start: dict[str, Any]
    plan: Plan
    at_s: float
