"""The locks, queues and threads of simulated processes: as `threading`, `queue` and `concurrent.futures` have them, but
they run one at a time, in the order of the scheduler. A process that dies in a wait stays there.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

from tests.world.scheduler import Crash, Strand

if TYPE_CHECKING:
    from tests.world.machine import Host, Machine


class StandIn:
    """A module with some of its names replaced."""

    def __init__(self, module: ModuleType, names: Mapping[str, Any]) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        """What is not replaced, which is asked for here once."""
        found = self.__dict__[name] = getattr(self._module, name)
        return found


class Lock:
    """As `threading.Lock`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: deque[Strand] = deque()
        self._is_locked = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        machine = self._machine
        until_s = None if timeout < 0 else machine.now_s() + timeout
        while self._is_locked:
            left_s = None if until_s is None else until_s - machine.now_s()
            if not blocking or (left_s is not None and left_s <= 0):
                return False
            self._waiting.append(machine.strand)
            try:
                machine.wait(left_s)
            finally:
                self._waiting.remove(machine.strand)
                if not self.locked():
                    self._wake()
        self._is_locked = True
        return True

    def release(self) -> None:
        if not self._is_locked:
            raise RuntimeError("release unlocked lock")
        self._is_locked = False
        self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._machine.scheduler.wake(self._waiting[0])

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SimpleQueue:
    """As `queue.SimpleQueue`."""

    def __class_getitem__(cls, _kind: object) -> type[Self]:
        return cls

    def __init__(self, machine: Machine) -> None:
        self._filled = Lock(machine)
        self._filled.acquire()
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._filled.locked():
            self._filled.release()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._filled.acquire(block, -1 if timeout is None else timeout):
            raise queue.Empty
        item = self._items.popleft()
        if self._items:
            self._filled.release()
        return item

    def empty(self) -> bool:
        return not self._items


def _is_of_a_crash(error: BaseException | None) -> bool:
    """Whether it was raised while its process was killed."""
    while error is not None and not isinstance(error, Crash):
        error = error.__context__
    return error is not None


class Thread:
    """As `threading.Thread`, in the process that starts it. What one dies of is kept in `machine.deaths`."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] = lambda: None,
        name: str = "thread",
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        machine: Machine,
    ) -> None:
        self.name, self.daemon = name, daemon
        self._machine = machine
        self._run: Callable[[], object] = lambda: target(*args, **(kwargs or {}))
        self._done = Lock(machine)
        self.ident: int | None = None
        self.strand: Strand
        self.is_begun = False

    def start(self) -> None:
        self.start_in(self._machine.host)

    def start_in(self, host: Host) -> None:
        """In this process, whoever asks for it."""
        self._done.acquire()
        self.is_begun = True
        self._machine.adopt(self, host.process.spawn(self.name, self._main))

    def _main(self) -> None:
        try:
            self._run()
        except Crash:
            raise
        except BaseException as error:  # the judge asks for it
            if _is_of_a_crash(error):  # a dead process leaves no lock in good order
                raise Crash from error
            self._machine.deaths.append(error)
        self._done.release()

    def is_alive(self) -> bool:
        return self.is_begun and self._done.locked()

    def join(self, timeout: float | None = None) -> None:
        if self._done.acquire(timeout=-1 if timeout is None else max(timeout, 0)):
            self._done.release()


class _Answer:
    """What becomes of something that a pool does."""

    def __init__(self, machine: Machine) -> None:
        self._done = Lock(machine)
        self._done.acquire()
        self._found: Any = None
        self._error: BaseException | None = None

    def carry_out(self, call: Callable[[], Any]) -> None:
        try:
            self._found = call()
        except Exception as error:  # noqa: BLE001 - it is for who asks
            self._error = error
        self._done.release()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError
        self._done.release()
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._found


class ThreadPoolExecutor:
    """As that of `concurrent.futures`: threads are begun as work comes, up to so many."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "pool", *, machine: Machine) -> None:
        self._machine = machine
        self._most, self._name = max_workers or 4, thread_name_prefix
        self._calls = SimpleQueue(machine)
        self._begun = self._idle = 0

    def submit(self, function: Callable[..., Any], /, *args: Any, **more: Any) -> _Answer:
        answer = _Answer(self._machine)
        self._calls.put((answer, lambda: function(*args, **more)))
        if self._idle:
            self._idle -= 1
        elif self._begun < self._most:
            self._begun += 1
            Thread(target=self._work, name=f"{self._name}_{self._begun}", machine=self._machine).start()
        return answer

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            answer, call = given
            answer.carry_out(call)
            self._idle += 1

    def map(self, function: Callable[..., Any], *of: Iterable[Any]) -> Iterator[Any]:
        answers = [self.submit(function, *each) for each in zip(*of, strict=False)]
        return (answer.result() for answer in answers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._begun):
            self._calls.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
