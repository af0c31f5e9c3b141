"""Serving the page over HTTP: for `partq ui` until it is told to end, for a coordinator in a thread beside its work."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from partq_spark.base.errors import Unavailable

MOST_CONNECTIONS: Final = 400
BACKLOG: Final = 128
CLOSE_S: Final = 2
START_S: Final = 20.0


class _Impatient(H11Protocol):
    """Ends a connection over which no request comes, or not all of it: uvicorn waits for ever, and for so many only."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._hurry()

    def _hurry(self, before: object = None) -> None:
        now = (self.cycle, getattr(self.cycle, "more_body", True) or self.cycle.response_complete)
        if now == before and now[1]:
            self.transport.close()
        elif not self.transport.is_closing():
            self.loop.call_later(self.timeout_keep_alive, self._hurry, now)


class _Uvicorn(uvicorn.Server):
    """Says when it begins to end: it waits for answers that run, and those to browsers that wait end only then."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)
        for each in list(self.server_state.connections):  # of those who have not gone in time
            each.transport.abort()
        await asyncio.sleep(0)  # their sockets are closed by the loop, which ends


class Server:
    """An application on a port. `ending` is called when it begins to end."""

    def __init__(self, app: ASGIApp, listener: socket.socket, *, ending: Callable[[], None]) -> None:
        """`listener` is what `listening` gave."""
        self._socket = listener
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            log_level="warning",
            http=_Impatient,
            interface="asgi3",
            lifespan="off",
            proxy_headers=False,  # the client is the one that connects, not one that a header names
            ws="none",
            server_header=False,
            date_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=CLOSE_S,
            h11_max_incomplete_event_size=32 * 1024,
        )
        self._server = _Uvicorn(config, ending)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C, or, in a thread, `close`."""
        self._server.run([self._socket])

    def start(self) -> None:
        """Serve in a thread that ends with the process. Returns when requests are answered."""
        threading.Thread(target=self.run, name="page", daemon=True).start()
        waited = threading.Event()
        for _ in range(int(START_S / 0.01)):
            if self._server.started:
                return
            waited.wait(0.01)
        raise Unavailable(f"the page did not begin to answer within {START_S:.0f} s: see the log, and start again")

    def close(self) -> None:
        """Stop answering."""
        self._server.should_exit = True


def listening(host: str, port: int) -> socket.socket:
    """A socket to serve on; port 0: any that is free. Raises `OSError` or `OverflowError` if it cannot be had."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(found[0], found[1])
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError):
        listener.close()
        raise
    return listener
