"""Looking at the store for everybody who watches: one look a second for each thing that is watched, however many
browsers show it, and none when nobody does.

A look runs in a thread, one at a time for each thing, and makes the HTML of the page's sections. Everything else here
runs on the server's event loop, so nothing is locked. What fails is shown, and tried again with the next look.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from partq_spark.base.errors import Invalid, PartqError, Unavailable

T = TypeVar("T")

LOOK_S: Final = 0.9
"""From the begin of one look to that of the next: what changed is on the page a second later, its own time included."""

LINGER_S: Final = 3.0
"""A page that was loaded connects for news within this time, and one that is loaded again finds the look at work."""

FIRST_LOOK_S: Final = 15.0
LONG_LOOK_S: Final = 5.0
"""A look that takes longer is told of; it goes on."""

MOST_WATCHED: Final = 50
MOST_VIEWERS: Final = 100
THREADS: Final = 8
TROUBLE: Final = "trouble"
"""The section that says why what is shown is old; empty otherwise."""

Sections = Mapping[str, str]
"""HTML by the section's id."""

Opened = AbstractContextManager[Callable[[], Sections]]
"""What is open while something is watched; entered, it gives the function that looks."""

_log = logging.getLogger("partq.page")


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What is shown now. `changed`: by section, the version in which it changed last."""

    version: int = 0
    sections: Sections = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def since(self, version: int) -> Sections:
        """The sections that changed after a version."""
        return {name: html for name, html in self.sections.items() if self.changed[name] > version}


def next_snapshot(before: Snapshot, sections: Sections) -> Snapshot:
    """With new HTML; of a section that is not among `sections` the old one stays. Pure."""
    different = {name: html for name, html in sections.items() if before.sections.get(name) != html}
    if not different:
        return before
    version = before.version + 1
    return Snapshot(
        version=version,
        sections={**before.sections, **different},
        changed={**before.changed, **dict.fromkeys(different, version)},
    )


class Watch:
    """One thing that is watched."""

    def __init__(
        self, opened: Callable[[], Opened], trouble: Callable[[str, float], str], threads: ThreadPoolExecutor
    ) -> None:
        self._opened = opened
        self._trouble = trouble
        self._threads = threads
        self._news = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._wanted_s = self._loop.time()
        self._seen_s: float | None = None  # when the last look that succeeded was over
        self.viewers = 0
        self.snapshot = Snapshot()
        self._refused: Invalid | None = None

    @property
    def wanted(self) -> bool:
        """Whether anybody looks, or did a moment ago, and there is something to look at."""
        if self._refused is not None:
            return False
        return self.viewers > 0 or self._loop.time() - self._wanted_s < LINGER_S

    @contextmanager
    def viewed(self) -> Iterator[None]:
        """While somebody watches."""
        self.viewers += 1
        try:
            yield
        finally:
            self.viewers -= 1
            self._wanted_s = self._loop.time()

    async def first(self) -> Snapshot:
        """What is to be shown to one who comes now. Raises `Invalid` as `newer`, and `Unavailable` if there is nothing
        after some time.
        """
        self._wanted_s = self._loop.time()
        with self.viewed():
            try:
                return await asyncio.wait_for(self.newer(0), FIRST_LOOK_S)
            except TimeoutError:
                raise Unavailable(
                    f"the store did not answer within {FIRST_LOOK_S:.0f} s: load the page again"
                ) from None

    async def newer(self, version: int) -> Snapshot:
        """The next snapshot after a version, when there is one. Raises `Invalid` if there is no such thing to see."""
        async with self._news:
            await self._news.wait_for(lambda: self.snapshot.version > version or self._refused is not None)
            if self._refused is not None:
                raise self._refused
            return self.snapshot

    async def run(self) -> None:
        """Look, as long as anybody watches."""
        with ExitStack() as stack:
            look: Callable[[], Sections] | None = None
            while self.wanted:
                begun_s = self._loop.time()
                try:
                    if look is None:
                        look = await self._in_thread(partial(stack.enter_context, self._opened()), begun_s)
                    sections = await self._in_thread(look, begun_s)
                except Exception as error:  # noqa: BLE001 - shown and tried again: a page that watches must not die
                    if not isinstance(error, PartqError):
                        _log.exception("a look of the page failed")
                    look = None
                    await self._close(stack)
                    if isinstance(error, Invalid) and self._seen_s is None:
                        await self._refuse(error)
                        return
                    await self._show_trouble(error)
                else:
                    self._seen_s = self._loop.time()
                    await self._show({**sections, TROUBLE: ""})
                await asyncio.sleep(max(begun_s + LOOK_S - self._loop.time(), 0.05))
            await self._close(stack)

    async def _in_thread(self, call: Callable[[], T], begun_s: float) -> T:
        """Its result; meanwhile it is said when it takes long."""
        running = self._loop.run_in_executor(self._threads, call)
        while not running.done():
            done, _ = await asyncio.wait({running}, timeout=LONG_LOOK_S)
            if not done:
                waited_s = self._loop.time() - begun_s
                await self._show_trouble(Unavailable(f"the store has not answered for {waited_s:.0f} s"))
        return await running

    async def _close(self, stack: ExitStack) -> None:
        with suppress(PartqError):
            await self._loop.run_in_executor(self._threads, stack.close)

    async def _refuse(self, error: Invalid) -> None:
        """There never was such a queue or group while it was watched."""
        async with self._news:
            self._refused = error
            self._news.notify_all()

    async def _show_trouble(self, error: Exception) -> None:
        said = str(error) if isinstance(error, PartqError) else f"{type(error).__name__}: {error}"
        age_s = -1.0 if self._seen_s is None else self._loop.time() - self._seen_s
        await self._show({TROUBLE: self._trouble(said, age_s)})

    async def _show(self, sections: Sections) -> None:
        snapshot = next_snapshot(self.snapshot, sections)
        if snapshot is not self.snapshot:
            async with self._news:
                self.snapshot = snapshot
                self._news.notify_all()


class Watches:
    """All that is watched, by name. To be made and used on one event loop; `trouble` makes the HTML of that section
    from what went wrong and the age of what is shown in seconds (negative: nothing is).
    """

    def __init__(self, trouble: Callable[[str, float], str]) -> None:
        self._trouble = trouble
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
        self._watches: dict[str, tuple[Watch, asyncio.Task[None]]] = {}

    def get(self, name: str, opened: Callable[[], Opened]) -> Watch:
        """The watch of this name, begun if it was not. Raises `Unavailable` if too much is watched."""
        found = self._watches.get(name)
        if found is not None and not found[1].done() and found[0].wanted:
            return found[0]
        if len(self._watches) >= MOST_WATCHED:
            raise Unavailable(f"{MOST_WATCHED} queues and groups are being watched at once: close some pages first")
        watch = Watch(opened, self._trouble, self._threads)
        task = asyncio.create_task(watch.run())
        self._watches[name] = (watch, task)
        task.add_done_callback(partial(self._ended, name, watch))
        return watch

    @property
    def viewers(self) -> int:
        """How many watch."""
        return sum(watch.viewers for watch, _ in self._watches.values())

    def __len__(self) -> int:
        return len(self._watches)

    def close(self) -> None:
        """End all watches."""
        for _, task in list(self._watches.values()):
            task.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, name: str, watch: Watch, task: asyncio.Task[None]) -> None:
        if (found := self._watches.get(name)) is not None and found[0] is watch:
            del self._watches[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a look of the page ended", exc_info=error)
