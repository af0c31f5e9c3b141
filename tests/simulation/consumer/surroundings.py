"""What surrounds the threads of a simulated process: a store in memory, an event loop for asyncio."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from partq_spark.base.errors import Unavailable
from partq_spark.objects.memory import MemoryStore
from tests.support.scheduler import SECOND_US

if TYPE_CHECKING:
    from tests.simulation.consumer.machine import Machine


class Store(MemoryStore):
    """Objects in memory, some way off; at times nothing answers."""

    def __init__(self, machine: Machine, rng: random.Random, *, url: str, way_us: int) -> None:
        super().__init__(clock=machine.unix_s, rng=rng, url=url)
        self._machine = machine
        self._way_us = way_us
        self.down_until_us = 0

    def _ask(self) -> None:
        if self._way_us and self._machine.scheduler.current is not None:
            self._machine.wait(self._way_us / SECOND_US)
        if self._machine.scheduler.now_us < self.down_until_us:
            raise Unavailable("the store does not answer")

    def create(self, name: str, data: bytes | memoryview) -> None:
        self._ask()
        super().create(name, data)

    def read(self, name: str, *, start: int = 0, length: int | None = None) -> memoryview:
        self._ask()
        return super().read(name, start=start, length=length)

    def load(self, name: str, *, known: str | None = None) -> Any:
        self._ask()
        return super().load(name, known=known)

    def swap(self, name: str, content: Any, *, expected: str | None) -> str:
        self._ask()
        return super().swap(name, content, expected=expected)

    def list(self, prefix: str) -> Any:
        self._ask()
        return super().list(prefix)


class Loop(asyncio.BaseEventLoop):
    """An event loop of the main thread, in simulated time. Its executor has a thread for each call."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._selector = self
        self._woken = machine.threading.Event()

    def time(self) -> float:
        return self._machine.now_s()

    def select(self, timeout_s: float | None) -> list[Any]:
        self._woken.wait(timeout_s)
        self._woken.clear()
        return []

    def _process_events(self, _events: object) -> None:
        pass

    def _write_to_self(self) -> None:
        self._woken.set()

    def run_in_executor(  # type: ignore[override] # no executor is made
        self, _executor: object, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()

        def tell(result: Any, error: BaseException | None) -> None:
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def run() -> None:
            try:
                result, error = function(*args), None
            except Exception as raised:  # noqa: BLE001 - it is the caller's
                result, error = None, raised
            if not self.is_closed():
                self.call_soon_threadsafe(tell, result, error)

        self._machine.spawn("executor", run)
        return future
