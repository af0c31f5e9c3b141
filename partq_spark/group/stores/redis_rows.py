"""How what Redis holds of a group is named, and how its texts become values and values texts. Without I/O.

`redis_scripts` says what is stored where; what is done with it is `redis`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from partq_spark.base.errors import Corrupt
from partq_spark.group.codec import decode_record
from partq_spark.group.model import Delivery, FlowRecord, GroupKey, Owner, OwnershipRecord
from partq_spark.group.sealing import opened_text, sealed_text
from partq_spark.group.stores.api import Beat
from partq_spark.group.stores.refusals import checked_flow

_CHANNEL: Final = re.compile(r"partq:\{([^/{}]+)/([^/{}]+)/([^/{}]+)/([^/{}]+)\}:\w+")

NOTE: Final = "note"
"""In place of a partition: what the flow says to people."""


class Row(NamedTuple):
    """One field of the hash `flows`, and what it meant when it was read: a record, a delivery, or a note."""

    text: str
    flow: str
    partition: int  # -1 where it is no delivery
    value: FlowRecord | Delivery | str


class Place(NamedTuple):
    """Where a group's keys are: several stores may share one Redis, and have groups of the same name."""

    store_id: str
    key: GroupKey

    def name(self, name: str) -> str:
        """A key, or a channel."""
        return f"partq:{{{self.store_id}/{self.key}}}:{name}"

    def names(self, *names: str) -> list[str]:
        """Several keys."""
        prefix = self.name("")
        return [prefix + name for name in names]

    def shown(self, name: str) -> str:
        """A key in messages."""
        return f"Redis key {self.name(name)}"


def group_of(channel: str, store_id: str) -> GroupKey | None:
    """Whose news came over a channel; None if it is another store's group."""
    match = _CHANNEL.fullmatch(channel)
    return GroupKey(*match.groups()[1:]) if match is not None and match[1] == store_id else None


def age_s(then: bytes, now: bytes) -> float:
    """Between two times in milliseconds."""
    return max(0, int(now) - int(then)) / 1000


@contextmanager
def reading(place: Place, name: str) -> Iterator[None]:
    """What cannot be taken apart was not put together by us."""
    try:
        yield
    except ValueError:
        raise Corrupt(
            f"{place.shown(name)} holds what partq did not write, or is damaged: remove the key, flows bind anew"
        ) from None


def parse_beat(flow: str, line: str, now_ms: int) -> tuple[Beat, bool]:
    """The heartbeat, and whether the flow is bound."""
    instance, count, time_ms, bound, _ = opened_text(flow, line).split(" ")
    return Beat(instance=instance, count=int(count), age_s=max(0, now_ms - int(time_ms)) / 1000), bound == "1"


def parse_record(
    place: Place, flow: str, body: bytes, *, bound: bool, deliveries: Mapping[int, Delivery], note: str
) -> FlowRecord:
    """Whether the flow is bound is kept with its heartbeat; without one nobody is."""
    return replace(_record(place, flow, body), bound=bound, deliveries=deliveries, note=note)


def parse_row(place: Place, name: str, text: str) -> Row:
    """A field of `flows` that is not a list of partitions."""
    flow, space, partition = name.partition(" ")
    if partition == NOTE:
        return Row(text, flow, -1, text)
    if space:
        return Row(text, flow, int(partition), parse_delivery(name, text))
    return Row(text, flow, -1, _record(place, flow, text.encode(errors="surrogatepass")))


def _record(place: Place, flow: str, body: bytes) -> FlowRecord:
    record = decode_record(body, place.shown(f"flows[{flow}]"))
    if record.flow != flow:
        raise ValueError(f"the record of {record.flow!r} lies at {flow!r}")
    return record


def delivery_rows(flow: str, deliveries: Mapping[int, Delivery]) -> Iterator[str | int]:
    """Partitions and deliveries in turn, as the scripts take them."""
    for partition, one in deliveries.items():
        yield partition
        yield sealed_text(f"{flow} {partition}", f"{one.epoch} {one.delivered} {one.acknowledged}")


def parse_delivery(name: str, line: str) -> Delivery:
    """The inverse of `delivery_rows`; `name` is the field's."""
    epoch, delivered, acknowledged = map(int, opened_text(name, line).split(" "))
    return Delivery(epoch=epoch, delivered=delivered, acknowledged=acknowledged)


def pairs(rows: bytes) -> Iterator[tuple[str, str]]:
    """Names and values of a hash that came as JSON; an empty one comes as an empty object."""
    found = iter(json.loads(rows) or ())
    return zip(found, found, strict=True)


def parse_ownership(key: GroupKey, partition: str, line: str) -> OwnershipRecord:
    """A field of the hash `ownership`."""
    version, time_ms, epoch, flow, instance = opened_text(partition, line).split(" ")
    return OwnershipRecord(
        key=key,
        partition=int(partition),
        owner=None if instance == "-" else Owner(flow, instance),
        epoch=int(epoch),
        version=version,
        modified=rfc_3339(int(time_ms)),
    )


def claim_text(record: OwnershipRecord) -> str:
    """What a claim writes, behind its version and time."""
    flow, instance = ("-", "-") if record.owner is None else map(checked_flow, record.owner)
    return f"{record.epoch} {flow} {instance}"


def rfc_3339(time_ms: int) -> str:
    """Redis' clock, for people."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
