"""A cable between flows and Redis that can be pulled: a relay that carries nothing meanwhile. Nothing else.

As with a real cable nothing is refused and nothing is lost: what was sent arrives late, once it is plugged in again.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType
from typing import Final, Self

_LOOK_S: Final = 0.05
_CHUNK_BYTES: Final = 65536


class Cable:
    """Relays 127.0.0.1:`port` to the server's port. A context manager."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_LOOK_S)
        self.port: int = self._listener.getsockname()[1]
        self._plugged = threading.Event()
        self._plugged.set()
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed.set()
        self._plugged.set()
        self._listener.close()

    def pull(self) -> None:
        """From now on nothing arrives, in either direction."""
        self._plugged.clear()

    def plug(self) -> None:
        """What was sent meanwhile arrives now."""
        self._plugged.set()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._server_port))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._relay, args=(source, target), daemon=True).start()

    def _relay(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._plugged.wait()
                target.sendall(data)
        self._plugged.wait()
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
