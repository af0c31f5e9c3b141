"""What the page answers, over real HTTP on a real `file:` store: what is shown, who may look, and who may act."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import partq
from tests.page.conftest import TOKEN, Answer, Served, acknowledge, publish, serving
from tests.support.command_line import Partq
from tests.support.waiting import wait_until

GROUP = "/queues/orders/groups/billing"
REWIND = GROUP + "/rewind"
ALTER = "/queues/orders/alter"
MESSAGES = "/queues/orders/messages"
OBS_03 = pytest.mark.conformance("OBS-03")

# --- looking ----------------------------------------------------------------------------------------------------------


def test_queues_are_listed_with_what_they_hold_and_what_is_wrong_with_them(page: Served, orders: partq.Queue) -> None:
    text = page.get("/").text
    for each in ("orders", "40", "billing", "40 messages behind"):
        assert each in text
    told = (each["queues"] for each in page.news("") if "queues" in each)
    listed = next(each for each in told if "to look at" in each)
    assert "! 1 group to look at" in listed
    assert "! 4 partitions not flowing" in listed
    assert "! 4 partitions not flowing" in page.get("/queues/orders").text
    acknowledge(orders)
    assert next(each for each in told if ">ok<" in each)
    with serving(orders.store + "/empty") as empty:
        assert "partq queue create NAME" in empty.get("/").text


@pytest.mark.conformance("OBS-01")
def test_a_queue_and_a_group_are_shown_in_the_words_of_the_command_line(page: Served, orders: partq.Queue) -> None:
    command = Partq(Path(orders.store.removeprefix("file://")))
    text = page.get("/queues/orders").text
    described = command("queue", "describe", "orders").stdout
    for name in ("messages", "rebalance delay", "max message", "quota", "retention"):
        (value,) = re.findall(rf"^{name} +(.*?) *$", described, re.MULTILINE)
        assert f"<dt>{name}</dt>" in text
        assert f"<dd>{value}</dd>" in text
    assert f'href="{GROUP}"' in text
    assert "Held back:" in text
    text = page.get(GROUP).text
    for each in orders.status("billing").partitions:
        assert f'<tr id="p{each.partition}"' in text
        assert f"partition {each.partition}: Unassigned, no flow, lag {each.lag}; {each.reason}" in text
    said = command("status", "orders", "--group", "billing").stdout
    (reason,) = (line for line in said.splitlines() if line.startswith("partitions 0-3: "))
    assert reason in text
    assert "No coordinator serves this page" in text


@pytest.mark.conformance("OBS-01")
def test_what_changes_is_told_and_nothing_else(page: Served, orders: partq.Queue) -> None:
    news = page.news(GROUP)
    assert {"facts", "picture", "lag", "partitions", "timeline"} <= next(news).keys()
    publish(orders, *[b"more"] * 17)
    told = next(each for each in news if "57 messages" in each.get("facts", ""))
    assert "timeline" not in told


@pytest.mark.slow
def test_one_look_serves_all_who_watch_also_beside_one_who_never_reads_and_none_is_made_for_nobody(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0
    watching = partq.Queue.watching

    def counting(*given: object, **more: object) -> object:
        nonlocal opened
        opened += 1
        return watching(*given, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(partq.Queue, "watching", counting)
    with socket.create_connection(("127.0.0.1", page.port)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)  # and never reads
        silent.sendall(f"GET {GROUP}/news HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for each in (page.news(GROUP), page.news(GROUP)) * 3:
            assert next(each)
        assert (page.page.watched, opened) == (1, 1), "for all three"
    wait_until(lambda: page.page.watched == 0, "end of the looking", 20)


def rows(text: str) -> list[tuple[int, int]]:
    """Partition and offset of each message on a page."""
    cells = re.findall(r'data-name="partition">(\d+)</td><td class="n" data-name="offset">([\d,]+)<', text)
    return [(int(partition), int(offset.replace(",", ""))) for partition, offset in cells]


def test_messages_are_shown_newest_first_page_by_page_and_nothing_is_taken(page: Served, orders: partq.Queue) -> None:
    there = [(each.partition, each.offset) for each in orders.browse()][::-1]
    found, path = [], "?limit=15"
    while path:
        text = page.get(f"/queues/orders/messages{path}").text
        found += rows(text)
        path = unescape("".join(re.findall(r'href="(\?[^"]*)">Next page<', text)))
    assert found == there
    key = next(iter(orders.browse())).key
    assert rows(page.get(f"/queues/orders/messages?key={key}").text) == [
        (each.partition, each.offset) for each in orders.browse() if each.key == key
    ]
    assert rows(page.get("/queues/orders/messages?until=2020-01-01T00:00:00Z").text) == []
    full = max(orders.describe().partitions, key=lambda each: each.messages).partition
    text = page.get(f"/queues/orders/messages?partition={full}&from=2&limit=3").text
    assert rows(text) == [(full, 2), (full, 3), (full, 4)]
    assert "from=5" in text  # further on
    orders.alter(max_message_bytes=100_000_000)
    assert [len(rows(page.get(f"{MESSAGES}?limit=9{more}").text)) for more in ("", "&from=0")] == [2, 2]
    assert [each.acknowledged for each in orders.status("billing").partitions] == [0, 0, 0, 0]


@OBS_03
def test_no_script_but_the_pages_own_runs_and_only_its_files_may_be_kept(page: Served) -> None:
    answer = page.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text
    assert " style=" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    (script,) = re.findall(r'<script [^>]*src="(/static/page[^"]+\.js)"', answer.text)
    assert "immutable" in page.get(script).headers["cache-control"]
    assert page.get("/static/../app.py").status == 404


# --- who may look -----------------------------------------------------------------------------------------------------


@OBS_03
@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((each, 404) for each in ("localhost", "localhost:8096", "127.0.0.1:1", "[::1]:8096", "LOCALHOST")),
        *((each, 404) for each in ("partq.example:80", "OTHER")),
        *((each, 421) for each in ("evil.example", "evil.example:8096", "localhost.evil.example", "evil@localhost")),
        *((each, 421) for each in ("127.0.0.1.evil.example", "192.168.1.7", "", "[")),
    ],
)
def test_the_host_header_must_be_a_name_of_this_machine(locked: Served, host: str, status: int) -> None:
    assert locked.get("/nothing", Host=host, Authorization=f"Bearer {TOKEN}").status == status


@OBS_03
def test_beyond_loopback_nobody_looks_without_a_token(orders: partq.Queue) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.7", "partq.example", ""):  # noqa: S104
        with pytest.raises(partq.Invalid, match="set PARTQ_UI_TOKEN"), serving(orders.store, host=host):
            pass
        with serving(orders.store, host=host, token=TOKEN) as page:
            assert page.get("/", Host="10.1.2.3:8096").status == 401, "an address in digits"
            assert page.get("/", Host="evil.example").status == 421
    for host in ("127.0.0.1", "::1", "localhost", "127.8.9.1"):
        with serving(orders.store, host=host, token=" ") as page:
            assert page.get("/").status == 200
        message = r"--allow-actions .* set PARTQ_UI_TOKEN"
        with pytest.raises(partq.Invalid, match=message), serving(orders.store, host=host, actions=True):
            pass


def cookie_of(answer: Answer) -> str:
    """What a browser would send from now on."""
    return str(answer.headers["set-cookie"]).partition(";")[0]


@OBS_03
def test_without_the_token_nothing_is_shown(locked: Served) -> None:
    for path in ("/", "/news", "/queues/orders", "/queues/orders/messages", "/nothing", REWIND, ALTER):
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


def test_the_token_is_a_header_for_programs_and_is_typed_once(locked: Served) -> None:
    assert locked.get("/queues/orders", Authorization=f"Bearer {TOKEN}").status == 200
    for wrong in (f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer ÿ"):
        assert locked.get("/queues/orders", Authorization=wrong).status == 401
    answer = locked.post("/login", {"token": TOKEN, "to": "/queues/orders"})
    assert (answer.status, answer.headers["location"]) == (303, "/queues/orders")
    for word in ("HttpOnly", "SameSite=strict"):
        assert word in answer.headers["set-cookie"]
    assert TOKEN not in answer.headers["set-cookie"]
    assert "Secure" not in answer.headers["set-cookie"]
    cookie = cookie_of(answer)
    assert locked.get("/queues/orders", Cookie=cookie).status == 200
    for wrong_cookie in (cookie[:-1], "=;;\x7f" + "x" * 100):
        assert locked.get("/queues/orders", Cookie=wrong_cookie).status == 401
    wrong_token = locked.post("/login", {"token": "wrong"})
    assert wrong_token.status == 401
    assert "This is not the token." in wrong_token.text
    assert "set-cookie" not in wrong_token.headers
    for to in ("//evil.example", "https://evil.example", "/\\evil.example", "", "javascript:x", "/\n/x"):
        assert locked.post("/login", {"token": TOKEN, "to": to}).headers["location"] == "/", "not elsewhere"


@pytest.mark.parametrize(
    "headers",
    [
        {"X_Forwarded_Proto": "https"},
        {"X_Forwarded_Proto": "HTTPS, http"},
        {"Origin": "https://localhost"},
        # What Chromium sends to a proxy that asks by another name, as nginx does by itself.
        {"Origin": "https://partq.example:8443", "Sec_Fetch_Site": "same-origin"},
    ],
)
def test_behind_tls_the_cookie_is_sent_over_tls_alone(locked: Served, headers: dict[str, str]) -> None:
    answer = locked.post("/login", {"token": TOKEN}, Host="localhost", **headers)
    assert answer.status == 303
    assert "Secure" in answer.headers["set-cookie"]


def test_who_asks_for_nothing_is_not_waited_for(orders: partq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.Config, "__init__", partialmethod(uvicorn.Config.__init__, timeout_keep_alive=0.3))
    half = "POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with serving(orders.store, token=TOKEN) as page:
        for said in ("", "GET", half, f"{half}\r\n"):
            with socket.create_connection(("127.0.0.1", page.port), 15.0) as one:
                one.sendall(said.encode())
                assert one.recv(1) == b"", said


# --- who may act ------------------------------------------------------------------------------------------------------


@OBS_03
def test_nothing_changes_what_is_stored_unless_it_was_allowed(page: Served) -> None:
    for path in (ALTER, REWIND):
        assert page.get(path).status == 404
        assert page.post(path, {"step": "do", "partitions": "9", "to": "earliest"}).status == 404
    for path in ("/", "/queues/orders", GROUP):
        assert page.post(path, {}).status == 404
        assert "Alter…" not in page.get(path).text
        assert "Rewind…" not in page.get(path).text


@OBS_03
def test_what_another_site_makes_a_browser_send_changes_nothing(locked: Served, orders: partq.Queue) -> None:
    cookie = cookie_of(locked.post("/login", {"token": TOKEN, "to": "/"}))
    good = locked.get(ALTER, Cookie=cookie).text.partition('name="proof" value="')[2].partition('"')[0]
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


def test_a_rewind_of_many_messages_asks_for_the_name_of_the_group(orders: partq.Queue) -> None:
    """Also on a page that names an ownership which is not this group's."""
    publish(orders, *[b"x"] * 10_000)
    acknowledge(orders)

    def sent(**fields: str) -> str:
        with serving(orders.store, ownership="store", token=TOKEN, actions=True) as page:
            return page.post(REWIND, {"to": "earliest", **fields}, Authorization=f"Bearer {TOKEN}").text

    assert "type the name of the group" in sent()
    assert "type the name of the group" not in sent(to="by", value="1")
    for name in ("", "other"):
        told = sent(step="do", name=name)
        assert "Type the group&#39;s name, billing: more than 10,000 come again." in told
        assert orders.checkpoints("billing").lag == 0
    seen = re.findall(r'name="seen" value="(\d+)"', sent(to="by", value="1"))[0]
    form, headers = {"to": "by", "value": "1", "step": "do", "seen": seen}, {"Authorization": f"Bearer {TOKEN}"}
    with serving(orders.store, token=TOKEN, actions=True) as page, ThreadPoolExecutor(2) as pool:
        for lag in (4, 0):  # a double click, and the page loaded again when what it did is over
            told = "".join(pool.map(lambda _: page.post(REWIND, form, **headers).text, "12"))
            assert (told.count("was rewound or handed over"), orders.checkpoints("billing").lag) == (1 + (not lag), lag)
            acknowledge(orders)
    sent(step="do", name="billing")
    assert orders.checkpoints("billing").lag == 10_040


NUMBER = "is not allowed: give a whole number"
HOSTILE = ["%3Cscript%3Ealert(1)%3C%2Fscript%3E", "..%2f..%2fetc", "%1b[31m", "x" * 3000]


@OBS_03
@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/nothing", None, "There is no such page"),
        ("/queues/gone", None, "gone"),
        (GROUP.replace("billing", "gone"), None, "gone"),
        *((f"/queues/{name}", None, "") for name in HOSTILE),
        *((f"/queues/orders/groups/{name}", None, "") for name in HOSTILE),
        (MESSAGES + "?partition=99", None, "there is no 99"),
        (MESSAGES + "?from=-1", None, NUMBER + " from 0"),
        (MESSAGES + "?limit=many", None, NUMBER + " from 0"),
        (MESSAGES + "?before=0:x", None, NUMBER),
        (MESSAGES + "?until=noon", None, "noon"),
        *((f"{MESSAGES}?from=0&{more}", None, "leave one out") for more in ("key=a", "until=2020-01-01T00:00:00Z")),
        (ALTER, {}, "nothing to alter"),
        (ALTER, {"partitions": "-1"}, NUMBER + " from 0"),
        (ALTER, {"partitions": "100000"}, "partitions"),
        (ALTER, {"partitions": "9" * 100_000}, "send less"),
        (ALTER, {"retention_s": "soon"}, "is not allowed: give seconds"),
        (REWIND, {"to": "elsewhere"}, "is not allowed: choose earliest, offset, by or time"),
        (REWIND, {"to": "offset"}, "give exactly one of"),
        (REWIND, {"to": "time", "value": "<b>noon</b>"}, "&lt;b&gt;noon&lt;/b&gt;"),
        (REWIND, {"to": "earliest", "partitions": "1, x"}, NUMBER + " from 0"),
    ],
)
def test_what_is_not_there_or_cannot_be_is_said(locked: Served, path: str, fields: Any, said: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = locked.get(path, **headers) if fields is None else locked.post(path, fields, **headers)
    assert answer.status == (404 if fields is None else 400)
    assert said in answer.text
    assert (f'href="{path}">Back to the form<' in answer.text) == (fields is not None)
    assert "<script>alert" not in answer.text
    assert "\x1b" not in answer.text
