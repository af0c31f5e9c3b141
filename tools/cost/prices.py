"""What requests cost: the one table of prices, `prices.toml`, which a user can change."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools import ROOT
from tools.cost.requests import Counts, Kind

PRICES: Final = ROOT / "benchmarks/prices.toml"
MILLION_GOAL: Final = 0.003
IDLE_GOAL: Final = 3.0
"""Dollars at most for a million messages in batches of 10,000, and for a query that is idle for a month."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prices:
    """Dollars for 10,000 requests of each class; `name` and `as_of` say whose prices these are."""

    name: str
    as_of: str
    per_10000: Mapping[str, float]

    def dollars(self, counts: Counts) -> float:
        """What these requests cost."""
        return sum(self.per_10000[kind] * float(getattr(counts, kind)) for kind in Kind) / 10_000


def load_prices(path: Path = PRICES) -> Prices:
    """Raises `ValueError` for a file without a price for each class, or with one that is no number from 0."""
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    found = raw.get("per_10000", {})
    for kind in Kind:
        price = found.get(kind)
        if not isinstance(price, int | float) or isinstance(price, bool) or not price >= 0:
            raise ValueError(f"{path}: per_10000.{kind} = {price!r} is no price: give dollars for 10,000 requests")
    if unknown := set(found) - set(Kind):
        raise ValueError(f"{path}: per_10000 has {sorted(unknown)}: classes are {', '.join(Kind)}")
    return Prices(name=str(raw["name"]), as_of=str(raw["as_of"]), per_10000={kind: found[kind] for kind in Kind})
