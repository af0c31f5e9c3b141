"""What is asked for while nothing happens: queries that find nothing, flows that live, coordinators that watch. Counted
over an interval, side by side, each on a store of its own; coordinators are processes with a meter of their own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partq_spark.group.ownership.versions import BEATS
from tools.cost import deeds
from tools.cost.meter import Meter
from tools.cost.requests import Counts
from tools.servers import Azurite, RedisServer, S3Server

MONTH_S: Final = 730 * 3600.0
WARM_S: Final = 12.0
"""A flow has its partitions by then, and a coordinator has done what there is to do once."""

STORE: Final = "ownership=store"
NO_GROUP: Final = "a query without a group"
SELDOM: Final = "the same, triggered every 10 s"
ALONE: Final = "a query that has its group to itself"
REDIS: Final = "a flow of a group shared by Redis"
OBJECTS: Final = f"a flow of a group shared with `{STORE}`"
HEARTBEATS: Final = "of that, its heartbeats"
LEADER_REDIS: Final = "a coordinator with Redis, one queue, one group"
LEADER_OBJECTS: Final = f"a coordinator with `{STORE}`, one queue, no group"
LEADER_GROUP: Final = f"the same, for each group with `{STORE}`"
_JOIN_S: Final = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Idle:
    """A query that asks again and again, `trigger_s` after the last answer."""

    url: str
    options: dict[str, str]
    trigger_s: float = 0.01  # Spark's own pause where nothing came


def idle(
    server: Azurite | S3Server, redis: RedisServer, here: Meter, there: Meter, work: Path, for_s: float
) -> dict[str, Counts]:
    """Each by its name, in requests of one second. `here` counts this process, `there` the coordinators."""
    names = (NO_GROUP, SELDOM, ALONE, REDIS, OBJECTS, LEADER_OBJECTS)
    urls = {name: deeds.made(server) for name in names}
    group = {"group": deeds.GROUP}
    queries = (
        _Idle(url=urls[NO_GROUP], options={}),
        _Idle(url=urls[SELDOM], options={}, trigger_s=10.0),
        _Idle(url=urls[ALONE], options={**group, "ownership": "none"}),
        _Idle(url=urls[REDIS], options={**group, "ownership": redis.url}),
        _Idle(url=urls[OBJECTS], options={**group, "ownership": "store"}),
    )
    with ExitStack() as stack:
        for url, ownership in ((urls[REDIS], redis.url), (urls[OBJECTS], "store"), (urls[LEADER_OBJECTS], "store")):
            stack.enter_context(deeds.coordinated(work, url, ownership, there))
        for each in queries:
            stack.enter_context(_asking(each))
        time.sleep(WARM_S)
        here.begin()
        there.begin()
        begun_s = time.monotonic()
        time.sleep(for_s)
        took_s = time.monotonic() - begun_s
        found = {name: here.counts(urls[name]) for name in names if name != LEADER_OBJECTS}
        beats = here.counts(urls[OBJECTS], f"/ownership/{BEATS}/")
        found[HEARTBEATS] = beats + Counts(reads=beats.writes)  # each looks at the state, by the same call
        found[LEADER_REDIS] = there.counts(urls[REDIS])
        found[LEADER_OBJECTS] = there.counts(urls[LEADER_OBJECTS])
        # What is asked for the group lies in its folder, but for the listings, whose folder is in the query.
        in_group = there.counts(urls[OBJECTS], f"/{deeds.GROUP}/")
        found[LEADER_GROUP] = in_group + there.counts(urls[OBJECTS], f"%2F{deeds.GROUP}%2F")
    return {name: counts.times(1 / took_s) for name, counts in found.items()}


@contextmanager
def _asking(each: _Idle) -> Iterator[None]:
    """The query asks by a thread of its own, as long as this lasts."""
    over, joined = threading.Event(), threading.Event()
    failed: list[BaseException] = []

    def ask() -> None:
        try:
            with deeds.query(each.url, startingOffsets="latest", **each.options) as query:
                joined.set()
                while not over.wait(each.trigger_s):
                    query.trigger()
        except BaseException as error:
            failed.append(error)
            joined.set()
            raise

    thread = threading.Thread(target=ask, name="idle query")
    thread.start()
    try:
        if not joined.wait(_JOIN_S) or failed:
            raise RuntimeError(f"a query did not begin within {_JOIN_S:.0f} s: {failed}")
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise RuntimeError("an idle query failed: what is counted is void") from failed[0]
