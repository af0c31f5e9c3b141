"""What a scenario sees and breaks between the processes of a stage: steps that somebody was asked to make, and the way
of all to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tests.world.journey import Journey
from tests.world.machine import Machine
from tests.world.scheduler import SECOND_US, Crash
from tests.world.store import Road, TrueStore

if TYPE_CHECKING:
    from tests.scenarios.stage import Stage

T = TypeVar("T")
STEP_US = 5_000


class Step:
    """Something that a process was asked to do. It may take its time, while the scenario goes on."""

    def __init__(self, stage: Stage, call: Callable[[], Any]) -> None:
        self._stage, self._call = stage, call
        self._found: Any = None
        self._error: BaseException | None = None
        self.is_done = False

    def carry_out(self) -> None:
        """By a strand of the process."""
        try:
            self._found = self._call()
        except Crash:
            raise
        except BaseException as error:  # noqa: BLE001 - it is the scenario's
            self._error = error
        self.is_done = True

    def result(self, within_s: float = 600.0) -> Any:
        """What came of it; raises what it raised."""
        until_us = self._stage.now_us + round(within_s * SECOND_US)
        self._stage.run(0)
        while not self.is_done:
            assert self._stage.now_us < until_us, f"it is not done within {within_s:g} s"
            self._stage.run(STEP_US)
        return self.found()

    def found(self) -> Any:
        """When it is done."""
        if self._error is not None:
            raise self._error
        return self._found


Act = Callable[[Callable[[], Any]], Any]
"""What a call does in place of its effect, which it is given."""


class Instead(NamedTuple):
    """What becomes of the next call of this kind."""

    kind: str
    part: str
    by: str
    act: Act


class Line(Road):
    """The way of all processes to the store, which the scenario watches and breaks."""

    def __init__(self, store: TrueStore, machine: Machine, journey: Journey) -> None:
        super().__init__(store, journey)
        self._machine = machine
        self.calls: list[tuple[str, str, str]] = []
        self.coming: list[Instead] = []

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        by = self._machine.host.process.name
        self.calls.append((by.partition("/")[0], kind, name))
        for each in self.coming:
            if kind == each.kind and each.part in name and by.startswith(each.by):
                self.coming.remove(each)
                effect = partial(each.act, effect)
                break
        return super().call(kind, name, effect)

    def asked(self, kind: str, part: str = "", by: str = "") -> int:
        """How often since `calls` was cleared."""
        return sum(kind == each[1] and part in each[2] and each[0].startswith(by) for each in self.calls)


class Held:
    """A call that stands still until it is released."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.is_waiting = self._is_free = False

    def stand_still(self) -> None:
        self.is_waiting = True
        while not self._is_free:
            self._machine.sleep(0.01)

    def release(self) -> None:
        self._is_free = True
