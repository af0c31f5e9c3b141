"""Server-sent events: what changed since a browser was told last, as long as it reads.

No browser has a queue of its own: one that is slow skips what it missed, one that reads nothing is cut off.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Final

from starlette.types import Message, Receive, Scope, Send

from partq_spark.page.watching import Watch

PATIENCE_S: Final = 20.0
"""For so long a browser may leave an event unread."""

QUIET_S: Final = 10.0
"""After so long without news something is sent all the same, so that a connection that is gone is noticed."""


class EventStream:
    """The answer to a browser that watches. `headers` are those of every answer. `closing` tells that the server
    ends.
    """

    def __init__(self, watch: Watch, headers: dict[str, str], closing: asyncio.Event) -> None:
        self._watch = watch
        self._headers = {**headers, "content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        with self._watch.viewed():
            await _sent(send, {"type": "http.response.start", "status": 200, "headers": headers})
            ends = [asyncio.create_task(_gone(receive)), asyncio.create_task(self._closing.wait())]
            events = asyncio.create_task(self._send_events(lambda body: _sent(send, _part(body))))
            try:
                await asyncio.wait([*ends, events], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (*ends, events):
                    task.cancel()
                *_, told = await asyncio.gather(*ends, events, return_exceptions=True)
            if not isinstance(told, TimeoutError):
                await _sent(send, {"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_events(self, tell: Callable[[str], Awaitable[None]]) -> None:
        version = 0
        while True:
            try:
                snapshot = await asyncio.wait_for(self._watch.newer(version), QUIET_S)
            except TimeoutError:
                await tell(": nothing new\n\n")
                continue
            sections = snapshot.since(version)
            version = snapshot.version
            await tell(f"data: {json.dumps(sections)}\n\n")


async def _gone(receive: Receive) -> None:
    """When the browser has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _sent(send: Send, message: Message) -> None:
    """Raises `TimeoutError` if nobody reads."""
    await asyncio.wait_for(send(message), PATIENCE_S)


def _part(body: str) -> Message:
    return {"type": "http.response.body", "body": body.encode(), "more_body": True}
