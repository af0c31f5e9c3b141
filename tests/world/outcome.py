"""What the run of a simulation came to, and how it is kept from logging each fault that is injected."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Outcome:
    """What a run was."""

    seed: int
    steps: int = 0
    simulated_us: int = 0
    history: str = ""
    facts: int = 0
    counts: Counter[str] = field(default_factory=Counter)


@contextmanager
def quiet() -> Iterator[None]:
    """Every injected fault would be logged."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(disabled)
