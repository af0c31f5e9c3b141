"""What the page answers, over real HTTP on a real `file:` store."""

from __future__ import annotations

import re
import shutil
import socket
import time
from html import unescape
from pathlib import Path

import pytest

from partq_spark import client
from partq_spark.client import words
from partq_spark.page import watching
from partq_spark.page.render import statics
from partq_spark.page.sections import Place
from tests.page.conftest import publish
from tests.page.serving import Served, serving

GROUP = "/queues/orders/groups/billing"


def test_the_queues_are_listed_with_what_they_hold_and_who_reads_them(page: Served) -> None:
    answer = page.get("/")
    assert answer.status == 200
    for told in ("orders", "40", "billing", "40 messages behind"):
        assert told in answer.text


def test_the_list_says_of_queues_and_groups_what_is_wrong_with_them(page: Served, orders: client.Queue) -> None:
    with page.events("/events") as events:
        told = next(each["queues"] for each in events if "to look at" in each["queues"])
    assert "! 1 group to look at" in told
    assert "! 4 partitions not flowing" in told
    assert "! 4 partitions not flowing" in page.get("/queues/orders").text
    with orders.consumer("billing", idle_timeout_s=0.3) as consumer:
        assert sum(len(batch) for batch in consumer) == 40
    with page.events("/events") as events:
        assert next(each for each in events if ">ok<" in each["queues"])


def test_a_queue_shows_the_facts_of_its_description_and_its_groups(page: Served, orders: client.Queue) -> None:
    text = page.get("/queues/orders").text
    for name, value in words.queue_in_words(orders.describe()):
        assert f"<dt>{name}</dt>" in text
        if name != "oldest message":  # whose age goes on
            assert f"<dd>{value}</dd>" in text
    assert 'href="/queues/orders/groups/billing"' in text
    assert "Held back:" in text


@pytest.mark.conformance("OBS-01")
def test_a_group_shows_the_numbers_and_words_of_its_status(page: Served, orders: client.Queue) -> None:
    text = page.get(GROUP).text
    status = orders.status("billing")
    for each in status.partitions:
        assert f'<tr id="p{each.partition}"' in text
        assert f"partition {each.partition}: Unassigned, no flow, lag {each.lag}; {each.reason}" in text
    assert words.reasons_in_words(status.partitions)[0] in text
    assert "No coordinator serves this page" in text


@pytest.mark.conformance("OBS-01")
def test_what_changes_is_pushed_within_a_second(page: Served, orders: client.Queue) -> None:
    with page.events(GROUP + "/events") as events:
        first = next(events)
        assert {"facts", "picture", "lag", "partitions", "timeline"} <= first.keys()
        publish(orders, *[b"more"] * 17)
        begun_s = time.monotonic()
        told = next(each for each in events if "57 messages" in each.get("facts", ""))
        assert time.monotonic() - begun_s < 1.0 + 0.5  # the second half for a machine that is busy
        assert "timeline" not in told  # what did not change is not sent


@pytest.mark.slow
def test_one_look_serves_all_who_watch_and_none_is_made_when_nobody_does(
    page: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    status = client.Queue.watching

    def counting(self: client.Queue, *given: object, **more: object) -> object:
        from contextlib import contextmanager

        @contextmanager
        def counted():  # type: ignore[no-untyped-def]
            with status(self, *given, **more) as look:  # type: ignore[arg-type]

                def one():  # type: ignore[no-untyped-def]
                    nonlocal looked
                    looked += 1
                    return look()

                yield one

        return counted()

    monkeypatch.setattr(client.Queue, "watching", counting)
    with page.events(GROUP + "/events") as one, page.events(GROUP + "/events") as two, page.events(GROUP + "/events"):
        begun_s = time.monotonic()
        next(one)
        next(two)
        while time.monotonic() - begun_s < 3.0:
            next(one)
        seconds = time.monotonic() - begun_s
    assert 2 <= looked <= seconds / watching.LOOK_S + 2
    time.sleep(watching.LINGER_S + 2 * watching.LOOK_S)
    before = looked
    time.sleep(2 * watching.LOOK_S)
    assert looked == before


@pytest.mark.slow
def test_a_store_that_goes_away_is_told_and_comes_back(page: Served, tmp_path: Path) -> None:
    store, away = tmp_path / "store", tmp_path / "away"
    with page.events(GROUP + "/events") as events:
        next(events)
        store.rename(away)
        told = next(each for each in events if each.get("trouble"))
        assert "Not up to date." in told["trouble"]
        shutil.rmtree(store, ignore_errors=True)  # what a look may have made there
        away.rename(store)
        assert next(each for each in events if each.get("trouble") == "")
    assert page.get(GROUP).status == 200


def test_a_browser_that_never_reads_holds_nobody_up(page: Served) -> None:
    with socket.create_connection(("127.0.0.1", page.port)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        silent.sendall(f"GET {GROUP}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        with page.events(GROUP + "/events") as events:
            for _ in range(3):
                assert next(events)


def rows(text: str) -> list[tuple[int, int]]:
    """Partition and offset of each message on a page."""
    cells = re.findall(r'data-name="partition">(\d+)</td><td class="n" data-name="offset">([\d,]+)<', text)
    return [(int(partition), int(offset.replace(",", ""))) for partition, offset in cells]


def test_messages_are_shown_newest_first_page_by_page(page: Served, orders: client.Queue) -> None:
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
    assert "is not allowed: give a whole number" in page.get("/queues/orders/messages?before=0:x").text
    assert page.get("/queues/orders/messages?until=noon").status == 404


def test_messages_are_looked_at_and_nothing_is_taken(page: Served, orders: client.Queue) -> None:
    full = max(orders.describe().partitions, key=lambda each: each.messages)
    assert full.messages > 5
    text = page.get(f"/queues/orders/messages?partition={full.partition}&from=2&limit=3").text
    assert rows(text) == [(full.partition, 2), (full.partition, 3), (full.partition, 4)]
    assert "from=5" in text  # further on
    assert [each.acknowledged for each in orders.status("billing").partitions] == [0, 0, 0, 0]


@pytest.mark.conformance("OBS-03")
def test_hostile_names_and_messages_are_text(page: Served, orders: client.Queue) -> None:
    publish(
        orders,
        b"<script>alert(1)</script>",
        b"\x1b]0;title\x07\x1b[31m",
        "\u202eevil \u2066".encode(),
        b'"><img src=x onerror=alert(1)>',
        key="<svg onload=alert(1)>",
    )
    answer = page.get("/queues/orders/messages?limit=100")
    for bad in ("<script>alert", "<img src=x", "<svg onload", "\x1b", "\x07", "\u202e"):
        assert bad not in answer.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    for name in ("%3Cscript%3Ealert(1)%3C%2Fscript%3E", "..%2f..%2fetc", "%1b[31m", "x" * 3000):
        for path in (f"/queues/{name}", f"/queues/orders/groups/{name}", f"/queues/{name}/messages"):
            answer = page.get(path)
            assert answer.status == 404
            assert "<script>alert" not in answer.text
            assert "\x1b" not in answer.text


@pytest.mark.conformance("OBS-03")
@pytest.mark.slow
def test_a_message_of_10_mb_is_shown_cut(page: Served, orders: client.Queue) -> None:
    publish(orders, b"<b>" + b"x" * 9_900_000, key="large")
    found = next(each for each in orders.browse() if each.key == "large")
    answer = page.get(f"/queues/orders/messages?partition={found.partition}&from={found.offset}&limit=1")
    assert answer.status == 200
    assert len(answer.text) < 20_000
    assert "(9.9 MB, cut)" in answer.text


@pytest.mark.conformance("OBS-03")
def test_no_script_but_the_pages_own_runs(page: Served) -> None:
    answer = page.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text
    assert " style=" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_pages_own_files_may_be_kept_and_nothing_else_may(page: Served) -> None:
    script = statics()["page.js"]
    answer = page.get(f"/static/{script.name}")
    assert answer.text.encode() == script.content
    assert "immutable" in answer.headers["cache-control"]
    assert page.get("/").headers["cache-control"] == "no-store"
    assert page.get("/static/../app.py").status == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nothing", "There is no such page"),
        ("/queues/gone", "gone"),
        ("/queues/orders/groups/gone", "gone"),
        ("/queues/orders/messages?partition=99", "there is no 99"),
        ("/queues/orders/messages?from=-1", "is not allowed: give a whole number from 0"),
        ("/queues/orders/messages?limit=many", "is not allowed: give a whole number from 0"),
    ],
)
def test_what_is_not_there_is_said(page: Served, path: str, said: str) -> None:
    answer = page.get(path)
    assert answer.status in (404, 503)
    assert said in answer.text


def test_a_namespace_without_queues_says_how_to_make_one(tmp_path: Path) -> None:
    with serving(Place(store=f"file://{tmp_path / 'empty'}", namespace="default")) as page:
        assert "partq queue create NAME" in page.get("/").text


@pytest.mark.conformance("OBS-03")
def test_nothing_changes_what_is_stored_unless_it_was_allowed(page: Served) -> None:
    for path in ("/queues/orders/alter", GROUP + "/rewind"):
        assert page.get(path).status == 404
        assert page.post(path, {"step": "do", "partitions": "9", "to": "earliest"}).status == 404
    for path in ("/", "/queues/orders", GROUP):
        assert page.post(path, {}).status == 404
        assert "Alter…" not in page.get(path).text
        assert "Rewind…" not in page.get(path).text
