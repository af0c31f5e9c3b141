"""What `/healthz` and `/readyz` answer, over real HTTP, and what is beside them."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from coordinator.health import Answers, HealthServer, Metrics, PageServer, Status, access_beside_health, serve
from coordinator.settings import load_settings
from partq_spark.base.errors import Invalid
from partq_spark.page.memory import Timeline
from tools.servers import free_port

TOKEN = "a-token-for-tests"
WELL = Status(alive=True, ready=True, looked_s=0.1, groups=3, leading=2, failing=0)


AnyServer = HealthServer | PageServer
BOTH = pytest.mark.parametrize("page", [False, True], ids=["alone", "with the page"])
"""Health is the same whether the page is on its port or not."""


@contextmanager
def serving(
    page: bool,
    status: Status = WELL,
    *,
    metrics: Metrics | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    reached: str = "127.0.0.1",
    environ: Mapping[str, str] | None = None,
) -> Iterator[AnyServer]:
    """A server on `host`, which counts as one that is reached under the address `reached`."""
    given = {"health.host": host, "health.port": str(free_port() if port is None else port)}
    settings = load_settings(None, {}, {"store.url": "file:///nothing/here", "store.ownership": "store", **given})
    access = access_beside_health(reached, environ or {})
    answers = Answers(lambda: status, metrics=metrics, access=access)
    if page:
        made: AnyServer = serve(settings, answers, Timeline(), access)
    else:
        made = HealthServer(settings.health_host, settings.health_port, answers)
    yield made
    made.close()


def ask(server: AnyServer, path: str, **headers: str) -> tuple[int, str]:
    try:
        with urlopen(Request(f"http://127.0.0.1:{server.port}{path}", headers=headers), timeout=5) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@BOTH
@pytest.mark.parametrize(
    ("status", "alive", "ready"),
    [
        (WELL, 200, 200),
        (replace(WELL, ready=False, problem="Redis is away"), 200, 503),
        (replace(WELL, alive=False, ready=False), 503, 503),
    ],
    ids=["it works", "it cannot work", "it is stuck"],
)
def test_whether_it_lives_and_can_work_is_told(page: bool, status: Status, alive: int, ready: int) -> None:
    with serving(page, status) as server, socket.create_connection(("127.0.0.1", server.port)):
        # A client that connects and says nothing keeps nobody waiting.
        assert ask(server, "/healthz")[0] == alive
        for path in ("/readyz", "/readyz?verbose"):
            code, body = ask(server, path)
            assert code == ready
            assert (json.loads(body)["leading"], json.loads(body).get("problem", "")) == (2, status.problem)
        assert ask(server, "/metrics")[0] == 404, "nobody gave any"


# --- metrics ----------------------------------------------------------------------------------------------------------


def told(accept: str) -> tuple[str, bytes]:
    return "text/plain; version=0.0.4", f"# {accept}\n".encode()


EVERYWHERE = "0.0.0.0"  # noqa: S104 - none is listened on
BEARER = {"Authorization": f"Bearer {TOKEN}"}
CLOSED = {"PARTQ_UI_TOKEN": TOKEN}
NAMED = {**CLOSED, "PARTQ_UI_HOSTS": "coordinator.prod"}


ANYWHERE = ("127.0.0.1", EVERYWHERE)
WRONG: tuple[dict[str, str], ...] = ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN})


@BOTH
@pytest.mark.conformance("OBS-03")
@pytest.mark.parametrize(
    ("reached", "environ", "headers", "metrics", "the_page"),
    [
        # This machine, in the format that it accepts.
        ("127.0.0.1", {}, {"Accept": "text/plain"}, "200 # text/plain\n", "200 partq queue create NAME"),
        # A page in a browser here that was led to this port.
        ("127.0.0.1", {}, {"Host": "evil.example"}, "403 ask localhost or 127.0.0.1", "421 "),
        # Where there is a token it is needed.
        *((reached, CLOSED, wrong, "401 PARTQ_UI_TOKEN", "401 ") for reached in ANYWHERE for wrong in WRONG),
        *((reached, CLOSED, BEARER, "200 ", "200 ") for reached in ANYWHERE),
        # Where other machines reach it and there is no token nobody gets anything.
        (EVERYWHERE, {}, {}, "403 set PARTQ_UI_TOKEN", "404 "),
        # Prometheus may ask by address or by a name that was given.
        (EVERYWHERE, NAMED, {**BEARER, "Host": "10.0.0.7:8095"}, "200 ", ""),
        (EVERYWHERE, NAMED, {**BEARER, "Host": "coordinator.prod:8095"}, "200 ", "200 "),
        (EVERYWHERE, NAMED, {**BEARER, "Host": "evil.example"}, "403 ", "421 "),
    ],
)
def test_who_gets_metrics_and_the_page(
    page: bool, reached: str, environ: dict[str, str], headers: dict[str, str], metrics: str, the_page: str
) -> None:
    """Code and words. Health is everybody's."""
    with serving(page, metrics=told, reached=reached, environ=environ) as server:
        for path, expected in {"/metrics?name=all": metrics, "/": the_page if page else "404 "}.items():
            code, _, words = expected.partition(" ")
            found, body = ask(server, path, **headers)
            assert not code or (str(found), words in body) == (code, True), path
        host = {"Host": headers["Host"]} if "Host" in headers else {}
        assert ask(server, "/healthz", **host)[0] == ask(server, "/readyz", **host)[0] == 200


@BOTH
def test_a_mistake_in_metrics_takes_no_health_away(page: bool, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_accept: str) -> tuple[str, bytes]:
        raise KeyError("a mistake")

    with serving(page, metrics=broken) as server:
        code, body = ask(server, "/metrics")
        assert (code, body) == (500, "metrics could not be told: see the coordinator's log\n")
        assert ask(server, "/healthz")[0] == 200
    assert "a mistake" in caplog.text


@BOTH
def test_what_cannot_be_served_is_named(page: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        refused = pytest.raises(Invalid, match=rf"health\.port = {port} .* choose another port, or 0 for none")
        with refused, serving(page, port=port):
            pass
    with pytest.raises(Invalid, match=r"192\.0\.2\.1 cannot be used"), serving(page, host="192.0.2.1"):
        pass
