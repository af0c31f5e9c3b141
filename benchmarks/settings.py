"""What a part is asked to do: values that the command line fills and every part reads."""

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
