"""What `/healthz` and `/readyz` answer, over real HTTP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from coordinator.health import HealthServer, Status
from partq_spark.base.errors import Invalid
from tests.support.servers import free_port

WELL = Status(alive=True, ready=True, looked_s=0.1, groups=3, leading=2, failing=0)


class Kept:
    """A status that tests change."""

    def __init__(self) -> None:
        self.status = WELL


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def server(kept: Kept) -> Iterator[HealthServer]:
    made = HealthServer("127.0.0.1", free_port(), lambda: kept.status)
    yield made
    made.close()


def ask(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_that_works_is_alive_and_ready(server: HealthServer) -> None:
    for path in ("/healthz", "/readyz", "/readyz?verbose"):
        code, body = ask(server, path)
        assert code == 200
        assert json.loads(body)["leading"] == 2


def test_one_that_cannot_do_its_work_is_alive_but_not_ready(server: HealthServer, kept: Kept) -> None:
    kept.status = replace(WELL, ready=False, problem="Redis is away")
    assert ask(server, "/healthz")[0] == 200
    code, body = ask(server, "/readyz")
    assert code == 503
    assert json.loads(body)["problem"] == "Redis is away"


def test_one_that_is_stuck_is_not_alive(server: HealthServer, kept: Kept) -> None:
    kept.status = replace(WELL, alive=False, ready=False)
    assert ask(server, "/healthz")[0] == 503


def test_anything_else_is_not_here(server: HealthServer) -> None:
    assert ask(server, "/metrics")[0] == 404
    assert ask(server, "/")[0] == 404


def test_whoever_connects_and_says_nothing_keeps_nobody_waiting(server: HealthServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_named_with_what_to_do() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(Invalid, match=rf"health\.port = {port} .* choose another port, or 0 for none"):
            HealthServer("127.0.0.1", port, lambda: WELL)


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(Invalid, match=r"192\.0\.2\.1 cannot be used"):
        HealthServer("192.0.2.1", 0, lambda: WELL)
