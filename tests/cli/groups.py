"""A group as flows would leave it, without any: its checkpoints, and a flow's heartbeat beside the queue, as files of
the store. What commands make of them is theirs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import xxhash

import partq as api
from tests.support.command_line import Partq, json_lines
from tests.support.edits import ETAG, edited

OWNER = {"flow": "billing-1", "instance": "i1"}
TAG = "0" * 32


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
        self.folder = partq.store / "default/orders"
        self.queue = api.create_queue("orders", partitions=partitions, store=partq.url)
        partq("publish", "orders", stdin=json_lines({"key": f"k{n}", "value": "x"} for n in range(messages)))
        self.ends = [each.next for each in self.queue.describe().partitions]
        self.before = (self.folder / "_head.json").read_bytes()
        self.create("billing", ownership=ownership)
        for partition, offset in acknowledged.items():
            self.take(partition, offset=str(offset))
        self.age(120)

    def create(self, name: str, *, start: int = 0, ownership: str | None = None) -> None:
        self.queue.create_group(name, starting=dict.fromkeys(range(len(self.ends)), start), ownership=ownership)

    def forget(self) -> None:
        """The head knows the group no more: its removal was cut off there."""
        (self.folder / "_head.json").write_bytes(self.before)

    @property
    def head(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "_head.json").read_bytes())["head"]
        return found

    @property
    def rewinds(self) -> int:
        """How often somebody rewound it."""
        count: int = self.head["groups"]["billing"][2]
        return count

    # --- checkpoints

    def take(self, partition: int, *, group: str = "billing", epoch: int = 1, **keys: str) -> None:
        """A flow has a partition; without `offset` it keeps none."""
        new = {"redelivered_below": "0", "updated": "2026-11-20T08:30:00.000000Z", "queue_id": self.head["queue_id"]}
        new |= {"since": str(self.head["groups"][group][0]), "may_reach": keys.get("offset", "0")}
        path = self.folder / group / "checkpoint" / str(partition)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edited(json.dumps({ETAG: TAG}), **{**new, "epoch": str(epoch), **OWNER, **keys}))

    def edit(self, partition: int, **keys: str) -> None:
        """By hand, and with a checksum that matches."""
        path = self.folder / "billing/checkpoint" / str(partition)
        path.write_text(edited(path.read_text(), **keys))

    @property
    def checkpoints(self) -> dict[int, dict[str, str]]:
        files = sorted((self.folder / "billing/checkpoint").glob("[0-9]*"))
        return {int(path.name): json.loads(path.read_bytes()) for path in files}

    def offsets(self) -> dict[int, int]:
        return {number: int(each["offset"]) for number, each in self.checkpoints.items()}

    def seen(self) -> tuple[dict[int, dict[str, str]], int]:
        """All that a rewind may change."""
        return self.checkpoints, self.rewinds

    def age(self, seconds: float, *partitions: int) -> None:
        """Checkpoints were written so much earlier, by the disk's clock."""
        for partition in partitions or self.checkpoints:
            path = self.folder / "billing/checkpoint" / str(partition)
            then = path.stat().st_mtime - seconds
            os.utime(path, (then, then))

    # --- beside the queue

    def document(self, name: str, kind: str, body: dict[str, Any], within: str = "") -> None:
        """A document of the group's ownership, with its checksum; `within` another one that has this token."""
        text = json.dumps({"format": 1, **body}, separators=(",", ":"))
        sealed = f'"xxh3":"{xxhash.xxh3_64_hexdigest(text.encode())}","{kind}":{text}'
        path = self.folder / "billing/ownership" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f'"token":"{within}","{kind}":{{{sealed}}}' if within else sealed
        path.write_text(f'{{"etag":"{TAG}",{text}}}')

    def bind(self, *, bound: bool = True, progress: str = "", note: str = "") -> None:
        """A heartbeat of billing-1 that does not move. `progress`: delivered and acknowledged, `0:3/2`."""
        says = {"bound": str(int(bound)), "queue_id": self.head["queue_id"], "timeout": "1", "closes": "0"}
        says |= {name: text for name, text in {"progress": progress, "note": note}.items() if text}
        beats = self.folder / "billing/ownership/beats/billing-1"
        beats.parent.mkdir(parents=True, exist_ok=True)
        beats.write_text(edited(json.dumps({ETAG: TAG}), instance="i1", **says))

    @property
    def flows(self) -> list[str]:
        """Who has a heartbeat."""
        return sorted(path.name for path in (self.folder / "billing/ownership/beats").glob("[!.]*"))

    def lead(self) -> None:
        """A coordinator leads the group."""
        self.document("leader", "lease", {"token": "l1", "name": "host:1", "beat": 1, "timers": {}, "state_token": ""})
