"""A queue on a `file:` store, with a group, the page that shows it, and a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import partq
from tests.page.serving import WAIT_S, Served, all_have_ended, serving
from tests.support.browser import Browser, Tab, browser
from tests.support.waiting import wait_until

TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module", autouse=True)
def ended() -> Iterator[None]:
    """Pages end, but no test waits for the one before it."""
    yield
    wait_until(all_have_ended, "end of the pages", WAIT_S)


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
    assert made.errors == []


def publish(queue: partq.Queue, *values: bytes, key: str | None = None) -> None:
    with queue.publisher() as publisher:
        for number, value in enumerate(values):
            publisher.send(value, key=key if key is not None else f"key-{number}")


def acknowledge(queue: partq.Queue) -> None:
    with queue.consumer("billing", idle_timeout_s=0.3) as consumer:
        for batch in consumer:
            batch.acknowledge()
