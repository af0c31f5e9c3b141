"""A group as flows and a coordinator would leave it, without any: checkpoints, records of flows, a lease, a handoff on
its way. It is written by partq's own code, and what commands make of it is theirs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from partq_spark.group import codec, lifecycle
from partq_spark.group.checkpoints import Checkpoint, CheckpointStore
from partq_spark.group.model import (
    Delivery,
    Flow,
    FlowRecord,
    GroupKey,
    GroupSettings,
    GroupState,
    Lease,
    Owner,
    Partition,
    Phase,
    RebalanceStatus,
)
from partq_spark.group.ownership import Ownership, StateDocument, open_ownership
from partq_spark.log import admin
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.support.command_line import Partq, json_lines
from tests.support.edits import edited

KEY = GroupKey("default", "orders", "billing")
OWNER, NEXT = Owner("billing-1", "i1"), Owner("billing-2", "i2")


class Group:
    """The group `billing` of the queue `orders`, whose partitions `acknowledged` flow billing-1 has had for a while and
    acknowledged so far. No flow has taken the others yet.
    """

    def __init__(
        self,
        partq: Partq,
        acknowledged: Mapping[int, int],
        *,
        partitions: int = 2,
        messages: int = 40,
        ownership: str | None = None,
    ) -> None:
        self.partq = partq
        partq("queue", "create", "orders", "--partitions", partitions)
        partq("publish", "orders", stdin=json_lines({"key": f"k{n}", "value": "x"} for n in range(messages)))
        self.store = open_store(partq.url)
        self.ends = QueueLog(self.store, "default", "orders").refresh().next
        self.partitions = partitions
        self.create("billing", ownership=ownership)
        for partition, offset in acknowledged.items():
            self.acknowledge(partition, offset)
        self.age(120)

    @property
    def queue(self) -> QueueLog:
        queue = QueueLog(self.store, "default", "orders")
        queue.refresh()
        return queue

    def create(self, name: str, *, start: int = 0, ownership: str | None = None) -> None:
        admin.create_group(self.queue, name, [start] * self.partitions, ownership=ownership)

    def forget(self) -> None:
        """The head knows the group no more: its removal was cut off there."""
        self.queue.change(lambda head: replace(head, groups={}, sequence=head.sequence + 1))

    # --- checkpoints

    def checkpoints(self, group: str = "billing") -> CheckpointStore:
        return lifecycle.checkpoints_of(self.queue, group)

    def take(
        self, partition: int, owner: Owner = OWNER, *, epoch: int, start: int | None = None, group: str = "billing"
    ) -> Checkpoint:
        """A flow has a partition from now on; with `start=None` it keeps no offsets."""
        return self.checkpoints(group).fence(partition, to=owner, epoch=epoch, start=start, delivered=None)

    def acknowledge(self, partition: int, offset: int) -> None:
        self.checkpoints().update_checkpoint(self.take(partition, epoch=1, start=0), offset)

    def offsets(self) -> dict[int, int | None]:
        return {number: each.offset for number, each in self.checkpoints().list_checkpoints().items()}

    @property
    def rewinds(self) -> int:
        return self.queue.head.groups["billing"].rewinds

    def seen(self) -> tuple[Mapping[int, Checkpoint], int]:
        """All that a rewind may change."""
        return self.checkpoints().list_checkpoints(), self.rewinds

    def edit(self, partition: int, **keys: str) -> None:
        """By hand, and with a checksum that matches."""
        path = self.partq.store / self.checkpoints().name_of(partition)
        path.write_text(edited(path.read_text(), **keys))

    def age(self, seconds: float, *partitions: int) -> None:
        """Checkpoints were written so much earlier, by the disk's clock."""
        for partition in partitions or self.offsets():
            path = self.partq.store / self.checkpoints().name_of(partition)
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    # --- ownership beside the queue

    @contextmanager
    def ownership(self) -> Iterator[Ownership]:
        ownership = open_ownership("store", store=self.store)
        yield ownership
        ownership.close()

    def bind(self, *, bound: bool = True, deliveries: Mapping[int, Delivery] | None = None) -> None:
        """A record of billing-1, with a heartbeat that does not move."""
        with self.ownership() as ownership:
            record = FlowRecord(
                flow=OWNER.flow,
                instance=OWNER.instance,
                queue_id=self.queue.head.queue_id,
                incarnation=ownership.incarnation(),
                bound=bound,
                session_timeout_s=1.0,
                deliveries=deliveries or {},
            )
            ownership.bind(KEY, record, replaces=None)

    @property
    def flows(self) -> list[str]:
        """Of whom there is a record."""
        with self.ownership() as ownership:
            return sorted(ownership.read_flows(KEY))

    def lead(self) -> None:
        with self.ownership() as ownership:
            ownership.take_lease(KEY, Lease(token="l1", name="host:1", beat=1), expected=None)

    def hand_over(self) -> None:
        """Partition 1 waits for two messages of billing-1, then goes to billing-2."""
        self.bind(
            deliveries={
                0: Delivery(epoch=1, delivered=3, acknowledged=3),
                1: Delivery(epoch=1, delivered=5, acknowledged=3),
            }
        )
        self.lead()
        with self.ownership() as ownership:
            ownership.note(KEY, OWNER.flow, OWNER.instance, "micro-batches take 9 s")
            state = GroupState(
                queue_id=self.queue.head.queue_id,
                incarnation=ownership.incarnation(),
                settings=GroupSettings(),
                partitions={
                    0: Partition(partition=0, phase=Phase.OWNED, epoch=1, owner=OWNER),
                    1: Partition(partition=1, phase=Phase.PAUSED, epoch=1, owner=OWNER, to=NEXT, deadline_s=60.0),
                },
                flows={
                    OWNER.flow: Flow(name=OWNER.flow, instance=OWNER.instance, bound=True, since=1, active=True),
                    NEXT.flow: Flow(name=NEXT.flow, instance=NEXT.instance, bound=True, since=2),
                },
                status=RebalanceStatus.REBALANCING,
                binds=2,
            )
            ownership.swap_state(KEY, codec.encode_state(state, 0.0), token="t1", expected=None)

    def get_stuck(self) -> None:
        """After `hand_over`: the checkpoint of partition 1 cannot be read, as the coordinator found when fencing it."""
        self.edit(1, epoch="many")
        with self.ownership() as ownership:
            document = ownership.read_state(KEY)
            assert isinstance(document, StateDocument)
            state = codec.decode_state(document.body, 0.0, "state")
            stuck = replace(state.partitions[1], phase=Phase.FENCING, deadline_s=None, to_epoch=2, stuck="what it was")
            after = replace(state, partitions={**state.partitions, 1: stuck}, status=RebalanceStatus.READY)
            ownership.swap_state(KEY, codec.encode_state(after, 0.0), token="t2", expected="t1")
