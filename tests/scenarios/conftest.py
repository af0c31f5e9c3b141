"""Stages for scenarios that are driven step by step; one at a time, because the production code is there once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.scenarios.stage import Stage, Staged


@pytest.fixture
def staged() -> Iterator[Staged]:
    """Makes a stage with settings of its own, and with a sidecar."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Stage:
            stage = stack.enter_context(Stage(**settings))
            stage.coordinated()
            return stage

        yield make


@pytest.fixture
def stage(staged: Staged) -> Stage:
    """A queue with two partitions, and a sidecar that waits for nobody to settle."""
    return staged()


@pytest.fixture
def single(staged: Staged) -> Stage:
    """One partition, and a sidecar that waits for long before it gives it to somebody else."""
    return staged(partitions=1, rebalance_delay_s=30.0)


@pytest.fixture
def alone() -> Iterator[Stage]:
    """Two partitions, and no sidecar."""
    with Stage() as stage:
        yield stage
