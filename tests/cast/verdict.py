"""What a run with real processes is judged by: their facts, by the judge of the simulated world, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from tests.cast.publisher import key_of
from tests.world.facts import Fact, Given, Lying, Place, Sent, Violation
from tests.world.judge import Judge

WITHIN_S: Final = 120.0
"""How long a message may wait for a flow, and then for its acknowledgement, since something befell anybody: longer than
session timeout, delay, max-handoff-time, a new leader and a driver's start after one another. On a machine with nine
times its load 50 s were seen.
"""
_MOST_TOLD: Final = 1000  # characters: the rows of a batch may be many


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What a group came to. `violations` is empty if everything was as it must be."""

    violations: tuple[str, ...]
    rows: int  # that were given
    batches: int
    marked: int
    repeated: int  # rows of a message beyond its first
    longest_s: float  # that a message waited


def judge_group(
    group: str, facts: Iterable[Fact], log: Mapping[Place, Lying], published: int, *, keeps_offsets: bool = True
) -> Verdict:
    """Of one group that reads a queue with this log, in which so many messages were published."""
    judge = Judge(
        within_s=WITHIN_S,
        kept={group} if keeps_offsets else frozenset(),
        grouped={group},
        is_witness=False,
    )
    # Faults are among the facts, and applications fail by themselves: what comes again is marked, no more is asked.
    judge.had_accident = True
    mine = [fact for fact in facts if getattr(fact, "group", group) == group]
    violations = []
    try:
        for number in range(published):
            judge.take(Sent(0, "publisher", key_of(number), number, str(number)))
        for fact in mine:
            judge.take(fact)
        judge.complete({"": log}, {group: ""}, source="")
        if len(log) != published:
            violations.append(f"{published} messages were published, the queue has {len(log)}")
    except Violation as violation:
        violations.append(f"{group}: {violation}"[:_MOST_TOLD])
    given = [fact for fact in mine if isinstance(fact, Given)]
    rows = [(row.partition, row.offset) for fact in given for row in fact.rows]
    return Verdict(
        violations=tuple(violations),
        rows=len(rows),
        batches=len(given),
        marked=sum(row.marked for fact in given for row in fact.rows),
        repeated=len(rows) - len(set(rows)),
        longest_s=judge.bounds.longest_us / 1e6,
    )
