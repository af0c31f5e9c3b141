"""What must be true of queues into which a sink writes (DIS-08, DIS-09, DIS-10): the judge reads them after every write
and knows what each of their messages is there for. It knows the contract, and nothing of how the sink decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import combinations
from typing import Final

from tests.support.judge import demand

Place = tuple[int, int]
"""Partition and offset."""

APPLICATION: Final = "txnAppId:"
"""With which writers begin that a txnAppId names: no query is taken for one."""

NOISE: Final = "noise"
"""With which messages of others begin."""


class Verdict(Enum):
    """What a queue has to do with its part of a write."""

    NEW = "publish it"
    EQUAL = "add nothing, at no cost"
    REPETITION = "add nothing"
    REFUSAL = "refuse it"
    UNREADABLE = "add nothing or refuse it"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one queue gets of a write. `shape`: what decides how it lies; None: nobody knows."""

    queue: str
    rows: Counter[str]
    shape: object


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One write of a batch, by the name under which its writer is known."""

    writer: str
    batch: int
    owner: str | None
    parts: Sequence[Part]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What a queue has of a writer's last batch. `said`: what a person said of its numbers, from this one on: whether
    they are published already.
    """

    batch: int
    owner: str | None
    rows: Counter[str]
    shape: object
    places: frozenset[Place]
    said: tuple[int, bool] | None = None


@dataclass(slots=True)
class Judge:
    """`read`: a queue's messages by their places, as text, from these offsets on; the first and the next offset of each
    partition.
    """

    read: Callable[[str, tuple[int, ...]], tuple[dict[Place, str], tuple[int, ...], tuple[int, ...]]]
    contents: dict[str, dict[Place, str]] = field(default_factory=dict)
    earliest: dict[str, tuple[int, ...]] = field(default_factory=dict)
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    pending: list[tuple[Attempt, Part]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def look(self, queue: str) -> dict[Place, str]:
        """What is new in a queue, but for what others publish."""
        added, self.earliest[queue], self.ends[queue] = self.read(queue, self.ends.get(queue, ()))
        self.contents.setdefault(queue, {}).update(added)
        return {at: row for at, row in added.items() if not row.startswith(NOISE)}

    def look_at_all(self, queue: str) -> None:
        """What was there is there, unless it was trimmed."""
        self.arrived()
        found, earliest, _ = self.read(queue, ())
        known = {at: row for at, row in self.contents[queue].items() if at in found or at[1] >= earliest[at[0]]}
        demand(found == known, queue, "had", set(known.items()) - found.items(), "has", found.items() - known.items())
        self.contents[queue] = known

    def tried(
        self, attempt: Attempt, error: BaseException | None, *, refused: bool, full: bool, disturbed: bool, reads: int
    ) -> None:
        """A write has ended. `refused`: by a word that another try will not change; else an `error` is an accident.
        `full`: for want of room. `disturbed`: a write that had been lost on its way arrived meanwhile. `reads`: of
        messages that are stored, so many.
        """
        before = dict(self.records)
        landed: dict[str, bool] = {}
        for part in attempt.parts:
            added = self.look(part.queue)
            own = self._explained(attempt, part, added)
            landed[part.queue] = own
        verdicts = {part.queue: self._verdict(part, attempt, before) for part in attempt.parts}
        if disturbed:  # what was known before the write may not be what it met
            now = {part.queue: self._verdict(part, attempt, self.records) for part in attempt.parts}
            verdicts = {queue: verdict if landed[queue] else now[queue] for queue, verdict in verdicts.items()}
        said = f"batch {attempt.batch} of {attempt.writer}: {_told(verdicts)}; {'' if error is None else error!r}"
        refusing = [queue for queue, verdict in verdicts.items() if verdict is Verdict.REFUSAL]
        for queue, own in landed.items():
            if own:
                demand(verdicts[queue] is Verdict.NEW, queue, "got it:", said)
                demand(not refusing or disturbed, queue, "got it though", refusing, "had to refuse it:", said)
        if error is None:
            demand(not refusing, "accepted", said)
            missing = [queue for queue, verdict in verdicts.items() if verdict is Verdict.NEW and not landed[queue]]
            demand(not missing, "lost in", missing, said)
            demand(not reads or {*verdicts.values()} != {Verdict.EQUAL}, reads, "reads of messages:", said)
        elif refused:
            able = {Verdict.REFUSAL, Verdict.UNREADABLE}
            demand(any(verdict in able for verdict in verdicts.values()), "refused", said)
            demand(disturbed or not any(landed.values()), "a refused batch is in", landed, said)
        demand(not full or Verdict.NEW in verdicts.values(), "no room is needed:", said)
        for verdict in verdicts.values():
            self.counts[f"{'accepted' if error is None else 'refused' if refused else 'failed'}: {verdict.value}"] += 1
        if error is None:
            for part in attempt.parts:
                self._settled(attempt, part)
        elif not refused:  # its swap may still be on its way
            self.pending += [(attempt, part) for part in attempt.parts if not landed[part.queue]]

    def arrived(self) -> None:
        """Between two writes: nothing but what had been lost on its way can be new."""
        for queue in list(self.contents):
            self._explained(None, None, self.look(queue), queue)

    def resolved(self, writer: str, batch: int, *, published: bool) -> None:
        """A person has said what a writer's batches are, from this number on, in all queues that know them."""
        for (queue, name), record in self.records.items():
            if name.removeprefix(APPLICATION) == writer and record.batch >= batch:
                self.records[queue, name] = replace(record, said=(batch, published))

    # --- what the contract says ---------------------------------------------------------------------------------------

    def _verdict(self, part: Part, attempt: Attempt, records: Mapping[tuple[str, str], Record]) -> Verdict:
        record = records.get((part.queue, attempt.writer))
        if record is None:
            return Verdict.NEW
        if record.owner is not None and attempt.owner is not None and record.owner != attempt.owner:
            return Verdict.REFUSAL
        if attempt.batch > record.batch:
            return Verdict.NEW
        if record.said is not None and attempt.batch >= record.said[0]:
            return Verdict.REPETITION if record.said[1] else Verdict.NEW
        if attempt.batch < record.batch or part.rows - record.rows:
            return Verdict.REFUSAL
        if part.shape is not None and part.shape == record.shape:
            return Verdict.EQUAL
        earliest = self.earliest[part.queue]
        trimmed = any(offset < earliest[partition] for partition, offset in record.places)
        return Verdict.UNREADABLE if trimmed else Verdict.REPETITION

    # --- whose the new messages are -----------------------------------------------------------------------------------

    def _explained(
        self, attempt: Attempt | None, part: Part | None, added: Mapping[Place, str], queue: str | None = None
    ) -> bool:
        """Whether the attempt's own part is among what is new: all or nothing of it. Takes down whose the rest is."""
        queue = part.queue if part is not None else queue
        rows = Counter(added.values())
        if not rows:
            return False
        late = [each for each in self.pending if each[1].queue == queue]
        own = [(attempt, part)] if attempt is not None and part is not None else []
        for chosen in _subsets([*own, *late]):
            if sum((each[1].rows for each in chosen), Counter()) != rows:
                continue
            for each in sorted(chosen, key=lambda each: each in own):
                self._settled(*each)
                self._recorded(*each, frozenset(added), alone=len(late) == 0)
            return any(each in own for each in chosen)
        demand(False, queue, "has", dict(added), "which is neither all of", part, "nor of what is on its way:", late)
        return False

    def _settled(self, attempt: Attempt, part: Part) -> None:
        """What was on its way for this batch or an earlier one never arrives."""
        self.pending = [
            other
            for other in self.pending
            if (other[1].queue, other[0].writer) != (part.queue, attempt.writer) or other[0].batch > attempt.batch
        ]

    def _recorded(self, attempt: Attempt, part: Part, places: frozenset[Place], *, alone: bool) -> None:
        self.records[part.queue, attempt.writer] = Record(
            batch=attempt.batch,
            owner=attempt.owner,
            rows=part.rows,
            shape=part.shape if alone else None,
            places=places,
        )


def _subsets(of: Sequence[tuple[Attempt, Part]]) -> Iterator[tuple[tuple[Attempt, Part], ...]]:
    """Those of one, then of two."""
    yield from combinations(of, 1)
    yield from combinations(of, 2)


def _told(verdicts: Mapping[str, Verdict]) -> str:
    return ", ".join(f"{queue} has to {verdict.value}" for queue, verdict in verdicts.items())
