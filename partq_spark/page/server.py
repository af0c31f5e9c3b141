"""Serving the page over HTTP: for `partq ui` until it is told to end, for a coordinator in a thread beside its work."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from partq_spark.base.errors import Invalid

MOST_CONNECTIONS: Final = 400
BACKLOG: Final = 128
CLOSE_S: Final = 2
START_S: Final = 20.0


class _Uvicorn(uvicorn.Server):
    """Says when it begins to end: it waits for answers that run, and those to browsers that watch end only then."""

    def __init__(self, config: uvicorn.Config, ending: Callable[[], None]) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._ending()
        await super().shutdown(sockets)


class Server:
    """An application on a port. `ending` is called when it begins to end."""

    def __init__(self, app: ASGIApp, host: str, port: int, *, what: str, ending: Callable[[], None]) -> None:
        """Raises `Invalid` if the address cannot be had; `what` names the setting that says which."""
        self._socket = _listening(host, port, what)
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            log_level="warning",
            lifespan="on",
            ws="none",
            server_header=False,
            date_header=False,
            limit_concurrency=MOST_CONNECTIONS,
            timeout_graceful_shutdown=CLOSE_S,
            h11_max_incomplete_event_size=32 * 1024,
        )
        self._server = _Uvicorn(config, ending)

    def run(self) -> None:
        """Serve until SIGTERM or Ctrl-C."""
        self._server.run([self._socket])

    def start(self) -> None:
        """Serve in a thread that ends with the process. Returns when requests are answered."""
        threading.Thread(target=self._run_in_thread, name="page", daemon=True).start()
        waited = threading.Event()
        for _ in range(int(START_S / 0.01)):
            if self._server.started:
                return
            waited.wait(0.01)
        raise Invalid(f"the page did not begin to answer within {START_S:.0f} s: see the log")

    def close(self) -> None:
        """Stop answering."""
        self._server.should_exit = True

    def _run_in_thread(self) -> None:
        asyncio.run(self._server.serve([self._socket]))


def _listening(host: str, port: int, what: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(found[0], found[1])
    except (OSError, OverflowError, UnicodeError) as error:
        raise _taken(host, port, what, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(found[4])
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise _taken(host, port, what, error) from error
    return listener


def _taken(host: str, port: int, what: str, error: Exception) -> Invalid:
    said = getattr(error, "strerror", None) or error
    return Invalid(f"{what} {port} on {host} cannot be used ({said}): end what listens there, or choose another port")
