"""Stages for scenarios that are driven step by step; one at a time, because the production code is there once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.scenarios.stage import Stage


@pytest.fixture
def staged() -> Iterator[Callable[..., Stage]]:
    """Makes a stage with settings of its own."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(Stage(**settings))


@pytest.fixture
def alone(staged: Callable[..., Stage]) -> Stage:
    """A queue with two partitions, and no sidecar."""
    return staged()


@pytest.fixture
def stage(staged: Callable[..., Stage]) -> Stage:
    """With a sidecar that waits for nobody to settle."""
    made = staged()
    made.coordinated()
    return made


@pytest.fixture
def single(staged: Callable[..., Stage]) -> Stage:
    """One partition, and a sidecar that waits for long before it gives it to somebody else."""
    stage = staged(partitions=1, delay_s=30.0)
    stage.coordinated()
    return stage
