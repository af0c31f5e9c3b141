"""Writes down how far a flow is: first the checkpoints of its partitions, then the flow's record, which repeats them.

This module knows the order of the writes. When a write is due is decided in `checkpoint_writer`; what was delivered and
acknowledged is kept in `holdings`. A write that arrives late harms nobody: checkpoint and record are each written on a
condition of their own.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from partq_spark.base.effects import Effects
from partq_spark.base.errors import Fenced, Unavailable
from partq_spark.group.binding import Life
from partq_spark.group.checkpoint_writer import CheckpointWriter
from partq_spark.group.holdings import FlowHoldings
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, GroupState
from partq_spark.group.ownership import Ownership, Reincarnated

_log = logging.getLogger("partq.flow")


@contextmanager
def ending_if_unknown(life: Life) -> Iterator[None]:
    """A guard around what changes the record. After a change whose answer was lost the record may say more than is
    delivered, and a handoff would wait for that; or less than it should. Nothing more is written in its instance's
    name, and the next instance's record begins with what this process knows (decision 0018).
    """
    try:
        yield
    except Unavailable as error:
        life.end(f"nobody knows what its record says: {error}")
        raise


class ProgressWriter:
    """Of one session; called by its main thread alone. Raises what the stores raise, `Fenced` only of the record."""

    def __init__(
        self,
        ownership: Ownership,
        key: GroupKey,
        flow: str,
        holdings: FlowHoldings,
        checkpoint_writer: CheckpointWriter,
        effects: Effects,
    ) -> None:
        self._ownership = ownership
        self._key = key
        self._flow = flow
        self._holdings = holdings
        self._checkpoint_writer = checkpoint_writer
        self._effects = effects

    def acknowledged(self, partitions: Collection[int], state: GroupState | None) -> Mapping[int, int]:
        """How far each is acknowledged, whichever flow has it: see `Session.acknowledged`."""

        def by_their_records(others: Collection[int], start_of: Callable[[int], int]) -> Mapping[int, int]:
            return _by_records(state, self._ownership.read_flows(self._key), others, start_of)

        return self._checkpoint_writer.acknowledged(partitions, by_records=by_their_records)

    def write(self, life: Life, *, everything: bool) -> None:
        """Write what is due, or all of it. A partition whose checkpoint is somebody else's is given up.

        Checkpoints also by an instance that has ended: less will come again.
        """
        entries: dict[int, Delivery] = {}
        for partition, holding in list(self._holdings.by_partition.items()):
            if holding.checkpoint is None:
                continue
            try:
                moved = self._checkpoint_writer.advance(holding, everything=everything)
            except Fenced as error:
                _log.info("flow %s of group %s lost partition %d: %s", self._flow, self._key, partition, error)
                self._holdings.lose(partition)
                continue
            if holding.entry != holding.reported and (moved or holding.paused or holding.reported is None):
                entries[partition] = holding.entry
        if entries and life.is_alive(self._effects.now_s()):
            self.report(life, entries)
            for partition, entry in entries.items():
                self._holdings.by_partition[partition].reported = entry

    def report(self, life: Life, entries: Mapping[int, Delivery]) -> None:
        """Put `entries` into the flow's record; a sign of life too."""
        sent_s = self._effects.now_s()
        with ending_if_unknown(life):
            self._ownership.report(self._key, self._flow, life.instance, entries)
        life.renew(sent_s)

    def announce(self, life: Life, entries: Mapping[int, Delivery], state_token: str) -> bool:
        """Put `entries` into the record before they are delivered, if the state is still that of `state_token`; whether
        they may be delivered now.
        """
        for partition in entries:
            self._holdings.by_partition[partition].reported = None  # unknown, until it has gone well
        sent_s = self._effects.now_s()
        try:
            with ending_if_unknown(life):
                accepted = self._ownership.deliver(
                    self._key, self._flow, life.instance, entries, state_token=state_token
                )
        except (Fenced, Reincarnated) as error:
            life.end(str(error))
            return False
        life.renew(sent_s)
        if not accepted or not life.is_alive(self._effects.now_s()):
            return False
        for partition, entry in entries.items():
            self._holdings.by_partition[partition].delivered = entry.delivered
            self._holdings.by_partition[partition].reported = entry
        return True

    def note(self, life: Life | None, text: str) -> None:
        """Put a remark for people into the flow's record, if it is not there. It is not worth a failure: one that did
        not come through is written by a later call.
        """
        if life is None or life.ended or life.note == text:
            return
        life.note = None
        try:
            self._ownership.note(self._key, self._flow, life.instance, text)
        except (Fenced, Reincarnated) as error:
            life.end(str(error))
        except Unavailable as error:
            _log.debug("flow %s of group %s could not say %r: %s", self._flow, self._key, text, error)
        else:
            life.note = text


def _by_records(
    state: GroupState | None,
    records: Mapping[str, FlowRecord],
    partitions: Collection[int],
    start_of: Callable[[int], int],
) -> dict[int, int]:
    """With `checkpoints=none`: what a partition's owner reports at the present epoch.

    A partition that the coordinator has let go was delivered to its end. One that the group never had is where the
    group begins, and may have been gone by then. Of one without an owner nothing is known: a rewind may have gone below
    the group's start.
    """
    result: dict[int, int] = {}
    if state is None:
        return result
    for number in partitions:
        partition = state.partitions.get(number)
        if partition is None:
            result[number] = sys.maxsize if number in state.retired else start_of(number)
            continue
        record = records.get(partition.owner.flow) if partition.owner is not None else None
        if record is None or record.incarnation != state.incarnation:
            continue
        entry = record.entry(number, partition.epoch)
        if entry is not None:
            result[number] = entry.acknowledged
    return result
