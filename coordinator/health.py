"""Health over HTTP: `/healthz` (is the process alive) and `/readyz` (does it do its work).

Answers come from a `Status` that the service keeps; nothing is looked up for a request. Bound to 127.0.0.1 unless
told otherwise, because there is nothing here to keep strangers out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from partq_spark.base.errors import Invalid

_REQUEST_WAIT_S: Final = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """What the process says of itself. `looked_s`: seconds since its last round. `problem` is empty if all is well.
    `housekeeper`: it looks after the storage of its namespace.
    """

    alive: bool
    ready: bool
    looked_s: float
    groups: int
    leading: int
    failing: int
    problem: str = ""
    housekeeper: bool = False


class HealthServer:
    """Serves in a thread of its own that ends with the process."""

    def __init__(self, host: str, port: int, status: Callable[[], Status]) -> None:
        """Raises `Invalid` if the address cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_WAIT_S  # one that connects and says nothing holds a thread no longer

            def do_GET(self) -> None:
                now = status()
                good = {"/healthz": now.alive, "/readyz": now.ready}.get(self.path.partition("?")[0])
                body = b"not here: /healthz or /readyz\n" if good is None else json.dumps(asdict(now)).encode() + b"\n"
                self.send_response(404 if good is None else 200 if good else 503)
                self.send_header("Content-Type", "text/plain" if good is None else "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - overrides http.server's
                """Probes come every few seconds and are no news."""

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                """The client went away: no news, either."""

        try:
            self._server = Server((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise Invalid(
                f"health.port = {port} on {host} cannot be used ({getattr(error, 'strerror', None) or error}): "
                "end what listens there, choose another port, or 0 for none"
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="health", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
