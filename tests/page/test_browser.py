"""The page in a real Chromium: a live handoff, many flows, hostile contents, a store that goes away, keyboard, dark and
narrow screens; signing in and acting, with the headers that a browser sends by itself; and no error on the console.
"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest

import partq
from tests.cast.sidecars import GROUP
from tests.page.conftest import TOKEN, Served, acknowledge, publish, serving
from tests.page.scene import QUEUE, scene
from tests.support.waiting import wait_until
from tools import crowd
from tools.browser import COUNT_DRAWS, Tab

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(180)]

PATH = f"/queues/{QUEUE}/groups/{GROUP}"
SEEN_WITHIN_S = 1.0
LANES = """Object.fromEntries([...document.querySelectorAll('.lane')].map(lane => [
    lane.querySelector('bdi').textContent,
    [...lane.querySelectorAll('.cell[id^=c]')].map(cell => parseInt(cell.textContent)),
]))"""


def live(tab: Tab) -> None:
    tab.until("document.getElementById('live').dataset.state === 'live'", "live")


@pytest.mark.alone
@pytest.mark.conformance("OBS-01")
def test_a_coordinator_shows_a_handoff_within_a_second_of_status_and_its_decisions(tab: Tab, tmp_path: Path) -> None:
    with scene(tmp_path / "scene", handoff_s=5) as played:
        publish(played.queue, *[b"value"] * 2000)
        played.join("amber")
        played.settled("amber")
        played.join("blue", hold_s=8)  # longer than a handoff may take
        tab.open(f"http://127.0.0.1:{played.coordinator.port}{PATH}")
        live(tab)
        played.settled("amber", "blue")
        played.join("coral", hold_s=0.1)

        waiting = played.handoff("blue")
        assert waiting.handoff is not None
        there = f"(document.getElementById('w{waiting.partition}') || {{}}).textContent"
        shown = tab.until(there, "handoff", within_s=SEEN_WITHIN_S)
        assert f"of flow {waiting.flow}" in shown
        assert f"then goes to {waiting.handoff.to}" in shown
        assert tab.run(f"document.getElementById('a{waiting.partition}') !== null"), "where it will be"

        settled = played.settled("amber", "blue", "coral")
        wanted = {each.flow: list(each.partitions) for each in settled.flows}
        wait_until(lambda: tab.run(LANES) == wanted, "lanes", SEEN_WITHIN_S)
        decisions = "document.getElementById('timeline').textContent"
        tab.until(f"{decisions}.includes('flow bound') && {decisions}.includes('balance')", "decisions", within_s=5)
        assert "No coordinator" not in tab.run(decisions)
        assert played.coordinator.is_ready()
        tab.leave()


@pytest.mark.conformance("OBS-03")
def test_hostile_names_and_messages_are_text(tab: Tab, page: Served, orders: partq.Queue) -> None:
    script = b"<script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>"
    publish(orders, script, b"\x1b]0;title\x07", "\u202eevil".encode(), key="<svg onload='window.hacked = 3'>")
    publish(orders, b"<i>" + b"x" * 9_900_000, key="large")
    tab.open(f"{page.url}/queues/orders/messages?limit=100")
    assert tab.run("window.hacked === undefined && document.querySelector('main img, main svg, main i') === null")
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
    shown = tab.run("[...document.querySelectorAll('.value')].map(each => each.textContent)")
    assert script.decode() in shown
    assert "(9.9 MB, cut)" in tab.run("document.body.innerText")
    assert r"\x1b]0;title\x07" in shown


def test_a_store_that_goes_away_is_told_and_comes_back(tab: Tab, page: Served, tmp_path: Path) -> None:
    tab.open(page.url + PATH)
    live(tab)
    (tmp_path / "store").rename(tmp_path / "away")
    assert "Not up to date." in tab.until("document.getElementById('trouble').textContent.trim()", "trouble")
    assert tab.run("document.querySelectorAll('.lane .cell').length") == 4  # what was seen is still shown
    shutil.rmtree(tmp_path / "store", ignore_errors=True)  # what a look may have made there
    (tmp_path / "away").rename(tmp_path / "store")
    tab.until("document.getElementById('trouble').textContent.trim() === ''", "the end of the trouble")


def test_the_keyboard_reaches_every_cell_and_stays_there(tab: Tab, page: Served, orders: partq.Queue) -> None:
    tab.open(page.url + PATH)
    live(tab)
    here = "document.activeElement"
    for _ in range(30):
        tab.press("Tab", code=9)
        if tab.run(f"{here}.matches('.lane .cell')"):
            break
    assert tab.run(f"{here}.id") == "c0"
    assert tab.run(f"{here}.getAttribute('aria-label')").startswith("partition 0: Unassigned, no flow, lag ")
    for key, wanted in (("ArrowRight", "c1"), ("ArrowDown", "c2"), ("ArrowLeft", "c1"), ("End", "c3"), ("Home", "c0")):
        tab.press(key)
        assert tab.run(f"{here}.id") == wanted
    tab.press("ArrowRight")
    publish(orders, *[b"more"] * 5)
    tab.until("document.getElementById('facts').textContent.includes('45 messages')", "news")
    assert tab.run(f"{here}.id") == "c1", "what is drawn anew must not lose the place"
    tab.press("Enter", code=13, text="\r")
    tab.until("location.hash === '#p1'", "the partition in the table")


FILTERED = """Object.fromEntries(['.lane', '#partitions tbody tr'].map(kind => [kind,
    [...document.querySelectorAll(kind)].filter(each => each.offsetParent !== null).map(each => each.id)]))"""


@pytest.mark.conformance("OBS-01")
def test_300_partitions_are_filtered_and_sorted(tab: Tab, orders: partq.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partq.Queue, "watching", partial(crowd.watching, partitions=300, flows=50, silent="stream-07"))
    set_to = """(field => { field.%s; field.dispatchEvent(new Event("input", {bubbles: true})) })(
        document.getElementById("arrange").elements.%s)"""
    lag = "[...document.querySelectorAll('#partitions tbody tr')].map(each => Number(each.dataset.lag))"
    with serving(orders.store) as page:
        tab.open(page.url + PATH)
        live(tab)
        assert tab.run("document.querySelectorAll('.lane').length") == 50
        assert tab.run("document.querySelectorAll('.lane .cell[id^=c]').length") == 300
        assert tab.run("document.querySelectorAll('.wait').length") == 30
        tab.run(set_to % ("value = 'lag'", "sort"))
        for _ in range(2):  # also when news came
            shown = tab.run(lag)
            assert len(shown) == 300
            assert shown == sorted(shown, reverse=True)
            tab.run(COUNT_DRAWS)
            tab.until("window.draws >= 1", "news")
        tab.run(set_to % ("checked = true", "only"))
        assert tab.run(FILTERED)[".lane"] == ["l-stream-07"]  # what is on its way needs nobody
        assert "active" not in tab.run("document.getElementById('l-stream-07').textContent")
        assert tab.run("document.querySelector('#arrange output').textContent") == "1 of 350 shown"
        tab.run(set_to % ("checked = false", "only"))
        tab.run(set_to % ("value = 'Stream-1'", "find"))
        tab.open(page.url + PATH + tab.run("location.search"))  # kept in the address
        assert set(tab.run(FILTERED)[".lane"]) == {f"l-stream-1{number}" for number in range(10)}
        tab.run(set_to % ("value = ''", "find"))
        tab.run(set_to % ("value = ''", "sort"))
        assert tab.run(FILTERED)["#partitions tbody tr"] == [f"p{number}" for number in range(300)]
        tab.open(page.url + "/queues/orders?only=1")  # of its partitions nobody says whether they are well
        assert tab.run(FILTERED)["#partitions tbody tr"] == [f"p{number}" for number in range(4)]


OVERPRINTED = """[...document.querySelectorAll('td[data-name]')].filter(cell => {
    const label = document.createElement('span');
    label.style.cssText = 'position: absolute; white-space: nowrap; font: ' + getComputedStyle(cell, '::before').font;
    label.textContent = cell.dataset.name;
    document.body.append(label);
    const width = label.offsetWidth;
    label.remove();
    const range = document.createRange();
    range.selectNodeContents(cell);
    const values = [...range.getClientRects()].filter(each => each.width > 0);
    const begin = cell.getBoundingClientRect().left + parseFloat(getComputedStyle(cell).paddingLeft);
    return getComputedStyle(cell).display === 'grid' && values.some(each => each.left < begin + width);
}).map(cell => cell.dataset.name)"""


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1200, False)])
def test_it_fits_narrow_and_wide_screens_light_and_dark_and_no_label_covers_its_value(
    tab: Tab, orders: partq.Queue, monkeypatch: pytest.MonkeyPatch, width: int, dark: bool
) -> None:
    tab.look(width, 900, dark=dark)
    with serving(orders.store) as page:
        for path in ("/", "/queues/orders", "/queues/orders/messages"):
            tab.open(page.url + path)
            tab.until("document.querySelector('td[data-name]') !== null", path)
            assert tab.run("document.documentElement.scrollWidth <= window.innerWidth"), path
            assert tab.run(OVERPRINTED) == [], path
        monkeypatch.setattr(partq.Queue, "watching", crowd.watching)
        tab.open(page.url + PATH)
        live(tab)
        assert tab.run("document.documentElement.scrollWidth <= window.innerWidth")
        paper, ink = tab.run(
            "(s => [s.backgroundColor, s.color].map(each => each.match(/\\d+/g).map(Number)[0]))"
            "(getComputedStyle(document.body))"
        )
        assert (paper < 60 and ink > 200) if dark else (ink < 60 and paper > 200)


def test_a_page_that_nobody_sees_asks_for_nothing(tab: Tab, page: Served) -> None:
    tab.open(page.url + PATH)
    live(tab)
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true}); "
    tell = "document.dispatchEvent(new Event('visibilitychange'))"
    tab.run(hide % "true" + tell)
    wait_until(lambda: page.page.watched == 0, "end of the looking", 10)
    tab.run(hide % "false" + tell)
    wait_until(lambda: page.page.watched == 1, "looking", 10)


# --- signing in and acting --------------------------------------------------------------------------------------------

NAME = "partq.example"  # the browser is told that it is this machine


@pytest.fixture(params=["localhost", NAME])
def url(request: pytest.FixtureRequest, locked: Served) -> str:
    """By which name the browser asks. Over plain HTTP under another one than localhost it sends no Sec-Fetch-Site."""
    return f"http://{request.param}:{locked.port}"


def test_a_question_may_meet_the_change_to_the_next_document(tab: Tab, page: Served) -> None:
    tab.open(page.url + "/")
    tab.run("void setTimeout(() => location.assign('/?find=orders'), 50)")
    assert tab.until("new Promise(tell => setTimeout(() => tell(location.search === '?find=orders'), 200))")


def submit(tab: Tab, fields: dict[str, str], button: str) -> None:
    """Fill in the form that has this button, and press it, as a person does: the browser sends it."""
    tab.run("window.before = 1")
    found = f"[...document.querySelectorAll('button')].find(each => each.textContent === {button!r})"
    assert tab.run(f"{found} !== undefined"), f"no {button!r} on {tab.run('document.body.innerText')}"
    for name, value in fields.items():
        tab.run(f"void ({found}.form.elements[{name!r}].value = {value!r})")
    tab.run(f"{found}.click()")
    tab.until("window.before === undefined && document.readyState === 'complete'", f"what {button} leads to")


def sign_in(tab: Tab, url: str) -> None:
    tab.call("Network.clearBrowserCookies")  # which know no ports
    tab.open(url + "/?find=orders")
    submit(tab, {"token": "wrong"}, "Sign in")
    assert "This is not the token." in tab.run("document.body.innerText")
    submit(tab, {"token": TOKEN}, "Sign in")
    assert tab.run("location.pathname + location.search") == "/?find=orders"
    # An answer 401 is an error to the console, and the first two were that.
    tab.errors = [each for each in tab.errors if "401" not in each]


@pytest.mark.conformance("OBS-03")
def test_who_has_the_token_signs_in_and_acts_as_was_shown_first(tab: Tab, url: str, orders: partq.Queue) -> None:
    acknowledge(orders)
    sign_in(tab, url)
    (cookie,) = tab.call("Network.getCookies", urls=[url])["cookies"]
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (False, True, "Strict")

    tab.open(url + "/queues/orders/alter")
    submit(tab, {"partitions": "6", "retention_s": "2592000", "access_type": "exclusive"}, "Preview")
    for said in ("partitions: 4 → 6", "retention: none → 2592000 s", "access type: non-exclusive → exclusive"):
        assert said in tab.run("document.body.innerText")
    assert orders.describe().layout.partitions == 4
    submit(tab, {}, "Apply")
    assert "Done." in tab.run("document.body.innerText")
    found = orders.describe()
    assert (found.layout.partitions, found.config.retention_s, found.config.access_type) == (6, 2592000, "exclusive")

    tab.open(url + PATH + "/rewind")
    submit(tab, {"to": "earliest"}, "Preview")
    assert "Would deliver 40 messages" in tab.run("document.body.innerText")
    assert orders.checkpoints("billing").lag == 0
    submit(tab, {}, "Apply")
    assert "40 messages will be delivered again" in tab.run("document.body.innerText")
    assert orders.checkpoints("billing").lag == 40
