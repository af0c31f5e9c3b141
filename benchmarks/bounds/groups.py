"""`groups`: what one coordinator process takes for 200 groups of 50 flows each, with its default timers.

Each group has a queue of its own with 50 partitions, and every flow one of them: state, records and checkpoints are
written beforehand, by the stores' own calls. The 10,000 flows are played by one process that only sends their
heartbeats, one a second for every flow, as the store's own script; it is not counted, and neither is Redis.
"""

from __future__ import annotations

import itertools
import logging
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import psutil

from benchmarks.bounds.flow import balanced
from benchmarks.parts import NAMESPACE, Settings
from benchmarks.processes import watched
from partq_spark.group.codec import decode_state, encode_state
from partq_spark.group.documents.redis_script import SCRIPT, SHA
from partq_spark.group.documents.urls import store_id
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.model import FlowRecord, GroupKey, GroupSettings, Owner, Phase
from partq_spark.group.ownership import Ownership, StateDocument, open_ownership
from partq_spark.group.ownership.flows import encode_flow
from partq_spark.log.admin import create_queue
from partq_spark.log.groups import create_group
from partq_spark.log.queue import QueueLog
from partq_spark.objects import UNCHANGED, ObjectStore, open_store
from tools import ROOT
from tools.processes import Program, coordinator
from tools.report import Measure, figure
from tools.servers import RedisServer, running

GROUPS: Final = 200
FLOWS: Final = 50
_INTERVAL_S: Final = 1.0  # of heartbeats: the default
_SETTLE_S: Final = 5.0
_ADOPT_WAIT_S: Final = 120.0
_TURNS: Final = 7
logger = logging.getLogger(__name__)


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Processor time and memory of the coordinator, over a minute for every round."""
    groups = GROUPS // 10 if settings.quick else GROUPS
    minute_s = 10.0 if settings.quick else 60.0
    url = f"file://{settings.work}/store"
    with running(RedisServer()) as redis:
        keys = _prepared(url, redis, groups)
        logger.info("groups: %d groups are made", groups)
        with (
            _beating(settings.work, redis, groups, url),
            coordinator(settings.work, url, redis.url, namespace=NAMESPACE) as process,
        ):
            adopted_s = _wait_adopted(redis, keys, url)
            time.sleep(_SETTLE_S)
            shares, sizes_mb = [], []
            for _ in range(1 if settings.quick else settings.rounds):
                share, size_mb = watched(psutil.Process(process.pid), minute_s)
                shares.append(share)
                sizes_mb.append(size_mb)
                logger.info("groups: %.1f %% of a core, %.0f MB", share, size_mb)
            _check_undisturbed(redis, keys, url)
    played = f"one coordinator, {groups} groups of {FLOWS} flows: processor time"
    return [
        figure(played, shares, "% of a core", most=20),
        figure("its resident memory, the largest of the minute", sizes_mb, "MB", most=200),
        figure("from its start until it has adopted all groups", [adopted_s], "s"),
    ], []


# --- the groups -------------------------------------------------------------------------------------------------------


def _key(number: int) -> GroupKey:
    return GroupKey(NAMESPACE, f"queue-{number}", "group")


def _owners() -> list[Owner]:
    return [Owner(f"flow-{number:02d}", f"{number:016x}") for number in range(FLOWS)]


def _record(owner: Owner, queue_id: str) -> FlowRecord:
    return FlowRecord(flow=owner.flow, instance=owner.instance, queue_id=queue_id, bound=True, session_timeout_s=10.0)


def _prepared(url: str, redis: RedisServer, groups: int) -> list[GroupKey]:
    """Balanced groups, as a coordinator would have left them a moment ago."""
    store = open_store(url)
    ownership = open_ownership(redis.url, store=store)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: _prepare(store, ownership, number), range(groups)))
    ownership.close()
    return [_key(number) for number in range(groups)]


def _prepare(store: ObjectStore, ownership: Ownership, number: int) -> None:
    key = _key(number)
    queue = create_queue(store, key.namespace, key.queue, FLOWS)
    create_group(queue, key.group, [0] * FLOWS)
    queue_id = queue.head.queue_id
    checkpoints = checkpoints_of(queue, key.group)
    owners = _owners()
    for place, owner in enumerate(owners):
        checkpoints.fence(place, to=owner, epoch=1, start=0)
        ownership.bind(key, _record(owner, queue_id), replaces=None)
    state = balanced(owners, FLOWS, GroupSettings(), queue_id=queue_id)
    ownership.swap_state(key, encode_state(state, 0.0), token="0" * 16, expected=None)


def _wait_adopted(redis: RedisServer, keys: list[GroupKey], url: str) -> float:
    """Until the coordinator has written every group's state under a token of its own; how long it took in s."""
    store = open_ownership(redis.url, store=open_store(url))
    begun_s = time.monotonic()
    left = list(keys)
    while left:
        if time.monotonic() - begun_s > _ADOPT_WAIT_S:
            raise RuntimeError(f"{len(left)} of {len(keys)} groups were not adopted in {_ADOPT_WAIT_S:g} s")
        left = [key for key in left if store.read_state(key, known="0" * 16) is UNCHANGED]
        time.sleep(0.05)
    store.close()
    return time.monotonic() - begun_s


def _check_undisturbed(redis: RedisServer, keys: list[GroupKey], url: str) -> None:
    """Every flow still has its partition at its first epoch: the heartbeats came in time, and nobody did more work."""
    store = open_ownership(redis.url, store=open_store(url))
    for key in keys:
        found = store.read_state(key)
        state = decode_state(found.body, 0.0, str(key)) if isinstance(found, StateDocument) else None
        if state is None or {(p.phase, p.epoch) for p in state.partitions.values()} != {(Phase.OWNED, 1)}:
            raise RuntimeError(f"group {key} did not stay as it was: {state}")
    store.close()


# --- the heartbeats ---------------------------------------------------------------------------------------------------


@contextmanager
def _beating(work: Path, redis: RedisServer, groups: int, url: str) -> Iterator[None]:
    """All flows beat, once a second each, by a process of its own."""
    command = [sys.executable, "-m", __name__, str(redis.port), str(groups), url]
    with Program(command, name="heartbeats", folder=work, environment={**os.environ, "PYTHONPATH": str(ROOT)}) as beats:
        yield
        if beats.code is not None:
            raise RuntimeError(f"the heartbeats ended by themselves, with {beats.code}\n{beats.tail()}")


def _packed(*words: str) -> bytes:
    """One command, as Redis reads it."""
    parts = [f"*{len(words)}\r\n".encode()]
    parts += [f"${len(data)}\r\n".encode() + data + b"\r\n" for data in (word.encode() for word in words)]
    return b"".join(parts)


def _prefix(store: str, key: GroupKey) -> str:
    return f"partq:{{{store}/{key}}}:"


def _beat(prefix: str, record: FlowRecord, turn: int) -> bytes:
    """The swap of a flow's heartbeat, and a look at something that is not there: a session would know the state."""
    former, token = (f"turn{number % _TURNS}" for number in (turn - 1, turn))
    fields = msgspec.json.encode(encode_flow(record)).decode()
    swap = ("swap", "1", record.flow, former, token, fields)
    return _packed("EVALSHA", SHA, "2", f"{prefix}beats", f"{prefix}state", "", *swap, "load", "2", "none", "")


def beat_for_ever(port: int, groups: int, url: str) -> None:
    """Send every flow's heartbeat once a second, group by group, spread over the second."""
    objects = open_store(url)
    store = store_id(objects)
    queues = [QueueLog(objects, NAMESPACE, _key(number).queue).refresh().queue_id for number in range(groups)]
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(_packed("SCRIPT", "LOAD", SCRIPT))
        connection.recv(1000)
        for number, owner in itertools.product(range(groups), _owners()):
            key = _prefix(store, _key(number)) + "beats"
            connection.sendall(_packed("HSET", key, f"{owner.flow} version", f"turn{_TURNS - 1} 0"))
            connection.recv(100)
        # As a session would: each heartbeat replaces the one before. A few, made beforehand, take turns.
        work = [
            [
                b"".join(
                    _beat(_prefix(store, _key(number)), _record(owner, queues[number]), turn) for owner in _owners()
                )
                for turn in range(_TURNS)
            ]
            for number in range(groups)
        ]
        due_s = time.monotonic()
        for turn in itertools.count():
            for commands in work:
                connection.sendall(commands[turn % _TURNS])
                answers = b""
                while answers.count(b"*2\r\n") < FLOWS:  # the heartbeat was swapped, and the state looked at
                    answers += connection.recv(1 << 16)
                    if b"*0\r\n" in answers or b"\n-" in b"\n" + answers:
                        raise RuntimeError(f"a heartbeat was refused: {answers[:200]!r}")
                due_s += _INTERVAL_S / groups
                time.sleep(max(0.0, due_s - time.monotonic()))


if __name__ == "__main__":
    beat_for_ever(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
