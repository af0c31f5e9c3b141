"""How an application acknowledges by hand what a query gives it: at once, late, repeatedly, or as key sequences end.

It keeps to the contract (docs/groups.md): it asks what is in hand in each batch, forgets what it is told to be
lost, and an acknowledgement means everything that it remembers below the offset. What it was told to count for nothing
it forgets too: that comes again.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import partq
from tests.world.facts import Handled, Refused, Row

if TYPE_CHECKING:
    from tests.world.world import World

_TIMEOUT_S: Final = 20.0


@dataclass(slots=True)
class ByHand:
    """Of one source of one run of a query. `rows`: handled, and not acknowledged yet."""

    world: World
    flow: str
    style: str
    rng: random.Random
    acknowledger: partq.Acknowledger = field(init=False)
    sequences: partq.KeySequences | None = None
    rows: dict[tuple[int, int], Row] = field(default_factory=dict)
    open: dict[int, dict[int, int]] = field(default_factory=dict)  # of key sequences, where each begins
    hand: partq.InHand | None = None
    losses: Counter[int] = field(default_factory=Counter)  # how often each partition was forgotten

    def __post_init__(self) -> None:
        world = self.world
        self.acknowledger = partq.Acknowledger(
            queue=world.QUEUE, group=world.GROUP, flow=self.flow, store=world.url, timeout_s=_TIMEOUT_S
        )
        if self.style == "sequences":
            self.sequences = partq.KeySequences(self.acknowledger)

    def begin(self) -> None:
        """Ask what is in hand, and forget what is lost. Raises as the acknowledger does."""
        if self.sequences is not None:
            for partition in sorted(self.sequences.begin()):
                self._forget(partition)
        hand, former = self.acknowledger.in_hand(), self.hand
        if former is not None and former.process != hand.process:
            former = None
        for partition in sorted({row.partition for row in self.rows.values()}):
            held = hand.partitions.get(partition)
            before = former.partitions.get(partition) if former is not None else None
            if held is None or former is None or (before is not None and _is_other(before, held)):
                self._forget(partition)
        self.hand = hand

    def took(self, rows: Iterable[Row]) -> None:
        """It has dealt with these."""
        lost = self.hand.lost if self.hand is not None else frozenset()
        for row in rows:
            if row.partition not in lost:
                self.rows[row.partition, row.offset] = row
            if self.sequences is not None:
                key = self.rng.randrange(3)
                self.sequences.seen(row.partition, row.offset, key)
                self.open.setdefault(row.partition, {}).setdefault(key, row.offset)
                if self.rng.random() < 0.7:
                    self._complete(self.sequences, row.partition, key)

    def acknowledge(self, *, everything: bool) -> None:
        """In the application's style, or all that it remembers."""
        hand, world = self.hand, self.world
        if self.sequences is not None:
            self._acknowledge_sequences(self.sequences, everything=everything)
            return
        style = "batch" if everything else self.style
        if hand is None or style == "never":
            return
        ends: dict[int, int] = {}
        for partition, offset in self.rows:
            if partition in hand.partitions:
                ends[partition] = max(ends.get(partition, 0), offset + 1)
        if style == "batch":
            self._say(ends, hand)
            return
        for partition in list(ends):  # now and then less, or nothing
            ends[partition] -= self.rng.choice((0, 0, 1, 3))
            if self.rng.random() < 0.3 or ends[partition] <= 0:
                del ends[partition]
        if self.rng.random() < 0.4:
            self._say(ends, hand)
            if self.rng.random() < 0.3:
                world.counts["acknowledged again"] += 1
                self._say(ends, hand)
            return
        world.counts["acknowledged late"] += 1
        losses = Counter(self.losses)

        def late() -> None:
            world.machine.sleep(self.rng.uniform(0.0, 8.0))
            self._say({p: end for p, end in ends.items() if self.losses[p] == losses[p]}, hand)

        world.machine.spawn("acknowledges", late)

    def _acknowledge_sequences(self, sequences: partq.KeySequences, *, everything: bool) -> None:
        ends: dict[int, int] = {}
        for partition, offset in self.rows:
            for key in list(self.open.get(partition, ())) if everything else ():
                self._complete(sequences, partition, key)
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        firsts = {partition: next(iter(found.values())) for partition, found in self.open.items() if found}
        self._counted({**ends, **firsts}, sequences.acknowledge)

    def _complete(self, sequences: partq.KeySequences, partition: int, key: int) -> None:
        self.open[partition].pop(key, None)
        sequences.complete(partition, key)

    def _say(self, ends: Mapping[int, int], hand: partq.InHand) -> None:
        self._counted(ends, lambda: hand.acknowledge(ends))

    def _counted(self, ends: Mapping[int, int], acknowledge: Callable[[], frozenset[int]]) -> None:
        """What is remembered below these ends is done, unless it is told not to count."""
        world, group = self.world, self.world.GROUP
        said = tuple(row for (p, offset), row in sorted(self.rows.items()) if offset < ends.get(p, 0))
        world.take(Handled(world.now_us, group, self.flow, said))
        try:
            still = acknowledge()
        except partq.PartqError as error:
            world.counts[f"acknowledged in vain: {type(error).__name__}"] += 1
            return
        refused = tuple(row for row in said if row.partition not in still)
        if refused:
            world.counts["acknowledgements refused"] += 1
            world.take(Refused(world.now_us, group, self.flow, refused))
        for row in said:
            self.rows.pop((row.partition, row.offset), None)

    def _forget(self, partition: int) -> None:
        """What it was about to say of the partition it does not say any more."""
        self.losses[partition] += 1
        self.open.pop(partition, None)
        self.rows = {place: row for place, row in self.rows.items() if row.partition != partition}


def _is_other(before: partq.Held, held: partq.Held) -> bool:
    """It was somebody else's meanwhile, or comes again from its first message."""
    return (before.epoch, before.round) != (held.epoch, held.round)
