"""A queue on a `file:` store with a group, the page that shows it, served in the test's own process on a free port,
requests to it, and a browser.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from email.message import Message
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import pytest

import partq
from partq_spark.page.access import access
from partq_spark.page.app import Page
from partq_spark.page.sections import Place
from partq_spark.page.server import Server, listening
from tests.support.waiting import wait_until
from tools.browser import Browser, Tab, browser

TOKEN = "a-token-for-tests"
WAIT_S: Final = 15.0


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: Message  # whatever the case of their names
    text: str


class Served:
    """A page that is served."""

    def __init__(self, page: Page, port: int) -> None:
        self.page = page
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        return self._ask("POST", path, urlencode(fields), headers)

    def _ask(self, method: str, path: str, body: str | None, headers: Mapping[str, str]) -> Answer:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)) as connection:
            given = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body=body, headers=given)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read().decode())

    def news(self, path: str) -> Iterator[dict[str, Any]]:
        """What a browser is told while the page is open."""
        etag = ""
        while True:
            answer = self.get(f"{path}/news", If_None_Match=etag)
            etag = answer.headers["etag"]
            if answer.status != 304:
                assert answer.status == 200, answer.text
                yield json.loads(answer.text)


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


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """Pages end, but no test waits for the one before it."""
    yield
    # One that was told to end takes a fifth of a second.
    wait_until(lambda: "page" not in [each.name for each in threading.enumerate()], "end of the pages", WAIT_S)


@pytest.fixture
def orders(tmp_path: Path) -> partq.Queue:
    """A queue with messages and a group that has acknowledged none."""
    made = partq.create_queue("orders", partitions=4, store=f"file://{tmp_path / 'store'}")
    publish(made, *(f"value {number}".encode() for number in range(40)))
    made.create_group("billing", starting="earliest")
    return made


@pytest.fixture
def page(orders: partq.Queue) -> Iterator[Served]:
    with serving(orders.store) as served:
        yield served


@pytest.fixture
def locked(orders: partq.Queue) -> Iterator[Served]:
    """A page with a token and with actions, which has a second name."""
    with serving(orders.store, token=TOKEN, actions=True, hosts="partq.example, other") as served:
        yield served


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made


@pytest.fixture
def tab(chromium: Browser) -> Iterator[Tab]:
    """A page on a wide, light screen. At the end nothing was wrong on its console."""
    made = chromium.tab()
    made.look(1200, 900)
    yield made
    made.call("Page.close")
    # Over plain HTTP a browser says that it leaves this header aside.
    assert [each for each in made.errors if "Cross-Origin-Opener-Policy" not in each] == []


def publish(queue: partq.Queue, *values: bytes, key: str | None = None) -> None:
    with queue.publisher() as publisher:
        for number, value in enumerate(values):
            publisher.send(value, key=key if key is not None else f"key-{number}")


def acknowledge(queue: partq.Queue) -> None:
    with queue.consumer("billing", idle_timeout_s=0.3) as consumer:
        for batch in consumer:
            batch.acknowledge()
