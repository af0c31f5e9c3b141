"""What a coordinator serves over HTTP: `/healthz` (is the process alive), `/readyz` (does it do its work), `/metrics`.

Health comes from a `Status` that the service keeps; nothing is looked up for it, and anybody may ask. Metrics are for
this machine, or for those who have the token, as the web page is (`page.access`). Bound to 127.0.0.1 unless told
otherwise.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

from coordinator.settings import Settings
from partq_spark.base.errors import Invalid
from partq_spark.page.access import TOKEN_VARIABLE, Access, access, is_loopback
from partq_spark.page.memory import Timeline

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from partq_spark.page.app import Page


_REQUEST_WAIT_S: Final = 5.0
_END_WAIT_S: Final = 0.1  # for which a process that ends waits at most; 0.5 s if nothing is said
_TEXT: Final = "text/plain; charset=utf-8"
_log = logging.getLogger("partq.metrics")


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


class Answer(NamedTuple):
    """One answer; `headers` beyond those that say what and how long it is."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = {}


Metrics = Callable[[str], tuple[str, bytes]]
"""Given what a client accepts: the content type, and the text."""


def access_beside_health(host: str, environ: Mapping[str, str]) -> Access | None:
    """Who may see the metrics and the page of a server that listens on `host`; None: nobody, for there is no token and
    other machines reach it. Raises `Invalid` for a token that no header could carry.
    """
    return access(host, environ) if environ.get(TOKEN_VARIABLE) or is_loopback(host) else None


class Answers:
    """What is answered, however it is served. `access`: who may see `metrics`; None: nobody."""

    def __init__(
        self, status: Callable[[], Status], *, metrics: Metrics | None = None, access: Access | None = None
    ) -> None:
        self._status = status
        self._metrics = metrics
        self._access = access

    def answer(self, path: str, headers: Mapping[str, str]) -> Answer:
        """To a request with these headers (lower-case names)."""
        if path == "/metrics" and self._metrics is not None:
            return self._refusal(headers) or self._told(self._metrics, headers.get("accept", ""))
        now = self._status()
        good = {"/healthz": now.alive, "/readyz": now.ready}.get(path)
        if good is None:
            return Answer(404, _TEXT, b"not here: /healthz, /readyz or /metrics\n")
        return Answer(200 if good else 503, "application/json", json.dumps(asdict(now)).encode() + b"\n")

    def _refusal(self, headers: Mapping[str, str]) -> Answer | None:
        """Why metrics are not for this one."""
        if self._access is None:
            text = f"other machines reach this address: set {TOKEN_VARIABLE} to have metrics\n"
            return Answer(403, _TEXT, text.encode())
        if not self._access.knows_host(headers.get("host")):
            return Answer(403, _TEXT, b"the Host header is not this machine's: ask localhost or 127.0.0.1\n")
        if not self._access.may_look(headers):
            text = f"send the header 'Authorization: Bearer TOKEN' with the token of {TOKEN_VARIABLE}\n"
            return Answer(401, _TEXT, text.encode(), {"WWW-Authenticate": "Bearer"})
        return None

    def _told(self, metrics: Metrics, accept: str) -> Answer:
        try:
            return Answer(200, *metrics(accept))
        except Invalid as error:
            return Answer(501, _TEXT, f"{error}\n".encode())
        except Exception:  # noqa: BLE001 - a mistake in metrics must not take health away
            _log.exception("metrics could not be told")
            return Answer(500, _TEXT, b"metrics could not be told: see the coordinator's log\n")


def not_to_be_had(host: str, port: int, error: Exception) -> Invalid:
    """Of an address on which nothing can be served."""
    return Invalid(
        f"health.port = {port} on {host} cannot be used ({getattr(error, 'strerror', None) or error}): "
        "end what listens there, choose another port, or 0 for none"
    )


class HealthServer:
    """Serves in a thread of its own that ends with the process."""

    def __init__(self, host: str, port: int, answers: Answers) -> None:
        """Raises `Invalid` if the address cannot be had."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_WAIT_S  # one that connects and says nothing holds a thread no longer

            def do_GET(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = answers.answer(self.path.partition("?")[0], headers)
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

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
            raise not_to_be_had(host, port, error) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(_END_WAIT_S,), name="health", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


# --- the web page beside them -----------------------------------------------------------------------------------------

# The web page beside health and metrics, on their port: where the extra `ui` is installed and the page may be seen.
#
# Who may see metrics may see the page (`health.access_beside_health`); where nobody may, health alone is served. The
# page is loaded when somebody asks for it: until then it costs a coordinator nothing but the decisions it remembers.


OWN_PATHS: Final = ("/healthz", "/readyz", "/metrics")
_NEEDED: Final = ("jinja2", "starlette", "uvicorn")


def serve(settings: Settings, answers: Answers, timeline: Timeline, access: Access | None) -> HealthServer | PageServer:
    """Health and metrics, with the page where somebody may see it. Raises `Invalid` if the address cannot be had."""
    if access is None or any(find_spec(name) is None for name in _NEEDED):
        return HealthServer(settings.health_host, settings.health_port, answers)
    return PageServer(settings, answers, timeline, access)


class PageServer:
    """Serves in a thread of its own that ends with the process."""

    def __init__(self, settings: Settings, answers: Answers, timeline: Timeline, access: Access) -> None:
        """Raises `Invalid` if the address cannot be had."""
        from partq_spark.page.server import Server, listening

        self._settings = settings
        self._answers = answers
        self._timeline = timeline
        self._access = access
        self._page: Page | None = None
        self._loading = asyncio.Lock()
        try:
            listener = listening(settings.health_host, settings.health_port)
        except (OSError, OverflowError) as error:
            raise not_to_be_had(settings.health_host, settings.health_port, error) from error
        self._server = Server(self._app, listener, ending=self._end)
        self.port: int = self._server.port
        self._server.start()

    def close(self) -> None:
        """Stop answering."""
        self._server.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in OWN_PATHS:
            await self._answer(scope, receive, send)
            return
        async with self._loading:
            if self._page is None:
                self._page = await asyncio.to_thread(self._loaded)
        await self._page.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.datastructures import Headers
        from starlette.responses import Response

        answer = await asyncio.to_thread(self._answers.answer, scope["path"], Headers(scope=scope))
        await Response(answer.body, answer.status, answer.headers, answer.content_type)(scope, receive, send)

    def _loaded(self) -> Page:
        from partq_spark.page.app import Page
        from partq_spark.page.sections import Place

        settings = self._settings
        place = Place(
            store=settings.store,
            namespace=settings.namespace,
            ownership=settings.ownership,
            server=settings.name,
            timeline=self._timeline,
        )
        return Page(place, self._access)

    def _end(self) -> None:
        if self._page is not None:
            self._page.end()
