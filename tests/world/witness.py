"""What a store's side sees of a group's documents, as facts: the only place that knows how they are written down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from partq_spark.group.codec import decode_lease, decode_state
from partq_spark.group.documents import Found, Value
from partq_spark.group.ownership.flows import decode_flow
from partq_spark.group.ownership.versions import decode_version
from partq_spark.log.codec import HEAD
from partq_spark.log.partitioner import partition_of
from tests.world.facts import Beaten, Checkpointed, Decided, Led, Part

NUMBERS: Final = ("epoch", "offset", "redelivered_below", "may_reach")


def groups_of(head: bytes, name: str) -> dict[str, int]:
    """The groups of a queue, and since when each is there, by the number of a head."""
    return {group: found.since_sequence for group, found in HEAD.open(head, name).groups.items()}


def key_of(partition: int, among: int) -> str:
    """One that falls into this partition of so many."""
    return next(f"k{n}" for n in range(10_000) if partition_of(b"k%d" % n, among) == partition)


def checkpointed(at_us: int, group: str, partition: int, metadata: Mapping[str, str]) -> Checkpointed:
    """A checkpoint as it is written."""
    epoch, offset, below, reach = (int(metadata.get(each, 0)) for each in NUMBERS)
    flow, instance = metadata.get("flow", ""), metadata.get("instance", "")
    return Checkpointed(at_us, group, partition, epoch, flow, instance, offset, below, reach)


def written(at_us: int, group: str, name: str, value: Value, process: str) -> Iterator[Beaten | Led | Decided]:
    """A document of a group, which `process` has written: its name is that of ownership."""
    kind, _, rest = name.partition("/")
    if kind == "beats":
        beat = decode_flow(Found(rest, "", value, 0.0), name)
        yield Beaten(at_us, group, process, rest, beat.instance, beat.bound)
    elif kind == "leader":
        assert isinstance(value, bytes)
        yield Led(at_us, group, process, decode_lease(value, name).token)
    elif kind == "state":
        state = decode_state(decode_version(Found(name, "", value, 0.0), name).body, 0.0, name)
        bound = tuple(sorted((flow.name, flow.instance) for flow in state.flows.values() if flow.bound))
        parts = {
            number: Part(each.epoch, each.phase.value, each.owner, each.deadline_s or 0.0, each.drained, each.to_epoch)
            for number, each in state.partitions.items()
            if not each.removed
        }
        yield Decided(at_us, group, process, bound, parts)
