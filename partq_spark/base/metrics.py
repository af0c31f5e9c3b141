"""What a metric is, what is counted on the way to it, and how values become what Prometheus reads.

Metrics are described once, as values; each part of partq gives samples of its own. Only here prometheus_client is
imported, and only when somebody asks for metrics. Nothing is looked up here and nothing is remembered but counts.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from partq_spark.base.errors import Invalid

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric as Family


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric. Its name ends in its unit, a counter's in `_total` after that. `bounds`: of a histogram's buckets."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


def gauge(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    """One that goes up and down."""
    return Metric(name=name, kind="gauge", help=text, labels=labels)


def counter(name: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    """One that only grows while its process lives."""
    return Metric(name=name, kind="counter", help=text, labels=labels)


class Distribution(NamedTuple):
    """What a histogram holds: how many values fell into each of its buckets, the last one having no end, and their
    sum.
    """

    counts: tuple[int, ...]
    sum: float


class Sample(NamedTuple):
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution


class Histogram:
    """Counts values by buckets, for any number of threads. Takes half a microsecond a value."""

    def __init__(self, metric: Metric) -> None:
        self._bounds = metric.bounds
        self._counts = [0] * (len(metric.bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count one value."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def distribution(self) -> Distribution:
        """What was counted so far."""
        with self._lock:
            return Distribution(tuple(self._counts), self._sum)


class Counts:
    """Counts things by name, for any number of threads. The names come from the code, so there are few."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], int] = {}
        self._lock = threading.Lock()

    def add(self, *name: str, count: int = 1) -> None:
        """`count` more of this name."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + count

    def all(self) -> dict[tuple[str, ...], int]:
        """What was counted so far, by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))


# --- for Prometheus ---------------------------------------------------------------------------------------------------


def families(samples: Iterable[Sample]) -> Iterable[Family]:
    """The samples as prometheus_client has them, those of a metric together. Raises `Invalid` without its package."""
    try:
        from prometheus_client import core
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    kinds = {
        "gauge": core.GaugeMetricFamily,
        "counter": core.CounterMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }
    made: dict[str, Any] = {}  # of one of these kinds
    for metric, labels, value in samples:
        if metric.name not in made:
            name = metric.name.removesuffix("_total")
            unit = next((unit for unit in ("seconds", "bytes") if name.endswith(f"_{unit}")), "")
            made[metric.name] = kinds[metric.kind](name, metric.help, labels=metric.labels, unit=unit)
        if isinstance(value, Distribution):
            bounds = (*map(repr, map(float, metric.bounds)), "+Inf")
            buckets = list(zip(bounds, accumulate(value.counts), strict=True))
            made[metric.name].add_metric(labels, buckets, value.sum)
        else:
            made[metric.name].add_metric(labels, value)
    return made.values()


class Collector:
    """Tells a registry of prometheus_client what `samples` gives whenever somebody reads the registry."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        """The values of now."""
        return families(self._samples())

    def describe(self) -> Iterable[Family]:
        """Nothing beforehand: else a registry would collect once to find out."""
        return ()


class Exposition:
    """The text that Prometheus reads, from what `samples` gives and what prometheus_client knows of every process:
    time, memory, open files. Nothing is made before somebody asks for it.
    """

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        self._samples = samples

    @cached_property
    def _registry(self) -> CollectorRegistry:
        import prometheus_client

        made = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=made)
        made.register(Collector(self._samples))
        return made

    def __call__(self, accept: str) -> tuple[str, bytes]:
        """The content type and the text for a client that accepts this: OpenMetrics, or Prometheus' older format.
        Raises `Invalid` without prometheus_client.
        """
        try:
            from prometheus_client.exposition import choose_encoder

            registry = self._registry
        except ModuleNotFoundError as error:
            raise _missing(error) from None
        encode, content_type = choose_encoder(accept)
        return content_type, encode(registry)


def _missing(error: ModuleNotFoundError) -> Invalid:
    return Invalid(f"metrics need the package {error.name}: install it with `pip install partq[metrics]`")
