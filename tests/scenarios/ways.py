"""What lies between the processes of a stage, as a scenario sees and breaks it: steps that somebody was asked to make,
the way to the store, and what local sockets are between a reader process, its listener and its application.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import partq
from partq_spark.log.partitioner import partition_of
from partq_spark.objects.api import Document
from partq_spark.query import notify
from tests.support.scheduler import SECOND_US, Crash
from tests.world.journey import Journey
from tests.world.machine import Machine
from tests.world.store import Road, TrueStore

if TYPE_CHECKING:
    from tests.scenarios.stage import Stage

T = TypeVar("T")
STEP_US = 5_000

__all__ = ["STEP_US", "Document", "Held", "Line", "Post", "Step", "key_of"]


def key_of(partition: int, among: int) -> str:
    """One that falls into this partition of so many."""
    return next(f"k{n}" for n in range(10_000) if partition_of(b"k%d" % n, among) == partition)


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


class Line(Road):
    """The way of all processes to the store, which the scenario watches and breaks."""

    def __init__(self, store: TrueStore, machine: Machine, journey: Journey) -> None:
        super().__init__(store, journey)
        self._machine = machine
        self.calls: list[tuple[str, str, str]] = []
        self.rules: list[Callable[[str, str, Callable[[], Any]], Callable[[], Any] | None]] = []

    def call(self, kind: str, name: str, effect: Callable[[], T]) -> T:
        self.calls.append((self._machine.host.process.name.partition("/")[0], kind, name))
        for rule in list(self.rules):
            found = rule(kind, name, effect)
            if found is not None:
                effect = found
                break
        return super().call(kind, name, effect)

    def asked(self, kind: str, part: str = "", by: str = "") -> int:
        """How often since `calls` was cleared."""
        return sum(kind == each[1] and part in each[2] and each[0].startswith(by) for each in self.calls)


class Held:
    """The next such call stands still until it is released; then its answer may be `lost`."""

    def __init__(self, stage: Stage, kind: str, part: str, *, by: str, after: bool, lost: bool = False) -> None:
        self._stage, self._kind, self._part, self._by, self._after = stage, kind, part, by, after
        self._lost = lost
        self.is_waiting = self._is_free = False
        stage.line.rules.append(self._rule)

    def _rule(self, kind: str, name: str, effect: Callable[[], Any]) -> Callable[[], Any] | None:
        machine = self._stage.world.machine
        if kind != self._kind or self._part not in name or not machine.host.process.name.startswith(self._by):
            return None
        self._stage.line.rules.remove(self._rule)

        def stand_still() -> None:
            self.is_waiting = True
            while not self._is_free:
                machine.sleep(0.01)

        def slowly() -> Any:
            if not self._after:
                stand_still()
            found = effect()
            if self._after:
                stand_still()
            if self._lost:
                raise partq.Unavailable("no answer came (test)")
            return found

        return slowly

    def release(self) -> None:
        self._is_free = True


class Post:
    """What local sockets are between the processes of a machine: listeners and applications reach a reader process."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._boxes: dict[str, Box] = {}
        self.trouble = ""  # why no mailbox can be made on this machine

    def stand_ins(self) -> Mapping[int, Any]:
        return {
            id(notify.Mailbox): lambda address, handle: Box(self, address, handle),
            id(notify.Requester): lambda address, *, timeout_s: Requester(self, address, timeout_s),
            id(notify.send): self.send,
        }

    def by_name(self, flow: str) -> Requester:
        """A line to a flow, for words that no application says."""
        (address,) = {each.address for each in self._boxes.values() if each.address.flow == flow}
        return Requester(self, address, 30.0)

    def add(self, box: Box) -> str:
        if self.trouble:
            raise partq.Invalid(self.trouble)
        path = f"{box.address.stem}-{len(self._boxes)}"
        self._boxes[path] = box
        return path

    def send(self, path: str, message: Mapping[str, Any]) -> bool:
        """A word that nobody waits for."""
        box = self._boxes.get(path)
        if box is None or not box.is_open:
            return False
        self._stage.begin(lambda: box.handle(message), box.host)
        return True

    def ask(self, address: Any, message: Mapping[str, Any], timeout_s: float) -> Any:
        """By a strand of an application. The latest process under the name answers."""
        there = [each for each in self._boxes.values() if each.address == address and each.is_open]
        if not there:
            raise partq.Unavailable(f"{address} has no reader process here that answered within {timeout_s:g} s")
        step = self._stage.begin(lambda: there[-1].handle(message), there[-1].host)
        while not step.is_done:
            self._stage.world.machine.sleep(0.01)
        return step.found()


class Box:
    """In place of `Mailbox`."""

    def __init__(self, post: Post, address: Any, handle: Callable[[Mapping[str, Any]], Any]) -> None:
        self.address, self.handle = address, handle
        self.host = post._stage.world.machine.host
        self._is_closed = False
        self.path = post.add(self)

    @property
    def is_open(self) -> bool:
        return self.host.process.alive and not self._is_closed

    def close(self) -> None:
        self._is_closed = True


class Requester:
    """In place of the real one."""

    def __init__(self, post: Post, address: Any, timeout_s: float) -> None:
        self._post, self._address, self._timeout_s = post, address, timeout_s

    def ask(self, message: Mapping[str, Any]) -> Any:
        return self._post.ask(self._address, message, self._timeout_s)
