"""An HTTP proxy between a store and its server that loses requests and answers on demand, and counts what passes.

Only for what a real network does: nothing is made up about the server, whose answers pass unchanged.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator, Set
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

_UPSTREAM_TIMEOUT_S: Final = 20.0
_HOP_HEADERS: Final = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length"})


class Fault(Enum):
    """What happens to one request."""

    LOSE_REQUEST = "the connection ends before the server sees the request"
    LOSE_ANSWER = "the server does it, and the connection ends without an answer"
    CUT_ANSWER = "the connection ends in the middle of the answer's body"
    TWICE = "the server does it twice, and the second answer arrives"
    BUSY = "503, as a service under load answers without doing anything"


_UNRULY: Final = (Fault.LOSE_REQUEST, Fault.LOSE_ANSWER, Fault.TWICE, Fault.BUSY)


class Seen(NamedTuple):
    """One request that reached the proxy."""

    method: str
    path: str


class Proxy:
    """A running proxy: `port` goes where the server's would; `next_fault` decides about each request, `dropped` which
    of its headers (in lower case) do not arrive, as if the server did not know them.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.seen: list[Seen] = []
        self.next_fault: Callable[[Seen], Fault | None] = lambda _: None
        self.dropped: Callable[[Seen], Set[str]] = lambda _: frozenset()
        self._server = _Quiet(("127.0.0.1", 0), _handler(self))

    @property
    def port(self) -> int:
        """The proxy's own port."""
        return int(self._server.server_address[1])

    def lose(self, fault: Fault, *, method: str, times: int = 1) -> None:
        """Let the next `times` requests of this method meet this fault, and all others pass."""
        left = times

        def decide(request: Seen) -> Fault | None:
            nonlocal left
            if request.method != method or left == 0:
                return None
            left -= 1
            return fault

        self.next_fault = decide

    @contextlib.contextmanager
    def running(self) -> Iterator[Proxy]:
        """Serve for the length of a `with` block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)


def unruly(share: float, seed: int = 1) -> Callable[[Seen], Fault | None]:
    """Of so many requests something becomes: lost, or its answer, sent twice, or put off."""
    dice = random.Random(seed)
    return lambda _: dice.choice(_UNRULY) if dice.random() < share else None


class _Quiet(ThreadingHTTPServer):
    """Serves clients that may be killed at any time: of those that are gone nothing is told."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _pass_on(
    port: int, request: BaseHTTPRequestHandler, body: bytes, dropped: Set[str]
) -> tuple[http.client.HTTPResponse, bytes]:
    headers = {key: value for key, value in request.headers.items() if key.lower() not in dropped}
    if dropped:
        headers = _signed_anew(request, headers, body)
    upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=_UPSTREAM_TIMEOUT_S)
    try:
        upstream.putrequest(request.command, request.path, skip_host=True, skip_accept_encoding=True)
        for key, value in headers.items():
            upstream.putheader(key, value)
        upstream.endheaders(body)
        answer = upstream.getresponse()
        return answer, answer.read()
    finally:
        upstream.close()


def _signed_anew(request: BaseHTTPRequestHandler, headers: dict[str, str], body: bytes) -> dict[str, str]:
    """An S3 server's headers are signed; by this process's keys they are once more, without what was dropped."""
    address = f"http://{request.headers['Host']}{request.path}"
    made = AWSRequest(method=request.command, url=address, headers=headers, data=body)
    keys = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    S3SigV4Auth(keys, "s3", os.environ["AWS_REGION"]).add_auth(made)
    return dict(made.headers.items())


def _handler(proxy: Proxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            proxy.seen.append(Seen(self.command, self.path))
            fault = proxy.next_fault(proxy.seen[-1])
            if fault is Fault.LOSE_REQUEST:
                self.close_connection = True
                return
            if fault is Fault.BUSY:
                self._answer(503, [("x-ms-error-code", "ServerBusy")], b"", cut=False)
                return
            dropped = proxy.dropped(proxy.seen[-1])
            answer, data = _pass_on(proxy.upstream_port, self, body, dropped)
            if fault is Fault.TWICE:
                answer, data = _pass_on(proxy.upstream_port, self, body, dropped)
            if fault is Fault.LOSE_ANSWER:
                self.close_connection = True
                return
            headers = [(key, value) for key, value in answer.getheaders() if key.lower() not in _HOP_HEADERS]
            if self.command == "HEAD":
                headers.append(("Content-Length", answer.headers["Content-Length"] or "0"))
                self._answer(answer.status, headers, b"", cut=False)
            else:
                self._answer(answer.status, headers, data, cut=fault is Fault.CUT_ANSWER)

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes, *, cut: bool) -> None:
            self.send_response_only(status)
            for key, value in headers:
                self.send_header(key, value)
            if self.command != "HEAD" and status not in (204, 304):
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = self.close_connection or cut

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - the names http.server looks for

        def log_message(self, *_: object) -> None:
            """Nothing: a failing test shows `proxy.seen`."""

    return Handler
