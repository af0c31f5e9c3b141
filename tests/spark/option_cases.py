"""The roles in which options are read, the options each takes, and how tests give them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from partq_spark.base.errors import Invalid
from partq_spark.query.settings import SourceOptions
from partq_spark.spark import options
from partq_spark.spark.options import SinkOptions

STORE = "file:///stores/here"
BASE = {"queue": "orders", "store": STORE}

SOURCES: list[Callable[[dict[str, str]], SourceOptions]] = [
    options.source_options,
    options.batch_source_options,
    options.stream_source_options,
]
SINKS: list[Callable[[dict[str, str]], SinkOptions]] = [options.batch_sink_options, options.stream_sink_options]
ROLES = [*SOURCES, *SINKS]

EVERYWHERE = {
    "queue": "orders",
    "store": STORE,
    "namespace": "shop",
    "retryTimeout": "3s",
    "includeHeaders": "true",
}
SOURCE = {"startingOffsets": "earliest", "startingTimestamp": "2026-11-20T09:30:00Z", "failOnDataLoss": "false"}
STREAM_SOURCE = {
    "maxMessagesPerTrigger": "10",
    "maxBytesPerTrigger": "64m",
    "maxDeliveredUnackedMsgsPerFlow": "10",
    "pollInterval": "50ms",
}
BATCH_SOURCE = {"endingOffsets": "latest", "endingTimestamp": "2026-11-20T09:30:00Z"}
SINK = {"topic": "a/b", "compression": "lz4"}
GROUP = {
    "group": "billing",
    "ownership": "store",
    "flow": "left",
    "ackMode": "auto",
    "checkpointInterval": "1s",
    "sessionTimeout": "10s",
    "maxPollInterval": "1m",
    "checkpoints": "store",
}

SECRET = "hunter2"


def source(**more: str) -> SourceOptions:
    """What `load` reads, with these options besides queue and store."""
    return options.source_options({**BASE, **more})


def sink(**more: str) -> SinkOptions:
    """What a batch sink reads, with these options besides queue and store."""
    return options.batch_sink_options({**BASE, **more})


def refused(parse: Callable[[dict[str, str]], object], given_options: dict[str, str]) -> str:
    """What is said when these are not taken."""
    with pytest.raises(Invalid) as caught:
        parse(given_options)
    return str(caught.value)
