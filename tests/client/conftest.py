"""A store of its own for each test, and the command line on the same store, to compare the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import partq
from tests.cli.conftest import Partq

Make = Callable[..., partq.Queue]


@pytest.fixture
def command(tmp_path: Path) -> Partq:
    """The command line."""
    return Partq(tmp_path / "store")


@pytest.fixture
def make(command: Partq) -> Make:
    """Creates a queue in the store of `command`."""

    def run(name: str = "orders", partitions: int = 2, **more: object) -> partq.Queue:
        return partq.create_queue(name, partitions=partitions, store=command.url, **more)  # type: ignore[arg-type]

    return run


def acknowledged(queue: partq.Queue, group: str, offsets: Mapping[int, int]) -> None:
    """The group has acknowledged so far."""
    with queue.consumer(group, starting="earliest", acknowledge="manual") as consumer:
        batch = consumer.poll(0.5)
        for message in batch or ():
            if message.offset == offsets.get(message.partition, 0) - 1:
                assert batch is not None
                assert batch.acknowledge(message) == frozenset()
