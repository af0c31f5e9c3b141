"""What a changed partition count means for a group, for people: how far the change is, and which partition waits for
what (RES-02, RES-03). Pure; `status` shows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from partq_spark.log import layouts
from partq_spark.log.layouts import Positions, Wait
from partq_spark.log.model import Head, at

_MOST_NAMED = 8


def scale_status(head: Head, done: Positions, known: Collection[int]) -> str:
    """`Ready`, or `ScalingUp` or `ScalingDown` while something of an earlier partition count is left, or while who
    shares the partitions out has not followed. `known`: the partitions that he knows.
    """
    found = layouts.scale_status(head, done)
    wanted = set(layouts.partitions_for(head, done))
    if found != "Ready" or wanted == set(known):
        return found
    return "ScalingUp" if wanted - set(known) else "ScalingDown"


def reasons(head: Head, done: Positions, reached: Positions) -> dict[int, str]:
    """In words, of those partitions of `reached` that leave the queue, or have messages that wait for others."""
    found: dict[int, str] = {}
    for partition, end in layouts.leaving(head).items():
        if partition in reached and done.get(partition, 0) < end:
            left = _messages(end - max(done.get(partition, 0), at(head.earliest, partition)))
            found[partition] = f"leaves the queue at offset {end:,}: {left} left"
    for partition, wait in layouts.waits(head, done, reached).items():
        if wait.until < at(head.next, partition):
            before = f"{found[partition]}; " if partition in found else ""
            found[partition] = before + _waits(head, done, wait)
    return found


def _waits(head: Head, done: Positions, wait: Wait) -> str:
    left = sum(end - max(done.get(q, 0), at(head.earliest, q)) for q, end in wait.waits_for.items())
    return (
        f"waits for {_messages(left)} of {_partitions(sorted(wait.waits_for))} from when the queue had "
        f"{_counts(head, wait.waits_for)}"
    )


def _counts(head: Head, ends: Mapping[int, int]) -> str:
    """The partition counts under which those messages were published of which the last ones are waited for."""
    stretches = layouts.stretches(head)
    indices = {each.layout for q, end in ends.items() for each in stretches.get(q, ()) if each.end == end}
    counts = list(dict.fromkeys(head.layouts[index].partitions for index in sorted(indices)))
    return f"{_listed(counts, 'or')} partition{'' if counts == [1] else 's'}"


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _partitions(numbers: list[int]) -> str:
    named = numbers[:_MOST_NAMED]
    more = f" and {len(numbers) - len(named)} more" if len(numbers) > len(named) else ""
    return f"partition{'' if len(numbers) == 1 else 's'} {_listed(named, ',' if more else 'and')}{more}"


def _listed(numbers: list[int], last: str) -> str:
    words = [str(number) for number in numbers]
    if len(words) == 1 or last == ",":
        return ", ".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
