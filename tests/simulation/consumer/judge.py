"""Says whether what a consumer did was right: it knows what was given out in which batch with which mark, what the
application dealt with, and what the checkpoints say. It is written from the contract (`interface.md`, API-05).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import partq


class Violation(AssertionError):
    """A rule of the contract is broken."""


@dataclass(eq=False)
class Given:
    """A batch that the consumer returned. `asker`: the iterator that asked, None: `poll`. Times are the judge's."""

    number: int
    batch: partq.Batch | None  # None: the application has dropped it
    asker: object | None
    asked: int
    returned: int
    session: int
    spans: dict[int, tuple[int, int]] | None = None  # known once it was looked into
    is_dropped: bool = False  # the application never got hold of it
    is_settled: bool = False  # given back, perhaps
    is_released: bool = False
    marks: dict[tuple[int, int], bool] = field(default_factory=dict)


class Release(NamedTuple):
    """What was given back of some partitions: from these offsets on. `is_sure`: it is known to have had its effect."""

    begun: int
    ended: int
    lowest: Mapping[int, int]
    session: int
    is_sure: bool


class Judge:
    """`manual`: how batches are acknowledged."""

    def __init__(self, *, manual: bool) -> None:
        self.manual = manual
        self.time = 0
        self.session = 0
        self.handled: dict[int, set[int]] = defaultdict(set)
        self.counted: dict[int, int] = defaultdict(int)  # told to count by an acknowledgement, by partition
        self._counted_at: dict[int, int] = {}
        self.given: list[Given] = []
        self.releases: list[Release] = []
        self.is_calm = True  # nothing was given back, lost or closed yet: no message may be marked
        self.is_unsure = False  # of what counts: a store was away, or a call was cut off
        self._shaken = 0  # what was taken then and nobody has is given back

    def tick(self) -> int:
        self.time += 1
        return self.time

    # --- what the application did -------------------------------------------------------------------------------------

    def gave(self, batch: partq.Batch, asker: object | None, asked: int) -> Given:
        given = Given(len(self.given), batch, asker, asked, self.tick(), self.session)
        self.given.append(given)
        return given

    def dealt_with(self, given: Given) -> None:
        """The application's word."""
        for partition, (start, end) in (given.spans or {}).items():
            self.handled[partition].update(range(start, end))

    def looked(self, given: Given, messages: Sequence[partq.Message]) -> None:
        """It has these messages."""
        spans: dict[int, tuple[int, int]] = {}
        for message in messages:
            start, end = spans.get(message.partition, (message.offset, message.offset))
            if message.offset != end:
                raise Violation(f"batch {given.number}: {message.partition}/{message.offset} comes after {end - 1}")
            spans[message.partition] = (start, end + 1)
        if given.spans is not None:
            if given.spans != spans:
                raise Violation(f"batch {given.number} has {spans}, and had {given.spans}")
            return
        if not messages:
            raise Violation(f"batch {given.number} is empty")
        given.spans = spans
        for message in messages:
            self._marked(given, message)
        for partition, (start, _) in spans.items():
            self._nothing_skipped(given, partition, start)
            again = start < self.counted[partition] and given.asked > self._counted_at[partition]
            if again and not self.is_unsure:
                raise Violation(f"{partition}/{start} is acknowledged up to {self.counted[partition]} and comes again")

    def released(self, given: Given, begun: int) -> None:
        """The application, or a loop begun again, gave it back."""
        self.is_calm = False
        spans = given.spans or {}
        later = self.given[given.number + 1 :]  # of what nobody has looked into one cannot say whether it overlaps
        sure = not self.is_unsure and all(each.spans is not None for each in later)
        doubtful = [each for each in self.releases if not each.is_sure and each.ended > given.asked]
        sure = sure and not any(each.lowest.keys() & spans.keys() for each in doubtful)  # its round may be over
        sure = sure and not any(self.must_lose(given, partition) for partition in spans)
        lowest = {partition: self._lowest(partition) for partition in spans}
        self.releases.append(Release(begun, self.tick(), lowest, self.session, sure and not given.is_settled))
        given.is_settled = True

    def acknowledged(self, given: Given, ends: Mapping[int, int], lost: Collection[int], begun: int) -> None:
        """An acknowledgement up to these offsets returned the partitions for which it does not count."""
        for partition, end in ends.items():
            if partition in lost:
                if self._must_count(given, partition, begun):
                    raise Violation(
                        f"an acknowledgement of batch {given.number}, partition {partition}, does not count"
                    )
                continue
            if self.must_lose(given, partition, begun) and end > self.counted[partition]:
                raise Violation(
                    f"an acknowledgement of batch {given.number}, partition {partition}, counts up to {end}, though "
                    "that was given back"
                )
            self.handled[partition].update(range(end))
            if end > self.counted[partition]:
                self.counted[partition] = end
                self._counted_at[partition] = self.tick()

    def cut_off(self) -> None:
        """A question for a batch ended with a signal's exception, or nobody has its batch: it is given back."""
        self._shaken = self.tick()
        self.is_calm = False

    def closed(self, acknowledged: Mapping[int, int]) -> None:
        """The consumer is closed, and the checkpoints say this."""
        self.checkpoints(acknowledged, is_closed=True)
        for partition, end in acknowledged.items():
            self.counted[partition] = min(end, self.counted[partition])
        self.session += 1
        self.is_calm = self.is_unsure = False

    # --- what is right ------------------------------------------------------------------------------------------------

    def checkpoints(self, acknowledged: Mapping[int, int], *, is_closed: bool = False) -> None:
        """What the group's checkpoints say."""
        for partition, end in acknowledged.items():
            missing = set(range(end)) - self.handled[partition]
            if missing:
                raise Violation(
                    f"partition {partition} is acknowledged up to {end}, {self._found(partition, missing)} not handled"
                )
            if is_closed and not self.is_unsure and end < self.counted[partition]:
                raise Violation(
                    f"partition {partition} is closed at {end}, acknowledged was up to {self.counted[partition]}"
                )

    def complete(self, ends: Mapping[int, int]) -> None:
        """All was asked for: nothing is missing."""
        for partition, end in ends.items():
            missing = set(range(end)) - self.handled[partition]
            if missing:
                raise Violation(f"partition {partition}: {self._found(partition, missing)} never came again")

    def must_lose(self, given: Given, partition: int, at: int | None = None) -> bool:
        """Whether the partition was given back, or out anew, since: an acknowledgement of this batch does not count."""
        if given.session != self.session or given.is_released:
            return True
        span = (given.spans or {}).get(partition)
        if span is None:
            return False
        at = self.time + 1 if at is None else at
        for release in self.releases:
            lowest = release.lowest.get(partition)
            if not release.is_sure or release.session != given.session or lowest is None or release.ended > at:
                continue
            if given.returned < release.begun or (given.asked < release.ended and span[0] > lowest):
                return True
        return any(
            other.asked > given.returned and partition in (other.spans or {}) and other.spans[partition][0] < span[1]
            for other in self.given
            if other.session == given.session and other.spans is not None
        )

    def _must_count(self, given: Given, partition: int, at: int) -> bool:
        """Whether there is no reason at all for it not to count."""
        doubtful = given.is_dropped or given.is_settled or self.is_unsure or given.session != self.session
        shaken = any(
            partition in release.lowest and release.ended > given.asked
            for release in self.releases
            if release.session == given.session
        )
        shaken = shaken or self._shaken > given.asked
        return not doubtful and not shaken and not self.must_lose(given, partition, at)

    def _lowest(self, partition: int) -> int:
        """The first message that nobody may take for acknowledged."""
        offset = self.counted[partition]
        while not self.manual and offset in self.handled[partition]:
            offset += 1
        return offset

    def _marked(self, given: Given, message: partq.Message) -> None:
        where = (message.partition, message.offset)
        given.marks[where] = message.redelivered
        if message.redelivered and self.is_calm:
            raise Violation(f"{where} in batch {given.number} is marked, and nothing was given back")
        for other in self.given:
            marked = other.marks.get(where)
            if other is given or marked is None:
                continue
            first, second = (other, given) if other.number < given.number else (given, other)
            beside = second.asked < first.returned
            if not second.marks[where] and not (beside and first.marks[where]):
                raise Violation(f"{where} is in batches {first.number} and {second.number}, and not marked")

    def _nothing_skipped(self, given: Given, partition: int, start: int) -> None:
        missing = set(range(start)) - self.handled[partition]
        for other in self.given if self.manual else ():
            if not missing:
                return
            if other is given or other.session != given.session or other.asked > given.returned:
                continue
            gone = any(
                release.is_sure and release.ended < given.asked and partition in release.lowest
                and other.returned < release.begun
                for release in self.releases
            )  # fmt: skip
            if gone:
                continue
            if other.spans is None:
                if other.batch is None:
                    return  # who knows what it has
                self.looked(other, list(other.batch))
            missing -= set(range(*(other.spans or {}).get(partition, (0, 0))))
        if missing:
            found = self._found(partition, missing)
            raise Violation(f"batch {given.number} begins at {partition}/{start}, {found} skipped")

    def _found(self, partition: int, offsets: set[int]) -> str:
        """In which batches messages were, for people; `unread`: nobody had looked into it."""
        told = []
        for at in sorted(offsets):
            where = (partition, at)
            had = [str(each.number) for each in self.given if where in each.marks]
            had += [
                f"{each.number} unread"
                for each in self.given
                if each.spans is None and where in {(one.partition, one.offset) for one in each.batch or ()}
            ]
            told.append(f"{at} (batch {', '.join(had)})" if had else f"{at} (in no batch)")
        return ", ".join(told)


def spans_of(messages: Iterable[Any]) -> dict[int, int]:
    """The ends by partition."""
    return {message.partition: message.offset + 1 for message in messages}
