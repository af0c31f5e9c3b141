"""`scripts/pictures [FOLDER]`: takes the pictures of docs/observe.md from the page at work, in a real Chromium."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from tests.cast.sidecars import GROUP
from tests.page.conftest import publish
from tests.page.scene import QUEUE, Scene, scene
from tools.browser import Tab, browser

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images"
PATH: Final = f"/queues/{QUEUE}/groups/{GROUP}"
LINE_S: Final = 20.0  # so that the lines of lag have something to show


def main() -> int:
    """Take all pictures; returns the exit code."""
    folder = Path(sys.argv[1]) if sys.argv[1:] else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="partq-pictures-") as place,
        browser(Path(place) / "chromium") as chromium,
        scene(Path(place) / "scene", handoff_s=5) as played,
    ):
        tab = chromium.tab()
        take(tab, played, f"http://127.0.0.1:{played.coordinator.port}", folder)
        problems = tab.errors
    for problem in problems:
        print(f"pictures: the console said: {problem}")  # noqa: T201 - a script's word
    return 1 if problems else 0


def keep_publishing(played: Scene) -> None:
    """Some hundred messages a second, until the end."""
    while not played.ended.wait(0.05):
        publish(played.queue, *[b"more"] * 20)


def take(tab: Tab, played: Scene, url: str, folder: Path) -> None:
    """The pictures, as a story: two flows share the queue, a third one joins, and a partition is on its way to it."""
    publish(played.queue, *(f'{{"order": {number}, "amount": {number % 90}}}'.encode() for number in range(2000)))
    threading.Thread(target=keep_publishing, args=[played], daemon=True).start()
    played.join("amber")
    played.join("blue", hold_s=6)
    tab.look(1200, 850)
    tab.open(url + "/")
    time.sleep(LINE_S / 2)  # a rate is that of the last seconds
    tab.picture(folder / "page-queues.png")
    tab.open(f"{url}/queues/{QUEUE}")
    time.sleep(2)
    tab.picture(folder / "page-queue.png")
    tab.open(f"{url}/queues/{QUEUE}/messages")
    tab.picture(folder / "page-messages.png")
    tab.open(url + PATH)
    played.settled("amber", "blue")
    time.sleep(LINE_S)
    played.join("coral")
    waiting = played.handoff("blue")
    tab.until(f"document.getElementById('w{waiting.partition}') !== null", "handoff")
    time.sleep(0.7)  # those that had nothing in hand have come
    tab.picture(folder / "page-handoff.png")
    tab.look(1200, 850, dark=True)
    tab.picture(folder / "page-handoff-dark.png")
    tab.look(400, 850)
    tab.picture(folder / "page-narrow.png")


if __name__ == "__main__":
    raise SystemExit(main())
