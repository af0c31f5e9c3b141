"""The demo's proof: every flight was delivered once, or again with a mark, and every aircraft's flights came in order.

Questions in SQL to what the queries wrote; the caller runs them. What is proven holds across flows, because
`delivered_us`, when a micro-batch began to be written, is by one clock for all of them and different for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DELIVERED: Final = "delivered"
"""The table that is asked. Columns: flow; delivered_us, when its micro-batch began to be written; row, the order within
that; key, partition, offset, redelivered; id, the flight's number in the order of departure.
"""

Ask = Callable[[str], Sequence[Mapping[str, Any]]]

# A flight's first delivery decides how many of its unmarked ones are too many; `first` is when that was, doubled, plus
# 1 if it was marked: a plain minimum is several times as fast as a window over all rows.
REPEATS: Final = f"""
    SELECT partition,
           sum(times) AS rows,
           count(*) AS delivered,
           sum(marked) AS redelivered,
           sum(times - marked - if(first % 2 = 0, 1, 0)) AS twice
    FROM (SELECT partition, id,
                 count(*) AS times,
                 count_if(redelivered) AS marked,
                 min(2 * delivered_us + CAST(redelivered AS INT)) AS first
          FROM {DELIVERED}
          GROUP BY partition, id)
    GROUP BY partition
"""

SHARES: Final = f"SELECT flow, count(*) AS rows FROM {DELIVERED} GROUP BY flow ORDER BY flow"

ORDER: Final = f"""
    SELECT count_if(key IS NOT NULL AND newest IS NULL) AS aircraft,
           size(collect_set(CASE WHEN id <= newest AND NOT redelivered THEN key END)) AS aircraft_out_of_order
    FROM (SELECT key, id, redelivered,
                 max(id) OVER (PARTITION BY key ORDER BY delivered_us, row
                               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newest
          FROM {DELIVERED})
"""

OFFSETS: Final = f"""
    SELECT count_if(offset <= before) AS offsets_out_of_order
    FROM (SELECT offset, lag(offset) OVER (PARTITION BY delivered_us, partition ORDER BY row) AS before
          FROM {DELIVERED})
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """What was delivered, and counts of what went wrong (0 each if all is well)."""

    rows: int  # that the queries wrote
    delivered: int  # different flights among them
    again: int  # rows of flights that had come before
    redelivered: int  # rows that say they may have come before
    missing: int
    twice: int  # rows of flights that had come before, and do not say so
    aircraft: int
    aircraft_out_of_order: int  # whose flight came after a later one, and does not say that it came before
    offsets_out_of_order: int  # within a partition's messages in one micro-batch
    per_partition: Sequence[int]
    per_flow: Mapping[str, int]  # rows

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.aircraft_out_of_order or self.offsets_out_of_order)


def prove(ask: Ask, expected: int, partitions: int) -> Proof:
    """Compare what was delivered with flights 0 to `expected` - 1."""
    repeats = ask(REPEATS)
    (order,) = ask(ORDER)
    (offsets,) = ask(OFFSETS)
    rows, delivered, redelivered, twice = (
        sum(row[column] for row in repeats) for column in ("rows", "delivered", "redelivered", "twice")
    )
    spread = {row["partition"]: row["delivered"] for row in repeats}
    return Proof(
        rows=rows,
        delivered=delivered,
        again=rows - delivered,
        redelivered=redelivered,
        missing=expected - delivered,
        twice=twice,
        **order,
        **offsets,
        per_partition=[spread.get(number, 0) for number in range(partitions)],
        per_flow={row["flow"]: row["rows"] for row in ask(SHARES)},
    )
