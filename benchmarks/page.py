"""Part `page`: what drawing the live picture takes a browser, and what three of them cost the server.

The page is served by a process of its own. It really looks at a queue of 200 partitions with their checkpoints; the
flows, and what changes from look to look, are made up (`tests.page.crowd`), because 50 flows would want a machine of
their own. The browser is Chromium without a window; times are its main thread's processor time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

import psutil

from benchmarks.environment import ROOT
from benchmarks.report import Goal, Measure, Series
from benchmarks.settings import Settings
from partq_spark import client
from partq_spark.page.access import access
from partq_spark.page.app import Page
from partq_spark.page.sections import Place
from partq_spark.page.server import Server, listening
from tests.page import crowd
from tests.support.browser import COUNT_DRAWS, Tab, browser
from tests.support.processes import die_with_parent

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
    with _served(store) as (url, server), browser(settings.work / "chromium") as chromium:
        tabs = [chromium.tab() for _ in range(VIEWERS)]
        tabs[0].look(1200, 900)
        tabs[0].open(url)
        tabs[0].run(COUNT_DRAWS)
        draws_ms = tuple(_draw_ms(tabs[0], round_s) for _ in range(settings.rounds))
        for tab in tabs[1:]:
            tab.open(url)
        served = tuple(_percent(server, round_s) for _ in range(settings.rounds))
        for tab in tabs:
            tab.leave()
        time.sleep(5)  # longer than a page that was left is still looked at for
        idle = tuple(_percent(server, round_s) for _ in range(settings.rounds))
    what = f"{PARTITIONS} partitions of {FLOWS} flows"
    return [
        Measure(
            what=f"drawing news of {what}",
            subject=Series(name="partq", unit="ms", samples=draws_ms),
            goal=Goal(sign="<=", limit=200, unit="ms"),
        ),
        Measure(
            what=f"serving them to {VIEWERS} browsers: processor time",
            subject=Series(name="partq", unit="% of a core", samples=served),
            goal=Goal(sign="<=", limit=5, unit="%"),
        ),
        Measure(
            what="serving nobody: processor time",
            subject=Series(name="partq", unit="% of a core", samples=idle),
            goal=Goal(sign="<=", limit=1, unit="%"),
        ),
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


def _percent(server: psutil.Process, round_s: float) -> float:
    before, begun_s = server.cpu_times(), time.monotonic()
    time.sleep(round_s)
    after = server.cpu_times()
    used_s = float(after.user + after.system - before.user - before.system)
    return 100 * used_s / (time.monotonic() - begun_s)


@contextmanager
def _served(store: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of the group's page, and the process that serves it."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.page", store],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - only a system call, from a benchmark's main thread
    ) as process:
        port = int(process.stdout.readline() if process.stdout is not None else 0)
        yield f"http://127.0.0.1:{port}/queues/{QUEUE}/groups/{GROUP}", psutil.Process(process.pid)
        process.kill()


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
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.run()


if __name__ == "__main__":
    _serve(sys.argv[1])
