"""Acknowledging by hand (`ackMode=manual`): for the application's own code on the driver, mostly in `foreachBatch`.

    acknowledger = Acknowledger(queue="orders", group="billing", flow="billing-1")

    def handle(batch: DataFrame, batch_id: int) -> None:
        hand = acknowledger.in_hand()
        rows = batch.orderBy("partition", "offset").collect()
        ...
        hand.acknowledge({row.partition: row.offset + 1 for row in rows})

Nothing is acknowledged that the application does not acknowledge: it comes again, marked redelivered, after a handoff
and after a restart of the query. `KeySequences` keeps count where only complete sequences may be acknowledged
(seed 000, "Best Practices for Consuming Applications"). No pyspark, no credentials: the flow's reader process writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from partq_spark.base.effects import RETRY_TIMEOUT_S
from partq_spark.base.errors import Invalid
from partq_spark.base.tracing import ACKNOWLEDGE, SpanSubject, around
from partq_spark.client.arguments import address, checked
from partq_spark.log.names import checked_name
from partq_spark.query.notify import Address, Requester

TIMEOUT_S: Final = 30.0
"""For one question. A reader that is busy with a store that does not answer cannot answer either."""


_NOTHING: Final = SpanSubject(None)


class Held(NamedTuple):
    """One partition in the flow's hand. Offsets are exclusive ends: before `acknowledged` the checkpoint says that
    everything is dealt with, before `delivered` everything was given out. `round`: how often the reader process has
    given the partition out anew, from its first message that is not acknowledged.
    """

    epoch: int
    acknowledged: int
    delivered: int
    round: int = 0


@checked
class Acknowledger:
    """Speaks for one flow on this machine, by the names that its source's options have. For one thread."""

    @checked
    def __init__(
        self,
        *,
        queue: str,
        group: str,
        flow: str,
        namespace: str = "default",
        store: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """`store` as the option of that name, with the same default. Raises `Invalid` for what cannot be a name."""
        where = address(store, namespace, RETRY_TIMEOUT_S)
        to = Address(
            store=where.store,
            namespace=where.namespace,
            queue=checked_name("queue", queue),
            group=checked_name("group", group),
            flow=checked_name("flow", flow),
        )
        self._line = Requester(to, timeout_s=timeout_s)
        self._where = SpanSubject(to.queue, to.namespace, to.group)

    def in_hand(self) -> InHand:
        """What the flow has now, with the epochs of its last micro-batch. Waits for a reader process that is just
        being started. Raises `Unavailable` if none answers.
        """
        answer = self._line.ask({"do": "in_hand"})
        partitions = {int(partition): Held(*map(int, held)) for partition, held in answer["p"].items()}
        lost = frozenset(map(int, answer["lost"]))
        return InHand(self._line, str(answer["process"]), partitions, lost, self._where)


@checked
@dataclass(slots=True, eq=False)
class InHand:
    """What a flow had when it was asked. `process` tells one reader process of the flow from the next; `lost` are the
    partitions that this process gave out and that have moved on, perhaps while their batch was under way.
    """

    _line: Requester
    process: str
    partitions: Mapping[int, Held]
    lost: frozenset[int] = frozenset()
    _where: SpanSubject = _NOTHING  # for traces

    def acknowledge(self, offsets: Mapping[int, int]) -> frozenset[int]:
        """Everything before these offsets (by partition) is dealt with. Returns the partitions for which that counts:
        the others have moved on since, or were given out anew (`Held.round`), and their messages come again.

        Written down at the checkpoint interval, at once where a handoff waits for it. Raises `Invalid` for a partition
        that was never delivered, or an offset beyond what was, and then nothing is acknowledged; `Unavailable` if the
        reader does not answer: repeating it is harmless.
        """
        positions = {}
        for partition, offset in sorted(offsets.items()):
            held = self.partitions.get(partition)
            if partition in self.lost:
                continue
            if held is None or offset > held.delivered:
                end = "it is not in hand" if held is None else f"delivered is up to {held.delivered}"
                raise Invalid(
                    f"partition {partition} cannot be acknowledged up to {offset}: {end}. Offsets are exclusive: give "
                    "the offset of the last message that is dealt with plus one, and ask in_hand() in each batch"
                )
            positions[str(partition)] = [held.epoch, offset, held.round]
        if not positions:
            return frozenset()
        with around(ACKNOWLEDGE, self._where):
            answer = self._line.ask({"do": "acknowledge", "process": self.process, "p": positions})
        return frozenset(map(int, answer["still"]))


@dataclass(slots=True)
class _Open:
    """One partition's open sequences: key → offset of its first message, in the order of these offsets."""

    life: tuple[int, int] | None  # epoch and round; None: it moved on while its batch was under way
    firsts: dict[object, int] = field(default_factory=dict)
    end: int = 0  # of what was seen

    @property
    def position(self) -> int:
        """Everything before it belongs to sequences that are complete."""
        return next(iter(self.firsts.values()), self.end)


def _life(held: Held) -> tuple[int, int]:
    """What one partition's messages must have in common to be counted together."""
    return held.epoch, held.round


@checked
class KeySequences:
    """Which key sequences are open, so that messages are acknowledged only when everything before them is complete.

    A checkpoint is one offset of a partition: a sequence that stays open holds back what follows it, up to the flow's
    `maxDeliveredUnackedMsgsPerFlow`. For each micro-batch call `begin`, tell every row with `seen` in order, and
    `complete` where its sequence has ended; then `acknowledge`. What this keeps is bounded by that option too. One for
    a query, from its first micro-batch on, and for one thread.
    """

    @checked
    def __init__(self, acknowledger: Acknowledger) -> None:
        self._acknowledger = acknowledger
        self._hand: InHand | None = None
        self._process: str | None = None
        self._partitions: dict[int, _Open] = {}
        self._refused: frozenset[int] = frozenset()  # told by `acknowledge`: they come again

    def begin(self) -> frozenset[int]:
        """A micro-batch begins. Returns the partitions whose open sequences are void: another flow has them now, or
        they come again from their first message. Forget what you keep of their keys. Raises as `Acknowledger.in_hand`.
        """
        hand = self._hand = self._acknowledger.in_hand()
        held = hand.partitions if hand.process == self._process else {}
        self._process = hand.process
        void = {p for p, mine in self._partitions.items() if p not in held or _life(held[p]) != mine.life}
        void |= self._refused & self._partitions.keys()
        self._refused = frozenset()
        for partition in void:
            del self._partitions[partition]
        return frozenset(void)

    def seen(self, partition: int, offset: int, key: object) -> None:
        """A message of the batch, in the order of its partition. One without a key (None) is complete by itself.

        Of a partition that has just moved on it counts for nothing, and the next `begin` names it. Raises `Invalid`
        if this batch has not begun.
        """
        hand = self._in_hand()
        held = hand.partitions.get(partition)
        if partition not in hand.lost and (held is None or offset >= held.delivered):
            raise Invalid(
                f"offset {offset} of partition {partition} is not in hand: call begin() at the beginning of each "
                "micro-batch"
            )
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = _Open(_life(held) if held is not None else None)
        found.end = max(found.end, offset + 1)
        if key is not None:
            found.firsts.setdefault(key, offset)

    def complete(self, partition: int, key: object) -> None:
        """The key's sequence has ended with the last message seen. A key that is not open changes nothing."""
        found = self._partitions.get(partition)
        if found is not None:
            found.firsts.pop(key, None)

    def acknowledge(self) -> frozenset[int]:
        """Acknowledge all that is complete. Returns and raises as `InHand.acknowledge`."""
        still = self._in_hand().acknowledge({p: mine.position for p, mine in self._partitions.items()})
        self._refused |= self._partitions.keys() - still
        return still

    def _in_hand(self) -> InHand:
        if self._hand is None:
            raise Invalid("no micro-batch has begun: call begin() first")
        return self._hand
