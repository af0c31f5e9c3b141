"""Who may look and who may act: loopback, Host header, token, session, forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from partq_spark import client
from partq_spark.base.errors import Invalid
from partq_spark.page.access import access
from partq_spark.page.sections import Place
from tests.page.conftest import acknowledge, publish
from tests.page.serving import Served, serving

TOKEN = "a-token-for-tests"
REWIND = "/queues/orders/groups/billing/rewind"
ALTER = "/queues/orders/alter"


@pytest.fixture
def locked(place: Place, orders: client.Queue) -> Iterator[Served]:
    """A page with a token, and with actions."""
    with serving(place, token=TOKEN, actions=True) as served:
        yield served


def logged_in(page: Served) -> str:
    """The cookie of one who typed the token."""
    return page.post("/login", {"token": TOKEN, "to": "/"}).cookie


def proof(page: Served, cookie: str, path: str = REWIND) -> str:
    return page.get(path, Cookie=cookie).text.partition('name="proof" value="')[2].partition('"')[0]


# --- by which name ----------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OBS-03")
@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("localhost:8096", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8096", 200),
        ("LOCALHOST", 200),
        ("evil.example", 421),
        ("evil.example:8096", 421),
        ("localhost.evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("evil@localhost", 421),
        ("192.168.1.7", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_the_host_header_must_be_a_name_of_this_machine(page: Served, host: str, status: int) -> None:
    assert page.get("/nothing" if status == 200 else "/", Host=host).status == (404 if status == 200 else 421)


def test_other_names_are_given_in_the_environment(place: Place) -> None:
    with serving(place, hosts="Partq.Example, other") as page:
        assert page.get("/nothing", Host="partq.example:80").status == 404
        assert page.get("/nothing", Host="third").status == 421


def test_beyond_loopback_addresses_in_digits_are_ours_and_strange_names_are_not() -> None:
    allowed = access("0.0.0.0", {"PARTQ_UI_TOKEN": TOKEN})  # noqa: S104 - what is refused without a token
    assert allowed.knows_host("10.1.2.3:8096")
    assert allowed.knows_host("[fd00::1]")
    assert not allowed.knows_host("evil.example")


# --- where without a token --------------------------------------------------------------------------------------------


@pytest.mark.conformance("OBS-03")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "partq.example", ""])  # noqa: S104
def test_nobody_else_may_look_without_a_token(host: str) -> None:
    with pytest.raises(Invalid, match="set PARTQ_UI_TOKEN"):
        access(host, {})
    assert access(host, {"PARTQ_UI_TOKEN": TOKEN}).token == TOKEN


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_on_loopback_no_token_is_needed_to_look_but_one_to_act(host: str) -> None:
    assert access(host, {"PARTQ_UI_TOKEN": " "}).may_look({})
    with pytest.raises(Invalid, match=r"--allow-actions .* set PARTQ_UI_TOKEN"):
        access(host, {}, actions=True)


def test_a_token_that_no_header_could_carry_is_refused_without_telling_it() -> None:
    for token in ("with space", "wïth", "with\x7f"):
        with pytest.raises(Invalid, match="PARTQ_UI_TOKEN is not allowed") as refused:
            access("127.0.0.1", {"PARTQ_UI_TOKEN": token})
        assert token not in str(refused.value)


def test_a_token_that_could_be_guessed_is_refused_without_telling_it() -> None:
    for token in ("x1y2", "fifteen-letters"):
        with pytest.raises(
            Invalid, match="fewer than 16 characters and could be guessed: make one at random"
        ) as refused:
            access("127.0.0.1", {"PARTQ_UI_TOKEN": token})
        assert token not in str(refused.value)
    assert access("127.0.0.1", {"PARTQ_UI_TOKEN": "sixteen-letters!"}).token is not None


# --- the token --------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OBS-03")
def test_without_the_token_nothing_is_shown(locked: Served) -> None:
    for path in ("/", "/events", "/queues/orders", "/queues/orders/messages", "/nothing", REWIND, ALTER):
        answer = locked.get(path)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "orders" not in answer.text.replace(path, "")
        assert "file://" not in answer.text
    assert locked.post(REWIND, {"to": "earliest", "step": "do"}).status == 401
    for path in ("/static/nothing", "/login/nothing"):
        answer = locked.get(path)
        assert answer.status == 404
        assert "file://" not in answer.text
    for origin in ("null", "http://["):
        refused = locked.post("/login", {"token": TOKEN}, Origin=origin)
        assert refused.status == 403
        assert "file://" not in refused.text


def test_the_token_is_a_header_for_programs(locked: Served) -> None:
    assert locked.get("/queues/orders", Authorization=f"Bearer {TOKEN}").status == 200
    for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer ÿ"):
        assert locked.get("/queues/orders", Authorization=wrong).status == 401


def test_the_token_is_typed_once_and_the_cookie_does_not_tell_it(locked: Served) -> None:
    answer = locked.post("/login", {"token": TOKEN, "to": "/queues/orders"})
    assert (answer.status, answer.headers["location"]) == (303, "/queues/orders")
    for word in ("HttpOnly", "SameSite=strict"):
        assert word in answer.headers["set-cookie"]
    assert TOKEN not in answer.headers["set-cookie"]
    assert "Secure" not in answer.headers["set-cookie"]
    assert locked.get("/queues/orders", Cookie=answer.cookie).status == 200
    assert locked.get("/queues/orders", Cookie=answer.cookie[:-1]).status == 401
    assert locked.get("/queues/orders", Cookie="=;;\x7f" + "x" * 100).status == 401


@pytest.mark.parametrize(
    "headers", [{"X_Forwarded_Proto": "https"}, {"X_Forwarded_Proto": "HTTPS, http"}, {"Origin": "https://localhost"}]
)
def test_behind_tls_the_cookie_is_sent_over_tls_alone(locked: Served, headers: dict[str, str]) -> None:
    answer = locked.post("/login", {"token": TOKEN}, Host="localhost", **headers)
    assert answer.status == 303
    assert "Secure" in answer.headers["set-cookie"]


def test_a_wrong_token_is_refused(locked: Served) -> None:
    answer = locked.post("/login", {"token": "wrong"})
    assert answer.status == 401
    assert "This is not the token." in answer.text
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize(
    "to", ["//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:x", "/\n/x"]
)
def test_who_comes_in_is_not_led_elsewhere(locked: Served, to: str) -> None:
    assert locked.post("/login", {"token": TOKEN, "to": to}).headers["location"] == "/"


# --- acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.conformance("OBS-03")
def test_what_another_site_makes_a_browser_send_changes_nothing(locked: Served, orders: client.Queue) -> None:
    cookie = logged_in(locked)
    good = proof(locked, cookie, ALTER)
    form = {"partitions": "9", "step": "do"}
    for fields, headers in (
        (form, {}),
        ({**form, "proof": "0" * 64}, {}),
        ({**form, "proof": good}, {"Origin": "http://evil.example"}),
        ({**form, "proof": good}, {"Origin": "null"}),
        ({**form, "proof": good}, {"Sec_Fetch_Site": "cross-site"}),
        ({**form, "proof": good}, {"Sec_Fetch_Site": "same-site", "Origin": locked.url}),
    ):
        assert locked.post(ALTER, fields, Cookie=cookie, **headers).status == 403
    assert orders.describe().layout.partitions == 4


def test_a_rewind_is_shown_first_and_done_from_there(locked: Served, orders: client.Queue) -> None:
    acknowledge(orders)
    cookie = logged_in(locked)
    form = {"to": "earliest", "proof": proof(locked, cookie)}
    shown = locked.post(REWIND, form, Cookie=cookie, Origin=locked.url, Sec_Fetch_Site="same-origin")
    assert shown.status == 200
    assert "Would deliver 40 messages of" in shown.text
    assert sum(each.acknowledged for each in orders.status("billing").partitions) == 40
    done = locked.post(REWIND, {**form, "step": "do"}, Cookie=cookie)
    assert "40 messages will be delivered again, marked." in done.text
    assert sum(each.acknowledged for each in orders.status("billing").partitions) == 0


def test_a_rewind_of_many_messages_asks_for_the_name_of_the_group(locked: Served, orders: client.Queue) -> None:
    publish(orders, *[b"x"] * 10_000)
    acknowledge(orders)
    form = {"to": "earliest"}
    shown = locked.post(REWIND, form, Authorization=f"Bearer {TOKEN}").text
    assert "type the name of the group" in shown
    for name in ("", "other"):
        answer = locked.post(REWIND, {**form, "step": "do", "name": name}, Authorization=f"Bearer {TOKEN}")
        assert "Type the name of the group, billing: more than 10,000 come again." in answer.text
        assert orders.checkpoints("billing").lag == 0
    few = locked.post(REWIND, {"to": "by", "value": "1"}, Authorization=f"Bearer {TOKEN}").text
    assert "type the name of the group" not in few
    locked.post(REWIND, {**form, "step": "do", "name": "billing"}, Authorization=f"Bearer {TOKEN}")
    assert orders.checkpoints("billing").lag == 10_040


def test_a_queue_is_altered_after_its_dry_run(locked: Served, orders: client.Queue) -> None:
    cookie = logged_in(locked)
    form = {"partitions": "6", "retention_s": "3600", "quota_bytes": "none", "proof": proof(locked, cookie, ALTER)}
    shown = locked.post(ALTER, form, Cookie=cookie)
    for line in (
        "retention: none → 3600.0",
        "quota-bytes: none, as it was",
        "partitions: 4 → 6",
        "Nothing was changed.",
    ):
        assert line in shown.text
    assert orders.describe().layout.partitions == 4
    done = locked.post(ALTER, {**form, "step": "do"}, Authorization=f"Bearer {TOKEN}")
    assert "<b>Done.</b>" in done.text
    found = orders.describe()
    assert (found.layout.partitions, found.config.retention_s) == (6, 3600.0)


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        (ALTER, {}, "nothing to alter"),
        (ALTER, {"partitions": "-1"}, "is not allowed: give a whole number from 0"),
        (ALTER, {"partitions": "100000"}, "partitions"),
        (ALTER, {"retention_s": "soon"}, "is not allowed: give seconds"),
        (REWIND, {"to": "elsewhere"}, "is not allowed: choose earliest, offset, by or time"),
        (REWIND, {"to": "offset"}, "offset is empty"),
        (REWIND, {"to": "time", "value": "<b>noon</b>"}, "&lt;b&gt;noon&lt;/b&gt;"),
        (REWIND, {"to": "earliest", "partitions": "1, x"}, "is not allowed: give a whole number from 0"),
    ],
)
def test_what_cannot_be_done_is_said(locked: Served, path: str, fields: dict[str, str], said: str) -> None:
    answer = locked.post(path, fields, Authorization=f"Bearer {TOKEN}")
    assert answer.status == 404
    assert said in answer.text


def test_a_form_that_is_too_large_is_refused(locked: Served) -> None:
    answer = locked.post(ALTER, {"partitions": "9" * 100_000}, Authorization=f"Bearer {TOKEN}")
    assert answer.status == 404
    assert "send less" in answer.text
