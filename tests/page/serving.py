"""The page on a free port, in the test's own process, and requests to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from partq_spark.page.access import access
from partq_spark.page.app import Page
from partq_spark.page.sections import Place
from partq_spark.page.server import Server, listening

WAIT_S: Final = 15.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def cookie(self) -> str:
        """What a browser would send from now on."""
        return self.headers.get("set-cookie", "").partition(";")[0]


class Served:
    """A page that is served."""

    def __init__(self, page: Page, port: int) -> None:
        self.page = page
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def watched(self) -> int:
        """How many queues and groups are looked at."""
        return self.page.watched

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        return self.ask("POST", path, body=urlencode(fields), headers=headers)

    def ask(self, method: str, path: str, *, body: str | None = None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=given)
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(status=answer.status, headers=named, text=answer.read().decode())
        finally:
            connection.close()

    @contextmanager
    def events(self, path: str) -> Iterator[Iterator[dict[str, Any]]]:
        """What a browser is told while it watches."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield (json.loads(line[6:]) for line in iter(answer.readline, b"") if line.startswith(b"data: "))
        finally:
            connection.close()


@contextmanager
def serving(
    store: str,
    *,
    ownership: str | None = None,
    token: str | None = None,
    host: str = "127.0.0.1",
    actions: bool = False,
    hosts: str = "",
) -> Iterator[Served]:
    """The page of a store. Whatever `host` says, it is served on loopback alone."""
    environ = {"PARTQ_UI_HOSTS": hosts} | ({"PARTQ_UI_TOKEN": token} if token is not None else {})
    place = Place(store=store, namespace="default", ownership=ownership)
    page = Page(place, access(host, environ, actions=actions))
    server = Server(page.app, listening("127.0.0.1", 0), ending=page.end)
    server.start()
    try:
        yield Served(page, server.port)
    finally:
        server.close()


def all_have_ended() -> bool:
    """Whether no page is served any more. One that was told to end takes a fifth of a second."""
    return not any(thread.name == "page" and thread.is_alive() for thread in threading.enumerate())
