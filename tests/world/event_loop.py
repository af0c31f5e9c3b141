"""An event loop for asyncio in simulated time. Its executor has a thread for each call. In a world only one may run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.world.machine import Machine


class Loop(asyncio.BaseEventLoop):
    """Of the main thread of the process that makes it."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine
        self._selector = self
        self._woken = machine.threading.Event()

    def close(self) -> None:
        """Its process has ended, perhaps in the middle of a task."""
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        super().close()

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
