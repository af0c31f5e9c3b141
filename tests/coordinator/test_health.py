"""What `/healthz` and `/readyz` answer, over real HTTP, and what is beside them."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from coordinator.health import Answers, HealthServer, Metrics, Status, access_beside_health
from coordinator.page import PageServer, serve
from coordinator.settings import load_settings
from partq_spark.base.errors import Invalid
from partq_spark.page.timeline import Timeline
from tests.support.servers import free_port

TOKEN = "a-token-for-tests"
WELL = Status(alive=True, ready=True, looked_s=0.1, groups=3, leading=2, failing=0)


class Kept:
    """A status that tests change."""

    def __init__(self) -> None:
        self.status = WELL


@pytest.fixture
def kept() -> Kept:
    return Kept()


AnyServer = HealthServer | PageServer


class Kind:
    """Health is the same whether the page is on its port or not."""

    def __init__(self, *, page: bool) -> None:
        self.page = page

    @contextmanager
    def serving(
        self,
        status: Callable[[], Status] = lambda: WELL,
        *,
        metrics: Metrics | None = None,
        host: str = "127.0.0.1",
        port: int | None = None,
        reached: str = "127.0.0.1",
        **environ: str,
    ) -> Iterator[AnyServer]:
        """A server on `host`, which counts as one that is reached under the address `reached`."""
        given = {"health.host": host, "health.port": str(free_port() if port is None else port)}
        where = {"store.url": "file:///nothing/here", "store.ownership": "store"}
        settings = load_settings(None, {}, {**where, **given})
        access = access_beside_health(reached, environ)
        answers = Answers(status, metrics=metrics, access=access)
        made: AnyServer = (
            serve(settings, answers, Timeline(), access)
            if self.page
            else HealthServer(settings.health_host, settings.health_port, answers)
        )
        yield made
        made.close()


@pytest.fixture(params=[False, True], ids=["alone", "with the page"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return Kind(page=request.param)


@pytest.fixture
def server(kept: Kept, kind: Kind) -> Iterator[AnyServer]:
    with kind.serving(lambda: kept.status) as made:
        yield made


def ask(server: AnyServer, path: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{server.port}{path}", headers=headers), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_process_that_works_is_alive_and_ready(server: AnyServer) -> None:
    for path in ("/healthz", "/readyz", "/readyz?verbose"):
        code, body = ask(server, path)
        assert code == 200
        assert json.loads(body)["leading"] == 2


def test_one_that_cannot_do_its_work_is_alive_but_not_ready(server: AnyServer, kept: Kept) -> None:
    kept.status = replace(WELL, ready=False, problem="Redis is away")
    assert ask(server, "/healthz")[0] == 200
    code, body = ask(server, "/readyz")
    assert code == 503
    assert json.loads(body)["problem"] == "Redis is away"


def test_one_that_is_stuck_is_not_alive(server: AnyServer, kept: Kept) -> None:
    kept.status = replace(WELL, alive=False, ready=False)
    assert ask(server, "/healthz")[0] == 503


def test_anything_else_is_not_here(server: AnyServer) -> None:
    assert ask(server, "/metrics")[0] == 404, "nobody gave any"
    if isinstance(server, HealthServer):
        assert ask(server, "/")[0] == 404


# --- metrics ----------------------------------------------------------------------------------------------------------


def told(accept: str) -> tuple[str, bytes]:
    return "text/plain; version=0.0.4", f"# {accept}\n".encode()


def test_metrics_are_told_to_this_machine_in_the_format_that_it_accepts(kind: Kind) -> None:
    with kind.serving(metrics=told) as server:
        assert ask(server, "/metrics", Accept="text/plain") == (200, "# text/plain\n")
        assert ask(server, "/metrics?name=all", Accept="x")[0] == 200
        assert ask(server, "/healthz")[0] == 200


@pytest.mark.conformance("OBS-03")
def test_a_name_that_is_not_this_machines_gets_no_metrics_and_its_health(kind: Kind) -> None:
    """A page in a browser here that was led to this port."""
    with kind.serving(metrics=told) as server:
        code, body = ask(server, "/metrics", Host="evil.example")
        assert (code, "ask localhost or 127.0.0.1" in body) == (403, True)
        assert ask(server, "/readyz", Host="evil.example")[0] == 200


@pytest.mark.conformance("OBS-03")
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])  # noqa: S104 - none is listened on
def test_where_there_is_a_token_it_is_needed_for_metrics_and_not_for_health(kind: Kind, host: str) -> None:
    with kind.serving(metrics=told, reached=host, PARTQ_UI_TOKEN=TOKEN) as server:
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            code, body = ask(server, "/metrics", **given)
            assert (code, "PARTQ_UI_TOKEN" in body) == (401, True)
        assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 200


@pytest.mark.conformance("OBS-03")
def test_where_other_machines_reach_it_and_there_is_no_token_nobody_gets_metrics(kind: Kind) -> None:
    with kind.serving(metrics=told, reached="0.0.0.0") as server:  # noqa: S104 - none is listened on
        code, body = ask(server, "/metrics")
        assert (code, "set PARTQ_UI_TOKEN" in body) == (403, True)
        assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 200


def test_prometheus_may_ask_by_address_or_by_a_name_that_was_given(kind: Kind) -> None:
    everywhere = "0.0.0.0"  # noqa: S104 - none is listened on
    with kind.serving(
        metrics=told, reached=everywhere, PARTQ_UI_TOKEN=TOKEN, PARTQ_UI_HOSTS="coordinator.prod"
    ) as server:
        for host, code in (("10.0.0.7:8095", 200), ("coordinator.prod:8095", 200), ("evil.example", 403)):
            assert ask(server, "/metrics", Authorization=f"Bearer {TOKEN}", Host=host)[0] == code


def test_a_token_that_no_header_could_carry_is_refused() -> None:
    with pytest.raises(Invalid, match="PARTQ_UI_TOKEN is not allowed as it is"):
        access_beside_health("127.0.0.1", {"PARTQ_UI_TOKEN": "two words"})
    with pytest.raises(Invalid, match="PARTQ_UI_TOKEN has fewer than 16 characters and could be guessed"):
        access_beside_health("127.0.0.1", {"PARTQ_UI_TOKEN": "short"})


def test_a_mistake_in_metrics_takes_no_health_away(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_accept: str) -> tuple[str, bytes]:
        raise KeyError("a mistake")

    with kind.serving(metrics=broken) as server:
        code, body = ask(server, "/metrics")
        assert (code, body) == (500, "metrics could not be told: see the coordinator's log\n")
        assert ask(server, "/healthz")[0] == 200
    assert "a mistake" in caplog.text


# --- clients that ask badly -------------------------------------------------------------------------------------------


def test_a_client_that_connects_and_says_nothing_keeps_nobody_waiting(server: AnyServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/healthz")[0] == 200


def test_a_port_that_is_taken_is_named_with_what_to_do(kind: Kind) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        refused = pytest.raises(Invalid, match=rf"health\.port = {port} .* choose another port, or 0 for none")
        with refused, kind.serving(port=port):
            pass


def test_an_address_that_is_not_ours_is_named(kind: Kind) -> None:
    with pytest.raises(Invalid, match=r"192\.0\.2\.1 cannot be used"), kind.serving(host="192.0.2.1"):
        pass


# --- the page beside them ---------------------------------------------------------------------------------------------


def test_the_page_is_beside_health() -> None:
    with Kind(page=True).serving() as server:
        assert isinstance(server, PageServer)
        assert "partq queue create NAME" in ask(server, "/")[1]
        assert ask(server, "/", Host="evil.example")[0] == 421


def test_with_a_token_the_page_asks_for_it_and_health_does_not() -> None:
    with Kind(page=True).serving(PARTQ_UI_TOKEN=TOKEN) as server:
        code, body = ask(server, "/")
        assert (code, "The page needs a token" in body) == (401, True)
        assert ask(server, "/", Authorization=f"Bearer {TOKEN}")[0] == 200
        assert ask(server, "/healthz")[0] == 200


def test_where_other_machines_reach_it_and_there_is_no_token_there_is_no_page() -> None:
    with Kind(page=True).serving(reached="0.0.0.0") as server:  # noqa: S104 - none is listened on
        assert isinstance(server, HealthServer)
        assert ask(server, "/")[0] == 404
