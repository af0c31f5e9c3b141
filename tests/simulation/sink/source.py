"""Where the rows of a query come from: a list, or a group whose partitions move on and are rewound."""

from __future__ import annotations

import random
from collections import Counter

from tests.simulation.sink.plan import TOPICS, Plan, Row
from tests.simulation.sink.spark import Span


class Source:
    """A list has one partition. Each try of a batch asks anew for its rows."""

    def __init__(self, plan: Plan, rng: random.Random, counts: Counter[str]) -> None:
        self._plan, self._rng, self._counts = plan, rng, counts
        self.rows: list[list[Row]] = [[] for _ in range(3 if plan.grouped else 1)]
        self._number = 0
        self._rewound: dict[int, int] = {}
        self._left_out: set[int] = set()  # of the batch that is tried again: what has moved on
        self._drawn: dict[Row, int] = {}

    def arrive(self) -> None:
        """Some rows more; now and then a partition is rewound."""
        rng = self._rng
        for rows in self.rows:
            for _ in range(rng.randint(0, self._plan.most_rows)):
                if rows and rng.random() < 0.15:
                    rows.append(rows[-1])  # an equal row is another message
                    continue
                self._number += 1
                key = rng.choice((None, None, "k1", "k2", "k3", "k4", ""))
                rows.append(Row(key, self._number, rng.choice(TOPICS)))
        if self._plan.grouped and rng.random() < 0.1:
            partition = rng.randrange(len(self.rows))
            self._rewound[partition] = rng.randint(0, len(self.rows[partition]))
            self._counts["rewound"] += 1

    def span(self, former: Span | None) -> Span | None:
        """Of the batch behind `former`; None: there is nothing new."""
        span = []
        for partition, rows in enumerate(self.rows):
            begin = self._rewound.pop(partition, former[partition][1] if former is not None else 0)
            span.append((begin, min(len(rows), begin + self._rng.randint(1, 2 * self._plan.most_rows))))
        return tuple(span) if any(begin < to for begin, to in span) else None

    def given(self, span: Span, *, repeats: bool) -> list[Row]:
        """The rows of a batch in this try."""
        if not repeats:
            self._left_out.clear()
        elif self._plan.grouped:
            found = {partition for partition in range(len(span)) if self._rng.random() < 0.15}
            self._counts["left out"] += len(found - self._left_out)
            self._left_out |= found
        return [
            self._redrawn(row)
            for partition, (begin, to) in enumerate(span)
            if partition not in self._left_out
            for row in self.rows[partition][begin:to]
        ]

    def _redrawn(self, row: Row) -> Row:
        if self._rng.random() < self._plan.unstable:
            self._drawn[row] = self._drawn.get(row, 0) + 1
        return row._replace(drawn=self._drawn.get(row, 0))
