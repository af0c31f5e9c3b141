"""The processes of a run: those of `tests.ownership.cast`, and Spark drivers in the place of its flows.

Starting, finding, killing and freezing; and the slow road to an Azurite. When things happen is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import psutil

from partq_spark.group import lifecycle
from partq_spark.group.model import Phase, RebalanceStatus
from partq_spark.log.admin import create_group
from tests.chaos import consumers
from tests.chaos.driver import Plan
from tests.chaos.evidence import completed_ends
from tests.chaos.faults import FREEZING, Kind
from tests.chaos.modes import BY_HAND, CONSUMED, JOURNAL, KEYS, OPTIONS, Mode, driver_names
from tests.ownership.cast import KEY, Cast
from tests.support.processes import Program, readers_among, spark_environment
from tests.support.proxy import Proxy
from tests.support.servers import Azurite, running

CREDENTIALS: Final = "AZURE_STORAGE_CONNECTION_STRING"
PARTITIONS: Final = 8
SESSION_TIMEOUT_S: Final = 5.0  # the least that is allowed
REBALANCE_DELAY_S: Final = 1.0
MAX_HANDOFF_TIME_S: Final = 3.0
_SCRIPT: Final = Path(__file__).with_name("driver.py")
_CONSUMER: Final = Path(__file__).with_name("consumers.py")


class Driver:
    """One Spark driver: its program, its Spark checkpoint, its sink. It can be killed and started again."""

    def __init__(self, number: int, name: str, mode: Mode, cast: Cast) -> None:
        self.name = name
        self.mode = mode
        self.folder = cast.folder / name
        self.spark_checkpoint = self.folder / "checkpoint"
        self.sink = self.folder / "sink"
        self.events = self.folder / "events.jsonl"
        self.down = False  # killed, and not started again yet
        options = {
            "store": cast.store_url,
            "group": KEYS[mode].group,
            "ownership": cast.ownership_url,
            "startingOffsets": "earliest",
            "sessionTimeout": f"{cast.session_timeout_s:g}s",
            **OPTIONS[mode],
        }
        plan = Plan(
            queue=KEY.queue,
            options=options,
            trigger="200 milliseconds",
            listener=number % 2 == 1,  # both ways have to do
            checkpoint=str(self.spark_checkpoint),
            sink=str(self.sink),
            warehouse=str(self.folder / "warehouse"),
            events=str(self.events),
            mode=mode,
            journal=str(self.folder / JOURNAL),
        )
        environment = cast.environment(spark_environment(self.folder))
        self.program = Program.script(_SCRIPT, plan, name=name, folder=self.folder, environment=environment)

    @property
    def commits(self) -> int:
        """How many batches Spark has committed."""
        log = self.spark_checkpoint / "commits"
        return sum(path.name.isdigit() for path in log.iterdir()) if log.exists() else 0

    def word(self, kind: Kind) -> str:
        """What the report calls a fault of this kind."""
        return kind.value

    def dies_of(self, kind: Kind) -> bool:
        """Whether it has to be started again."""
        return kind is Kind.DRIVER_KILLED

    def victims(self, kind: Kind) -> list[psutil.Process]:
        """Its JVM, the processes in which its query's source is, or both, as far as they are there."""
        family = self.program.family()
        jvms = [process for process in family if _name(process) == "java"]
        readers = readers_among(family) if kind is not Kind.JVM_FROZEN else []
        return [*(jvms if kind in (Kind.JVM_FROZEN, Kind.BOTH_FROZEN) else ()), *readers]


class PythonConsumer:
    """One consumer in plain Python, which shares the drivers' group. In a run it takes part as a `Driver`."""

    mode: Final = Mode.AUTO

    def __init__(self, name: str, kind: consumers.Kind, cast: Cast) -> None:
        self.name = name
        self.down = False
        folder = cast.folder / name
        self._journal = folder / CONSUMED
        self._events = folder / "events.jsonl"
        plan = consumers.Plan(
            store=cast.store_url,
            queue=KEY.queue,
            group=KEY.group,
            ownership=cast.ownership_url,
            session_timeout_s=cast.session_timeout_s,
            flow=name,
            kind=kind,
            journal=str(self._journal),
            events=str(self._events),
        )
        self.program = Program.script(_CONSUMER, plan, name=name, folder=folder, environment=cast.environment())

    @property
    def commits(self) -> int:
        """How many batches it has handled, its start counting as one."""
        handled = self._journal.read_text().count('"handled"') if self._journal.exists() else 0
        return handled + self._events.exists()

    def word(self, kind: Kind) -> str:
        """What the report calls a fault of this kind."""
        return f"Python consumers {'frozen' if kind in FREEZING else 'killed'}"

    def dies_of(self, kind: Kind) -> bool:
        """Whether it has to be started again."""
        return kind not in FREEZING

    def victims(self, _kind: Kind) -> list[psutil.Process]:
        """It is one process."""
        return self.program.family()


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


class Stage:
    """A cast on stage with its drivers, none of them started yet. Made by `stage`."""

    def __init__(self, cast: Cast, drivers: list[Driver | PythonConsumer], proxy: Proxy | None) -> None:
        self.cast = cast
        self.drivers = drivers
        self._proxy = proxy
        self.sharing = [driver for driver in drivers if driver.mode is Mode.AUTO]
        self.by_hand = lifecycle.checkpoints_of(cast.queue, BY_HAND.group)

    def unread(self, ends: Sequence[int]) -> str:
        """What is not read up to `ends` by the drivers that are alone in their group; empty: nothing."""
        for driver in self.drivers:
            if isinstance(driver, PythonConsumer):
                continue
            if driver.mode is Mode.MANUAL:
                found = self.by_hand.list_checkpoints()
                done = {partition: each.offset or 0 for partition, each in found.items()}
            elif driver.mode is Mode.UNKEPT:
                done = completed_ends(driver.spark_checkpoint)
            else:
                continue
            late = [partition for partition, end in enumerate(ends) if done.get(partition, 0) < end]
            if late:
                return f"{driver.name} has not dealt with partitions {late} up to where they ended"
        return ""

    def slow_down(self, delay_s: float) -> None:
        """Every request to the store takes so much longer from now on; 0: as it is. Nothing on `file:`."""
        if self._proxy is not None:
            self._proxy.next_fault = lambda _: time.sleep(delay_s)

    def unsettled(self) -> str:
        """What keeps the group from being at rest, with all drivers bound; empty: nothing."""
        state = self.cast.state()
        if state is None:
            return "there is no state"
        if state.status is not RebalanceStatus.READY:
            return f"the status is {state.status.value}"
        if list(state.partitions) != list(range(self.cast.queue.refresh().partitions)):
            return f"the group has partitions {list(state.partitions)}"
        moving = [number for number, each in state.partitions.items() if each.phase is not Phase.OWNED]
        if moving:
            return f"partitions {moving} are not in anybody's hands"
        bound = {name for name, flow in state.flows.items() if flow.bound}
        lost = [number for number, each in state.partitions.items() if each.owner and each.owner.flow not in bound]
        if lost:
            return f"partitions {lost} are unbound"
        return "" if len(bound) == len(self.sharing) else f"{len(bound)} of {len(self.sharing)} flows are bound"


@contextlib.contextmanager
def stage(
    folder: Path,
    *,
    drivers: int,
    azurite: bool,
    partitions: int = PARTITIONS,
    modes: tuple[Mode, ...] = (Mode.AUTO,),
    python: bool = False,
) -> Iterator[Stage]:
    """Everything but the drivers and coordinators is started; nothing is alive afterwards. `drivers` share a group; one
    of each other mode has its own. `python`: one consumer in plain Python of each kind shares it with the drivers.
    """
    with contextlib.ExitStack() as stack:
        proxy: Proxy | None = None
        url, reached = "", {}
        if azurite:
            server = stack.enter_context(running(Azurite()))
            proxy = stack.enter_context(Proxy(server.port).running())
            slow_road = f"http://127.0.0.1:{proxy.port}/{server.account}"
            url, reached = server.fresh_url(), {CREDENTIALS: server.connection_string_with(server.key, slow_road)}
            stack.enter_context(_credentials(server.connection_string))
        cast = stack.enter_context(
            Cast(
                folder,
                partitions=partitions,
                rebalance_delay_s=REBALANCE_DELAY_S,
                max_handoff_time_s=MAX_HANDOFF_TIME_S,
                session_timeout_s=SESSION_TIMEOUT_S,
                store_url=url,
                store_environment=reached,
            )
        )
        made: list[Driver | PythonConsumer] = []
        for number, (name, mode) in enumerate(driver_names(drivers, modes).items(), start=1):
            if mode is not Mode.AUTO:
                create_group(cast.queue, KEYS[mode].group, [0] * partitions)
            made.append(Driver(number, name, mode, cast))
        made += [PythonConsumer(name, kind, cast) for name, kind in consumers.CONSUMERS.items() if python]
        for each in made:
            stack.callback(each.program.kill)
        yield Stage(cast, made, proxy)


@contextlib.contextmanager
def _credentials(connection_string: str) -> Iterator[None]:
    """For the stores that this process opens."""
    before = os.environ.get(CREDENTIALS)
    os.environ[CREDENTIALS] = connection_string
    try:
        yield
    finally:
        del os.environ[CREDENTIALS]
        if before is not None:
            os.environ[CREDENTIALS] = before
