"""One run: everything starts, faults come as planned, everything is read, everybody stops.

Whatever went wrong on the way (a wait that was over, a process that ended by itself) is a trouble, and the run goes on.
What was done is written down in the run's folder, beside what the processes left there; it is judged elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from tests.cast.journal import LOG, NAME, Journal, now_us, write_log
from tests.cast.looks import Observer
from tests.cast.sidecars import GROUP
from tests.chaos.course import GROUPS, Course, Mode
from tests.chaos.faults import FREEZING, Fault, Kind, plan
from tests.chaos.stage import SESSION_TIMEOUT_S, Player, Stage, stage
from tests.support.waiting import wait_until
from tests.world.facts import Befell
from tools.environment import observe
from tools.processes import DRIVER_WAIT_S, Program

COORDINATORS: Final = ("coordinator-1", "coordinator-2")
MESSAGES: Final = 20  # of a publish
PUBLISH_EVERY_S: Final = (0.1, 0.5)  # on a disk, on a server
"""Every publish is a read in each partition, of which a test's Azurite serves some dozens in a second."""

MOST_TROUBLES: Final = 10
_SLOW_BY_S: Final = 0.15  # every request to a slow store
_READ_WAIT_S: Final = 240.0
_REST_WAIT_S: Final = 60.0
_TURN_S: Final = 0.05


class Chaos:
    """Does what was planned on a stage whose processes are not started yet."""

    def __init__(self, on: Stage, course: Course, tell: Callable[[str], None]) -> None:
        self._stage, self._cast, self._tell = on, on.cast, tell
        self._partitions = course.counts[1:]
        self._publish_every_s = PUBLISH_EVERY_S[course.store != "file"]
        self._duration_s = course.minutes * 60
        self._faults = plan(
            course.seed,
            duration_s=self._duration_s,
            drivers=len(on.drivers),
            session_timeout_s=SESSION_TIMEOUT_S,
            store_served=course.store != "file",
        )
        self._journal = Journal(on.cast.folder / NAME)
        self._begun_s = time.monotonic()
        self._later: list[tuple[float, Callable[[], None]]] = []
        self.done: Counter[str] = Counter()
        self.missed = 0  # faults whose victim was not there
        self.troubles: list[str] = []

    def run(self) -> int:
        """All of it; how many messages were published."""
        kept = {GROUPS[each.mode] for each in self._stage.drivers if each.mode is not Mode.UNKEPT}
        with contextlib.ExitStack() as stack:
            for group in sorted(kept):
                stack.enter_context(Observer(self._cast.queue, group, self._cast.folder / NAME))
            for name in COORDINATORS:
                self._cast.start_coordinator(name)
            for driver in self._stage.drivers:
                driver.program.start()
            for each in self._stage.drivers:
                each.program.wait_until(lambda each=each: each.has_begun, "a beginning")  # type: ignore[misc]
            publisher = self._cast.publisher(MESSAGES, self._publish_every_s).start()
            for each in self._stage.drivers:
                each.program.wait_until(lambda each=each: each.batches >= 2, "batches")  # type: ignore[misc]
            self._expect(self._stage.unsettled, "before the first fault", _REST_WAIT_S)
            self._tell(f"all drivers take part after {self._now_s():.0f} s")
            self._begun_s = time.monotonic()
            for number, count in enumerate(self._partitions, start=1):
                at_s = self._duration_s * number / (len(self._partitions) + 1)
                self._after(at_s - self._now_s(), lambda count=count: self._resize(count))  # type: ignore[misc]
            self._trouble()
            return self._end(publisher)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s

    # --- faults -------------------------------------------------------------------------------------------------------

    def _trouble(self) -> None:
        """Every fault at its time, and what belongs to it later."""
        waiting = list(self._faults)
        while self._now_s() < self._duration_s or self._later:
            while waiting and self._now_s() >= waiting[0].at_s:
                self._strike(waiting.pop(0))
            for due in sorted((each for each in self._later if self._now_s() >= each[0]), key=lambda each: each[0]):
                self._later.remove(due)
                due[1]()
            self._watch()
            time.sleep(_TURN_S)

    def _strike(self, fault: Fault) -> None:
        driver = self._stage.drivers[fault.driver] if fault.driver >= 0 else None
        struck = self._on_driver(fault, driver) if driver is not None else self._on_server(fault)
        whom = driver.name if driver is not None else ""
        what = driver.word(fault.kind) if driver is not None else fault.kind.value
        lasting = f" for {fault.for_s:.1f} s" if fault.for_s else ""
        self._tell(f"{self._now_s():5.1f} s: {what} {whom}{lasting}{'' if struck else ': not there'}")
        if struck:
            self.done[what] += 1
            self._befell(what, whom)
        else:
            self.missed += 1

    def _befell(self, what: str, whom: str = "") -> None:
        self._journal.write(Befell(now_us(), what, whom, is_accident=True))

    def _on_driver(self, fault: Fault, driver: Player) -> bool:
        if driver.down:
            return False
        if driver.dies_of(fault.kind):
            driver.down = True
            try:
                driver.program.kill_driver()
            except AssertionError as error:  # something outlived its JVM (LOS-07)
                self.troubles.append(str(error))
                driver.program.kill()
            self._after(fault.for_s, lambda: self._start(driver))
            return True
        victims = driver.victims(fault.kind)
        if fault.kind in FREEZING:
            _send(victims, signal.SIGSTOP)
            self._after(fault.for_s, lambda: self._wake(victims, driver.name))
        else:
            _send(victims, signal.SIGKILL)
        return bool(victims)

    def _on_server(self, fault: Fault) -> bool:
        if fault.kind is Kind.LEADER_KILLED:
            leader = self._cast.leader()
            if leader is None or self._cast.coordinators[leader].code is not None:
                return False
            self._cast.coordinators[leader].kill()
            self._cast.start_coordinator(leader)
        elif fault.kind is Kind.REDIS_EMPTIED:
            self._cast.redis.kill()
            time.sleep(fault.for_s)
            self._cast.redis.start()
        elif fault.kind is Kind.STORE_FROZEN:
            self._stage.freeze_store(fault.for_s)
        else:
            self._stage.slow_down(_SLOW_BY_S)
            self._after(fault.for_s, lambda: self._stage.slow_down(0.0))
        return True

    def _wake(self, victims: Sequence[psutil.Process], whom: str) -> None:
        _send(victims, signal.SIGCONT)
        self._befell("woken", whom)

    def _start(self, driver: Player) -> None:
        driver.down = False
        driver.program.start()
        self._befell("started again", driver.name)

    def _resize(self, partitions: int) -> None:
        """While all goes on."""
        self._cast.queue.alter(partitions=partitions)
        self._befell("alter")
        self._tell(f"{self._now_s():5.1f} s: the queue has {partitions} partitions")

    def _after(self, wait_s: float, act: Callable[[], None]) -> None:
        self._later.append((self._now_s() + wait_s, act))

    def _watch(self) -> None:
        """No process ends that was not killed. Raises AssertionError if that happens again and again."""
        assert len(self.troubles) <= MOST_TROUBLES, "\n".join(["too much goes wrong", *self.troubles])
        for driver in self._stage.drivers:
            if not driver.down and driver.program.code is not None:
                self.troubles.append(f"{driver.name} ended with {driver.program.code}: {driver.program.tail()}")
                self._start(driver)
        for name, child in list(self._cast.coordinators.items()):
            if child.code is not None:
                self.troubles.append(f"{name} ended with {child.wait()}: {child.text()[-3000:]}")
                self._cast.start_coordinator(name)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end(self, publisher: Program) -> int:
        """Until everything is read and nothing moves; then everybody stops, one after another."""
        self._tell(f"{self._now_s():5.1f} s: no faults any more")
        if publisher.code is not None:
            self.troubles.append(f"the publisher ended: {publisher.tail()}")
        else:
            os.kill(publisher.pid, signal.SIGTERM)
            publisher.wait_end(_REST_WAIT_S)
        published = int(publisher.log.read_text().split()[-1]) if publisher.code == 0 else 0
        ends = self._cast.ends()
        self._befell("no faults any more")
        write_log(self._cast.folder / LOG, self._cast.queue)
        self._expect(lambda: self._cast.behind(GROUP, ends), "at the end", _READ_WAIT_S)
        self._expect(lambda: self._stage.unread(ends), "at the end", _READ_WAIT_S)
        self._expect(self._stage.unsettled, "at the end", _REST_WAIT_S)
        self._tell(f"{self._now_s():5.1f} s: everything is read")
        for driver in self._stage.drivers:
            os.kill(driver.program.pid, signal.SIGTERM)
            try:
                if code := driver.program.wait_end(DRIVER_WAIT_S):
                    self.troubles.append(f"{driver.name} ended with {code}: {driver.program.tail()}")
            except AssertionError as error:
                self.troubles.append(str(error))
        for child in self._cast.coordinators.values():
            if code := child.end():
                self.troubles.append(f"{child.name} ended with {code}: {child.text()[-3000:]}")
        return published

    def _expect(self, reason: Callable[[], str], when: str, wait_s: float) -> None:
        try:
            wait_until(lambda: not reason(), "end of a wait", wait_s)
        except AssertionError as error:
            self.troubles.append(f"{when}: {error}: {reason()}")
            self._tell(self.troubles[-1])


def _send(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            continue


def run(folder: Path, course: Course, tell: Callable[[str], None] = lambda _: None) -> None:
    """A whole run in `folder`, which must be empty. Raises AssertionError if it does not get going."""
    machine, begun_s = observe(folder), time.monotonic()
    with stage(folder, course) as on:
        chaos = Chaos(on, course, tell)
        published = chaos.run()
    replace(
        course,
        machine=machine,
        took_s=time.monotonic() - begun_s,
        published=published,
        done=dict(chaos.done),
        missed=chaos.missed,
        troubles=tuple(chaos.troubles),
    ).write(folder)
