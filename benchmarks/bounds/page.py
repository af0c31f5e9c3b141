"""`page`: what drawing the live picture takes a browser, and what three of them cost the server.

The page is served by a process of its own. It really looks at a queue of 200 partitions with their checkpoints; the
flows, and what changes from look to look, are made up (`tools.crowd`), because 50 flows would want a machine of
their own. The browser is Chromium without a window; times are its main thread's processor time.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Final

import psutil

from benchmarks.parts import Settings
from benchmarks.processes import watched
from partq_spark import client
from partq_spark.page.access import access
from partq_spark.page.app import Page
from partq_spark.page.sections import Place
from partq_spark.page.server import Server, listening
from tools import ROOT, crowd
from tools.browser import COUNT_DRAWS, Tab, browser
from tools.processes import Program
from tools.report import Measure, figure

QUEUE: Final = "orders"
GROUP: Final = "billing"
PARTITIONS: Final = 200
FLOWS: Final = 50
VIEWERS: Final = 3
ROUND_S: Final = 10.0


def measure(settings: Settings) -> tuple[list[Measure], list[str]]:
    """Rounds with one browser tab for drawing, then with three for the server."""
    store = f"file://{settings.work}/store"
    _fill(store)
    round_s = ROUND_S / 5 if settings.quick else ROUND_S
    with _served(settings.work, store) as (url, server), browser(settings.work / "chromium") as chromium:
        tabs = [chromium.tab() for _ in range(VIEWERS)]
        tabs[0].look(1200, 900)
        tabs[0].open(url)
        tabs[0].run(COUNT_DRAWS)
        draws_ms = tuple(_draw_ms(tabs[0], round_s) for _ in range(settings.rounds))
        for tab in tabs[1:]:
            tab.open(url)
        served = tuple(watched(server, round_s)[0] for _ in range(settings.rounds))
        for tab in tabs:
            tab.leave()
        time.sleep(5)  # longer than a page that was left is still looked at for
        idle = tuple(watched(server, round_s)[0] for _ in range(settings.rounds))
    return [
        figure(f"drawing news of {PARTITIONS} partitions of {FLOWS} flows", draws_ms, "ms", most=200),
        figure(f"serving them to {VIEWERS} browsers: processor time", served, "% of a core", most=5),
        figure("serving nobody: processor time", idle, "% of a core", most=1),
    ], []


def _fill(store: str) -> None:
    """A queue with messages in all partitions, and a group with a checkpoint of each."""
    queue = client.create_queue(QUEUE, partitions=PARTITIONS, store=store)
    for _ in range(2):
        with queue.publisher() as publisher:
            for number in range(20 * PARTITIONS):
                publisher.send(b"x" * 100, key=f"key-{number}")
        if not queue.groups():
            with queue.consumer(GROUP, starting="earliest", idle_timeout_s=1.0) as consumer:
                for batch in consumer:
                    batch.acknowledge()


def _draw_ms(tab: Tab, round_s: float) -> float:
    """Processor time of the browser's main thread for each time that news was drawn."""
    draws, begun_s = tab.run("window.draws"), tab.busy_s()
    time.sleep(round_s)
    took_s, draws = tab.busy_s() - begun_s, tab.run("window.draws") - draws
    if draws < 1:
        raise RuntimeError(f"the page drew no news within {round_s} s")
    return float(1000 * took_s / draws)


@contextmanager
def _served(work: Path, store: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of the group's page, and the process that serves it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Program([sys.executable, "-m", __name__, store], name="page", folder=work, environment=environment) as process:
        port = process.wait_until(lambda: re.findall(r"^port (\d+)$", process.text(), re.MULTILINE), "its port")
        yield f"http://127.0.0.1:{port[0]}/queues/{QUEUE}/groups/{GROUP}", psutil.Process(process.pid)


def _serve(store: str) -> None:
    """The page; each look is a real one, and shows what is made up."""
    real = client.Queue.watching

    @contextmanager
    def watching(queue: client.Queue, group: str, *, ownership: str | None = None) -> Iterator[Callable[[], object]]:
        turns = count(1)
        with real(queue, group, ownership=ownership) as look:
            yield lambda: (look(), crowd.crowd(next(turns), partitions=PARTITIONS, flows=FLOWS))[1]

    client.Queue.watching = watching  # type: ignore[assignment,method-assign]
    page = Page(Place(store=store, namespace="default", ownership="none"), access("127.0.0.1", {}))
    server = Server(page.app, listening("127.0.0.1", 0), ending=page.end)
    sys.stdout.write(f"port {server.port}\n")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    _serve(sys.argv[1])
