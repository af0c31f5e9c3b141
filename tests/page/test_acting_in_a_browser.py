"""Signing in and acting in a real Chromium, whose own headers (Origin, Sec-Fetch-Site, cookies) no test makes up: by
localhost, and under another name. What it sends behind a proxy that speaks TLS is in `test_pages`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import partq
from tests.page.conftest import TOKEN, Served, acknowledge
from tests.support.browser import Tab

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.timeout(180)]

NAME = "partq.example"  # the browser is told that it is this machine
REWIND = "/queues/orders/groups/billing/rewind"


@pytest.fixture(params=["localhost", NAME])
def url(request: pytest.FixtureRequest, locked: Served, tab: Tab) -> Iterator[str]:
    """By which name the browser asks. Over plain HTTP under another one than localhost it sends no Sec-Fetch-Site."""
    yield f"http://{request.param}:{locked.port}"
    # Over plain HTTP a browser says that it leaves this header aside.
    tab.errors = [each for each in tab.errors if "Cross-Origin-Opener-Policy" not in each]


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
def test_who_has_the_token_signs_in_and_every_action_is_shown_first_and_done(
    tab: Tab, url: str, orders: partq.Queue
) -> None:
    acknowledge(orders)
    sign_in(tab, url)
    (cookie,) = tab.call("Network.getCookies", urls=[url])["cookies"]
    assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (False, True, "Strict")

    tab.open(url + "/queues/orders/alter")
    submit(tab, {"partitions": "6", "retention_s": "3600"}, "Preview")
    assert "partitions: 4 → 6" in tab.run("document.body.innerText")
    assert orders.describe().layout.partitions == 4
    submit(tab, {}, "Apply")
    assert "Done." in tab.run("document.body.innerText")
    found = orders.describe()
    assert (found.layout.partitions, found.config.retention_s) == (6, 3600.0)

    tab.open(url + REWIND)
    submit(tab, {"to": "earliest"}, "Preview")
    assert "Would deliver 40 messages" in tab.run("document.body.innerText")
    assert orders.checkpoints("billing").lag == 0
    submit(tab, {}, "Apply")
    assert "40 messages will be delivered again" in tab.run("document.body.innerText")
    assert orders.checkpoints("billing").lag == 40
