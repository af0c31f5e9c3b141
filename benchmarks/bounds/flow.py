"""What a decision takes (`decide`, the core alone, without I/O), what a heartbeat costs and how soon a flow has its
partitions (`flow`, with a real redis-server, a real coordinator process and a session in this process, over loopback).
"""

from __future__ import annotations

import logging
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from benchmarks.parts import NAMESPACE, PARTITIONS, Settings
from coordinator.core.events import FlowBound, FlowExpired, Tick
from coordinator.core.machine import decide as decide_event
from partq_spark.group.codec import decode_state
from partq_spark.group.lifecycle import checkpoints_of
from partq_spark.group.membership import GroupInQueue
from partq_spark.group.model import Flow, FlowRecord, GroupKey, GroupSettings, GroupState, Owner, Partition, Phase
from partq_spark.group.ownership import StateDocument, open_ownership
from partq_spark.group.session import Session
from partq_spark.log.admin import create_queue
from partq_spark.log.groups import create_group
from partq_spark.log.settings import QueueConfig
from partq_spark.objects import ObjectStore, open_store
from tools.processes import coordinator
from tools.report import Measure, figure
from tools.servers import RedisServer, running

FLOWS: Final = 1_000
OWNED: Final = 10_000
_DELAY_S: Final = 5.0
_BEATS: Final = 2_000
_BINDS: Final = 20
_BIND_WAIT_S: Final = 10.0
_QUIET_S: Final = 1.0
"""Before each way from bind to partitions: a group with much news is looked at only ten times a second."""
_STATE_WAIT_S: Final = 60.0
_START_WAIT_S: Final = 20.0
_STOP_WAIT_S: Final = 10.0


# --- the core ---------------------------------------------------------------------------------------------------------


def decide(settings: Settings) -> tuple[list[Measure], list[str]]:
    """One flow joins, and half of the flows are lost."""
    owners = [Owner(f"flow-{number:04d}", f"{number:016x}") for number in range(FLOWS)]
    joins, losses, plans = [], [], []
    moved = 0
    event = FlowBound(flow="newcomer", instance="f" * 16)
    for _ in range(settings.rounds):
        state = balanced(owners, OWNED, GroupSettings(rebalance_delay_s=0.0), queue_id="q")
        begun_s = time.perf_counter()
        after, _ = decide_event(state, event, 0.0)
        joins.append(1000 * (time.perf_counter() - begun_s))
        moved = sum(partition.phase is not Phase.OWNED for partition in after.partitions.values())
        state = balanced(owners, OWNED, GroupSettings(rebalance_delay_s=_DELAY_S), queue_id="q")
        lost = list(state.flows.values())[::2]
        begun_s = time.perf_counter()
        for flow in lost:
            state, _ = decide_event(state, FlowExpired(flow=flow.name, instance=flow.instance), 0.0)
        losses.append(1000 * (time.perf_counter() - begun_s) / len(lost))
        begun_s = time.perf_counter()
        decide_event(state, Tick(), _DELAY_S)
        plans.append(1000 * (time.perf_counter() - begun_s))
    joined = f"one flow joins {FLOWS:,} flows on {OWNED:,} partitions, delay 0: {moved} handoffs planned"
    return [
        figure(joined, joins, "ms", most=50),
        figure("half of them are lost: the complete plan when the delay is over", plans, "ms", most=150),
        figure("noticing each of the lost before that", losses, "ms"),
    ], []


def balanced(owners: Sequence[Owner], partitions: int, settings: GroupSettings, *, queue_id: str) -> GroupState:
    """A group in which `owners` have the partitions in turn, each at its first epoch."""
    return GroupState(
        queue_id=queue_id,
        settings=settings,
        partitions={
            number: Partition(partition=number, phase=Phase.OWNED, epoch=1, owner=owners[number % len(owners)])
            for number in range(partitions)
        },
        flows={
            owner.flow: Flow(name=owner.flow, instance=owner.instance, bound=True, since=number + 1, active=True)
            for number, owner in enumerate(owners)
        },
        binds=len(owners),
    )


# --- a flow -----------------------------------------------------------------------------------------------------------


def flow(settings: Settings) -> tuple[list[Measure], list[str]]:
    """A heartbeat, and the way from bind to the first partitions, over loopback."""
    logging.getLogger("partq.flow").setLevel(logging.WARNING)
    with running(RedisServer()) as redis:
        beats_ms, commands = _beats(redis, settings, _BEATS // 10 if settings.quick else _BEATS)
        first_ms, second_ms = _binds(redis, settings)
    sent = sum(count for (is_script, _), count in commands.items() if not is_script)
    inside = ", ".join(f"{count} {name}" for (is_script, name), count in sorted(commands.items()) if is_script)
    bound = f"bind to first assignment, delay 0: all {PARTITIONS} partitions of an unassigned queue"
    handed = f"the same, {PARTITIONS // 2} of them handed over by another flow that is idle"
    return [
        figure("commands that a heartbeat sends, each one round trip", [float(sent)], "commands", most=1),
        figure("a heartbeat, from call to return", beats_ms, "ms"),
        figure(bound, first_ms, "ms", most=50),
        figure(handed, second_ms, "ms"),
    ], [f"Inside of its one script a heartbeat makes Redis count {inside}."]


def _beats(redis: RedisServer, settings: Settings, beats: int) -> tuple[list[float], Counter[tuple[bool, str]]]:
    """The median of every round's beats in ms, and what one beat makes Redis do: (in a script, command) → how often."""
    key = GroupKey(NAMESPACE, "beaten", "group")
    store = open_ownership(redis.url, store=open_store(f"file://{settings.work}/store"), group=key)
    record = FlowRecord(flow="flow", instance="i" * 16, queue_id="q", bound=True, session_timeout_s=10.0)
    store.bind(key, record, replaces=None)
    store.swap_state(key, b"{}", token="t" * 16, expected=None)
    store.beat(key, record)  # the script is known from here on
    with _monitored(redis) as seen:
        store.beat(key, record)
    medians_ms = []
    for _ in range(settings.rounds):
        taken_s = []
        for _ in range(beats):
            begun_s = time.perf_counter()
            store.beat(key, record)
            taken_s.append(time.perf_counter() - begun_s)
        medians_ms.append(1000 * statistics.median(taken_s))
    store.close()
    return medians_ms, seen


@contextmanager
def _monitored(redis: RedisServer) -> Iterator[Counter[tuple[bool, str]]]:
    """Counts the commands that Redis executes meanwhile, those inside of scripts apart."""
    seen: Counter[tuple[bool, str]] = Counter()
    with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as monitor:
        monitor.sendall(b"MONITOR\r\n")
        lines = monitor.makefile("rb")
        if lines.readline() != b"+OK\r\n":
            raise RuntimeError("Redis does not let itself be monitored")
        yield seen
        with socket.create_connection(("127.0.0.1", redis.port), timeout=5) as other:
            other.sendall(b"ECHO the-end\r\n")
            other.recv(100)
        while b"the-end" not in (line := lines.readline()):
            # +1700000000.123456 [0 127.0.0.1:50000] "HGET" "key" … or [0 lua]
            source, _, command = line.partition(b"] ")
            seen[source.endswith(b"lua"), command.split(b'"')[1].decode().upper()] += 1


def _binds(redis: RedisServer, settings: Settings) -> tuple[list[float], list[float]]:
    """Milliseconds from the call of `bind` until the flow has its partitions: as the first flow, and as the second."""
    url = f"file://{settings.work}/store"
    store = open_store(url)
    queue = create_queue(store, NAMESPACE, "bound", PARTITIONS, QueueConfig(rebalance_delay_s=0.0))
    create_group(queue, "group", [0] * PARTITIONS)
    key = GroupKey(NAMESPACE, "bound", "group")

    def session(name: str) -> Session:
        ownership = open_ownership(redis.url, store=store, group=key)
        return Session(ownership, GroupInQueue(queue, key.group), checkpoints_of(queue, key.group), name)

    first_ms, second_ms = [], []
    with coordinator(settings.work, url, redis.url, namespace=NAMESPACE):
        warm_up = session("warm-up")
        warm_up.bind(wait_s=_START_WAIT_S)
        warm_up.unbind()
        for number in range(3 if settings.quick else _BINDS):
            wait_for_state(redis.url, store, key, _is_free)
            time.sleep(_QUIET_S)
            one, other = session(f"one-{number}"), session(f"other-{number}")
            begun_s = time.perf_counter()
            view = one.bind(wait_s=_BIND_WAIT_S)
            first_ms.append(1000 * (time.perf_counter() - begun_s))
            if len(view.claims) != PARTITIONS:
                raise RuntimeError(f"bound as the first flow, but has {sorted(view.claims)}")
            stop = threading.Event()
            idle = threading.Thread(target=_be_idle, args=(one, stop), daemon=True)
            idle.start()
            begun_s = time.perf_counter()
            view = other.bind(wait_s=_BIND_WAIT_S)
            while len(view.claims) < PARTITIONS // 2:
                other.wait_news(0.01)
                view = other.observe()
            second_ms.append(1000 * (time.perf_counter() - begun_s))
            stop.set()
            idle.join(_STOP_WAIT_S)
            other.unbind()
            one.unbind()
    return first_ms, second_ms


def _be_idle(session: Session, stop: threading.Event) -> None:
    """A flow without work: it looks when there are news."""
    while not stop.is_set():
        session.observe()
        session.wait_news(0.1)


def wait_for_state(ownership: str, objects: ObjectStore, key: GroupKey, look: Callable[[GroupState], bool]) -> None:
    """Until the group's state looks so. Raises `TimeoutError` after a minute."""
    store = open_ownership(ownership, store=objects)
    deadline_s = time.monotonic() + _STATE_WAIT_S
    state: GroupState | None = None
    while state is None or not look(state):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"group {key} is not as expected after {_STATE_WAIT_S:g} s: {state}")
        time.sleep(0.01)
        found = store.read_state(key)
        state = decode_state(found.body, 0.0, "state") if isinstance(found, StateDocument) else None
    store.close()


def _is_free(state: GroupState) -> bool:
    """Nobody has anything: what the flows before had is given back."""
    return not state.flows and all(each.phase is Phase.FREE for each in state.partitions.values())
