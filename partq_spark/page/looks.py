"""Looking at the store for everybody who has the page open: one look a second for each thing that is shown, however
many browsers show it, and none when nobody does.

A look runs in a thread, one at a time for each thing, and makes the HTML of the page's sections. A browser asks for
those that differ from what it has (their digests are its ETag) and waits until there are some. All but the looks
themselves runs on the server's event loop, so nothing is locked. What fails is shown, and tried again with the next.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Final, TypeVar

from partq_spark.base.errors import Invalid, PartqError, Unavailable

T = TypeVar("T")

LOOK_S: Final = 0.9
"""From the begin of one look to that of the next: what changed is on the page a second later, its own time included."""

LINGER_S: Final = 3.0
"""A page that was loaded, or has just been told of news, asks within this time and finds the look at work."""

LONG_LOOK_S: Final = 5.0
"""A look that takes longer is told of; it goes on."""

GONE_S: Final = 1.0
"""So often it is seen whether a browser that waits is still there."""

MOST_SHOWN: Final = 50
MOST_WAITING: Final = 100
THREADS: Final = 8
TROUBLE: Final = "trouble"
"""The section that says why what is shown is old; empty otherwise."""

Sections = Mapping[str, str]
"""HTML by the section's id."""

Opened = AbstractContextManager[Callable[[], Sections]]
"""What is open while something is shown; entered, it gives the function that looks."""

_log = logging.getLogger("partq.page")


def etag_of(sections: Sections) -> str:
    """What a browser has that shows these."""
    return f'"{" ".join(map(_digest, sections.items()))}"'


def unseen(sections: Sections, etag: str) -> Sections:
    """Those that a browser with this ETag does not have."""
    has = etag.removeprefix("W/").strip('"').split()
    return {name: html for name, html in sections.items() if _digest((name, html)) not in has}


def _digest(section: tuple[str, str]) -> str:
    return hashlib.sha256("\n".join(section).encode(errors="replace")).hexdigest()[:16]


class Look:
    """One thing that is shown. `trouble` makes the HTML of that section from what went wrong and the age of what is
    shown in seconds (negative: nothing is).
    """

    def __init__(
        self, opened: Callable[[], Opened], trouble: Callable[[str, float], str], threads: ThreadPoolExecutor
    ) -> None:
        self.sections: Sections = {}
        self.waiting = 0
        self._opened = opened
        self._trouble = trouble
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._news = self._loop.create_future()  # done, and another one in its place, when anything has changed
        self._wanted_s = self._loop.time()
        self._seen_s: float | None = None  # when the last look that succeeded was over
        self._refused: Invalid | None = None
        self._closed = False

    @property
    def wanted(self) -> bool:
        """Whether anybody waits, or did a moment ago, and there is something to look at."""
        if self._refused is not None:
            return False
        return self.waiting > 0 or self._loop.time() - self._wanted_s < LINGER_S

    async def newer(self, etag: str, within_s: float, is_gone: Callable[[], Awaitable[bool]]) -> Sections:
        """What a browser with this ETag does not have, when there is any; else nothing after `within_s`, when the
        browser is gone, or when the server ends. Raises `Invalid` if there is no such thing to see.
        """
        until_s = self._loop.time() + within_s
        self.waiting += 1
        try:
            while self._refused is None and not unseen(self.sections, etag):
                left_s = until_s - self._loop.time()
                if left_s <= 0 or self._closed or await is_gone():
                    break
                await asyncio.wait({self._news}, timeout=min(left_s, GONE_S))
        finally:
            self.waiting -= 1
            self._wanted_s = self._loop.time()
        if self._refused is not None:
            raise self._refused
        return unseen(self.sections, etag)

    def close(self) -> None:
        """Let those who wait go."""
        self._closed = True
        self._tell()

    async def run(self) -> None:
        """Look, as long as anybody wants it."""
        with ExitStack() as stack:
            look: Callable[[], Sections] | None = None
            while self.wanted:
                begun_s = self._loop.time()
                try:
                    if look is None:
                        look = await self._in_thread(partial(stack.enter_context, self._opened()), begun_s)
                    sections = await self._in_thread(look, begun_s)
                except Exception as error:  # noqa: BLE001 - shown and tried again: a page that is open must not die
                    if not isinstance(error, PartqError):
                        _log.exception("a look of the page failed")
                    look = None
                    await self._close(stack)
                    if isinstance(error, Invalid) and self._seen_s is None:
                        self._refused = error  # there never was such a queue or group while it was looked for
                        self._tell()
                        return
                    self._show_trouble(error)
                else:
                    self._seen_s = self._loop.time()
                    self._show({**sections, TROUBLE: ""})
                await asyncio.sleep(max(begun_s + LOOK_S - self._loop.time(), 0.05))
            await self._close(stack)

    async def _in_thread(self, call: Callable[[], T], begun_s: float) -> T:
        """Its result; meanwhile it is said when it takes long."""
        running = self._loop.run_in_executor(self._threads, call)
        while not running.done():
            done, _ = await asyncio.wait({running}, timeout=LONG_LOOK_S)
            if not done:
                waited_s = self._loop.time() - begun_s
                self._show_trouble(Unavailable(f"the store has not answered for {waited_s:.0f} s"))
        return await running

    async def _close(self, stack: ExitStack) -> None:
        try:
            await self._loop.run_in_executor(self._threads, stack.close)
        except Exception:  # noqa: BLE001 - the next look opens it anew
            _log.exception("closing what a look of the page had open failed")

    def _show_trouble(self, error: Exception) -> None:
        said = str(error) if isinstance(error, PartqError) else f"{type(error).__name__}: {error}"
        age_s = -1.0 if self._seen_s is None else self._loop.time() - self._seen_s
        self._show({TROUBLE: self._trouble(said, age_s)})

    def _show(self, sections: Sections) -> None:
        """Of a section that is not among `sections` the old one stays."""
        self.sections = {**self.sections, **sections}
        self._tell()

    def _tell(self) -> None:
        self._news.set_result(None)
        self._news = self._loop.create_future()


class Looks:
    """All that is shown, by name. To be made and used on one event loop."""

    def __init__(self, trouble: Callable[[str, float], str]) -> None:
        self._trouble = trouble
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="page")
        self._looks: dict[str, tuple[Look, asyncio.Task[None]]] = {}

    def get(self, name: str, opened: Callable[[], Opened]) -> Look:
        """The look at the thing of this name, begun if it was not. Raises `Unavailable` if too much is shown."""
        found = self._looks.get(name)
        if found is not None and not found[1].done() and found[0].wanted:
            return found[0]
        if len(self._looks) >= MOST_SHOWN:
            raise Unavailable(f"{MOST_SHOWN} queues and groups are being watched at once: close some pages first")
        look = Look(opened, self._trouble, self._threads)
        task = asyncio.create_task(look.run())
        self._looks[name] = (look, task)
        task.add_done_callback(partial(self._ended, name, look))
        return look

    @property
    def waiting(self) -> int:
        """How many browsers wait for news."""
        return sum(look.waiting for look, _ in self._looks.values())

    def __len__(self) -> int:
        return len(self._looks)

    def close(self) -> None:
        """End all looks."""
        for look, task in list(self._looks.values()):
            task.cancel()
            look.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _ended(self, name: str, look: Look, task: asyncio.Task[None]) -> None:
        if (found := self._looks.get(name)) is not None and found[0] is look:
            del self._looks[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a look of the page ended", exc_info=error)
