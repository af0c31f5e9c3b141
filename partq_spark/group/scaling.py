"""What a changed partition count means for a group, for people: how far the change is, and which partition waits for
what (RES-02, RES-03). Pure; `status` shows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from partq_spark.log import layouts
from partq_spark.log.layouts import Positions
from partq_spark.log.model import Head, at

_MOST_NAMED = 8


def scale_status(head: Head, done: Positions, known: Collection[int]) -> str:
    """`Ready`, or `ScalingUp` or `ScalingDown` while something of an earlier partition count is left, or while the
    coordinator, or the flow that has the group to itself, has not followed. `known`: the partitions that it knows.
    """
    found = layouts.head_scale_status(head, done)
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
    waits = layouts.waits(head, done, reached)
    barred = {partition: wait for partition, wait in waits.items() if wait.until < at(head.next, partition)}
    if not barred:
        return found
    layout_of = {(q, end): index for index, ends in layouts.unfinished(head, done).items() for q, end in ends.items()}
    for partitions, ends in layouts.grouped_waits(barred):
        # A thousand may wait for a thousand: added up once, then each takes out itself.
        messages = {q: end - max(done.get(q, 0), at(head.earliest, q)) for q, end in sorted(ends.items())}
        every, total = list(messages), sum(messages.values())
        indices = Counter(layout_of[each] for each in ends.items())
        for partition in partitions:
            own = (partition, ends[partition]) if partition in ends else None
            others = [q for q in every[: _MOST_NAMED + 1] if q != partition]
            waits_for = _partitions(others, len(every) - (own is not None))
            published = indices if own is None else indices - Counter([layout_of[own]])
            before = f"{found[partition]}; " if partition in found else ""
            found[partition] = (
                f"{before}waits for {_messages(total - messages.get(partition, 0))} of {waits_for} from when the queue "
                f"had {_counts(head, published)}"
            )
    return found


def _counts(head: Head, indices: Collection[int]) -> str:
    """The partition counts under which those messages were published of which the last ones are waited for."""
    counts = list(dict.fromkeys(head.layouts[index].partitions for index in sorted(indices)))
    return f"{_listed(counts, 'or')} partition{'' if counts == [1] else 's'}"


def _messages(count: int) -> str:
    return f"{count:,} message{'' if count == 1 else 's'}"


def _partitions(first: list[int], count: int) -> str:
    """Some of the `first` partitions of `count`."""
    named = first[:_MOST_NAMED]
    more = f" and {count - len(named)} more" if count > len(named) else ""
    return f"partition{'' if count == 1 else 's'} {_listed(named, ',' if more else 'and')}{more}"


def _listed(numbers: list[int], last: str) -> str:
    words = [str(number) for number in numbers]
    if len(words) == 1 or last == ",":
        return ", ".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
