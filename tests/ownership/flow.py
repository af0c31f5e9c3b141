"""A flow as a process: `python -m tests.ownership.flow FILE`, where FILE has `Settings` as JSON.

A consumer in plain Python around `partq_spark.group.session`, with a heartbeat thread beside its work. It takes
messages by their offsets, holds them for a while, acknowledges them in order, and writes down everything that it is
told, at the moment it is told so. It judges nothing. SIGTERM ends it in good order; exit code 3: another process has
its name.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partq_spark.base.errors import Invalid, Unavailable
from partq_spark.group import lifecycle
from partq_spark.group.claims import Position, View
from partq_spark.group.heartbeat import HeartbeatThread, Liveness
from partq_spark.group.key_order import KeyOrder, Milestones
from partq_spark.group.model import GroupKey
from partq_spark.group.ownership import open_ownership
from partq_spark.group.session import Session, SessionSettings
from partq_spark.log.model import at
from partq_spark.log.queue import QueueLog
from partq_spark.objects import open_store
from tests.ownership.facts import Acknowledged, Bound, Claimed, Delivered, Ended, Failed, Journal, Lost, Paused, now_s

NAME_TAKEN: Final = 3
_RETRY_S: Final = 0.1
_DAWDLE_S: Final = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What a flow process is told. Paths are absolute. `keep_mapping`: the client's own note of its partitions, kept
    from one process to the next; None: it knows nothing of them.
    """

    store: str
    ownership: str
    namespace: str
    queue: str
    group: str
    flow: str
    journal: str
    keep_mapping: str | None = None
    seed: int = 0
    session_timeout_s: float = 5.0
    beat_interval_s: float = 1.0
    checkpoint_interval_s: float = 0.5
    bind_wait_s: float = 5.0
    idle_s: float = 0.1
    hold_s: float = 0.2  # messages are held for up to so long before they are acknowledged
    slow_s: float = 0.0  # some of them so long
    slow_share: float = 0.0
    dawdle_share: float = 0.0  # of the deliveries: up to a second passes between looking and delivering
    follow_parent: bool = False  # end with the process that started this one


class Consumer:
    """The flow's own loop."""

    def __init__(self, settings: Settings) -> None:
        store = open_store(settings.store, retry_timeout_s=2.0)
        self._settings = settings
        self._queue = QueueLog(store, settings.namespace, settings.queue)
        queue_id = self._queue.refresh().queue_id
        key = GroupKey(settings.namespace, settings.queue, settings.group)
        self._session = Session(
            open_ownership(settings.ownership, store=store, group=key),
            lifecycle.checkpoints_of(self._queue, key.group),
            key,
            queue_id,
            settings.flow,
            SessionSettings(
                session_timeout_s=settings.session_timeout_s,
                beat_interval_s=settings.beat_interval_s,
                checkpoint_interval_s=settings.checkpoint_interval_s,
            ),
            milestones=Milestones(lambda: self._queue.head),
        )
        self._order = KeyOrder(settings.group, look_s=store.look_interval_s, now_s=now_s)
        self._journal = Journal(Path(settings.journal))
        self._chance = random.Random(settings.seed)
        self._held: deque[tuple[float, Mapping[int, Position]]] = deque()
        self._claims: dict[int, tuple[str, int]] = {}  # partition → instance and epoch
        self._acknowledged: dict[int, int] = {}
        self._paused: set[tuple[int, int]] = set()
        self._instance = ""
        self._stopping = False
        self._looked_s = now_s()

    def stop(self) -> None:
        """Leave the group soon."""
        self._stopping = True

    def run(self) -> int:
        """Until told to stop, or another process has the name."""
        liveness = Liveness(parent=os.getppid() if self._settings.follow_parent else None)
        try:
            if not self._bind():
                return 0
            with HeartbeatThread(self._session.beat, self._settings.beat_interval_s, liveness) as heartbeat:
                while not self._stopping:
                    if not heartbeat.is_beating:
                        heartbeat.check()
                        return 0  # nobody is left to work for
                    self._turn()
            self._leave()
        except Invalid as error:
            self._failed("name", error)
            return NAME_TAKEN
        return 0

    # --- the turn -----------------------------------------------------------------------------------------------------

    def _bind(self) -> bool:
        mapping = self._noted()
        while not self._stopping:
            sent_s = now_s()
            try:
                binding = self._session.bind(mapping, wait_s=self._settings.bind_wait_s)
            except Unavailable as error:
                self._failed("bind", error)
                time.sleep(_RETRY_S)
                continue
            self._instance = binding.view.instance
            self._journal.write(
                Bound(
                    sent_s=sent_s,
                    done_s=now_s(),
                    flow=self._settings.flow,
                    instance=binding.view.instance,
                    partitions=binding.partitions,
                    mapping=bool(mapping),
                    standing=binding.standing.value,
                )
            )
            self._note(binding.view, sent_s)
            return True
        return False

    def _turn(self) -> None:
        try:
            sent_s = now_s()
            view = self._session.observe()
            self._note(view, sent_s)
            if not self._delivered(view) and not self._acknowledge():
                self._session.wait_news(self._settings.idle_s)
        except Unavailable as error:
            self._failed("turn", error)
            time.sleep(_RETRY_S)

    def _delivered(self, view: View) -> bool:
        """Take what is new, if there is room in the hands."""
        if len(self._held) > 100:
            return False
        head = self._queue.refresh()
        reached = {partition: claim.position for partition, claim in view.deliverable.items()}
        waits = self._order.waits(head, self._session, view.claims, reached)
        most = {p: min(at(head.next, p), waits[p].until) if p in waits else at(head.next, p) for p in reached}
        ends = {
            partition: min(most[partition], position + self._chance.randint(1, 200))
            for partition, position in reached.items()
            if most[partition] > position
        }
        if not ends:
            return False
        if self._chance.random() < self._settings.dawdle_share:
            time.sleep(self._chance.uniform(0, _DAWDLE_S))
        sent_s = now_s()
        if not self._session.deliver(ends):
            return False
        done_s = now_s()
        claims = view.claims
        self._journal.write(
            *(
                Delivered(
                    sent_s=sent_s,
                    done_s=done_s,
                    flow=self._settings.flow,
                    instance=view.instance,
                    partition=partition,
                    epoch=claims[partition].epoch,
                    start=claims[partition].position,
                    end=end,
                    redelivered_below=claims[partition].redelivered_below,
                )
                for partition, end in ends.items()
            )
        )
        slow = self._chance.random() < self._settings.slow_share
        hold_s = self._settings.slow_s if slow else self._chance.uniform(0, self._settings.hold_s)
        positions = {partition: Position(claims[partition].epoch, end) for partition, end in ends.items()}
        self._held.append((done_s + hold_s, positions))
        return False  # at most one delivery for every look around

    def _acknowledge(self) -> bool:
        """Acknowledge what was held for long enough, in the order of delivery; whether there was anything."""
        done = False
        while self._held and self._held[0][0] <= now_s():
            self._session.acknowledge(self._held.popleft()[1])
            done = True
        return done

    def _leave(self) -> None:
        """What is in the hands is dealt with at once."""
        try:
            while self._held:
                self._session.acknowledge(self._held.popleft()[1])
            self._session.unbind()
        except Unavailable as error:
            self._failed("unbind", error)
        self._journal.write(Ended(at_s=now_s(), flow=self._settings.flow, instance=self._instance))

    # --- notes --------------------------------------------------------------------------------------------------------

    def _note(self, view: View, sent_s: float) -> None:
        """Write down what a look has shown that was not known before. `sent_s`: before it began."""
        at_s = now_s()
        flow, self._instance = self._settings.flow, view.instance
        facts: list[Lost | Claimed | Paused | Acknowledged] = [
            Lost(at_s=at_s, flow=flow, instance=view.instance, partition=partition, epoch=epoch)
            for partition, epoch in view.lost.items()
        ]
        for partition, claim in view.claims.items():
            if self._claims.get(partition) != (view.instance, claim.epoch):
                facts.append(
                    Claimed(
                        sent_s=sent_s,
                        done_s=at_s,
                        flow=flow,
                        instance=view.instance,
                        partition=partition,
                        epoch=claim.epoch,
                        position=claim.position,
                        acknowledged=claim.acknowledged,
                        redelivered_below=claim.redelivered_below,
                    )
                )
            elif claim.acknowledged > self._acknowledged[partition]:
                facts.append(
                    Acknowledged(
                        sent_s=self._looked_s,  # by the last call that writes, after the last look or in this one
                        done_s=at_s,
                        flow=flow,
                        instance=view.instance,
                        partition=partition,
                        epoch=claim.epoch,
                        end=claim.acknowledged,
                    )
                )
            self._acknowledged[partition] = claim.acknowledged
            if claim.paused and (partition, claim.epoch) not in self._paused:
                self._paused.add((partition, claim.epoch))
                facts.append(
                    Paused(at_s=at_s, flow=flow, instance=view.instance, partition=partition, epoch=claim.epoch)
                )
        claims = {partition: (view.instance, claim.epoch) for partition, claim in view.claims.items()}
        self._looked_s = at_s
        self._journal.write(*facts)
        if claims != self._claims:
            self._claims = claims
            self._keep({partition: epoch for partition, (_, epoch) in claims.items()})

    def _failed(self, doing: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._journal.write(
            Failed(at_s=now_s(), flow=self._settings.flow, instance=self._instance, doing=doing, error=text)
        )

    def _noted(self) -> dict[int, int]:
        """The partitions that this client had, by its own note."""
        path = Path(self._settings.keep_mapping) if self._settings.keep_mapping else None
        if path is None or not path.exists():
            return {}
        return {int(partition): epoch for partition, epoch in json.loads(path.read_text()).items()}

    def _keep(self, mapping: Mapping[int, int]) -> None:
        if self._settings.keep_mapping:
            path = Path(self._settings.keep_mapping)
            partial = path.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(mapping))
            partial.replace(path)


def main(file: str) -> int:
    """Run one flow as the file says."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    consumer = Consumer(Settings(**json.loads(Path(file).read_text())))
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    return consumer.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
