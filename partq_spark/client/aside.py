"""A thread for work that must not be torn: who wants it done only waits.

Signal handlers run on the main thread, between any two lines, and may raise: Ctrl-C, an alarm. A loop that could be
left anywhere would forget what it has in hand, and a `Condition` (also that of an `Event` or a `Future`) raises
`RuntimeError: cannot release un-acquired lock` in place of the exception. A `SimpleQueue` is left as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Aside:
    """What is given to it is done in turn, to its end, and in its caller's context (of traces). The thread is a daemon,
    and ends with this object.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._calls,), name=name, daemon=True).start()

    def __del__(self) -> None:
        self._calls.put(None)

    def begin(self, call: Callable[[], None]) -> None:
        """Nobody waits for it, and it raises nothing."""
        self._calls.put(partial(copy_context().run, call))

    def run(self, call: Callable[[], T]) -> T:
        """What it returns or raises. It goes on also if the wait is left by an exception."""
        if sys.is_finalizing():  # daemons stand still by now
            return call()
        answers: SimpleQueue[Callable[[], T]] = SimpleQueue()

        def answered() -> None:
            try:
                found = call()
            except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
                failure = error
                answers.put(lambda: _raised(failure))
            else:
                answers.put(lambda: found)

        self.begin(answered)
        return answers.get()()


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it belongs to may end while this waits


def _raised(error: BaseException) -> T:  # type: ignore[type-var] # of what would have been returned
    raise error
