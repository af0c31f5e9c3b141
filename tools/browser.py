"""A real Chromium for tests and pictures, driven over the pipe of its debugging protocol: no driver, no port, nothing
but the browser itself and the standard library.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tools.processes import die_with_parent

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
WAIT_S: Final = 30.0
COUNT_DRAWS: Final = """window.draws = 0;
    new PerformanceObserver(list => { window.draws += list.getEntries().length }).observe({entryTypes: ['measure']})"""
"""Has the page count in `window.draws` how often it drew news from then on."""


def path() -> str | None:
    """Where the browser is; None if there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Refused(AssertionError):
    """The browser answered a command with an error."""


class Tab:
    """One page in the browser. `errors` are what its console and its network reported."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **arguments: object) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        return self._browser.call(method, arguments, self._session)

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """As a screen of this size, light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, headers: Mapping[str, str] | None = None) -> None:
        """Load a page, until its scripts ran."""
        if headers is not None:
            self.call("Network.setExtraHTTPHeaders", headers=dict(headers))
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'", url)

    def leave(self) -> None:
        """Show nothing: before what is shown is ended from outside."""
        self.call("Page.navigate", url="about:blank")
        self.until("location.href === 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def until(self, script: str, what: str = "", within_s: float = WAIT_S) -> Any:
        """The value of an expression once it is true, which another document may answer than was asked first."""
        end_s = time.monotonic() + within_s
        while True:
            found: Any = None
            with suppress(Refused):  # asked while the page went from one document to the next
                found = self.run(script)
            if found:
                return found
            assert time.monotonic() < end_s, f"not seen within {within_s} s: {what or script}"
            time.sleep(0.02)

    def press(self, key: str, *, code: int = 0, text: str = "") -> None:
        """One key, down and up."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **keys)
        self.call("Input.dispatchKeyEvent", type="keyUp", **keys)

    def busy_s(self) -> float:
        """Processor time of the page's main thread so far: what runs beside it on the machine does not count."""
        self.call("Performance.enable", timeDomain="threadTicks")
        metrics = self.call("Performance.getMetrics")["metrics"]
        return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))

    def picture(self, file: Path) -> None:
        """A screenshot of what the screen shows, as PNG."""
        made = self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(made["data"]))

    def heed(self, event: Mapping[str, Any]) -> None:
        """What the browser told of the page."""
        given = event["params"]
        match event["method"]:
            case "Runtime.exceptionThrown":
                self.errors.append(str(given["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if given["type"] in ("error", "warning", "assert"):
                self.errors.append(str(given["args"]))
            case "Log.entryAdded" if given["entry"]["level"] in ("error", "warning"):
                self.errors.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")


class Browser:
    """A browser without a window."""

    def __init__(self, folder: Path) -> None:
        program = path()
        assert program is not None, "no Chromium on PATH: install it (apt-get install chromium)"
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={folder}", "--no-first-run"]
        flags += ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
        flags += ["--disable-component-update", "--no-proxy-server", "--disable-sync", "--mute-audio"]
        flags += ["--host-resolver-rules=MAP *.example 127.0.0.1", "about:blank"]

        def prepare() -> None:
            die_with_parent()
            os.dup2(to_browser, 103)
            os.dup2(from_browser, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self._process = subprocess.Popen(
            [program, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=prepare,  # noqa: PLW1509 - only system calls, from a test's main thread
            close_fds=False,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def tab(self) -> Tab:
        """A new page, in a window of its own: of several in one, all but one would be hidden."""
        target = self.call("Target.createTarget", {"url": "about:blank", "newWindow": True})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        tab = Tab(self, session)
        self._tabs[session] = tab
        return tab

    def call(self, method: str, arguments: Mapping[str, object], session: str | None = None) -> dict[str, Any]:
        """One command of the protocol; what the browser tells meanwhile goes to its page."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": dict(arguments)}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        end_s = time.monotonic() + WAIT_S
        while True:
            answer = self._read(end_s)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise Refused(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            if "method" in answer and (tab := self._tabs.get(answer.get("sessionId", ""))) is not None:
                tab.heed(answer)

    def close(self) -> None:
        """End it, and what it started."""
        self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._in)
        os.close(self._out)

    def _read(self, end_s: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(end_s - time.monotonic(), 0.0))
            assert ready, f"the browser did not answer within {WAIT_S} s"
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in this folder."""
    made = Browser(folder)
    try:
        yield made
    finally:
        made.close()
