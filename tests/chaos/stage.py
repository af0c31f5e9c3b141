"""The processes of a run: those of `tests.cast`, with Spark drivers and consumers in plain Python for flows; and the
slow road to an Azurite. When things happen is decided elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from unittest import mock

import psutil

from tests.cast import consumers
from tests.cast.cast import QUEUE, Cast
from tests.cast.journal import EVENTS, NAME, read_facts
from tests.chaos import driver
from tests.chaos.course import GROUPS, OPTIONS, Course, Mode
from tests.chaos.faults import FREEZING, Kind
from tests.support.jvm import spark_environment
from tests.world.facts import Handled
from tools.processes import Program, readers_among
from tools.proxy import Fault, Proxy, Seen, unruly
from tools.servers import Azurite, S3Server, running

SERVERS: Final[Mapping[str, type[Azurite | S3Server]]] = {"azurite": Azurite, "s3": S3Server, "careless": S3Server}
SESSION_TIMEOUT_S: Final = 5.0  # the least that is allowed
CONSUMERS: Final = {f"python-{kind}": kind for kind in consumers.Kind}
"""The consumers in plain Python of a run, by name, which is also their flow's."""


class Player:
    """A Spark driver or a consumer in plain Python: its program, its journal. It can be killed and started again."""

    def __init__(self, name: str, mode: Mode, folder: Path, program: Program, *, has_jvm: bool) -> None:
        self.name, self.mode, self.program, self.has_jvm = name, mode, program, has_jvm
        self.folder = folder
        self.down = False  # killed, and not started again yet

    @property
    def has_begun(self) -> bool:
        return (self.folder / EVENTS).exists()

    @property
    def batches(self) -> int:
        """How many it was given."""
        return (self.folder / NAME).read_text().count('["Given"')

    def word(self, kind: Kind) -> str:
        """What the report calls a fault of this kind."""
        return kind.value if self.has_jvm else f"Python consumers {'frozen' if kind in FREEZING else 'killed'}"

    def dies_of(self, kind: Kind) -> bool:
        """Whether it has to be started again."""
        return kind is Kind.DRIVER_KILLED if self.has_jvm else kind not in FREEZING

    def victims(self, kind: Kind) -> list[psutil.Process]:
        """Of a driver its JVM, the processes in which its query's source is, or both, as far as they are there."""
        family = self.program.family()
        if not self.has_jvm:
            return family
        jvms = [process for process in family if _name(process) == "java"]
        readers = readers_among(family) if kind is not Kind.JVM_FROZEN else []
        return [*(jvms if kind in (Kind.JVM_FROZEN, Kind.BOTH_FROZEN) else ()), *readers]


def spark_driver(cast: Cast, name: str, mode: Mode, *, listener: bool) -> Player:
    """One whose query is of this mode; with partq's listener, or without."""
    folder = cast.folder / name
    options = {
        "store": cast.url,
        "group": GROUPS[mode],
        "ownership": cast.ownership,
        "startingOffsets": "earliest",
        "sessionTimeout": f"{cast.session_timeout_s:g}s",
        **OPTIONS[mode],
    }
    plan = driver.Plan(
        queue=QUEUE, options=options, trigger="200 milliseconds", listener=listener, folder=str(folder), mode=mode
    )
    program = cast.program(Path(driver.__file__), plan, name, folder, **spark_environment(folder))
    return Player(name, mode, folder, program, has_jvm=True)


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


class Stage:
    """A cast on stage with its drivers, none of them started yet. Made by `stage`."""

    def __init__(
        self, cast: Cast, drivers: list[Player], server: Azurite | S3Server | None, proxy: Proxy | None
    ) -> None:
        self.cast = cast
        self.drivers = drivers
        self._server = server
        self._proxy = proxy
        self._faults = proxy.next_fault if proxy is not None else unruly(0.0)
        self.sharing = [each for each in drivers if each.mode is Mode.AUTO]

    def unread(self, ends: Sequence[int]) -> str:
        """What is not read up to `ends` by the drivers that are alone in their group; empty: nothing."""
        for each in self.drivers:
            if each.mode is Mode.MANUAL and (told := self.cast.behind(GROUPS[each.mode], ends)):
                return told
            if each.mode is Mode.UNKEPT:
                facts = read_facts(each.folder)
                done = {row[:2] for fact in facts if isinstance(fact, Handled) for row in fact.rows}
                if len(done) < sum(ends):
                    return f"{each.name} has dealt with {len(done)} of {sum(ends)} messages"
        return ""

    def slow_down(self, delay_s: float) -> None:
        """Every request to the store takes so much longer from now on; 0: as it is. Nothing on `file:`."""
        if self._proxy is not None:

            def later(seen: Seen) -> Fault | None:
                time.sleep(delay_s)
                return self._faults(seen)

            self._proxy.next_fault = later

    def freeze_store(self, for_s: float) -> None:
        """It keeps connections open and answers nothing for so long, then goes on. By a clock of its own: who asks it
        meanwhile, the run itself perhaps, waits. Nothing on `file:`.
        """
        if self._server is not None:
            self._server.freeze()
            threading.Timer(for_s, self._server.thaw).start()

    def unsettled(self) -> str:
        """What keeps the group from being at rest, with all drivers bound; empty: nothing."""
        return self.cast.unsettled(len(self.sharing))


@contextlib.contextmanager
def stage(folder: Path, course: Course) -> Iterator[Stage]:
    """Everything but the drivers and coordinators is started; nothing is alive afterwards."""
    with contextlib.ExitStack() as stack:
        server: Azurite | S3Server | None = None
        proxy: Proxy | None = None
        url, reached = "", dict[str, str]()
        if course.store != "file":
            server = stack.enter_context(running(SERVERS[course.store]()))
            proxy = stack.enter_context(Proxy(server.port).running())
            proxy.next_fault = unruly(0.01)
            if course.store == "careless":
                proxy.dropped = lambda seen: {"if-match"} if seen.method == "PUT" else set()
            url, reached = server.fresh_url(), server.variables(proxy.port)
            stack.enter_context(mock.patch.dict(os.environ, server.variables()))  # our own stores
        cast = stack.enter_context(
            Cast(
                folder,
                partitions=course.counts[0],
                rebalance_delay_s=1.0,
                max_handoff_time_s=3.0,
                session_timeout_s=SESSION_TIMEOUT_S,
                store_url=url,
                store_environment=reached,
            )
        )
        made: list[Player] = []
        for number, (name, mode) in enumerate(course.names.items()):
            cast.queue.create_group(GROUPS[mode], starting="earliest")
            made.append(spark_driver(cast, name, mode, listener=number % 2 == 0))  # both ways have to do
        for name, kind in CONSUMERS.items() if course.python else ():
            program = cast.consumer(name, kind)
            made.append(Player(name, Mode.AUTO, folder / name, program, has_jvm=False))
        yield Stage(cast, made, server, proxy)
