"""The demo's proof: every flight was delivered once, or again with a mark, and every aircraft's flights came in order,
also where a partition went from one query to another.

One query in SQL over what the queries wrote; the caller runs it. What it says holds across flows, because
`delivered_us`, when a micro-batch began to be written, is by one clock for all of them and different for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

COLUMNS: Final = ("tailnum", "time_hour", "minute", "carrier", "flight")
"""What the proof needs to know of a flight."""

DELIVERED: Final = "delivered"
"""The table that is asked: a flight's `COLUMNS`; partition, offset, redelivered; flow; delivered_us, when its
micro-batch began to be written; row, the order within that.
"""

Ask = Callable[[str], Sequence[Mapping[str, Any]]]

# Inside, each delivery with what came before it: how often its flight (`nth` is 1 for the first time), the aircraft's
# newest flight so far, and the partition's last delivery. Outside, the counts: in total, by flow, and by partition.
PROOF: Final = f"""
    SELECT flow,
           partition,
           count(*) AS rows,
           count_if(nth = 1) AS delivered,
           count_if(redelivered) AS redelivered,
           count_if(nth > 1 AND NOT redelivered) AS twice,
           count_if(tailnum IS NOT NULL AND newest IS NULL) AS aircraft,
           count(DISTINCT if(scheduled < newest AND NOT redelivered, tailnum, NULL)) AS aircraft_out_of_order,
           count_if(delivered_us = last.delivered_us AND offset <= last.offset) AS offsets_out_of_order,
           count_if(flow <> last.flow) AS handed_over
    FROM (SELECT *,
                 row_number() OVER (PARTITION BY time_hour, carrier, flight ORDER BY delivered_us, row) AS nth,
                 max(scheduled) OVER (PARTITION BY tailnum ORDER BY delivered_us, row
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS newest,
                 lag(struct(flow, delivered_us, offset)) OVER (PARTITION BY partition
                                                               ORDER BY delivered_us, row) AS last
          FROM (SELECT *, time_hour + minute * INTERVAL '1' MINUTE AS scheduled FROM {DELIVERED}))
    GROUP BY GROUPING SETS ((), (flow), (partition))
    ORDER BY flow, partition
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
    handed_over: int  # times that a partition's messages went on in another flow
    per_partition: Sequence[int]
    per_flow: Mapping[str, int]  # rows

    @property
    def ok(self) -> bool:
        return not (self.missing or self.twice or self.aircraft_out_of_order or self.offsets_out_of_order)


def prove(ask: Ask, expected: int, partitions: int) -> Proof:
    """Compare what was delivered with the `expected` flights that there are."""
    counts = ask(PROOF)
    (total,) = (row for row in counts if row["flow"] is None and row["partition"] is None)
    spread = {row["partition"]: row["delivered"] for row in counts if row["partition"] is not None}
    return Proof(
        rows=total["rows"],
        delivered=total["delivered"],
        again=total["rows"] - total["delivered"],
        redelivered=total["redelivered"],
        missing=expected - total["delivered"],
        twice=total["twice"],
        aircraft=total["aircraft"],
        aircraft_out_of_order=total["aircraft_out_of_order"],
        offsets_out_of_order=total["offsets_out_of_order"],
        handed_over=total["handed_over"],
        per_partition=[spread.get(number, 0) for number in range(partitions)],
        per_flow={row["flow"]: row["rows"] for row in counts if row["flow"] is not None},
    )
